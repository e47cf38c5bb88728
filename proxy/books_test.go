package proxy

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"llmproxy/budget"
	"llmproxy/ledger"
	"llmproxy/proxy/proxytest"
	"llmproxy/store"
)

// One piece of work of 500 tokens: an attempt that the upstream turned away, one
// that was paid, two that followed it and three that came later. It is charged
// once, and each attempt has its row.
func TestWhatAPieceOfWorkIsBookedAs(t *testing.T) {
	h := newHarness(t, counting)
	gate := proxytest.NewGate()
	body := chat(strings.Repeat("word ", 490))
	input := inputOf(t, body)
	h.upstream.Reply(proxytest.RateLimited("1"), proxytest.JSON(200, proxytest.Completion("done", proxytest.Usage(500, 20))).Hold(gate))
	if r := h.post(body); r.status != 429 {
		t.Fatalf("%d %s", r.status, r.body)
	}
	answers := make([]response, 3)
	var wg sync.WaitGroup
	wg.Go(func() { answers[0] = h.post(body, "X-Stainless-Retry-Count", "1") })
	proxytest.Wait(t, gate.Reached(), "the upstream call")
	for i := 1; i < 3; i++ {
		wg.Go(func() { answers[i] = h.post(body, "X-Stainless-Retry-Count", "2") })
	}
	h.waiting(3)
	gate.Open()
	wg.Wait()
	for range 3 {
		h.handlers(0)
		answers = append(answers, h.post(body))
	}
	for i, r := range answers {
		if r.status != 200 || !strings.Contains(r.body, `"prompt_tokens":500`) || r.header.Get("X-LLMProxy-Input-Tokens") != fmt.Sprint(input) {
			t.Errorf("answer %d: %d %v %s", i, r.status, r.header, r.body)
		}
	}
	want := []row{
		{outcome: ledger.Failed, status: 429, used: [2]int64{0, 0}},
		{outcome: ledger.Miss, status: 200, used: [2]int64{500, 20}, finish: "stop", flags: ledger.Stored},
		{outcome: ledger.Collapsed, status: 200, used: [2]int64{-1, -1}, avoided: [2]int64{500, 20}},
		{outcome: ledger.Collapsed, status: 200, used: [2]int64{-1, -1}, avoided: [2]int64{500, 20}},
		{outcome: ledger.Hit, status: 200, used: [2]int64{-1, -1}, avoided: [2]int64{500, 20}},
		{outcome: ledger.Hit, status: 200, used: [2]int64{-1, -1}, avoided: [2]int64{500, 20}},
		{outcome: ledger.Hit, status: 200, used: [2]int64{-1, -1}, avoided: [2]int64{500, 20}},
	}
	rows := h.rows("")
	attempts := map[int64]bool{}
	for i, got := range rows {
		attempts[got.attempt] = true
		got.attempt = 0
		if i >= len(want) {
			break
		}
		want[i].input, want[i].step = input, "default"
		if got != want[i] {
			t.Errorf("row %d: %+v, want %+v", i, got, want[i])
		}
	}
	if len(rows) != len(want) || len(attempts) != len(want) || !attempts[1] || !attempts[7] {
		t.Errorf("%d rows, attempts %v", len(rows), attempts)
	}
	if got := h.charged(); got != [3]int64{500, 20, 2} {
		t.Errorf("charged %v", got)
	}
	for what, query := range map[string]string{
		"calls": `SELECT sum(calls) - 7 FROM rollup`, "upstream calls": `SELECT sum(upstream) - 2 FROM rollup`,
		"tokens in": `SELECT sum(input) - 500 FROM rollup`, "tokens out": `SELECT sum(output) - 20 FROM rollup`,
		"avoided in": `SELECT sum(avoided_input) - 5 * 500 FROM rollup`, "avoided out": `SELECT sum(avoided_output) - 5 * 20 FROM rollup`,
		"retries": `SELECT sum(retries) - 6 FROM rollup`, "pieces of work": `SELECT count(DISTINCT key64) - 1 FROM call`,
		"sources":     `SELECT count(*) - 5 FROM call c WHERE c.source = (SELECT id FROM call WHERE outcome = 1)`,
		"SDK retries": `SELECT sum(retry) - 5 FROM call`,
	} {
		if n := h.number(query); n != 0 {
			t.Errorf("%s: %+d", what, n)
		}
	}
	for series, value := range map[string]int{
		`llmproxy_calls_total{outcome="hit",step="default"}`: 3, `llmproxy_calls_total{outcome="collapsed",step="default"}`: 2,
		`llmproxy_calls_total{outcome="miss",step="default"}`: 1, `llmproxy_calls_total{outcome="failed",step="default"}`: 1,
		`llmproxy_tokens_total{direction="input",step="default"}`: 500, `llmproxy_avoided_tokens_total{direction="input",step="default"}`: 2500,
	} {
		if got := h.metric(series); got != fmt.Sprintf("%s %d", series, value) {
			t.Errorf("the metrics say %q, want %d", got, value)
		}
	}
	h.nothingHeld()
}

