package proxy

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"llmproxy/budget"
	"llmproxy/cache"
	"llmproxy/proxy/proxytest"
	"llmproxy/store"
)

// The error table: what clients get for each error of the packages below. The
// status and the retry advice are what SDKs act on, the code is what programs
// do, and the message is all that most people see.
func TestTheErrorTable(t *testing.T) {
	wrap := func(err error) error { return fmt.Errorf("doing it: %w", err) }
	for _, tt := range []struct {
		err    error
		status int
		typ    string
		code   string
		after  string // Retry-After
		retry  string // X-Should-Retry
		says   string
	}{
		{&cache.SyntaxError{Offset: 7, Message: "wrong"}, 400, "invalid_request_error", "invalid_request", "", "", "byte 7"},
		{&cache.DuplicateError{Name: "model"}, 400, "invalid_request_error", "duplicate_member", "", "", `"model"`},
		{missing("model", "name it"), 400, "invalid_request_error", "invalid_request", "", "", "name it"},
		{&budget.Exceeded{Step: "s", Rule: budget.Rule{Unit: budget.Tokens, Limit: 5, Per: budget.PerDay}, Needed: 6}, 402, "budget_error", "budget_exceeded", "", "false", "raise the limit"},
		{&budget.Exceeded{Step: "s", Rule: budget.Rule{Unit: budget.Tokens, Limit: 5, Per: budget.PerCall}, Needed: 6}, 402, "budget_error", "request_over_budget", "", "false", "per call"},
		{tooLarge(1000), 413, "invalid_request_error", "request_too_large", "", "false", "1,000"},
		{cache.ErrTooManyDetached, 429, "server_error", "too_many_detached", "5", "", "limits.detached"},
		{cache.ErrAbandoned, 502, "upstream_error", "upstream_unreachable", "", "", "on_disconnect"},
		{errBrokeOff, 502, "upstream_error", "upstream_invalid", "", "", "again"},
		{&passedOn{&chunkError{[]byte(`{"error":{"message":"fell over"}}`)}}, 502, "upstream_error", "upstream_error", "", "", "fell over"},
		{tooLong(5), 502, "upstream_error", "upstream_invalid", "", "", "limits.response_body"},
		{otherForm(errors.New("odd")), 502, "upstream_error", "upstream_invalid", "", "", "odd"},
		{fmt.Errorf("%w: disk full", store.ErrUnavailable), 503, "server_error", "store_unavailable", "5", "true", "free disk space"},
		{unavailable("call_in_progress", "again", 10), 503, "server_error", "call_in_progress", "10", "true", "again"},
		{errors.New("a bug with secrets"), 500, "server_error", "internal_error", "", "", "log"},
	} {
		t.Run(tt.code, func(t *testing.T) {
			w := httptest.NewRecorder()
			e := toError(wrap(tt.err))
			e.write(w)
			got := (&harness{T: t}).errorIn(w.Body.String())
			if w.Code != tt.status || got.Type != tt.typ || got.Code == nil || *got.Code != tt.code || !strings.Contains(got.Message, tt.says) {
				t.Errorf("%d %s", w.Code, w.Body)
			}
			if h := w.Header(); h.Get("Retry-After") != tt.after || h.Get("X-Should-Retry") != tt.retry || h.Get("Content-Type") != "application/json" ||
				h.Get("Content-Length") != fmt.Sprint(w.Body.Len()) {
				t.Errorf("header %v", h)
			}
			if strings.Contains(w.Body.String(), "secrets") || strings.Contains(w.Body.String(), "\n") {
				t.Errorf("the client is told %s", w.Body)
			}
			// As an event it is one line in the form that every SDK raises.
			if frame := string(errorEvent(e.body(), 0)); frame != "data: "+w.Body.String()+"\n\n" || !strings.HasPrefix(frame, `data: {"error":{`) {
				t.Errorf("as an event: %q", frame)
			}
		})
	}
}

// No message of ours reads like an upstream's own that clients act on.
func TestErrorMessagesAvoidPhrasesThatClientsMatch(t *testing.T) {
	phrases := regexp.MustCompile(`(?i)rate.?limit|quota|context.?(length|window)|maximum context|try again in|too many requests|insufficient`)
	for _, err := range []error{
		cache.ErrTooManyDetached, cache.ErrAbandoned, store.ErrUnavailable, tooLarge(1), tooLong(1), errors.New("x"),
		&budget.Exceeded{Step: "s", Rule: budget.Rule{Unit: budget.Tokens, Limit: 5, Per: budget.PerDay}},
	} {
		if m := toError(err).Message; phrases.MatchString(m) {
			t.Errorf("%s", m)
		}
	}
}

