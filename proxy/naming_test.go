package proxy

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"llmproxy/proxy/proxytest"
)

// withKeys makes every call need one of these proxy keys, of the tenant of the
// same name.
func withKeys(secrets ...string) func(*Policy) {
	return func(p *Policy) {
		for _, secret := range secrets {
			p.Credentials = append(p.Credentials, Credential{Name: secret, Hash: sha256.Sum256([]byte(secret)), Tenant: secret, Scopes: []string{ScopeLLM}})
		}
	}
}

// Of the places that can name a step and a run, the earlier wins.
func TestWhereAStepAndARunAreNamed(t *testing.T) {
	const key = "sk-step-from-key"
	h := newHarness(t, func(p *Policy) {
		withKeys("plain", key)(p)
		p.Credentials[1].Step = "from key"
	})
	h.upstream.Reply(proxytest.JSON(200, proxytest.Completion("ok")))
	metadata := `,"metadata":{"llmproxy_step":"from metadata","llmproxy_run":"run 5"}`
	const path = "/steps/from%20path/runs/run%203/v1/chat/completions"
	bearer := []string{"Authorization", "Bearer " + key}
	both := []string{"X-LLMProxy-Context", "step=from context; run=run 2"}
	for name, tt := range map[string]struct {
		path    string
		headers []string
		body    string
		step    string
		run     string
	}{
		"header over all":       {path, slices.Concat(bearer, both, []string{"X-LLMProxy-Step", "from header", "X-LLMProxy-Run", "run 1"}), metadata, "from header", "run 1"},
		"context over path":     {path, slices.Concat(bearer, both), metadata, "from context", "run 2"},
		"path over key":         {path, bearer, metadata, "from path", "run 3"},
		"key over metadata":     {"/v1/chat/completions", bearer, metadata, "from key", "run 5"},
		"metadata over default": {"/v1/chat/completions", nil, metadata, "from metadata", "run 5"},
		"default":               {"/v1/chat/completions", nil, "", "default", ""},
		"each by itself":        {"/steps/from%20path/v1/chat/completions", []string{"X-LLMProxy-Run", "run 1"}, metadata, "from path", "run 1"},
		"context, step alone":   {path, []string{"X-LLMProxy-Context", "step=from context"}, "", "from context", "run 3"},
		"context, run alone":    {path, []string{"X-LLMProxy-Context", " RUN = run 2 ; "}, "", "from path", "run 2"},
		"context, empty":        {path, []string{"X-LLMProxy-Context", "step=; run=; other=x; =;"}, "", "from path", "run 3"},
		"context, = in a name":  {path, []string{"X-LLMProxy-Context", "step=a=b"}, "", "a=b", "run 3"},
		"trimmed":               {"/steps/%20padded%09/v1/chat/completions", nil, "", "padded", ""},
		"metadata of others":    {"/v1/chat/completions", nil, `,"metadata":{"step":"x"}`, "default", ""},
		"metadata no object":    {"/v1/chat/completions", nil, `,"metadata":"of another kind"`, "default", ""},
		"metadata null":         {"/v1/chat/completions", nil, `,"metadata":null`, "default", ""},
		"metadata null inside":  {"/v1/chat/completions", nil, `,"metadata":{"llmproxy_step":null}`, "default", ""},
		"metadata with escapes": {"/v1/chat/completions", nil, `,"metadata":{"llmproxy_st\u0065p":"from \u006detadata"}`, "from metadata", ""},
	} {
		t.Run(name, func(t *testing.T) {
			h := h.sub(t)
			headers := tt.headers
			if !slices.Contains(headers, "Authorization") {
				headers = append(headers, "Authorization", "Bearer plain")
			}
			r := h.do(h.request(t.Context(), tt.path, chat(name, tt.body), headers...))
			if r.status != 200 || r.header.Get("X-LLMProxy-Step") != tt.step || r.header.Get("X-LLMProxy-Run") != tt.run {
				t.Errorf("%d, step %q, run %q: %s", r.status, r.header.Get("X-LLMProxy-Step"), r.header.Get("X-LLMProxy-Run"), r.body)
			}
			if row := h.lastRow(); row.step != tt.step || row.run != tt.run {
				t.Errorf("the row says %+v", row)
			}
			requests := h.upstream.Requests()
			sent := requests[len(requests)-1]
			if sent.Path != "/v1/chat/completions" || strings.Contains(string(sent.Body), "llmproxy") || strings.Contains(string(sent.Body), "run 5") {
				t.Errorf("the upstream got %s %s", sent.Path, sent.Body)
			}
			for header := range sent.Header {
				if strings.HasPrefix(header, "X-Llmproxy") {
					t.Errorf("the upstream got %s", header)
				}
			}
		})
	}
}

