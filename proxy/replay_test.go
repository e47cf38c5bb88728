package proxy

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"llmproxy/proxy/proxytest"
	"llmproxy/store"
)

// replay starts the harness's proxy anew as one that only replays, on the same
// database and without an upstream.
func (h *harness) replay(change func(*Policy)) {
	h.Helper()
	h.stop()
	h.upstream.Close()
	h.policy.ReplayOnly = true
	if change != nil {
		change(h.policy)
	}
	h.start(h.store)
}

// notCached checks a refusal of a server that only replays and returns what its
// error says beside the message.
func (h *harness) notCached(r response, words ...string) (detail struct {
	Step, Tenant string
	Nearest      *string
	Differs      []string
}) {
	h.Helper()
	h.wantError(r, http.StatusGatewayTimeout, "not_cached", words...)
	if r.header.Get("X-Should-Retry") != "false" {
		h.Errorf("SDKs may send it again: %v", r.header)
	}
	var outer struct{ Error any }
	outer.Error = &detail
	if err := json.Unmarshal([]byte(r.body), &outer); err != nil {
		h.Error(err)
	}
	return detail
}

const warm = `,"temperature":0.5`

// What is stored is given, in both forms, however old, from memory and from the
// store, whatever the client wishes for.
func TestReplayGivesWhatIsStored(t *testing.T) {
	h := newHarness(t, func(p *Policy) { p.Default.TTL = time.Millisecond })
	h.upstream.Reply(proxytest.JSON(200, proxytest.Completion("the first")), proxytest.Stream(proxytest.Chunks("the second", 3)...))
	h.post(chat("one"))
	h.post(chat("two", stream))
	h.settle()
	h.replay(nil)
	for _, wish := range [][]string{nil, nil, {"Cache-Control", "no-cache"}, {"Cache-Control", "no-store"}, {"Cache-Control", "max-age=0"},
		{"Cache-Control", "only-if-cached"}, {"X-LLMProxy-Reject", "bad"}} {
		for text, want := range map[string]string{"one": "the first", "two": "the second"} {
			for _, form := range []string{"", stream} {
				r := h.post(chat(text, form), wish...)
				got, err := contentOf(r.body, form == stream)
				if r.cache() != "hit" || got != want || err != nil {
					t.Errorf("%v: %s %q %v: %s", wish, r.cache(), got, err, r.body)
				}
			}
		}
	}
	h.server.sweep(t.Context())
	h.server.tidy(t.Context())
	if n := h.number(`SELECT count(*) FROM entry`); n != 2 {
		t.Errorf("%d answers are left after a sweep", n)
	}
	h.nothingHeld()
}

// What is not stored is refused, and the refusal names the nearest answer of the
// step and what differs.
func TestReplayNamesTheNearest(t *testing.T) {
	h := newHarness(t, nil)
	h.upstream.Always(proxytest.JSON(200, proxytest.Completion("fine")))
	as := []string{"Authorization", "Bearer a"}
	recorded := map[string]string{} // text → key
	for _, text := range []string{"far", "near"} {
		recorded[text] = h.post(chat(text, warm, `,"top_p":0.1`), as...).header.Get("X-LLMProxy-Key")
	}
	h.post(chat("near"), append(as, "X-LLMProxy-Step", "another")...)
	h.settle()
	h.replay(nil)

	r := h.post(chat("near", `,"temperature":0.7,"top_p":0.1`, stream), as...)
	d := h.notCached(r, "nearest is "+recorded["near"][:8]+"…, which differs in temperature; ")
	if d.Nearest == nil || *d.Nearest != recorded["near"] || !slices.Equal(d.Differs, []string{"temperature"}) || d.Step != "default" {
		t.Errorf("the error says %+v", d)
	}
	two := `{"model":"gpt-4o","messages":[{"role":"user","content":"far"},{"role":"user","content":"and?"}],"temperature":0.7,"top_p":0.1}`
	h.notCached(h.post(two, as...), "nearest is "+recorded["far"][:8]+"…, which differs in temperature and messages[1]; ")
	d = h.notCached(h.post(chat("near", warm, `,"top_p":0.1`), append(as, "X-LLMProxy-Sample", "2")...), "whose body is the same", "X-LLMProxy-Sample")
	if d.Nearest == nil || len(d.Differs) != 0 {
		t.Errorf("the error says %+v", d)
	}
	// Nobody learns of another tenant's answers.
	d = h.notCached(h.post(chat("near", `,"temperature":0.7`), "Authorization", "Bearer b"), `has none for step "default"`, "tenant:")
	if d.Nearest != nil || d.Tenant == "" {
		t.Errorf("the error says %+v", d)
	}
	h.notCached(h.post(chat("near"), append(as, "X-LLMProxy-Step", "unheard of")...), `has none for step "unheard of"`)
	h.nothingHeld()
	if n := h.upstream.Count(); n != 3 {
		t.Errorf("%d upstream calls", n)
	}
}

func TestReplayWithoutFingerprints(t *testing.T) {
	h := newHarness(t, nil)
	h.upstream.Always(proxytest.JSON(200, proxytest.Completion("fine")))
	h.post(chat("one"))
	h.settle()
	h.update(func(tx *store.Tx) error {
		_, err := tx.Exec(`DELETE FROM fingerprint`)
		return err
	})
	h.replay(nil)
	h.notCached(h.post(chat("two")), "is not known any more")
}

