package proxy

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"llmproxy/budget"
	"llmproxy/ledger"
	"llmproxy/proxy/proxytest"
	"llmproxy/tokens"
)

// budgetOf is a rule over all time, such as 100 input_tokens.
func budgetOf(unit string, limit int64) budget.Rule {
	u, err := budget.ParseUnit(unit)
	if err != nil {
		panic(err)
	}
	return budget.Rule{Unit: u, Limit: limit, Per: budget.PerTotal}
}

// limited is a budget for every step.
func limited(rules ...budget.Rule) *budget.Policy {
	return &budget.Policy{Steps: map[string][]budget.Rule{}, Default: rules}
}

// inputOf is what the proxy counts for a request.
func inputOf(t *testing.T, body string) int64 {
	t.Helper()
	var counter tokens.Counter
	estimate, err := counter.Count(tokens.Request{Endpoint: tokens.ChatCompletions, Model: "gpt-4o", Body: []byte(body)})
	if err != nil {
		t.Fatal(err)
	}
	return int64(estimate.Tokens)
}

// An input budget is never passed, by a single token, however many calls come at
// once.
func TestParallelCallsAreAdmittedExactlyAsFarAsTheBudgetGoes(t *testing.T) {
	const calls = 20
	body := func(i int, n string) string {
		return chat(strings.Repeat("word ", 290)+fmt.Sprint(100+i), `,"max_tokens":100,"n":`+n)
	}
	input := inputOf(t, body(0, "1"))
	for name, tt := range map[string]struct {
		rule  budget.Rule
		admit int64
	}{
		"input, to the token":   {budgetOf("input_tokens", 3*input), 3},
		"input, one too few":    {budgetOf("input_tokens", 3*input-1), 2},
		"input, as reported":    {budgetOf("input_tokens", 1000), 1000 / input},
		"output, as it may go":  {budgetOf("output_tokens", 450), 4},
		"output, three choices": {budgetOf("output_tokens", 650), 2},
		"tokens":                {budgetOf("tokens", 5*(input+100)), 5},
		"calls":                 {budgetOf("calls", 7), 7},
		"input, shared by all":  {budgetOf("input_tokens", 4*input), 4},
		"nothing":               {budgetOf("input_tokens", 0), 0},
		"everything, and flags": {budget.Rule{Unit: budget.Calls, Per: budget.PerTotal, Action: budget.Flag}, calls},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, func(p *Policy) {
				p.Budget = limited(tt.rule)
				if strings.Contains(name, "shared") {
					p.Budget = &budget.Policy{Global: []budget.Rule{tt.rule}}
				}
			})
			gate := proxytest.NewGate()
			usage := proxytest.Usage(int(input), 60)
			h.upstream.Reply(proxytest.JSON(200, proxytest.Completion("ok", usage)).Hold(gate))
			answers := make([]response, calls)
			var answered atomic.Int64
			var wg sync.WaitGroup
			for i := range calls {
				step, n := "one", "1"
				if strings.Contains(name, "shared") {
					step = fmt.Sprint("step ", i)
				}
				if strings.Contains(name, "three") {
					n = "3"
				}
				wg.Go(func() {
					answers[i] = h.post(body(i, n), "X-LLMProxy-Step", step)
					answered.Add(1)
				})
			}
			h.upstream.WaitFor(int(tt.admit))
			h.eventually("the refusals, while the admitted calls run", func() bool { return answered.Load() == calls-tt.admit })
			gate.Open()
			wg.Wait()
			var admitted int64
			for _, r := range answers {
				switch r.status {
				case 200:
					admitted++
				case 402:
				default:
					t.Errorf("%d %s", r.status, r.body)
				}
			}
			if n := int64(h.upstream.Count()); admitted != tt.admit || n != tt.admit {
				t.Errorf("%d calls admitted, %d made, want %d", admitted, n, tt.admit)
			}
			if got := h.outcomes(); int64(got[ledger.Miss]) != tt.admit || int64(got[ledger.Refused]) != calls-tt.admit {
				t.Errorf("ledger %v", got)
			}
			spent := map[budget.Unit]int64{budget.InputTokens: input, budget.OutputTokens: 60, budget.Tokens: input + 60, budget.Calls: 1}[tt.rule.Unit]
			if used := h.number(`SELECT coalesce(sum(used), 0) FROM counter`); used != tt.admit*spent || tt.rule.Action == budget.Reject && used > tt.rule.Limit {
				t.Errorf("%d used, want %d times %d", used, tt.admit, spent)
			}
			if n := h.number(`SELECT sum(calls) - sum(upstream) FROM rollup`); n != calls-tt.admit {
				t.Errorf("%d calls of the sums did not go upstream", n)
			}
			h.nothingHeld()
		})
	}
}

// detail is what a refusal says for programs.
type detail struct {
	Code, Type, Step, Unit, Per, Message string
	Limit, Used, Reserved, Needed        int64
	ResetsAt                             *time.Time `json:"resets_at"`
	Param                                *string
}

