package proxy

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"llmproxy/budget"
	"llmproxy/ledger"
	"llmproxy/proxy/proxytest"
)

func TestARetryIsServedFromTheStore(t *testing.T) {
	h := newHarness(t, nil)
	h.upstream.Reply(proxytest.JSON(200, proxytest.Completion("four")))
	first := h.post(chat("two and two"))
	again := h.post(chat("two and two"))
	if first.status != 200 || first.cache() != "miss" || again.status != 200 || again.cache() != "hit" {
		t.Fatalf("first %d %s, again %d %s: %s", first.status, first.cache(), again.status, again.cache(), again.body)
	}
	if first.body != again.body || !strings.Contains(first.body, "four") {
		t.Errorf("bodies differ:\n%s\n%s", first.body, again.body)
	}
	if n := h.upstream.Count(); n != 1 {
		t.Errorf("%d upstream calls", n)
	}
	for name, want := range map[string]string{
		"X-LLMProxy-Key": first.header.Get("X-LLMProxy-Key"), "X-LLMProxy-Step": "default", "X-LLMProxy-Age": "0",
		"Content-Type": "application/json", "X-LLMProxy-Input-Tokens": first.header.Get("X-LLMProxy-Input-Tokens"),
	} {
		if got := again.header.Get(name); got != want || want == "" {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if !strings.HasPrefix(again.header.Get("Cache-Status"), "llmproxy; hit; ttl=") {
		t.Errorf("Cache-Status: %q", again.header.Get("Cache-Status"))
	}
	if got := h.outcomes(); got[ledger.Miss] != 1 || got[ledger.Hit] != 1 || len(got) != 2 {
		t.Errorf("ledger: %v", got)
	}
	if n := h.number(`SELECT avoided_input FROM call WHERE outcome = 2`); n != 11 {
		t.Errorf("the hit avoided %d input tokens, want the upstream's 11", n)
	}
	h.nothingHeld()
}

func TestAnEntrySurvivesARestart(t *testing.T) {
	h := newHarness(t, nil)
	h.upstream.Reply(proxytest.JSON(200, proxytest.Completion("kept")))
	first := h.post(chat("hello"))
	h.stop()
	h.start(h.store)
	again := h.post(chat("hello"))
	if again.cache() != "hit" || again.body != first.body {
		t.Errorf("after a restart: %s %s", again.cache(), again.body)
	}
	if n := h.number(`SELECT max(attempt) FROM call`); n != 2 {
		t.Errorf("attempt %d, want the second", n)
	}
}

func TestOneEntryServesBothForms(t *testing.T) {
	for _, streamFirst := range []bool{true, false} {
		h := newHarness(t, nil)
		asStream, asJSON := chat("hello", stream), chat("hello")
		if streamFirst {
			h.upstream.Reply(proxytest.Stream(proxytest.Chunks("Hello there, world", 4)...))
			h.post(asStream)
		} else {
			h.upstream.Reply(proxytest.JSON(200, proxytest.Completion("Hello there, world")))
			h.post(asJSON)
		}
		s, j := h.post(asStream), h.post(asJSON)
		if s.cache() != "hit" || j.cache() != "hit" {
			t.Fatalf("stream first %v: stream %s, JSON %s", streamFirst, s.cache(), j.cache())
		}
		if !strings.Contains(j.body, "Hello there, world") || !strings.HasPrefix(j.header.Get("Content-Type"), "application/json") {
			t.Errorf("JSON: %s", j.body)
		}
		if !strings.HasSuffix(s.body, "data: [DONE]\n\n") || !strings.HasPrefix(s.header.Get("Content-Type"), "text/event-stream") {
			t.Errorf("stream: %s", s.body)
		}
		if whole, err := assembleText(s.body); err != nil || whole != "Hello there, world" {
			t.Errorf("stream: %q, %v", whole, err)
		}
		if strings.Contains(s.body, `"choices":[]`) {
			t.Error("a usage chunk that nobody asked for")
		}
		u := h.post(chat("hello", stream, `,"stream_options":{"include_usage":true}`))
		if u.cache() != "hit" || strings.Count(u.body, `"choices":[]`) != 1 {
			t.Errorf("with usage: %s %s", u.cache(), u.body)
		}
	}
}

func assembleText(sse string) (string, error) {
	var events [][]byte
	r := newEventReader(strings.NewReader(sse), 1<<20)
	for {
		event, err := r.next()
		if err != nil {
			break
		}
		events = append(events, event)
	}
	whole := &chatCompletion{}
	for _, e := range events {
		if data, ok := eventData(e); ok && !isDone(data) {
			if err := whole.add(data); err != nil {
				return whole.text(), err
			}
		}
	}
	return whole.text(), nil
}

func TestParallelEqualCallsAreOne(t *testing.T) {
	h := newHarness(t, nil)
	gate := proxytest.NewGate()
	h.upstream.Reply(proxytest.JSON(200, proxytest.Completion("one answer")).Hold(gate))
	var wg sync.WaitGroup
	answers := make([]response, 8)
	for i := range answers {
		wg.Go(func() { answers[i] = h.post(chat("same")) })
	}
	proxytest.Wait(t, gate.Reached(), "the upstream call")
	gate.Open()
	wg.Wait()
	counts := map[string]int{}
	for _, a := range answers {
		counts[a.cache()]++
		if a.status != 200 || a.body != answers[0].body {
			t.Errorf("%d %s", a.status, a.body)
		}
	}
	if h.upstream.Count() != 1 || counts["miss"] != 1 || counts["collapsed"]+counts["hit"] != 7 {
		t.Errorf("%d upstream calls, %v", h.upstream.Count(), counts)
	}
	h.nothingHeld()
}

func TestACallOutlivesItsClientAndTheRetryAttaches(t *testing.T) {
	for _, form := range []string{"", stream} {
		h := newHarness(t, nil)
		gate := proxytest.NewGate()
		reply := proxytest.JSON(200, proxytest.Completion("late but paid once")).Hold(gate)
		if form == stream {
			reply = proxytest.Stream(proxytest.Chunks("late but paid once", 3)...).Hold(gate)
		}
		h.upstream.Reply(reply)
		ctx, leave := context.WithCancel(t.Context())
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			if r, err := http.DefaultClient.Do(h.request(ctx, "/v1/chat/completions", chat("slow", form))); err == nil {
				r.Body.Close()
			}
		}()
		proxytest.Wait(t, gate.Reached(), "the upstream call")
		leave()
		<-gone
		retry := make(chan response)
		go func() { retry <- h.post(chat("slow", form)) }()
		time.AfterFunc(50*time.Millisecond, gate.Open)
		r := <-retry
		if r.status != 200 || (r.cache() != "collapsed" && r.cache() != "hit") || !strings.Contains(r.body, "late") {
			t.Errorf("%q: the retry got %d %s %s", form, r.status, r.cache(), r.body)
		}
		if n := h.upstream.Count(); n != 1 {
			t.Errorf("%q: %d upstream calls", form, n)
		}
		h.settle()
		select {
		case <-h.upstream.Requests()[0].Gone:
			t.Errorf("%q: the upstream saw its client leave", form)
		default:
		}
		h.nothingHeld()
	}
}

func TestAStepOverItsBudgetIsRefusedWithoutAnUpstreamCall(t *testing.T) {
	h := newHarness(t, func(p *Policy) {
		p.Budget.Steps["small"] = []budget.Rule{{Unit: budget.InputTokens, Limit: 15, Per: budget.PerDay}}
	})
	h.upstream.Reply(proxytest.JSON(200, proxytest.Completion("ok")))
	step := []string{"X-LLMProxy-Step", "small"}
	if r := h.post(chat("first"), step...); r.status != 200 {
		t.Fatalf("first: %d %s", r.status, r.body)
	}
	r := h.post(chat("second", stream), step...)
	if r.status != 402 || r.cache() != "refused" || r.header.Get("X-Should-Retry") != "false" || r.header.Get("Retry-After") != "" {
		t.Errorf("%d %s %v", r.status, r.cache(), r.header)
	}
	for _, want := range []string{`"code":"budget_exceeded"`, `"unit":"input_tokens"`, `"limit":15`, `"used":11`, "resets_at", `Step \"small\"`} {
		if !strings.Contains(r.body, want) {
			t.Errorf("the refusal lacks %s: %s", want, r.body)
		}
	}
	if hit := h.post(chat("first"), step...); hit.status != 200 || hit.cache() != "hit" {
		t.Errorf("a hit over budget: %d %s", hit.status, hit.cache())
	}
	if codex := h.post(chat("third"), "X-LLMProxy-Step", "small", "Originator", "codex_exec"); codex.status != 400 {
		t.Errorf("a client that retries 402 got %d", codex.status)
	}
	if n := h.upstream.Count(); n != 1 {
		t.Errorf("%d upstream calls", n)
	}
	if got := h.outcomes(); got[ledger.Refused] != 2 {
		t.Errorf("ledger: %v", got)
	}
	h.nothingHeld()
}

func TestAnErrorOfTheUpstreamIsPassedOnAndNotKept(t *testing.T) {
	h := newHarness(t, nil)
	h.upstream.Reply(proxytest.RateLimited("300"), proxytest.Error(500, "broken"), proxytest.JSON(200, proxytest.Completion("fine")))
	limited, broken, fine := h.post(chat("x")), h.post(chat("x")), h.post(chat("x"))
	if limited.status != 429 || limited.header.Get("Retry-After") != "60" {
		t.Errorf("429: %d, Retry-After %q", limited.status, limited.header.Get("Retry-After"))
	}
	if broken.status != 500 || !strings.Contains(broken.body, "broken") || fine.status != 200 || fine.cache() != "miss" {
		t.Errorf("500: %d %s; then %d %s", broken.status, broken.body, fine.status, fine.cache())
	}
	if got := h.outcomes(); got[ledger.Failed] != 2 || got[ledger.Miss] != 1 {
		t.Errorf("ledger: %v", got)
	}
	if n := h.number(`SELECT sum(input) FROM rollup`); n != 11 {
		t.Errorf("%d input tokens charged, want those of the one answer", n)
	}
	h.nothingHeld()
}
