package proxy

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"llmproxy/ledger"
	"llmproxy/proxy/proxytest"
)

const (
	picture  = `{"model":"gpt-image-1","prompt":"one two three"}`
	pictures = `{"data":[{"b64_json":"AAAA"}],"usage":{"input_tokens":3,"output_tokens":0,"total_tokens":3}}`
)

func (h *harness) postTo(path, body string, headers ...string) response {
	h.Helper()
	return h.do(h.request(h.Context(), path, body, headers...))
}

// What is not cached goes to the upstream and back as it is, each time, and is
// counted, charged and written down.
func TestWhatIsPassedThrough(t *testing.T) {
	h := newHarness(t, counting)
	h.upstream.Reply(proxytest.JSON(200, pictures).Header("X-Custom", "1").Header("X-Request-Id", "r1").Header("Set-Cookie", "c=1").Header("Keep-Alive", "timeout=5"))
	for n := 1; n <= 2; n++ {
		r := h.postTo("/steps/draw/v1/images/generations?x=1", picture)
		if r.status != 200 || r.body != pictures || r.cache() != "bypass" || r.header.Get("X-LLMProxy-Input-Tokens") != "" || r.header.Get("X-LLMProxy-Budget") != "ok" {
			t.Errorf("%d %v %s", r.status, r.header, r.body)
		}
		if r.header.Get("X-Custom") != "1" || r.header.Get("X-Request-Id") != "r1" || r.header.Get("Set-Cookie") != "" || r.header.Get("X-LLMProxy-Key") != "" {
			t.Errorf("the header is %v", r.header)
		}
		if row := h.lastRow(); row.outcome != ledger.Bypass || row.step != "draw" || row.input != 0 || row.used != [2]int64{3, 0} || row.status != 200 {
			t.Errorf("the row says %+v", row)
		}
		if got := h.charged(); got != [3]int64{int64(3 * n), 0, int64(n)} {
			t.Errorf("charged %v", got)
		}
		sent := h.upstream.WaitFor(n)[n-1]
		if sent.Path != "/v1/images/generations" || sent.Query.Get("x") != "1" || string(sent.Body) != picture {
			t.Errorf("the upstream got %s %v %s", sent.Path, sent.Query, sent.Body)
		}
	}
	h.nothingHeld()
}

func TestRequestsThatOnlyReadCostNothing(t *testing.T) {
	h := newHarness(t, counting)
	h.upstream.Reply(proxytest.JSON(200, `{"object":"list"}`))
	for _, path := range []string{"/v1/models", "/v1/models/", "/models", "/v1/models/org%2Fmodel", "/steps/a/v1/files?limit=3", "/v1/chat/completions/chatcmpl-1"} {
		r := h.get(path)
		if r.status != 200 || r.body != `{"object":"list"}` || r.cache() != "bypass" {
			t.Errorf("%s: %d %s %s", path, r.status, r.cache(), r.body)
		}
		requests := h.upstream.Requests()
		if sent := requests[len(requests)-1]; sent.Method != "GET" || len(sent.Body) != 0 || len(sent.Header["Content-Length"]) > 0 {
			t.Errorf("%s: the upstream got %s with %d bytes", path, sent.Method, len(sent.Body))
		}
	}
	var paths []string
	for _, r := range h.upstream.Requests() {
		paths = append(paths, r.Path)
	}
	if want := []string{"/v1/models", "/v1/models", "/v1/models", "/v1/models/org/model", "/v1/files", "/v1/chat/completions/chatcmpl-1"}; !slices.Equal(paths, want) {
		t.Errorf("the upstream got %q", paths)
	}
	if got := h.charged(); got != [3]int64{} || h.outcomes()[ledger.Bypass] != len(paths) {
		t.Errorf("charged %v, ledger %v", got, h.outcomes())
	}
	h.nothingHeld()
}

