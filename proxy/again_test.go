package proxy

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"llmproxy/ledger"
	"llmproxy/proxy/proxytest"
	"llmproxy/store"
)

// numbered are answers that can be told apart: "answer 1", "answer 2" …
func numbered(n int) (replies []proxytest.Reply) {
	for i := range n {
		replies = append(replies, proxytest.JSON(200, proxytest.Completion(fmt.Sprint("answer ", i+1))))
	}
	return replies
}

// wantAnswer checks how a call was answered and with which of the numbered
// answers.
func (h *harness) wantAnswer(r response, cache string, number int) {
	h.Helper()
	if want := fmt.Sprintf(`"answer %d"`, number); r.status != 200 || r.cache() != cache || !strings.Contains(r.body, want) {
		h.Errorf("got %d %s %s; want %s with %s", r.status, r.cache(), r.body, cache, want)
	}
}

func TestNoCacheReplacesTheStoredAnswer(t *testing.T) {
	h := newHarness(t, nil)
	h.upstream.Reply(numbered(9)...)
	h.wantAnswer(h.post(chat("hi")), "miss", 1)
	h.wantAnswer(h.post(chat("hi"), "Cache-Control", "no-cache"), "miss", 2)
	h.wantAnswer(h.post(chat("hi")), "hit", 2)
	if row := h.rows("")[1]; row.flags&ledger.Refreshed == 0 || row.flags&ledger.Rejected != 0 {
		t.Errorf("the deliberate re-run is not counted as one: %+v", row)
	}
	// Where nothing is stored there is nothing to refresh.
	h.wantAnswer(h.post(chat("new"), "Cache-Control", "No-Cache, max-age=5"), "miss", 3)
	if row := h.lastRow(); row.flags&ledger.Refreshed != 0 {
		t.Errorf("a first call counts as a re-run: %+v", row)
	}
	if n := h.stored(); n != 2 {
		t.Errorf("%d answers are stored", n)
	}
}

// A failed refresh leaves the answer that is there.
func TestAFailedRefreshKeepsTheStoredAnswer(t *testing.T) {
	h := newHarness(t, nil)
	h.upstream.Reply(append(numbered(1), proxytest.Error(500, "broken"))...)
	h.post(chat("hi"))
	if r := h.post(chat("hi"), "Cache-Control", "no-cache"); r.status != 500 {
		t.Errorf("%d %s", r.status, r.body)
	}
	h.wantAnswer(h.post(chat("hi")), "hit", 1)
}

// Fresh answers are bounded for each key and hour, in whatever way they are asked
// for: or they would be a hole in the budget.
func TestRefreshesAreBounded(t *testing.T) {
	for name, header := range map[string][]string{
		"no-cache": {"Cache-Control", "no-cache"},
		"reject":   {"X-LLMProxy-Reject", "not JSON"},
		"max-age":  {"Cache-Control", "max-age=0"},
		"repeat":   nil,
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, func(p *Policy) {
				p.RefreshesPerKey = 2
				if name == "repeat" {
					p.Default.DissatisfiedWithin = time.Hour
				}
			})
			h.upstream.Reply(numbered(9)...)
			later := func() {
				h.handlers(0)                    // the answer is delivered
				time.Sleep(2 * time.Millisecond) // and older than 0 s
			}
			h.wantAnswer(h.post(chat("hi")), "miss", 1)
			for n := 2; n <= 3; n++ {
				later()
				h.wantAnswer(h.post(chat("hi"), header...), "miss", n)
			}
			for range 2 {
				later()
				h.wantAnswer(h.post(chat("hi"), header...), "hit", 3)
			}
			h.wantAnswer(h.post(chat("other")), "miss", 4) // each key has its own
			later()
			if name != "repeat" {
				h.wantAnswer(h.post(chat("other"), header...), "miss", 5)
			}
			if name == "max-age" {
				return // asks for no fresh answer by itself
			}
			want := map[bool]int{true: ledger.Refreshed, false: ledger.Rejected}[name == "no-cache"]
			if n := h.number(fmt.Sprintf(`SELECT count(*) FROM call WHERE flags & %d <> 0 AND outcome = 1`, want)); n < 2 {
				t.Errorf("%d calls are counted as re-runs", n)
			}
		})
	}
}

