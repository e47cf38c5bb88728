package proxy

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"llmproxy/ledger"
)

// echo is an upstream that takes a connection over and sends back what comes.
func echo(t *testing.T, seen chan<- *http.Request) *httptest.Server {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen <- r
		if r.Header.Get("Upgrade") != "websocket" {
			http.Error(w, `{"error":{"message":"upgrade required"}}`, http.StatusUpgradeRequired)
			return
		}
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: x\r\nSet-Cookie: a=b\r\n\r\n")
		io.Copy(conn, rw)
	}))
	t.Cleanup(upstream.Close)
	return upstream
}

// dial sends an upgrade request and returns the connection and the answer.
func dial(t *testing.T, base, path string) (net.Conn, *bufio.Reader, *http.Response) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(base, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(10 * time.Second))
	io.WriteString(conn, "GET "+path+" HTTP/1.1\r\nHost: proxy\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: k\r\n"+
		"Authorization: Bearer mine\r\nX-LLMProxy-Run: 7\r\n\r\n")
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, &http.Request{Method: "GET"})
	if err != nil {
		t.Fatal(err)
	}
	return conn, r, resp
}

func TestASocketIsPassedThrough(t *testing.T) {
	seen := make(chan *http.Request, 1)
	upstream := echo(t, seen)
	h := newHarness(t, func(p *Policy) {
		counting(p)
		p.Upstreams[0].BaseURL, _ = url.Parse(upstream.URL)
	})
	conn, r, resp := dial(t, h.url, "/steps/talk/v1/realtime?model=gpt-realtime")
	if resp.StatusCode != 101 || resp.Header.Get("Sec-Websocket-Accept") != "x" || resp.Header.Get("Set-Cookie") != "" || resp.Header.Get("X-LLMProxy-Step") != "talk" {
		t.Fatalf("%d %v", resp.StatusCode, resp.Header)
	}
	got := <-seen
	if got.URL.String() != "/v1/realtime?model=gpt-realtime" || got.Header.Get("Sec-Websocket-Key") != "k" || got.Header.Get("Authorization") != "Bearer mine" || got.Header.Get("X-LLMProxy-Run") != "" {
		t.Errorf("the upstream got %s %v", got.URL, got.Header)
	}
	for _, word := range []string{"hello\n", "again\n"} {
		io.WriteString(conn, word)
		if line, err := r.ReadString('\n'); line != word {
			t.Errorf("%q, %v", line, err)
		}
	}
	conn.Close()
	row := h.lastRow()
	if row.outcome != ledger.Bypass || row.status != 101 || row.step != "talk" || row.run != "7" {
		t.Errorf("the row says %+v", row)
	}
	if got := h.charged(); got != [3]int64{0, 0, 1} {
		t.Errorf("charged %v", got)
	}
	h.nothingHeld()
}

// What is not read cannot be counted, so a limit of tokens that refuses stands
// against it; one of calls does not.
func TestASocketUnderABudget(t *testing.T) {
	seen := make(chan *http.Request, 9)
	upstream := echo(t, seen)
	for unit, want := range map[string]int{"calls": 101, "input_tokens": 402} {
		h := newHarness(t, func(p *Policy) {
			p.Budget = limited(budgetOf(unit, 1000))
			p.Upstreams[0].BaseURL, _ = url.Parse(upstream.URL)
		})
		_, r, resp := dial(t, h.url, "/v1/responses")
		if resp.StatusCode != want {
			t.Errorf("%s: %d", unit, resp.StatusCode)
		}
		if want == 402 {
			body := make([]byte, resp.ContentLength)
			io.ReadFull(r, body)
			h.wantError(response{resp.StatusCode, resp.Header, string(body)}, 402, "uncounted_input", "cannot be counted")
		}
	}
	if n := len(seen); n != 1 {
		t.Errorf("%d upstream calls", n)
	}
}

// A stopping server closes what is open, and writes its row.
func TestASocketEndsWithTheServer(t *testing.T) {
	seen := make(chan *http.Request, 1)
	upstream := echo(t, seen)
	h := newHarness(t, func(p *Policy) { p.Upstreams[0].BaseURL, _ = url.Parse(upstream.URL) })
	_, r, _ := dial(t, h.url, "/v1/realtime")
	drain, done := context.WithTimeout(t.Context(), 10*time.Second)
	defer done()
	h.server.Drain(drain)
	if drain.Err() != nil {
		t.Error("the socket outlives the server")
	}
	if rest, err := io.ReadAll(r); len(rest) > 0 {
		t.Errorf("%q, %v", rest, err)
	}
	if row := h.lastRow(); row.status != 101 {
		t.Errorf("the row says %+v", row)
	}
}
