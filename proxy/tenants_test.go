package proxy

import (
	"bytes"
	"net/http"
	"os"
	"strings"
	"testing"

	"llmproxy/proxy/proxytest"
)

// Whoever presents another credential is somebody else, whose answers nobody
// else is served.
func TestEachCredentialHasItsOwnAnswers(t *testing.T) {
	h := newHarness(t, nil)
	h.upstream.Reply(numbered(9)...)
	as := func(headers ...string) response { return h.post(chat("hi"), headers...) }
	h.wantAnswer(as("Authorization", "Bearer key-a"), "miss", 1)
	h.wantAnswer(as("Authorization", "Bearer key-b"), "miss", 2)
	h.wantAnswer(as("Authorization", "Bearer key-a"), "hit", 1)
	h.wantAnswer(as("Authorization", "bearer  key-a"), "hit", 1) // the scheme's case means nothing
	h.wantAnswer(as("Api-Key", "key-a"), "hit", 1)               // nor how it is presented
	h.wantAnswer(as("Authorization", "Bearer key-b"), "hit", 2)
	h.wantAnswer(as(), "miss", 3)
	h.wantAnswer(as("Authorization", "Basic key-a"), "miss", 4)
	var sent []string
	for _, r := range h.upstream.Requests() {
		sent = append(sent, r.Header.Get("Authorization"))
	}
	if got := strings.Join(sent, ","); got != "Bearer key-a,Bearer key-b,,Basic key-a" {
		t.Errorf("the upstream got the credentials %s", got)
	}
	if n := h.number(`SELECT count(*) FROM tenant`); n != 4 {
		t.Errorf("%d tenants", n)
	}
	h.stop() // and again after a restart
	h.start(h.store)
	h.wantAnswer(as("Authorization", "Bearer key-b"), "hit", 2)
	h.wantAnswer(as("Authorization", "Bearer key-c"), "miss", 5)
}

// Two tenants' equal calls are not the same call while they run, either.
func TestTenantsDoNotShareAnExchange(t *testing.T) {
	h := newHarness(t, nil)
	gate := proxytest.NewGate()
	replies := numbered(2)
	h.upstream.Reply(replies[0].Hold(gate), replies[1])
	a := make(chan response, 1)
	go func() { a <- h.post(chat("hi"), "Authorization", "Bearer key-a") }()
	proxytest.Wait(t, gate.Reached(), "the upstream call")
	h.wantAnswer(h.post(chat("hi"), "Authorization", "Bearer key-b"), "miss", 2)
	gate.Open()
	h.wantAnswer(<-a, "miss", 1)
}

func TestProxyKeys(t *testing.T) {
	h := newHarness(t, func(p *Policy) {
		withKeys("team-a", "team-b", "admin-only")(p)
		p.Credentials[1].Tenant = "team-a" // two keys of one tenant
		p.Credentials[2].Scopes = []string{ScopeAdmin, ScopeGuard}
	})
	h.upstream.Reply(numbered(9)...)
	for name, headers := range map[string][]string{
		"none":      nil,
		"wrong":     {"Authorization", "Bearer team-x"},
		"cut off":   {"Authorization", "Bearer team-"},
		"empty":     {"Authorization", "Bearer "},
		"not ours":  {"Authorization", "Basic team-a"},
		"somewhere": {"X-Api-Key", "team-a"},
	} {
		for _, path := range []string{"/v1/chat/completions", "/v1/embeddings", "/v1/models", "/v1/anything"} {
			r := h.do(h.request(t.Context(), path, chat("hi"), headers...))
			h.wantError(r, 401, "invalid_api_key", "proxy key")
			if r.header.Get("X-Should-Retry") != "false" {
				t.Errorf("%s: SDKs may send it again", name)
			}
		}
	}
	h.wantError(h.post(chat("hi"), "Authorization", "Bearer admin-only"), 403, "forbidden", "scopes")
	if n := h.upstream.Count(); n != 0 {
		t.Errorf("%d upstream calls", n)
	}
	h.wantAnswer(h.post(chat("hi"), "Authorization", "Bearer team-a"), "miss", 1)
	h.wantAnswer(h.post(chat("hi"), "Authorization", "Bearer team-b"), "hit", 1)
	h.wantAnswer(h.post(chat("hi"), "Api-Key", "team-b"), "hit", 1)
	h.get("/v1/models", "Authorization", "Bearer team-a")
	for _, r := range h.upstream.Requests() { // a proxy key never leaves, whether the upstream has one or not
		if len(r.Header["Authorization"])+len(r.Header["Api-Key"]) > 0 {
			t.Errorf("%s: the upstream got the proxy's key: %v", r.Path, r.Header)
		}
	}
	if n := h.number(`SELECT count(*) FROM tenant WHERE name = 'team-a'`) - h.number(`SELECT count(*) FROM tenant WHERE name <> 'team-a'`); n != 1 {
		t.Error("the two keys are not of one tenant")
	}
}