// hard makes every step's budget one that must be counted.
func hard(p *Policy) {
	p.Budget = &budget.Policy{Global: []budget.Rule{
		{Unit: budget.InputTokens, Limit: 1 << 30, Per: budget.PerTotal}, {Unit: budget.Calls, Limit: 1 << 30, Per: budget.PerTotal}}}
}

// A store that cannot be written costs the cache nothing: calls are served, equal
// ones share an exchange, and what was not written down is, once it can be.
func TestWithoutTheStoreCallsAreServedAndShared(t *testing.T) {
	h := newHarness(t, counting)
	gate := proxytest.NewGate()
	h.upstream.Reply(whole.Hold(gate))
	h.commits.fail()
	answers := make([]response, 5)
	var wg sync.WaitGroup
	for i := range answers {
		wg.Go(func() { answers[i] = h.post(chat("same")) })
	}
	proxytest.Wait(t, gate.Reached(), "the upstream call")
	h.waiting(5)
	gate.Open()
	wg.Wait()
	for _, r := range answers {
		if text, err := contentOf(r.body, false); r.status != 200 || text != wholeText || err != nil {
			t.Errorf("%d %s", r.status, r.body)
		}
	}
	if r := h.post(chat("same")); r.cache() != "hit" { // out of memory
		t.Errorf("then %s", r.cache())
	}
	if n := h.upstream.Count(); n != 1 {
		t.Errorf("%d upstream calls", n)
	}
	if ready := h.get("/readyz"); ready.status != 503 || !strings.Contains(ready.body, "disk full") {
		t.Errorf("/readyz: %d %s", ready.status, ready.body)
	}
	h.handlers(0)
	for range 2 {
		if h.server.backlog.flush() {
			t.Error("the backlog was written by a store that fails")
		}
	}
	h.commits.set(nil)
	if got := h.outcomes(); got[ledger.Miss] != 1 || got[ledger.Collapsed] != 4 || got[ledger.Hit] != 1 {
		t.Errorf("after the recovery the ledger has %v", got)
	}
	if row := h.rows("WHERE c.outcome = 1")[0]; h.stored() != 1 || row.used != [2]int64{11, 7} {
		t.Errorf("%d stored, the leader's row says %+v", h.stored(), row)
	}
	if got := h.charged(); got != [3]int64{11, 7, 1} {
		t.Errorf("charged %v", got)
	}
	h.nothingHeld()
	h.server.Cache.ForgetAll()
	if r := h.post(chat("same")); r.cache() != "hit" {
		t.Errorf("out of the store: %s", r.cache())
	}
}

// Money fails closed: what cannot be counted is refused, and said to be worth
// another try. Hits cost nothing and are served.
func TestWithoutTheStoreAHardBudgetRefuses(t *testing.T) {
	for name, commit := range map[string]func(func() error) error{
		"not applied": func(func() error) error { return errors.New("disk full") },
		"applied":     func(commit func() error) error { return errors.Join(commit(), errors.New("connection lost")) },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, hard)
			h.upstream.Reply(numbered(9)...)
			h.wantAnswer(h.post(chat("one")), "miss", 1)
			h.settle()
			h.commits.set(commit)
			for _, form := range []string{"", stream} {
				r := h.post(chat("two", form))
				h.wantError(r, 503, "store_unavailable", "budget", "again")
				if r.header.Get("Retry-After") != "5" || r.header.Get("X-Should-Retry") != "true" {
					t.Errorf("%v", r.header)
				}
			}
			h.wantError(h.do(h.request(t.Context(), "/v1/embeddings", `{"model":"m","input":"x"}`)), 503, "store_unavailable")
			h.wantAnswer(h.post(chat("one")), "hit", 1)
			if n := h.upstream.Count(); n != 1 {
				t.Errorf("%d upstream calls", n)
			}
			h.commits.set(nil)
			if got := h.outcomes(); got[ledger.Refused] != 3 || got[ledger.Hit] != 1 || got[ledger.Miss] != 1 || len(got) != 3 {
				t.Errorf("after the recovery the ledger has %v", got)
			}
			h.nothingHeld()
			h.wantAnswer(h.post(chat("two")), "miss", 2)
			if used := h.number(`SELECT sum(used) FROM counter WHERE unit = 4`); used != 2 {
				t.Errorf("%d calls are charged", used)
			}
			h.nothingHeld()
		})
	}
}