func TestNamesThatAreNotUsable(t *testing.T) {
	h := newHarness(t, nil)
	long := strings.Repeat("ü", 129)
	for name, r := range map[string]response{
		"slash in a header":      h.post(chat("hi"), "X-LLMProxy-Step", "a/b"),
		"slash in a path":        h.do(h.request(t.Context(), "/steps/a%2Fb/v1/chat/completions", chat("hi"))),
		"line feed in a path":    h.do(h.request(t.Context(), "/steps/a%0Ab/v1/chat/completions", chat("hi"))),
		"NUL in a path":          h.do(h.request(t.Context(), "/steps/a%00/v1/chat/completions", chat("hi"))),
		"blank path":             h.do(h.request(t.Context(), "/steps/%20/v1/chat/completions", chat("hi"))),
		"no UTF-8":               h.do(h.request(t.Context(), "/steps/%ff/v1/chat/completions", chat("hi"))),
		"too long":               h.post(chat("hi"), "X-LLMProxy-Step", long),
		"invisible":              h.post(chat("hi", `,"metadata":{"llmproxy_step":"a\u200bb"}`)),
		"run with a slash":       h.post(chat("hi"), "X-LLMProxy-Run", "a/b"),
		"run in the context":     h.post(chat("hi"), "X-LLMProxy-Context", "run=a/b"),
		"run in a path":          h.do(h.request(t.Context(), "/steps/a/runs/b%2Fc/v1/chat/completions", chat("hi"))),
		"run in metadata":        h.post(chat("hi", `,"metadata":{"llmproxy_run":"`+long+`"}`)),
		"passed through as well": h.do(h.request(t.Context(), "/v1/embeddings", `{"model":"m","input":"x"}`, "X-LLMProxy-Step", "a/b")),
	} {
		t.Run(name, func(t *testing.T) { (&harness{T: t}).wantError(r, 400, "bad_step", "printable") })
	}
	// A name that is silently ignored would count elsewhere.
	for _, odd := range []string{`{"llmproxy_run":8812}`, `{"llmproxy_step":{}}`} {
		h.wantError(h.post(chat("hi", `,"metadata":`+odd)), 400, "bad_step", "metadata.llmproxy_", "string")
	}
	h.upstream.Reply(proxytest.JSON(200, proxytest.Completion("ok")))
	if r := h.post(chat("hi"), "X-LLMProxy-Step", strings.Repeat("ü", 128), "X-LLMProxy-Run", `a "quoted" \ run`); r.status != 200 {
		t.Errorf("128 characters: %d %s", r.status, r.body)
	}
}

// A header carries ASCII: other names are echoed percent-encoded.
func TestNamesInUTF8AreEchoedPercentEncoded(t *testing.T) {
	h := newHarness(t, nil)
	h.upstream.Reply(proxytest.JSON(200, proxytest.Completion("ok")))
	for name, r := range map[string]response{
		"header":   h.post(chat("hi"), "X-LLMProxy-Step", "Prüfen 要約", "X-LLMProxy-Run", "läuft"),
		"path":     h.do(h.request(t.Context(), "/steps/Pr%C3%BCfen%20%E8%A6%81%E7%B4%84/runs/l%C3%A4uft/v1/chat/completions", chat("hi"))),
		"metadata": h.post(chat("hi", `,"metadata":{"llmproxy_step":"Pr\u00fcfen 要約","llmproxy_run":"läuft"}`)),
		"hit":      h.post(chat("hi"), "X-LLMProxy-Context", "step=Prüfen 要約; run=läuft"),
	} {
		if step, run := r.header.Get("X-LLMProxy-Step"), r.header.Get("X-LLMProxy-Run"); step != "Pr%C3%BCfen%20%E8%A6%81%E7%B4%84" || run != "l%C3%A4uft" {
			t.Errorf("%s: step %q, run %q", name, step, run)
		}
	}
	for _, row := range h.rows("") {
		if row.step != "Prüfen 要約" || row.run != "läuft" {
			t.Errorf("the row says %+v", row)
		}
	}
	if n := h.upstream.Count(); n != 1 {
		t.Errorf("%d upstream calls: the run is in the key", n)
	}
}

