package proxy

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"llmproxy/proxy/proxytest"
)

// A request that cannot be understood is refused in words its sender can act
// on, and never reaches the upstream: that has no script here, so a request to
// it fails the test.
func TestABodyThatCannotBeReadIsRefused(t *testing.T) {
	h := newHarness(t, nil)
	nested := func(levels int) string {
		return `{"model":"m","messages":[],"deep":` + strings.Repeat("[", levels-1) + strings.Repeat("]", levels-1) + `}`
	}
	message := `"messages":[{"role":"user","content":"hi"}]`
	for name, tt := range map[string]struct {
		body  string
		code  string
		words []string
	}{
		"empty":                     {``, "invalid_request", []string{"empty"}},
		"white space":               {" \n", "invalid_request", []string{"empty"}},
		"array":                     {`[]`, "invalid_request", []string{"byte 0", "begin with {"}},
		"string":                    {`"hi"`, "invalid_request", []string{"byte 0"}},
		"cut off":                   {`{"model":"m",`, "invalid_request", []string{"byte 13"}},
		"trailing comma":            {`{"model":"m",}`, "invalid_request", []string{"byte 13"}},
		"two objects":               {`{"model":"m"}{}`, "invalid_request", []string{"byte 13"}},
		"single quotes":             {`{'model':"m"}`, "invalid_request", []string{"byte 1"}},
		"byte order mark":           {"\ufeff{}", "invalid_request", []string{"byte order mark"}},
		"invalid UTF-8":             {"{\"model\":\"m\xff\"}", "invalid_request", []string{"byte 11"}},
		"half a surrogate pair":     {`{"model":"\ud800"}`, "invalid_request", []string{"byte 10"}},
		"control character":         {"{\"model\":\"a\nb\"}", "invalid_request", []string{"byte 11"}},
		"129 levels":                {nested(129), "invalid_request", []string{"128"}},
		"duplicate member":          {`{"model":"cheap","model":"dear",` + message + `}`, "duplicate_member", []string{`"model"`}},
		"duplicate, escaped":        {`{"model":"cheap","mod\u0065l":"dear",` + message + `}`, "duplicate_member", []string{`"model"`}},
		"duplicate in a message":    {`{"model":"m","messages":[{"role":"user","role":"system","content":"hi"}]}`, "duplicate_member", []string{`"role"`, "messages[0]"}},
		"no model":                  {`{` + message + `}`, "invalid_request", []string{`"model"`}},
		"model of another name":     {`{"Model":"m",` + message + `}`, "invalid_request", []string{`"model"`}},
		"empty model":               {`{"model":"",` + message + `}`, "invalid_request", []string{`"model"`}},
		"blank model":               {`{"model":" \t",` + message + `}`, "invalid_request", []string{`"model"`}},
		"model null":                {`{"model":null,` + message + `}`, "invalid_request", []string{`"model"`}},
		"model a number":            {`{"model":4,` + message + `}`, "invalid_request", []string{`"model"`}},
		"model a list":              {`{"model":["m"],` + message + `}`, "invalid_request", []string{`"model"`}},
		"no messages":               {`{"model":"m"}`, "invalid_request", []string{`"messages"`}},
		"messages null":             {`{"model":"m","messages":null}`, "invalid_request", []string{`"messages"`}},
		"messages a string":         {`{"model":"m","messages":"hi"}`, "invalid_request", []string{`"messages"`}},
		"messages an object":        {`{"model":"m","messages":{}}`, "invalid_request", []string{`"messages"`}},
		"stream a string":           {`{"model":"m","stream":"yes",` + message + `}`, "invalid_request", []string{`"stream"`}},
		"stream a number":           {`{"model":"m","stream":1,` + message + `}`, "invalid_request", []string{`"stream"`}},
		"include_usage a string":    {`{"model":"m","stream":true,"stream_options":{"include_usage":"1"},` + message + `}`, "invalid_request", []string{`"include_usage"`}},
		"options twice":             {`{"model":"m","stream_options":{"a":1,"a":2},` + message + `}`, "duplicate_member", []string{`"a"`}},
		"n negative":                {`{"model":"m","n":-1,` + message + `}`, "invalid_request", []string{`"n"`, "128"}},
		"n huge":                    {`{"model":"m","n":1e9,` + message + `}`, "invalid_request", []string{`"n"`, "128"}},
		"n a thousand":              {`{"model":"m","n":1000,` + message + `}`, "invalid_request", []string{`"n"`, "128"}},
		"n a half":                  {`{"model":"m","n":0.5,` + message + `}`, "invalid_request", []string{`"n"`}},
		"n a string":                {`{"model":"m","n":"2",` + message + `}`, "invalid_request", []string{`"n"`}},
		"max_tokens negative":       {`{"model":"m","max_tokens":-5,` + message + `}`, "invalid_request", []string{`"max_tokens"`}},
		"max_tokens huge":           {`{"model":"m","max_tokens":99999999999999999999,` + message + `}`, "invalid_request", []string{`"max_tokens"`}},
		"max_completion_tokens odd": {`{"model":"m","max_completion_tokens":"many",` + message + `}`, "invalid_request", []string{`"max_completion_tokens"`}},
	} {
		t.Run(name, func(t *testing.T) {
			(&harness{T: t, url: h.url}).expectRefusal(tt.body, tt.code, tt.words)
		})
	}
	if n := h.number(`SELECT count(*) FROM call`) + h.number(`SELECT count(*) FROM counter`); n != 0 {
		t.Errorf("%d rows tell of requests that could not be read", n)
	}
}