// A refresh that a budget refuses is not used up.
func TestARefusedRefreshDoesNotCount(t *testing.T) {
	h := newHarness(t, func(p *Policy) { p.RefreshesPerKey = 1 })
	h.upstream.Reply(numbered(9)...)
	h.wantAnswer(h.post(chat("hi")), "miss", 1)
	poor := *h.policy
	poor.Budget = limited(budgetOf("calls", 1))
	h.server.SetPolicy(&poor)
	h.post(chat("spend")) // the one call
	h.wantError(h.post(chat("hi"), "Cache-Control", "no-cache"), 402, "budget_exceeded")
	h.server.SetPolicy(h.policy)
	h.settle() // the refused call's row is written
	h.wantAnswer(h.post(chat("hi"), "Cache-Control", "no-cache"), "miss", 3)
}

func TestNoStoreNeitherKeepsNorJoins(t *testing.T) {
	h := newHarness(t, nil)
	gate := proxytest.NewGate()
	replies := numbered(9)
	h.upstream.Reply(append([]proxytest.Reply{replies[0].Hold(gate)}, replies[1:]...)...)
	leader := make(chan response, 1)
	go func() { leader <- h.post(chat("hi")) }()
	proxytest.Wait(t, gate.Reached(), "the upstream call")
	aside := h.post(chat("hi"), "Cache-Control", "no-store") // does not wait for it
	h.wantAnswer(aside, "bypass", 2)
	if got := aside.header.Get("Cache-Status"); got != "llmproxy; fwd=bypass" {
		t.Errorf("Cache-Status: %s", got)
	}
	gate.Open()
	h.wantAnswer(<-leader, "miss", 1)
	h.wantAnswer(h.post(chat("hi"), "Cache-Control", "no-store"), "bypass", 3) // nor looks
	h.wantAnswer(h.post(chat("hi")), "hit", 1)                                 // nor replaces
	h.wantAnswer(h.post(chat("new"), "Cache-Control", "no-store"), "bypass", 4)
	h.wantAnswer(h.post(chat("new")), "miss", 5)
	if got := h.outcomes(); got[ledger.Bypass] != 3 || got[ledger.Miss] != 2 || h.stored() != 2 {
		t.Errorf("ledger %v, %d stored", got, h.stored())
	}
	h.nothingHeld()
}

func TestMaxAgeAndOnlyIfCached(t *testing.T) {
	h := newHarness(t, nil)
	h.upstream.Reply(numbered(9)...)
	for _, form := range []string{"", stream} {
		r := h.post(chat("hi", form), "Cache-Control", "only-if-cached")
		h.wantError(r, 504, "not_cached", "only-if-cached")
		if r.header.Get("X-Should-Retry") != "false" {
			t.Error("SDKs would send it again")
		}
	}
	h.wantAnswer(h.post(chat("hi")), "miss", 1)
	h.wantAnswer(h.post(chat("hi"), "Cache-Control", "only-if-cached"), "hit", 1)
	h.age(100 * time.Second)
	aged := h.post(chat("hi"), "Cache-Control", "max-age=101")
	h.wantAnswer(aged, "hit", 1)
	if got := aged.header.Get("X-LLMProxy-Age"); got != "100" && got != "101" {
		t.Errorf("X-LLMProxy-Age: %s", got)
	}
	h.wantError(h.post(chat("hi"), "Cache-Control", "max-age=99, only-if-cached"), 504, "not_cached")
	h.wantAnswer(h.post(chat("hi"), "Cache-Control", `max-age="99"`), "miss", 2)
	h.wantAnswer(h.post(chat("hi")), "hit", 2)
	for _, odd := range []string{"max-age=soon", "max-age=-1", "max-age", "max-age=1e3", "max-age=99999999999"} {
		h.wantError(h.post(chat("hi"), "Cache-Control", odd), 400, "invalid_request", "max-age")
	}
	h.wantAnswer(h.post(chat("hi"), "Cache-Control", "max-stale, no-transform, x=y"), "hit", 2)
	if n := h.upstream.Count(); n != 2 {
		t.Errorf("%d upstream calls", n)
	}
}