func TestAliasesAndDeclaredSteps(t *testing.T) {
	h := newHarness(t, func(p *Policy) {
		p.Steps = []*Step{{Name: "summarise", Aliases: []string{"a1b2", "c3"}, TTL: time.Hour, FinishReasons: []string{"stop"}}}
		p.DeclaredOnly = true
	})
	h.upstream.Reply(numbered(9)...)
	h.wantAnswer(h.post(chat("hi"), "X-LLMProxy-Step", "a1b2"), "miss", 1)
	for _, name := range []string{"summarise", "c3", "a1b2"} {
		r := h.post(chat("hi"), "X-LLMProxy-Step", name)
		h.wantAnswer(r, "hit", 1)
		if got := r.header.Get("X-LLMProxy-Step"); got != "summarise" {
			t.Errorf("%s is echoed as %q", name, got)
		}
	}
	h.wantError(h.post(chat("hi"), "X-LLMProxy-Step", "sumarise"), 400, "bad_step", "sumarise", "steps:")
	h.wantError(h.post(chat("hi")), 400, "bad_step", `"default"`)
	h.wantError(h.do(h.request(t.Context(), "/steps/other/v1/embeddings", `{"model":"m","input":"x"}`)), 400, "bad_step", "other")
	if n := h.number(`SELECT count(*) FROM step`); n != 1 {
		t.Errorf("the ledger knows %d steps", n)
	}
}

// What is sent on is what came, byte for byte, less what is ours, and for streams
// with the wish for the usage.
func TestTheBodyGoesUpstreamAsItCame(t *testing.T) {
	h := newHarness(t, nil)
	const odd = ` {  "model" : "gpt-4o",` + "\n\t" + `"temperature":0, "top_p":1.0 ,"seed":12345678901234567890,"x":{"b":1,"a":[ ]},"messages":[{"role":"user","content":"caf\u00e9 ☃ \/"}]`
	for name, tt := range map[string]struct{ body, want string }{
		"as it is":                  {odd + "} ", odd + "} "},
		"stream false":              {odd + `,"stream":false}`, odd + `,"stream":false}`},
		"metadata of others":        {odd + `,"metadata":{ "a" :"1"}}`, odd + `,"metadata":{ "a" :"1"}}`},
		"step among others, first":  {odd + `,"metadata":{ "llmproxy_step" : "s", "a" :"1"}}`, odd + `,"metadata":{ "a" :"1"}}`},
		"step among others, last":   {odd + `,"metadata":{"a" :"1" , "llmproxy_step":"s"  }}`, odd + `,"metadata":{"a" :"1"  }}`},
		"step and run":              {odd + `,"metadata":{"llmproxy_run":"r","a":"1","llmproxy_step":"s","b":"2"}, "z":1}`, odd + `,"metadata":{"a":"1","b":"2"}, "z":1}`},
		"nothing else":              {odd + `, "metadata":{ "llmproxy_step":"s","llmproxy_run":"r" }, "z":1}`, odd + `, "z":1}`},
		"stream":                    {odd + `,"stream":true}`, odd + `,"stream":true,"stream_options":{"include_usage":true}}`},
		"stream, usage asked":       {odd + `,"stream":true,"stream_options":{ "include_usage" : true }}`, odd + `,"stream":true,"stream_options":{ "include_usage" : true }}`},
		"stream, usage not wanted":  {odd + `,"stream_options":{"include_usage": false, "x":1},"stream":true}`, odd + `,"stream_options":{"include_usage": true, "x":1},"stream":true}`},
		"stream, other options":     {odd + `,"stream_options":{"x":1},"stream":true }`, odd + `,"stream_options":{"x":1,"include_usage":true},"stream":true }`},
		"stream, options null":      {odd + `,"stream_options":null,"stream":true}`, odd + `,"stream_options":{"include_usage":true},"stream":true}`},
		"stream, metadata, options": {odd + `,"metadata":{"llmproxy_step":"s"},"stream":true}`, odd + `,"stream":true,"stream_options":{"include_usage":true}}`},
	} {
		t.Run(name, func(t *testing.T) {
			h := h.sub(t)
			h.upstream.Always(proxytest.Error(404, "nothing here")) // and nothing is stored
			h.post(tt.body)
			requests := h.upstream.Requests()
			if got := string(requests[len(requests)-1].Body); got != tt.want {
				t.Errorf("the upstream got\n%s, want\n%s", got, tt.want)
			}
		})
	}
}