func (h *harness) expectRefusal(body, code string, words []string) {
	h.Helper()
	r := h.post(body)
	h.wantError(r, 400, code, words...)
	if r.header.Get("X-Should-Retry") == "true" || r.header.Get("Retry-After") != "" {
		h.Errorf("the client is asked to send it again: %v", r.header)
	}
}

// Names are compared exactly, as upstreams do: a reader that ignores case would
// take the second of these for the model.
func TestNamesThatDifferInCaseAreDifferentMembers(t *testing.T) {
	h := newHarness(t, func(p *Policy) { p.Upstreams[0].Models = []string{"cheap"} })
	h.upstream.Reply(proxytest.JSON(200, proxytest.Completion("ok")))
	body := `{"model":"cheap","MODEL":"dear","messages":[{"role":"user","content":"hi"}],"Stream":true,"STREAM":"odd","N":-1}`
	if r := h.post(body); r.status != 200 || !strings.HasPrefix(r.header.Get("Content-Type"), "application/json") {
		t.Fatalf("%d %s", r.status, r.body)
	}
	if got := string(h.upstream.Requests()[0].Body); got != body {
		t.Errorf("the upstream got %s", got)
	}
	if n := h.number(`SELECT count(*) FROM model WHERE name = 'cheap'`); n != 1 {
		t.Error("the ledger does not say that it was the cheap model")
	}
}

// 128 levels are allowed, one more is not.
func TestTheDeepestBodyIsServed(t *testing.T) {
	h := newHarness(t, nil)
	h.upstream.Reply(proxytest.JSON(200, proxytest.Completion("ok")))
	deep := `,"deep":` + strings.Repeat("[", 127) + strings.Repeat("]", 127)
	if r := h.post(chat("hi", deep)); r.status != 200 {
		t.Errorf("%d %s", r.status, r.body)
	}
}

// unsized hides a body's length, so that it is sent in chunks.
type unsized struct{ io.Reader }