// age makes the stored answers older, as if time had passed.
func (h *harness) age(by time.Duration) {
	h.Helper()
	h.settle()
	h.update(func(tx *store.Tx) error {
		_, err := tx.Exec(`UPDATE entry SET created_at = created_at - $1`, by.Milliseconds())
		return err
	})
	h.server.Cache.ForgetAll()
}

func (h *harness) update(fn func(*store.Tx) error) {
	h.Helper()
	if err := h.store.Update(h.Context(), fn); err != nil {
		h.Fatal(err)
	}
}

func TestARejectedAnswerIsGone(t *testing.T) {
	h := newHarness(t, nil)
	h.upstream.Reply(append(numbered(1), proxytest.Error(500, "broken"), numbered(2)[1], numbered(3)[2])...)
	h.wantAnswer(h.post(chat("hi")), "miss", 1)
	if r := h.post(chat("hi"), "X-LLMProxy-Reject", "schema check failed"); r.status != 500 {
		t.Errorf("%d %s", r.status, r.body)
	}
	if row := h.lastRow(); row.flags&ledger.Rejected == 0 {
		t.Errorf("the rejection is not counted: %+v", row)
	}
	if n := h.stored(); n != 0 {
		t.Error("the rejected answer is still stored")
	}
	h.wantAnswer(h.post(chat("hi")), "miss", 2) // not the rejected one out of memory
	h.wantAnswer(h.post(chat("hi"), "X-LLMProxy-Reject", "wrong language"), "miss", 3)
	h.wantAnswer(h.post(chat("hi")), "hit", 3)
	for _, r := range h.upstream.Requests() {
		if r.Header.Get("X-LLMProxy-Reject") != "" {
			t.Error("the reason was forwarded")
		}
	}
}

// Where a step says so, a repeat soon after a delivered answer rejects it: some
// tools send the same bytes when they could not parse the answer.
func TestAQuickRepeatRejectsADeliveredAnswer(t *testing.T) {
	h := newHarness(t, func(p *Policy) {
		p.Steps = []*Step{{Name: "parse", TTL: time.Hour, FinishReasons: []string{"stop"}, DissatisfiedWithin: time.Hour}}
	})
	gate := proxytest.NewGate()
	replies := numbered(9)
	h.upstream.Reply(append([]proxytest.Reply{replies[0].Hold(gate)}, replies[1:]...)...)
	step := []string{"X-LLMProxy-Step", "parse"}
	first := make(chan response, 1)
	go func() { first <- h.post(chat("hi"), step...) }()
	proxytest.Wait(t, gate.Reached(), "the upstream call")
	second := make(chan response, 1)
	go func() { second <- h.post(chat("hi"), step...) }()
	h.waiting(2) // a repeat before the delivery attaches
	gate.Open()
	h.wantAnswer(<-first, "miss", 1)
	h.wantAnswer(<-second, "collapsed", 1)
	h.handlers(0)
	h.wantAnswer(h.post(chat("hi"), step...), "miss", 2)
	if row := h.lastRow(); row.flags&ledger.Rejected == 0 {
		t.Errorf("the rejection is not counted: %+v", row)
	}
	h.wantAnswer(h.post(chat("hi")), "miss", 3) // other steps do not say so
	h.wantAnswer(h.post(chat("hi")), "hit", 3)
}

// A client that left before the end has not been given the answer: its repeat
// rejects nothing.
func TestARepeatOfWhatWasNotDeliveredIsAHit(t *testing.T) {
	h := newHarness(t, func(p *Policy) { p.Default.DissatisfiedWithin = time.Hour })
	gate := proxytest.NewGate()
	h.upstream.Reply(numbered(1)[0].Hold(gate), numbered(2)[1])
	leave, gone := h.leaving(chat("hi"))
	proxytest.Wait(t, gate.Reached(), "the upstream call")
	leave()
	<-gone
	h.handlers(0)
	gate.Open()
	h.settle()
	h.wantAnswer(h.post(chat("hi")), "hit", 1)
	h.handlers(0)
	h.wantAnswer(h.post(chat("hi")), "miss", 2)
}