// Headers that describe the client's connection, or are ours, end here; the
// others go on.
func TestWhichHeadersGoUpstream(t *testing.T) {
	h := newHarness(t, func(p *Policy) {
		p.Upstreams[0].Header = http.Header{"X-Added": {"1"}, "user-agent": {"theirs"}}
	})
	h.upstream.Reply(proxytest.JSON(200, proxytest.Completion("ok")))
	req := h.request(t.Context(), "/v1/chat/completions?x=1", chat("hi"),
		"X-LLMProxy-Step", "s", "X-LLMProxy-Run", "r", "X-LLMProxy-Context", "run=x", "X-LLMProxy-Sample", "2", "X-LLMProxy-Reject", "no", "X-LLMProxy-Future", "x",
		"Cache-Control", "no-cache", "Idempotency-Key", "k", "Cookie", "c=1", "Accept-Encoding", "br", "Te", "trailers", "Expect", "",
		"Connection", "X-Hop, keep-alive", "X-Hop", "1", "X-Forwarded-For", "10.0.0.1", "Proxy-Authorization", "Basic x", "Forwarded", "for=10.0.0.1",
		"Openai-Beta", "assistants=v2", "Openai-Organization", "org", "Openai-Platform", "org-1", "X-Stainless-Retry-Count", "1", "Authorization", "Bearer mine", "Api-Key", "mine too", "Traceparent", "00-1-2-01", "Accept", "application/json")
	if r := h.do(req); r.status != 200 {
		t.Fatalf("%d %s", r.status, r.body)
	}
	got := h.upstream.Requests()[0].Header
	want := http.Header{
		"Content-Type": {"application/json"}, "Content-Length": got["Content-Length"], "X-Added": {"1"}, "User-Agent": {"theirs"}, "Openai-Beta": {"assistants=v2"},
		"Openai-Organization": {"org"}, "X-Stainless-Retry-Count": {"1"}, "Authorization": {"Bearer mine"}, "Api-Key": {"mine too"},
		"Traceparent": {"00-1-2-01"}, "Accept": {"application/json"},
	}
	for name := range want {
		if !slices.Equal(got[name], want[name]) {
			t.Errorf("%s: %q, want %q", name, got[name], want[name])
		}
	}
	for name := range got {
		if want[name] == nil {
			t.Errorf("%s: %q was forwarded", name, got[name])
		}
	}
}

// Calls of one unit of work are told together, over all its runs; what it is
// called stays here.
func TestAUnitOfWorkIsNamed(t *testing.T) {
	h := newHarness(t, nil)
	h.upstream.Reply(numbered(1)...)
	for run := range 3 {
		h.post(chat("draft"), "Guard-Work", "order A-1", "X-LLMProxy-Run", fmt.Sprint(run))
	}
	h.post(chat("draft"))
	h.settle()
	if n := h.number(`SELECT count(*) FROM work_call w JOIN work ON work.id = w.work_id WHERE work.name = 'order A-1'`); n != 3 {
		t.Errorf("%d calls of the work", n)
	}
	for _, r := range h.upstream.Requests() {
		if r.Header.Get("Guard-Work") != "" {
			t.Errorf("the upstream got %v", r.Header)
		}
	}
	h.wantError(h.post(chat("x"), "Guard-Work", "a/b"), 400, "bad_step", "unit of work")
}
