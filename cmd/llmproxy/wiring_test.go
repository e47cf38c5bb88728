package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"
)

// What the configuration says of webhooks, charges and the guard reaches the
// server that runs with it.
func TestTheServerHeedsItsConfiguration(t *testing.T) {
	notices, acts := make(chan string, 10), make(chan string, 10)
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		notices <- string(body)
	}))
	defer hook.Close()
	downstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		acts <- r.URL.Path
		io.WriteString(w, `{"id":"row_1","token":"s3cret"}`)
	}))
	defer downstream.Close()
	r := startServer(t, `
budget: [{calls: 1, per: total, action: flag}]
charges: {state: 54321}
webhooks: [{url: "`+hook.URL+`/path", events: [budget_over, effect_unknown]}]
guard:
  default_on_unknown: hold
  redact: [/token]
  forward: [{step: row, target: "`+downstream.URL+`/api", allow_private: true, select: [/lead]}]
`)
	notice := func(event string) string {
		t.Helper()
		select {
		case body := <-notices:
			if !strings.Contains(body, `"event":"`+event+`"`) {
				t.Errorf("told of %s, want %s", body, event)
			}
			return body
		case <-time.After(20 * time.Second):
			t.Fatalf("nobody is told of %s", event)
		}
		return ""
	}

	r.post("/v1/chat/completions", question("one"))
	r.post("/v1/chat/completions", question("two"))
	if body := notice("budget_over"); !strings.Contains(body, `"unit":"calls"`) {
		t.Errorf("told of %s", body)
	}
	resp, _ := r.post("/v1/responses", `{"model":"sim","input":"go on","previous_response_id":"resp_elsewhere"}`)
	if n, err := strconv.Atoi(resp.Header.Get("X-LLMProxy-Input-Tokens")); err != nil || n < 54321 {
		t.Errorf("an unknown earlier response is counted in %d, %v", n, err)
	}

	const begin = `{"step":"mail","key":"order 1","soft":true}`
	var grant, again struct{ Decision, Key, Token string }
	_, body := r.post("/guard/v1/begin", begin)
	if err := json.Unmarshal([]byte(body), &grant); err != nil || grant.Decision != "proceed" {
		t.Fatalf("%v: %s", err, body)
	}
	r.post("/guard/v1/fail", `{"key":"`+grant.Key+`","token":"`+grant.Token+`","effect":"unknown"}`)
	if body := notice("effect_unknown"); !strings.Contains(body, grant.Key) {
		t.Errorf("told of %s", body)
	}
	_, body = r.post("/guard/v1/begin", begin)
	if err := json.Unmarshal([]byte(body), &again); err != nil || again.Decision != "hold" {
		t.Errorf("%v: %s", err, body)
	}

	for _, want := range []string{`"s3cret"`, `"[redacted]"`} { // as it came, and then as it was stored
		if _, body := r.post("/guard/v1/forward/row/rows", `{"lead":"L-1"}`, "Content-Type", "application/json"); !strings.Contains(body, want) {
			t.Errorf("forwarded: %s, want %s in it", body, want)
		}
	}
	if len(acts) != 1 || <-acts != "/api/rows" {
		t.Errorf("the downstream acted %d times more", len(acts))
	}
	resp, err := http.Get(r.base + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if metrics, _ := io.ReadAll(resp.Body); !strings.Contains(string(metrics), `llmproxy_guard_events_total{event="unknown_entered",step="mail"} 1`) {
		t.Error("the metrics do not tell of the unknown effect")
	}
}

func TestTheSecretOfKeys(t *testing.T) {
	env := map[string]string{"SECRET": "s"}
	if got := guardSecret(GuardConfig{KeySecretEnv: "SECRET"}, env); string(got) != "s" {
		t.Errorf("%q", got)
	}
	if got := guardSecret(GuardConfig{}, env); got != nil {
		t.Errorf("%q without one", got)
	}
}