// The store fails while an answer is on its way: it is paid for, so it is given,
// and written down once that can be done, once.
func TestAnAnswerIsGivenAlthoughItCannotBeWrittenDownYet(t *testing.T) {
	for name, commit := range map[string]func(func() error) error{
		"not applied": func(func() error) error { return errors.New("disk full") },
		"applied":     func(commit func() error) error { return errors.Join(commit(), errors.New("connection lost")) },
	} {
		for _, form := range []string{"", stream} {
			t.Run(name+form, func(t *testing.T) {
				h := newHarness(t, hard)
				gate := proxytest.NewGate()
				h.upstream.Reply(whole.Hold(gate))
				answer := make(chan response, 1)
				go func() { answer <- h.post(chat("hi", form)) }()
				proxytest.Wait(t, gate.Reached(), "the upstream call")
				h.commits.set(commit)
				gate.Open()
				r := <-answer
				if text, err := contentOf(r.body, form == stream); text != wholeText || err != nil {
					t.Errorf("%d %s", r.status, r.body)
				}
				if again := h.post(chat("hi", form)); again.cache() != "hit" || again.body != r.body {
					t.Errorf("then %s %s", again.cache(), again.body)
				}
				h.handlers(0)
				if h.server.backlog.flush() {
					t.Error("the backlog was written by a store that fails")
				}
				h.commits.set(nil)
				h.nothingHeld()
				if got := h.outcomes(); got[ledger.Miss] != 1 || got[ledger.Hit] != 1 || h.stored() != 1 {
					t.Errorf("after the recovery the ledger has %v, the store %d", got, h.stored())
				}
				if in, calls := h.charged()[0], h.charged()[2]; in != 11 || calls != 1 {
					t.Errorf("charged %v", h.charged())
				}
				if n := h.number(`SELECT sum(input) FROM rollup`); n != 11 {
					t.Errorf("the sums say %d tokens", n)
				}
				h.server.Cache.ForgetAll()
				if again := h.post(chat("hi", form)); again.cache() != "hit" || again.body != r.body {
					t.Errorf("out of the store: %s %s", again.cache(), again.body)
				}
			})
		}
	}
}

// A database that somebody else has locked for a moment delays calls and loses
// none.
func TestSlowCommitsDelayCallsAndLoseNone(t *testing.T) {
	h := newHarness(t, hard)
	h.upstream.Reply(whole)
	var fails int
	h.commits.set(func(commit func() error) error { // every third fails
		if fails++; fails%3 == 0 {
			return errors.New("busy")
		}
		return commit()
	})
	const calls = 30
	var refused int
	for i := range calls {
		if r := h.post(chat(fmt.Sprint("hi ", i))); r.status == 503 {
			refused++
		} else if r.status != 200 {
			t.Errorf("%d %s", r.status, r.body)
		}
	}
	h.handlers(0)
	h.commits.set(nil)
	h.nothingHeld()
	paid := h.upstream.Count()
	if got := h.outcomes(); got[ledger.Miss] != paid || paid+refused != calls || h.stored() != paid || got[ledger.Refused] != refused {
		t.Errorf("%d paid, %d refused; ledger %v, %d stored", paid, refused, got, h.stored())
	}
	if got := h.charged(); got != [3]int64{int64(paid) * 11, 0, int64(paid)} {
		t.Errorf("%d paid calls are charged %v", paid, got)
	}
	h.view(func(tx *store.Tx) error { // each answer is the answer to its own call
		var wrong int
		_, err := tx.Get(`SELECT count(*) FROM entry e LEFT JOIN call c ON c.id = e.fence WHERE c.outcome IS NOT 1`, nil, &wrong)
		if wrong > 0 {
			t.Errorf("%d stored answers are of no paid call", wrong)
		}
		return err
	})
}