func TestACallDuringShutdownIsSentElsewhere(t *testing.T) {
	h := newHarness(t, nil)
	gate := proxytest.NewGate()
	h.upstream.Reply(whole.HoldAfter(3, gate))
	running := h.open(chat("hi", stream))
	running.event()
	ctx, cancel := context.WithCancel(context.Background())
	drained := make(chan struct{})
	go func() { h.server.Drain(ctx); close(drained) }()
	h.eventually("the drain", func() bool { return h.server.draining.Load() })
	r := h.post(chat("hello"))
	h.wantError(r, 503, "shutting_down", "again")
	if r.header.Get("Retry-After") != "5" || r.header.Get("X-Should-Retry") != "true" {
		t.Errorf("%v", r.header)
	}
	if ready := h.get("/readyz"); ready.status != 503 || !strings.Contains(ready.body, "shutting down") {
		t.Errorf("/readyz: %d %s", ready.status, ready.body)
	}
	cancel() // the drain's time is over
	proxytest.Wait(t, drained, "the end of the drain")
	events := running.rest()
	if last := events[len(events)-1]; !strings.HasPrefix(last, `data: {"error":`) || !strings.Contains(last, "shutting_down") {
		t.Errorf("the running call ends with %q", last)
	}
	if row := h.rows("")[0]; row.outcome.String() != "lost" || row.used[0] != row.input {
		t.Errorf("the row says %+v", row)
	}
	h.nothingHeld()
}

// The whole header of an answer of each kind, as clients get it. What differs
// from run to run stands as <…>.
func TestResponseHeaders(t *testing.T) {
	h := newHarness(t, func(p *Policy) {
		p.Steps = []*Step{{Name: "draft", TTL: time.Hour, FinishReasons: []string{"stop"}}}
		p.Budget = &budget.Policy{Steps: map[string][]budget.Rule{"draft": {{Unit: budget.Calls, Limit: 5, FlagAt: 3, Per: budget.PerDay}}}}
	})
	gate := proxytest.NewGate()
	answer := proxytest.JSON(200, proxytest.Completion("ok"))
	for _, name := range []string{"X-Request-Id", "Openai-Processing-Ms", "Openai-Version", "Set-Cookie", "X-Ratelimit-Remaining-Tokens", "Server", "Cf-Ray", "Date", "Vary"} {
		answer = answer.Header(name, "from upstream")
	}
	h.upstream.Reply(answer, whole, whole.Hold(gate), answer, answer.Status(404), answer)
	run := []string{"X-LLMProxy-Step", "draft", "X-LLMProxy-Run", "8812"}
	var got strings.Builder
	show := func(what string, r response) {
		fmt.Fprintf(&got, "%s\n%d\n", what, r.status)
		for _, name := range slices.Sorted(maps.Keys(r.header)) {
			value := strings.Join(r.header[name], ", ")
			switch {
			case name == "Date" && value != "from upstream":
				value = "<date>"
			case name == "X-Llmproxy-Call" && regexp.MustCompile(`^call_[0-9a-z]{10,}$`).MatchString(value):
				value = "<call>"
			case name == "X-Llmproxy-Key" && regexp.MustCompile(`^[0-9a-f]{64}$`).MatchString(value):
				value = "<key>"
			case name == "Content-Length" && value == fmt.Sprint(len(r.body)):
				value = "<length>"
			case name == "X-Llmproxy-Age" && len(value) == 1:
				value = "<seconds>"
			case name == "Cache-Status":
				value = regexp.MustCompile(`ttl=3(600|59\d)$`).ReplaceAllString(value, "ttl=<nearly 3600>")
			}
			fmt.Fprintf(&got, "%s: %s\n", name, value)
		}
		got.WriteString("\n")
	}
	show("miss", h.post(chat("hi"), run...))
	show("hit", h.post(chat("hi"), run...))
	show("hit as a stream", h.post(chat("hi", stream), run...))
	show("miss as a stream", h.post(chat("second", stream), run...))
	leader := make(chan response, 1)
	go func() { leader <- h.post(chat("third"), run...) }()
	proxytest.Wait(t, gate.Reached(), "the upstream call")
	follower, asStream := make(chan response, 1), h.open(chat("third", stream), run...)
	go func() { follower <- h.post(chat("third"), run...) }()
	h.waiting(3)
	gate.Open()
	show("miss, near the budget, from a stream", <-leader)
	show("collapsed", <-follower)
	asStream.rest()
	show("collapsed as a stream, before the answer", response{asStream.r.StatusCode, asStream.r.Header, ""})
	show("bypass", h.post(chat("hi"), append(run, "Cache-Control", "no-store")...))
	show("error of the upstream", h.post(chat("fourth"), run...))
	show("refused", h.post(chat("fifth", stream), run...))
	show("passed through", h.postTo("/v1/images/generations", picture))
	show("not understood", h.post("{", run...))
	show("not served", h.get("/nowhere"))
	golden(t, "headers.txt", got.String())
}

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares with a file in testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs (-update writes it anew); got:\n%s", path, got)
	}
}
