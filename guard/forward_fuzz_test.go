package guard

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/textproto"
	"net/url"
	"strings"
	"sync"
	"testing"
)

// FuzzForwardedRequest sends requests whose path, control headers and body are
// anything. Whatever they are: at most one request goes out, to a configured
// place, and nothing of what is the guard's goes with it.
func FuzzForwardedRequest(f *testing.F) {
	f.Add("POST", "row/x", "Guard-Input: {\"a\":1}", `{"id":1}`)
	f.Add("PUT", "row/%2e%2e/x", "Guard-Key-From: /id\r\nGuard-Occurrence: 1", `{"id":1}`)
	f.Add("POST", "other", "Guard-Target: http://api.example.com/v1/x?y", "")
	f.Add("POST", "row", "Guard-Target: http://api.example.com@evil.example/v1", "")
	f.Add("POST", "row", "Guard-Target: http://[::1]/v1", "")
	f.Add("DELETE", "row//a", "Idempotency-Key: \"a\\\"b\"\r\nGuard-Downstream-Header: X-Once\r\nGuard-Wait: 0", "x=1")
	f.Add("GET", "row/..;/x", "Guard-Lease: 1e3\r\nConnection: Guard-Authorization, X", "")
	f.Add("POST", "row?guard_key=acme&x", "Guard-On-Unknown: probe\r\nGuard-Drift: reject\r\nGuard-Retention: 9h\r\nGuard-Namespace: a", "{}")
	f.Add("PATCH", "row", "Guard-Downstream-Header: Guard-Fence\r\nTransfer-Encoding: chunked", "{}")

	g := newGuard(f)
	up := &wiretap{}
	target, err := url.Parse("http://api.example.com/v1")
	if err != nil {
		f.Fatal(err)
	}
	fw := &Forwarder{Guard: g, Identify: everyone, KeyInQuery: true, connect: up.connect,
		Routes: []Route{{Step: "row", Target: target, Idempotency: &DownstreamIdempotency{Header: "Idempotency-Key"}}}}
	fw.resolve = func(_ context.Context, host string) ([]netip.Addr, error) {
		if host != "api.example.com" {
			f.Errorf("looked up %q", host)
		}
		return []netip.Addr{netip.MustParseAddr("93.184.215.14")}, nil
	}
	f.Fuzz(func(t *testing.T, method, path, header, body string) {
		parsed, err := textproto.NewReader(bufio.NewReader(strings.NewReader(header + "\r\n\r\n"))).ReadMIMEHeader()
		u, bad := url.ParseRequestURI(forwardBase + path)
		if err != nil || bad != nil || !isToken(method) || method == http.MethodConnect {
			t.Skip("no server would hand it over")
		}
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
		r.Method, r.URL, r.Header = method, u, http.Header(parsed)
		r.Header.Set("Guard-Authorization", "Bearer acme-secret")
		w := httptest.NewRecorder()
		fw.ServeHTTP(w, r)
		sent := up.take()
		if w.Code == http.StatusInternalServerError {
			t.Fatalf("500: %s", w.Body)
		}
		if len(sent) > 1 {
			t.Fatalf("%d requests went out", len(sent))
		}
		if len(sent) == 0 && w.Code < 300 && w.Header().Get("Idempotent-Replayed") == "" {
			t.Fatalf("got %d, and nothing was sent", w.Code)
		}
		for _, s := range sent {
			if s.Host != "api.example.com" || s.RequestURI != "/v1" && !strings.HasPrefix(s.RequestURI, "/v1/") && !strings.HasPrefix(s.RequestURI, "/v1?") {
				t.Fatalf("it went to %s %s", s.Host, s.RequestURI)
			}
			if decoded, err := url.PathUnescape(s.URL.EscapedPath()); err != nil || escapes(decoded) {
				t.Fatalf("it went to %s", s.RequestURI)
			}
			for name, values := range s.Header {
				if strings.HasPrefix(name, "Guard-") && name != "Guard-Fence" || strings.Contains(strings.Join(values, ""), "acme-secret") {
					t.Fatalf("with it went %s: %q", name, values)
				}
			}
		}
	})
}

// wiretap is a downstream that answers everything and keeps what it got.
type wiretap struct {
	mu       sync.Mutex
	requests []*http.Request
}

func (d *wiretap) connect(context.Context, netip.AddrPort) (net.Conn, error) {
	near, far := net.Pipe()
	go func() {
		defer far.Close()
		req, err := http.ReadRequest(bufio.NewReader(far))
		if err != nil {
			return
		}
		if _, err := io.Copy(io.Discard, req.Body); err != nil {
			return
		}
		d.mu.Lock()
		d.requests = append(d.requests, req)
		d.mu.Unlock()
		io.WriteString(far, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
	}()
	return near, nil
}

func (d *wiretap) take() []*http.Request {
	d.mu.Lock()
	defer d.mu.Unlock()
	taken := d.requests
	d.requests = nil
	return taken
}