func (h *harness) refusal(r response, code string) (d detail) {
	h.Helper()
	h.wantError(r, 402, code)
	var outer struct{ Error detail }
	if err := json.Unmarshal([]byte(r.body), &outer); err != nil {
		h.Errorf("%v in %s", err, r.body)
	}
	if r.cache() != "refused" || r.header.Get("X-LLMProxy-Budget") != "over" || r.header.Get("X-Should-Retry") != "false" || r.header.Get("Retry-After") != "" {
		h.Errorf("the refusal's header is %v", r.header)
	}
	if outer.Error.Type != "budget_error" || outer.Error.Param != nil {
		h.Errorf("the refusal says %s", r.body)
	}
	return outer.Error
}

func TestWhichRulesBind(t *testing.T) {
	reject := func(unit budget.Unit, limit int64, per budget.Period) budget.Rule {
		return budget.Rule{Unit: unit, Limit: limit, Per: per}
	}
	h := newHarness(t, func(p *Policy) {
		p.Budget = &budget.Policy{
			Steps: map[string][]budget.Rule{
				"own":  {reject(budget.InputTokens, 20, budget.PerCall), reject(budget.Calls, 3, budget.PerDay)},
				"runs": {reject(budget.Calls, 1, budget.PerRun)},
				"none": {reject(budget.Tokens, 0, budget.PerMonth)},
				"free": {{Unit: budget.Calls, Limit: 0, Per: budget.PerTotal, Action: budget.Flag}},
				"soon": {{Unit: budget.Calls, Limit: 4, FlagAt: 2, Per: budget.PerHour}},
			},
			Default: []budget.Rule{reject(budget.Calls, 1, budget.PerTotal)},
			Global:  []budget.Rule{reject(budget.Calls, 12, budget.PerTotal)},
		}
	})
	h.upstream.Reply(proxytest.JSON(200, proxytest.Completion("ok")))
	n := 0
	post := func(step string, more ...string) response {
		n++
		return h.post(chat(fmt.Sprint("hi ", n)), append([]string{"X-LLMProxy-Step", step}, more...)...)
	}
	ok := func(r response, state string) {
		t.Helper()
		if r.status != 200 || r.header.Get("X-LLMProxy-Budget") != state {
			t.Errorf("%d, budget %q, want %q: %s", r.status, r.header.Get("X-LLMProxy-Budget"), state, r.body)
		}
	}
	// Per call: no window helps, and nothing is used.
	big := h.refusal(h.post(chat(strings.Repeat("word ", 50), stream), "X-LLMProxy-Step", "own"), "request_over_budget")
	if big.Per != "call" || big.Limit != 20 || big.Needed < 50 || big.ResetsAt != nil || big.Unit != "input_tokens" {
		t.Errorf("%+v", big)
	}
	// Per day.
	for range 3 {
		ok(post("own"), "ok")
	}
	day := h.refusal(post("own"), "budget_exceeded")
	if day.Step != "own" || day.Per != "day" || day.Used != 3 || day.Limit != 3 || day.Needed != 1 || day.Reserved != 0 || day.ResetsAt == nil ||
		!day.ResetsAt.After(time.Now()) || day.ResetsAt.After(time.Now().Add(25*time.Hour)) || !strings.Contains(day.Message, "3 of 3 calls") {
		t.Errorf("%+v", day)
	}
	// Per run: another run has its own, calls without a run share one.
	ok(post("runs", "X-LLMProxy-Run", "a"), "ok")
	ok(post("runs", "X-LLMProxy-Run", "b"), "ok")
	h.refusal(post("runs", "X-LLMProxy-Run", "a"), "budget_exceeded")
	ok(post("runs"), "ok")
	h.refusal(post("runs"), "budget_exceeded")
	// A limit of 0 allows nothing; flagged, it only says so.
	if zero := h.refusal(post("none"), "budget_exceeded"); zero.Limit != 0 || zero.Unit != "tokens" {
		t.Errorf("%+v", zero)
	}
	ok(post("free"), "over")
	// An early warning.
	ok(post("soon"), "ok")
	ok(post("soon"), "near")
	// The step "*" is each other step, not all together.
	ok(post("other"), "ok")
	h.refusal(post("other"), "budget_exceeded")
	ok(post("another"), "ok")
	ok(post("third"), "ok")
	// Over all steps: 12 calls have been made.
	all := h.refusal(post("fourth"), "budget_exceeded")
	if all.Limit != 12 || all.Used != 12 || !strings.Contains(all.Message, "all steps") {
		t.Errorf("%+v", all)
	}
	// Of one tenant.
	ok(post("other", "Authorization", "Bearer somebody else"), "ok")
	flags := map[string]int{}
	for _, row := range h.rows("") {
		if row.outcome == ledger.Miss {
			flags[row.step] |= row.flags & (ledger.OverBudget | ledger.NearBudget)
		} else if row.outcome != ledger.Refused || row.status != 402 || row.used != [2]int64{-1, -1} {
			t.Errorf("a refusal's row says %+v", row)
		}
	}
	if flags["free"] != ledger.OverBudget || flags["soon"] != ledger.NearBudget || flags["own"] != 0 {
		t.Errorf("flags %v", flags)
	}
	if got := h.metric(`llmproxy_budget_flags_total{state="over",step="free"}`); !strings.HasSuffix(got, " 1") {
		t.Errorf("the metrics say %q", got)
	}
	h.nothingHeld()
}