func TestASampleIsAnotherAnswer(t *testing.T) {
	h := newHarness(t, nil)
	h.upstream.Reply(numbered(9)...)
	h.wantAnswer(h.post(chat("hi")), "miss", 1)
	for n := 2; n <= 4; n++ {
		h.wantAnswer(h.post(chat("hi"), "X-LLMProxy-Sample", fmt.Sprint(n)), "miss", n)
	}
	h.wantAnswer(h.post(chat("hi"), "X-LLMProxy-Sample", "3"), "hit", 3)
	h.wantAnswer(h.post(chat("hi")), "hit", 1)
	h.wantError(h.post(chat("hi"), "X-LLMProxy-Sample", strings.Repeat("9", 129)), 400, "invalid_request", "Sample")
	for _, r := range h.upstream.Requests() {
		if r.Header.Get("X-LLMProxy-Sample") != "" {
			t.Error("the sample was forwarded")
		}
	}
}

func TestAnIdempotencyKeyNamesTheWork(t *testing.T) {
	h := newHarness(t, nil)
	gate := proxytest.NewGate()
	replies := numbered(9)
	h.upstream.Reply(append([]proxytest.Reply{replies[0].Hold(gate)}, replies[1:]...)...)
	key := []string{"Idempotency-Key", "order-7"}
	reuse := func(r response) {
		t.Helper()
		h.wantError(r, 422, "idempotency_key_reuse", "Idempotency-Key")
		if r.header.Get("X-Should-Retry") != "false" {
			t.Error("SDKs may send it again")
		}
	}
	leader := make(chan response, 1)
	go func() { leader <- h.post(chat("hi"), key...) }()
	proxytest.Wait(t, gate.Reached(), "the upstream call")
	reuse(h.post(chat("other"), key...)) // while the first is in flight
	follower := make(chan response, 1)
	go func() { follower <- h.post(chat("hi", stream), key...) }() // the same work in another form
	h.waiting(2)
	gate.Open()
	h.wantAnswer(<-leader, "miss", 1)
	if r := <-follower; r.cache() != "collapsed" {
		t.Errorf("the same body got %d %s", r.status, r.cache())
	}
	h.wantAnswer(h.post(chat("hi"), key...), "hit", 1)
	reuse(h.post(chat("other"), key...)) // out of memory
	h.server.Cache.ForgetAll()
	reuse(h.post(chat("other"), key...)) // out of the store
	h.wantAnswer(h.post(chat("hi"), key...), "hit", 1)
	h.wantAnswer(h.post(chat("hi")), "miss", 2) // without the key it is other work
	h.wantAnswer(h.post(chat("other"), "Idempotency-Key", "order-8"), "miss", 3)
	h.wantAnswer(h.post(chat("other"), append(key, "Authorization", "Bearer somebody else")...), "miss", 4)
	h.wantAnswer(h.post(chat("other"), append(key, "X-LLMProxy-Step", "another")...), "miss", 5)
	for _, r := range h.upstream.Requests() {
		if r.Header.Get("Idempotency-Key") != "" {
			t.Error("the key was forwarded")
		}
	}
	h.nothingHeld()
}

// An upstream gets the call's own key where its configuration names a header,
// the same for each attempt.
func TestTheCallsKeyGoesUpstreamWhereAHeaderIsNamed(t *testing.T) {
	h := newHarness(t, func(p *Policy) {
		retrying(1)(p)
		p.Upstreams[0].IdempotencyHeader = "Idempotency-Key"
	})
	h.upstream.Reply(proxytest.Error(500, "broken"), numbered(1)[0])
	r := h.post(chat("hi"), "Idempotency-Key", "mine")
	for _, req := range h.upstream.WaitFor(2) {
		if got := req.Header.Get("Idempotency-Key"); got == "" || got != r.header.Get("X-LLMProxy-Key") {
			t.Errorf("the upstream got the key %q", got)
		}
	}
}