// Uploads stream through as they come, compressed or not, and never through
// memory: they may be larger than any body that is read here.
func TestUploadsStreamThrough(t *testing.T) {
	h := newHarness(t, func(p *Policy) { p.RequestBody = 1000 })
	h.upstream.Reply(proxytest.JSON(200, `{"text":"hello"}`), proxytest.JSON(200, `{"text":"packed"}`).Gzip())
	upload := strings.Repeat("audio\x00\xff", 10_000)
	if r := h.postTo("/v1/audio/transcriptions", upload, "Content-Type", "multipart/form-data; boundary=x"); r.status != 200 || !strings.Contains(r.body, "hello") {
		t.Errorf("%d %s", r.status, r.body)
	}
	req := h.request(t.Context(), "/v1/audio/transcriptions", "", "Content-Type", "audio/wav", "Content-Encoding", "gzip")
	req.Body, req.ContentLength = io.NopCloser(strings.NewReader(upload)), -1
	if r := h.do(req); r.status != 200 || !strings.Contains(r.body, "packed") || r.header.Get("Content-Encoding") != "" {
		t.Errorf("%d %v %q", r.status, r.header, r.body)
	}
	for i, r := range h.upstream.WaitFor(2) {
		if string(r.Body) != upload {
			t.Errorf("upload %d: the upstream got %d bytes of %d", i, len(r.Body), len(upload))
		}
		if got := r.Header.Get("Content-Encoding"); got != []string{"", "gzip"}[i] {
			t.Errorf("upload %d: Content-Encoding %q", i, got)
		}
	}
	h.nothingHeld()
}

func TestFaultsOfWhatIsPassedThrough(t *testing.T) {
	long := proxytest.JSON(200, strings.Repeat("x", 1000)).SplitEvery(100)
	for name, tt := range map[string]struct {
		reply  proxytest.Reply
		status int // 0: the client sees the answer break off
		code   string
		used   [2]int64
		calls  int64
		row    int
	}{
		"429":           {proxytest.RateLimited("3600"), 429, "", [2]int64{0, 0}, 1, 429},
		"500":           {proxytest.Error(500, "broken"), 500, "", [2]int64{0, 0}, 1, 500},
		"reset":         {proxytest.Reset(), 502, "upstream_unreachable", [2]int64{0, 0}, 1, 502},
		"cut":           {long.DropAfter(3), 0, "upstream_invalid", [2]int64{0, 0}, 1, 502},
		"no answer":     {proxytest.Never(), 504, "upstream_timeout", [2]int64{0, 0}, 1, 504},
		"no usage":      {proxytest.JSON(200, `{"data":[]}`), 200, "", [2]int64{0, 0}, 1, 200},
		"usage of 0":    {proxytest.JSON(200, `{"usage":{"prompt_tokens":0,"total_tokens":0}}`), 200, "", [2]int64{0, 0}, 1, 200},
		"usage below 0": {proxytest.JSON(200, `{"usage":{"prompt_tokens":-9000}}`), 200, "", [2]int64{0, 0}, 1, 200},
		"absurd usage":  {proxytest.JSON(200, `{"usage":{"prompt_tokens":1e300}}`), 200, "", [2]int64{0, 0}, 1, 200},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, func(p *Policy) {
				counting(p)
				p.Upstreams[0].Total = 300 * time.Millisecond
			})
			h.upstream.Reply(tt.reply)
			resp, err := http.DefaultClient.Do(h.request(t.Context(), "/v1/images/generations", picture))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if tt.status == 0 {
				if !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Errorf("the client takes %d bytes for the whole, %v", len(body), err)
				}
			} else if resp.StatusCode != tt.status || err != nil {
				t.Errorf("%d %s, %v", resp.StatusCode, body, err)
			} else if tt.code != "" {
				h.wantError(response{resp.StatusCode, resp.Header, string(body)}, tt.status, tt.code)
			}
			if after := resp.Header.Get("Retry-After"); name == "429" && after != "60" {
				t.Errorf("Retry-After: %q", after)
			}
			row := h.lastRow()
			if row.used != tt.used || row.status != tt.row || (row.outcome == ledger.Failed) != (tt.row != 200) || tt.code != "" && row.finish != tt.code {
				t.Errorf("the row says %+v", row)
			}
			if got := h.charged(); got != [3]int64{tt.used[0], tt.used[1], tt.calls} {
				t.Errorf("charged %v", got)
			}
			if n := h.upstream.Count(); n != 1 {
				t.Errorf("%d upstream calls", n)
			}
			h.nothingHeld()
		})
	}
}