// Clients that miss at the same time are all told.
func TestReplayRefusesTogether(t *testing.T) {
	h := newHarness(t, nil)
	h.replay(nil)
	answers := make(chan response)
	for range 8 {
		go func() { answers <- h.post(chat("hi", stream)) }()
	}
	for range 8 {
		h.notCached(<-answers)
	}
	h.nothingHeld()
}

// No path leads to an upstream.
func TestReplayCallsNoUpstream(t *testing.T) {
	h := newHarness(t, func(p *Policy) {
		p.ReplayOnly = true
		p.Upstreams[0].Retries, p.Upstreams[0].RetryConnect = 3, true
	})
	for _, path := range []string{"/v1/files", "/v1/audio/speech", "/v1/responses", "/v1/completions", "/v1/embeddings", "/v1/batches"} {
		h.notCached(h.do(h.request(t.Context(), path, `{"model":"gpt-4o","input":"x","prompt":"x"}`)))
		h.notCached(h.get(path))
	}
	for _, path := range []string{"/v1/realtime?model=gpt-4o", "/v1/models"} {
		h.notCached(h.get(path, "Connection", "Upgrade", "Upgrade", "websocket"), "calls none")
	}
	h.notCached(h.do(h.request(t.Context(), "/v1/models", `{}`)))
	// What calls no upstream anyway is served.
	if r := h.do(h.request(t.Context(), "/v1/responses/input_tokens", `{"model":"gpt-4o","input":"x"}`)); r.status != 200 {
		t.Errorf("%d %s", r.status, r.body)
	}
	if n := h.upstream.Count(); n != 0 {
		t.Errorf("%d upstream calls", n)
	}
	if n := h.number(`SELECT count(*) FROM call`); n != 0 {
		t.Errorf("%d rows", n)
	}
}

func TestReplayListsModels(t *testing.T) {
	h := newHarness(t, nil)
	h.upstream.Always(proxytest.JSON(200, proxytest.Completion("fine")))
	h.post(chat("one"))
	h.post(strings.Replace(chat("one"), "gpt-4o", "vendor/large", 1))
	h.post(strings.Replace(chat("one"), "gpt-4o", "secret", 1), "Authorization", "Bearer somebody else")
	h.settle()
	h.replay(func(p *Policy) { p.Upstreams[0].Models = []string{"gpt-4.1", "gpt-4o", "*"} })
	r := h.get("/v1/models")
	var list struct {
		Object string
		Data   []struct{ ID, Object string }
	}
	if err := json.Unmarshal([]byte(r.body), &list); err != nil || r.status != 200 || list.Object != "list" {
		t.Fatalf("%d %v: %s", r.status, err, r.body)
	}
	if got, want := fmt.Sprint(list.Data), "[{gpt-4.1 model} {gpt-4o model} {vendor/large model}]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for path, want := range map[string]int{"vendor/large": 200, "vendor%2Flarge": 200, "gpt-4o": 200, "secret": 404, "%zz": 400} {
		req := h.request(t.Context(), "/v1/models/x", "")
		req.Method, req.Body, req.ContentLength = http.MethodGet, nil, 0
		req.URL.Opaque = "/v1/models/" + path
		if r := h.do(req); r.status != want {
			t.Errorf("%s: %d %s", path, r.status, r.body)
		}
	}
}

// With a tenant of its own the configuration makes all calls one tenant's, but
// never those of a proxy key.
func TestOneTenantForAll(t *testing.T) {
	h := newHarness(t, func(p *Policy) { p.Tenant = "tests" })
	h.upstream.Reply(numbered(9)...)
	h.wantAnswer(h.post(chat("hi"), "Authorization", "Bearer key-a"), "miss", 1)
	h.wantAnswer(h.post(chat("hi"), "Authorization", "Bearer key-b"), "hit", 1)
	h.wantAnswer(h.post(chat("hi")), "hit", 1)
	if n := h.number(`SELECT count(*) FROM tenant WHERE name = 'tests'`); n != 1 {
		t.Error("the tenant is not in the database")
	}
	h.stop()
	withKeys("key-a", "key-b", "key-c")(h.policy)
	h.policy.Credentials[1].Tenant, h.policy.Credentials[2].Tenant = "", "" // each is its own
	h.start(h.store)
	h.wantAnswer(h.post(chat("hi"), "Authorization", "Bearer key-a"), "miss", 2)
	h.wantAnswer(h.post(chat("hi"), "Authorization", "Bearer key-b"), "miss", 3)
	h.wantAnswer(h.post(chat("hi"), "Authorization", "Bearer key-c"), "miss", 4)
	h.wantAnswer(h.post(chat("hi"), "Authorization", "Bearer key-b"), "hit", 3)
}

// An upstream's own header for its key takes the place of the client's credential.
func TestAnUpstreamsKeyHeaderTakesThePlaceOfTheClients(t *testing.T) {
	for _, name := range []string{"Api-Key", "Authorization"} {
		h := newHarness(t, func(p *Policy) { p.Upstreams[0].Header = http.Header{name: {"ours"}} })
		h.upstream.Always(proxytest.JSON(200, proxytest.Completion("fine")))
		h.post(chat("hi"), "Authorization", "Bearer theirs", "Api-Key", "theirs")
		for _, r := range h.upstream.WaitFor(1) {
			if got := r.Header.Get("Authorization") + r.Header.Get("Api-Key"); got != "ours" {
				t.Errorf("%s: the upstream got %q", name, got)
			}
		}
	}
}
