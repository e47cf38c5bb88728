package main

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"llmproxy/budget"
	"llmproxy/guard"
)

// A notice reaches those who want it, signed, once, and again where it was not
// taken.
func TestWebhooks(t *testing.T) {
	type delivery struct {
		path, signature string
		body            []byte
	}
	got := make(chan delivery, 10)
	refuse := true
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.URL.Path == "/effects" && refuse { // by one goroutine at a time
			refuse = false
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		got <- delivery{r.URL.Path, r.Header.Get(signatureHeader), body}
	}))
	defer server.Close()
	w := newWebhooks([]WebhookConfig{
		{URL: server.URL + "/budgets", Events: []string{eventBudgetOver, eventBudgetNear}, SecretEnv: "HOOK"},
		{URL: server.URL + "/effects", Events: []string{eventEffectUnknown}},
	}, map[string]string{"HOOK": "secret"}, slog.New(slog.DiscardHandler))
	w.pauses = []time.Duration{time.Millisecond}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { w.run(ctx); close(done) }()

	note := budget.Note{State: budget.Over, Step: "draft", Rule: budget.Rule{Unit: budget.Calls, Per: budget.PerDay, Limit: 5}, Used: 5, Needed: 1, ResetsAt: time.Unix(1e9, 0)}
	w.budgetFlagged(note)
	w.budgetFlagged(note) // the same window: told already
	d := <-got
	mac := hmac.New(sha256.New, []byte("secret"))
	mac.Write(d.body)
	var body map[string]any
	if err := json.Unmarshal(d.body, &body); err != nil || d.path != "/budgets" || d.signature != "sha256="+hex.EncodeToString(mac.Sum(nil)) {
		t.Errorf("%v %+v", err, d)
	}
	for name, want := range map[string]any{"event": "budget_over", "step": "draft", "unit": "calls", "per": "day", "limit": 5.0, "used": 5.0, "needed": 1.0} {
		if body[name] != want {
			t.Errorf("%s is %v, want %v", name, body[name], want)
		}
	}
	note.ResetsAt = note.ResetsAt.Add(24 * time.Hour)
	w.budgetFlagged(note)
	<-got

	w.effectChanged(guard.Transition{Before: guard.Record{State: guard.Pending}, After: guard.Record{State: guard.Completed}})
	w.effectChanged(guard.Transition{Before: guard.Record{State: guard.Pending}, After: guard.Record{State: guard.Unknown, Step: "send", Fence: 2}})
	w.effectChanged(guard.Transition{Before: guard.Record{State: guard.Unknown}, After: guard.Record{State: guard.Unknown, Step: "send", Fence: 2}})
	if d := <-got; d.path != "/effects" || d.signature != "" {
		t.Errorf("%+v", d)
	}
	stop()
	<-done
	if len(got) > 0 {
		t.Errorf("and %+v", <-got)
	}
}