func TestARefusedConnectionPassedThroughCostsNothing(t *testing.T) {
	h := newHarness(t, func(p *Policy) {
		counting(p)
		p.Upstreams[0].BaseURL, _ = url.Parse(proxytest.RefusedURL(t))
	})
	h.wantError(h.postTo("/v1/images/generations", picture), 502, "upstream_unreachable", "refused")
	h.wantError(h.get("/v1/models"), 502, "upstream_unreachable")
	if got := h.charged(); got != [3]int64{} || h.outcomes()[ledger.Failed] != 2 {
		t.Errorf("charged %v, ledger %v", got, h.outcomes())
	}
	h.nothingHeld()
}

// What is passed through belongs to its client, and comes as it is sent.
func TestAPassedThroughStream(t *testing.T) {
	h := newHarness(t, counting)
	gate := proxytest.NewGate()
	event := proxytest.Event("response.created", "{}")
	h.upstream.Reply(proxytest.Stream(event, event).HoldAfter(1, gate))
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	resp, err := http.DefaultClient.Do(h.request(ctx, "/v1/audio/speech", `{"model":"tts-1","input":"hi","stream_format":"sse"}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	got := make([]byte, len(event))
	if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != event { // although the upstream waits
		t.Errorf("%q, %v", got, err)
	}
	leave()
	proxytest.Wait(t, h.upstream.Requests()[0].Gone, "the end of the upstream request")
	row := h.lastRow()
	if row.outcome != ledger.Bypass || row.flags&ledger.ClientLeft == 0 || row.finish != "client_left" {
		t.Errorf("the row says %+v", row)
	}
	if got := h.charged(); got != [3]int64{0, 0, 1} {
		t.Errorf("charged %v", got)
	}
	h.nothingHeld()
}

// Where the upstream has no list of models, there is one of what is known here.
func TestModelsOfAnUpstreamThatListsNone(t *testing.T) {
	h := newHarness(t, func(p *Policy) { p.Upstreams[0].Models = []string{"local-7b", "*"} })
	h.upstream.Reply(proxytest.JSON(404, `{"detail":"Not Found"}`), proxytest.JSON(404, `{"detail":"Not Found"}`))
	r := h.get("/v1/models")
	if r.status != 200 || r.body != `{"data":[{"id":"local-7b","object":"model","created":0,"owned_by":"llmproxy"}],"object":"list"}` || r.cache() != "bypass" {
		t.Errorf("%d %s %s", r.status, r.cache(), r.body)
	}
	if row := h.lastRow(); row.outcome != ledger.Bypass || row.status != 200 {
		t.Errorf("the row says %+v", row)
	}
	if r := h.get("/v1/models/local-7b"); r.status != 404 || r.body != `{"detail":"Not Found"}` {
		t.Errorf("one model: %d %s", r.status, r.body)
	}
	h.nothingHeld()
}

// A download comes byte for byte, with its length and type.
func TestDownloadsAreByteExact(t *testing.T) {
	sound := make([]byte, 100_000)
	for i := range sound {
		sound[i] = byte(i * 7 >> 3)
	}
	h := newHarness(t, counting)
	h.upstream.Always(proxytest.JSON(200, string(sound)).Header("Content-Type", "audio/mpeg").Header("Content-Disposition", "attachment"))
	for path, get := range map[string]func(string) response{
		"/v1/files/file-1/content": func(path string) response { return h.get(path) },
		"/v1/audio/speech":         func(path string) response { return h.postTo(path, `{"model":"tts-1","input":"hi","voice":"x"}`) },
	} {
		r := get(path)
		if r.status != 200 || r.body != string(sound) || r.header.Get("Content-Type") != "audio/mpeg" || r.header.Get("Content-Disposition") != "attachment" || r.cache() != "bypass" {
			t.Errorf("%s: %d, %d bytes of %d, %v", path, r.status, len(r.body), len(sound), r.header)
		}
	}
	h.nothingHeld()
}