func TestABodyIsReadOnlyUpToItsLimit(t *testing.T) {
	h := newHarness(t, func(p *Policy) { p.RequestBody = 10_000 })
	h.upstream.Reply(proxytest.JSON(200, proxytest.Completion("ok")))
	sized := func(n int) string { // a chat request of exactly n bytes
		frame := len(chat(""))
		return chat(strings.Repeat("x", n-frame))
	}
	send := func(body io.Reader, headers ...string) response {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, h.url+"/v1/chat/completions", body)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		for i := 0; i < len(headers); i += 2 {
			req.Header.Set(headers[i], headers[i+1])
		}
		return h.do(req)
	}
	bomb := zip(strings.Repeat(" ", 50<<20) + chat("boom"))
	if len(bomb) > 100_000 {
		t.Fatalf("a bomb of %d bytes", len(bomb))
	}
	over := map[string]response{
		"by its length":  send(strings.NewReader(sized(10_001))),
		"in chunks":      send(unsized{strings.NewReader(sized(10_001))}),
		"when unpacked":  send(bytes.NewReader(zip(sized(10_001))), "Content-Encoding", "gzip"),
		"a bomb":         send(unsized{bytes.NewReader(bomb)}, "Content-Encoding", "gzip"),
		"passed through": h.do(h.request(t.Context(), "/v1/embeddings", `{"model":"m","input":"`+strings.Repeat("x", 10_001)+`"}`)),
	}
	for name, r := range over {
		t.Run(name, func(t *testing.T) {
			(&harness{T: t}).wantError(r, 413, "request_too_large", "10,000", "limits.request_body")
			if r.header.Get("X-Should-Retry") != "false" {
				t.Error("SDKs may send it again")
			}
		})
	}
	announced := h.dial() // and never sent: nobody waits for it
	fmt.Fprintf(announced, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n{")
	if r, err := http.ReadResponse(bufio.NewReader(announced), nil); err != nil || r.StatusCode != 413 {
		t.Errorf("only announced: %v, %v", r, err)
	}
	if n := h.upstream.Count(); n != 0 {
		t.Errorf("%d upstream calls", n)
	}
	for name, r := range map[string]response{
		"by its length": send(strings.NewReader(sized(10_000))),
		"in chunks":     send(unsized{strings.NewReader(sized(10_000))}),
		"when unpacked": send(bytes.NewReader(zip(sized(10_000))), "Content-Encoding", "gzip"),
	} {
		if r.status != 200 {
			t.Errorf("exactly the limit %s: %d %.200s", name, r.status, r.body)
		}
	}
}

func zip(text string) []byte {
	var buf bytes.Buffer
	zw := gzip.NewWriter(&buf)
	io.WriteString(zw, text) //nolint:errcheck // writing to memory does not fail
	zw.Close()
	return buf.Bytes()
}

func TestContentEncodings(t *testing.T) {
	h := newHarness(t, nil)
	h.upstream.Reply(proxytest.JSON(200, proxytest.Completion("ok")))
	body := chat("packed")
	plain := h.post(body)
	for name, tt := range map[string]struct {
		encoding string
		body     string
		status   int
		code     string
	}{
		"gzip":            {"gzip", string(zip(body)), 200, ""},
		"GZIP":            {"GZIP", string(zip(body)), 200, ""},
		"x-gzip":          {"x-gzip", string(zip(body)), 200, ""},
		"identity":        {"identity", body, 200, ""},
		"empty":           {"", body, 200, ""},
		"gzip, but plain": {"gzip", body, 400, "invalid_request"},
		"gzip, cut off":   {"gzip", string(zip(body)[:30]), 400, "invalid_request"},
		"gzip, and more":  {"gzip", string(zip(body)) + "more", 400, "invalid_request"},
		"br":              {"br", "x", 415, "invalid_request"},
		"zstd":            {"zstd", "x", 415, "invalid_request"},
		"deflate":         {"deflate", "x", 415, "invalid_request"},
		"two":             {"gzip, gzip", "x", 415, "invalid_request"},
	} {
		t.Run(name, func(t *testing.T) {
			r := h.post(tt.body, "Content-Encoding", tt.encoding)
			if tt.status != 200 {
				(&harness{T: t}).wantError(r, tt.status, tt.code)
			} else if r.cache() != "hit" || r.body != plain.body {
				t.Errorf("not the same request as the plain one: %d %s %s", r.status, r.cache(), r.body)
			}
		})
	}
	req := h.upstream.Requests()
	if len(req) != 1 || req[0].Header.Get("Content-Encoding") != "" || string(req[0].Body) != body {
		t.Errorf("%d upstream calls, the first with %q", len(req), req[0].Body)
	}
}

func TestMethodsAndPathsThatAreNotServed(t *testing.T) {
	h := newHarness(t, nil)
	do := func(method, path string) response {
		req := h.request(t.Context(), path, chat("hi"))
		req.Method = method
		return h.do(req)
	}
	for _, method := range []string{"PUT", "PATCH", "OPTIONS"} {
		r := do(method, "/v1/chat/completions")
		h.wantError(r, 405, "invalid_request", method, "POST")
		if allow := r.header.Get("Allow"); allow != "POST, GET, HEAD, DELETE" {
			t.Errorf("%s: Allow is %q", method, allow)
		}
	}
	for _, path := range []string{
		"/", "/v1", "/v1/", "/v2/chat/completions", "/chats", "/steps", "/steps/a", "/steps/a/v1", "/steps/a/runs", "/steps/a/runs/b",
		"/steps/a/runs/b/v1/", "/favicon.ico", "/admin", "/v1/../admin", "/v1/chat/../chat/completions", "/v1/%2e%2e/chat/completions", "/v1/./chat/completions",
	} {
		h.wantError(do("POST", path), 404, "unknown_path", "/v1")
	}
	if n := h.upstream.Count(); n != 0 {
		t.Errorf("%d upstream calls", n)
	}
}

// Clients join base URLs and paths in every way there is, and many lose the
// body of a redirected POST.
func TestEveryFormOfTheBaseURLServesTheSameCall(t *testing.T) {
	h := newHarness(t, nil)
	h.upstream.Reply(proxytest.JSON(200, proxytest.Completion("ok")))
	var key string
	for _, path := range []string{
		"/v1/chat/completions", "/chat/completions", "/v1/chat/completions/", "//v1/chat/completions", "/v1//chat/completions",
		"/v1/v1/chat/completions", "/v1/v1/v1/chat/completions", "//v1//v1//chat//completions//", "/v1/chat%2Fcompletions",
		"/v1/%63hat/completions", "/v1/chat/completions?", "/steps/default/v1/chat/completions", "/steps/default/chat/completions",
		"/steps/default/runs/7/v1/chat/completions", "//steps//default//v1/chat/completions/", "/steps/d%65fault/v1/chat/completions",
	} {
		r := h.do(h.request(t.Context(), path, chat("hi")))
		if key == "" {
			key = r.header.Get("X-LLMProxy-Key")
		}
		if r.status != 200 || r.header.Get("X-LLMProxy-Key") != key || r.header.Get("X-LLMProxy-Step") != "default" {
			t.Errorf("%s: %d, step %q, key %.8s…, want %.8s…: %.200s", path, r.status, r.header.Get("X-LLMProxy-Step"), r.header.Get("X-LLMProxy-Key"), key, r.body)
		}
	}
	if n := h.upstream.Count(); n != 1 || h.upstream.Requests()[0].Path != "/v1/chat/completions" {
		t.Errorf("%d upstream calls, the first to %s", n, h.upstream.Requests()[0].Path)
	}
	h.do(h.request(t.Context(), "/v1/chat/completions/?api-version=2026-01-01&x=%2F", chat("hi")))
	last := h.upstream.WaitFor(2)[1]
	if last.Path != "/v1/chat/completions" || last.Query.Get("api-version") != "2026-01-01" || last.Query.Get("x") != "/" {
		t.Errorf("with a query the upstream got %s ? %v", last.Path, last.Query)
	}
}

// n8n sends an empty OpenAI-Organization, which upstreams refuse.
func TestEmptyHeaderValuesMeanNothing(t *testing.T) {
	h := newHarness(t, nil)
	h.upstream.Reply(proxytest.JSON(200, proxytest.Completion("ok")))
	first := h.post(chat("hi"))
	again := h.post(chat("hi"), "OpenAI-Organization", "", "OpenAI-Project", "", "X-LLMProxy-Step", "", "X-LLMProxy-Run", "", "X-LLMProxy-Context", "",
		"X-LLMProxy-Sample", "", "X-LLMProxy-Reject", "", "Idempotency-Key", "", "Cache-Control", "", "Content-Encoding", "", "Api-Key", "", "X-Custom", "")
	if again.cache() != "hit" || again.header.Get("X-LLMProxy-Key") != first.header.Get("X-LLMProxy-Key") {
		t.Errorf("%d %s %s", again.status, again.cache(), again.body)
	}
	other := h.post(chat("hello"), "OpenAI-Organization", "", "X-Custom", "")
	if other.status != 200 {
		t.Fatalf("%d %s", other.status, other.body)
	}
	for _, name := range []string{"Openai-Organization", "X-Custom"} {
		if values, sent := h.upstream.WaitFor(2)[1].Header[name]; sent {
			t.Errorf("%s is forwarded as %q", name, values)
		}
	}
}