// A hit costs nothing and is served over budget, and so is what a running call
// is about to give; where the configuration does not want that, neither is.
func TestHitsAndFollowersOverBudget(t *testing.T) {
	for _, serve := range []bool{true, false} {
		t.Run(fmt.Sprint(serve), func(t *testing.T) {
			h := newHarness(t, func(p *Policy) {
				p.Budget = limited(budgetOf("calls", 2))
				p.ServeHitsOverBudget = serve
			})
			gate := proxytest.NewGate()
			replies := numbered(2)
			h.upstream.Reply(replies[0], replies[1].Hold(gate))
			h.wantAnswer(h.post(chat("one")), "miss", 1)
			leader := make(chan response, 1)
			go func() { leader <- h.post(chat("two")) }() // the budget's last call
			proxytest.Wait(t, gate.Reached(), "the upstream call")
			refusal := h.refusal(h.post(chat("three")), "budget_exceeded")
			if refusal.Used != 1 || refusal.Reserved != 1 || !strings.Contains(refusal.Message, "held by running calls") {
				t.Errorf("%+v", refusal)
			}
			if serve {
				h.wantAnswer(h.post(chat("one")), "hit", 1)
				follower := make(chan response, 1)
				go func() { follower <- h.post(chat("two")) }()
				h.waiting(2)
				gate.Open()
				h.wantAnswer(<-follower, "collapsed", 2)
			} else {
				h.refusal(h.post(chat("one")), "budget_exceeded")
				h.refusal(h.post(chat("two")), "budget_exceeded")
				gate.Open()
			}
			h.wantAnswer(<-leader, "miss", 2)
			if !serve {
				h.refusal(h.post(chat("two")), "budget_exceeded")
			}
			if got := h.outcomes(); got[ledger.Miss] != 2 || got[ledger.Hit]+got[ledger.Collapsed] != map[bool]int{true: 2}[serve] {
				t.Errorf("ledger %v", got)
			}
			h.nothingHeld()
		})
	}
}

// Hits are not refused while a budget has room, whatever the configuration says.
func TestHitsWithinTheBudget(t *testing.T) {
	h := newHarness(t, func(p *Policy) {
		p.Budget = limited(budgetOf("calls", 2))
		p.ServeHitsOverBudget = false
	})
	h.upstream.Reply(numbered(1)...)
	h.wantAnswer(h.post(chat("one")), "miss", 1)
	for range 5 {
		h.wantAnswer(h.post(chat("one")), "hit", 1)
	}
	if used := h.number(`SELECT sum(used) FROM counter`); used != 1 {
		t.Errorf("%d calls are used", used)
	}
	h.nothingHeld()
}

// No path goes around the budget: not another endpoint, a path that is not known
// here, a query string, a slash more, or a request that only reads.
func TestEveryPathIsUnderTheBudget(t *testing.T) {
	h := newHarness(t, func(p *Policy) { p.Budget = limited(budgetOf("calls", 1)) })
	h.upstream.Reply(numbered(1)...)
	paths := []struct{ method, path, body string }{
		{"POST", "/v1/chat/completions", chat("hi")},
		{"POST", "/v1/chat/completions?x=1", chat("hi")},
		{"POST", "/v1/chat/completions/", chat("hello")},
		{"POST", "/v1//chat%2Fcompletions", chat("hello")},
		{"POST", "/v1/embeddings", `{"model":"m","input":"hi"}`},
		{"POST", "/v1/embeddings/", `{"model":"m","input":"hi"}`},
		{"POST", "/v1/responses", `{"model":"m","input":"hi"}`},
		{"POST", "/v1/completions", `{"model":"m","prompt":"hi"}`},
		{"POST", "/v1/images/generations", `{"model":"m","prompt":"hi"}`},
		{"POST", "/v1/something/new?x=1", `{}`},
		{"GET", "/v1/models", ""},
		{"GET", "/v1/models/gpt-4o", ""},
		{"GET", "/v1/chat/completions/x", ""},
		{"GET", "/v1/chat/completions", ""},
		{"DELETE", "/v1/responses/x", ""},
	}
	h.post(chat("spend"))
	for _, p := range paths {
		req := h.request(t.Context(), p.path, p.body)
		req.Method = p.method
		if p.body == "" {
			req.Body, req.ContentLength = http.NoBody, 0
		}
		h.refusal(h.do(req), "budget_exceeded")
	}
	if n := h.upstream.Count(); n != 1 {
		t.Errorf("%d upstream calls", n)
	}
	if got := h.outcomes(); got[ledger.Refused] != len(paths) {
		t.Errorf("ledger %v", got)
	}
	h.nothingHeld()
}