// get sends a GET.
func (h *harness) get(path string, headers ...string) response {
	h.Helper()
	req := h.request(h.Context(), path, "", headers...)
	req.Method, req.Body, req.ContentLength = http.MethodGet, nil, 0
	req.Header.Del("Content-Type")
	return h.do(req)
}

func TestTheUpstreamsKeyTakesThePlaceOfTheClients(t *testing.T) {
	h := newHarness(t, func(p *Policy) { p.Upstreams[0].APIKey = "sk-upstream" })
	h.upstream.Reply(numbered(9)...)
	h.post(chat("hi"), "Authorization", "Bearer sk-client", "Api-Key", "sk-client")
	h.get("/v1/models", "Authorization", "Bearer sk-client")
	for _, r := range h.upstream.WaitFor(2) {
		if got := r.Header.Get("Authorization"); got != "Bearer sk-upstream" || r.Header.Get("Api-Key") != "" {
			t.Errorf("%s: the upstream got %q and %q", r.Path, got, r.Header.Get("Api-Key"))
		}
	}
}

// Secrets reach the upstream and nothing else: not the logs at any level, not
// the database, not the metrics, not an error.
func TestSecretsAreNowhere(t *testing.T) {
	const client, upstream, wrong = "sk-client-5EC12E7", "sk-upstream-5EC12E7", "sk-wrong-5EC12E7"
	h := newHarness(t, func(p *Policy) {
		withKeys(client)(p)
		p.Credentials[0].Name, p.Credentials[0].Tenant = "team", "team"
		p.Upstreams[0].APIKey = upstream
	})
	h.upstream.Reply(proxytest.JSON(200, proxytest.Completion("ok")), proxytest.Error(500, "broken"), proxytest.Reset(), whole.ResetAfter(2), proxytest.Error(401, "who are you?"),
		proxytest.JSON(200, "nothing"), proxytest.JSON(200, `{"data":[]}`))
	mine := []string{"Authorization", "Bearer " + client}
	var seen []response
	add := func(r response) { seen = append(seen, r) }
	add(h.post(chat("hi"), mine...))
	add(h.post(chat("hi"), "Api-Key", client))
	for _, text := range []string{"500", "reset", "cut", "401", "odd"} {
		add(h.post(chat(text, stream), mine...))
	}
	add(h.get("/v1/models?api-key="+client, mine...))
	add(h.post(chat("hi"), "Authorization", "Bearer "+wrong))
	add(h.post(`{"model":`, mine...))
	add(h.get("/nowhere", mine...))
	add(h.post(chat("hi"), append(mine, "X-LLMProxy-Step", "a/b")...))
	h.settle()
	dead := *h.policy
	dead.Upstreams = []*Upstream{testUpstream(t, proxytest.RefusedURL(t))}
	dead.Upstreams[0].APIKey = upstream
	h.server.SetPolicy(&dead)
	add(h.post(chat("refused"), mine...))
	add(h.get("/v1/models", mine...))
	metrics := h.get("/metrics")
	h.stop()

	places := map[string]string{"the metrics": metrics.body, "the logs": h.logs.String()}
	for _, file := range []string{"", "-wal", "-shm"} {
		if data, err := os.ReadFile(h.store.Path() + file); err == nil {
			places["the database"+file] = string(data)
		}
	}
	for _, r := range seen {
		var header bytes.Buffer
		r.header.Write(&header) //nolint:errcheck // writing to memory does not fail
		places["the answers"] += r.body + header.String()
	}
	for place, text := range places {
		if i := strings.Index(text, "5EC12E7"); i >= 0 {
			t.Errorf("%s holds a secret: …%q…", place, text[max(0, i-60):min(len(text), i+20)])
		}
		if len(text) == 0 {
			t.Errorf("%s: nothing was looked at", place)
		}
	}
	if len(places) < 5 || !strings.Contains(places["the logs"], "level=") {
		t.Errorf("only %d places were looked at", len(places))
	}
	if got := h.upstream.Requests()[0].Header.Get("Authorization"); got != "Bearer "+upstream {
		t.Errorf("the upstream got %q", got)
	}
	if info, err := os.Stat(h.store.Path()); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the database's mode is %v, %v", info.Mode(), err)
	}
}
