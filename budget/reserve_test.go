package budget_test

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"llmproxy/budget"
	"llmproxy/store"
	"llmproxy/store/storetest"
)

func TestParallelCallsNeverPassALimit(t *testing.T) {
	for _, test := range []struct {
		unit  budget.Unit
		limit int64
		fit   int64
		each  int64
	}{
		{budget.InputTokens, 1000, 3, 300},
		{budget.InputTokens, 900, 3, 300},
		{budget.InputTokens, 899, 2, 300},
		{budget.Tokens, 1000, 2, 400},
		{budget.OutputTokens, 1000, 10, 100},
		{budget.Calls, 7, 7, 1},
		{budget.Calls, 100, 20, 1},
	} {
		t.Run(fmt.Sprintf("%d %s", test.limit, test.unit), func(t *testing.T) {
			b := newBooks(t)
			s := b.scope("acme", "draft", "")
			p := policy(reject(test.limit, test.unit, budget.PerDay))
			var admitted, refused atomic.Int64
			var wg sync.WaitGroup
			for i := range 20 {
				wg.Go(func() {
					err := b.store.Update(t.Context(), func(tx *store.Tx) error {
						_, err := p.Reserve(tx, int64(i+1), s, call300)
						return err
					})
					if _, ok := errors.AsType[*budget.Exceeded](err); ok {
						refused.Add(1)
					} else if err != nil {
						t.Error(err)
					} else {
						admitted.Add(1)
					}
				})
			}
			wg.Wait()
			if admitted.Load() != test.fit || refused.Load() != 20-test.fit {
				t.Errorf("%d admitted and %d refused, want %d and %d", admitted.Load(), refused.Load(), test.fit, 20-test.fit)
			}
			b.want(test.unit, budget.PerDay, 0, test.fit*test.each)
		})
	}
}

func TestALimitOfZeroAllowsNothing(t *testing.T) {
	b := newBooks(t)
	s := b.scope("acme", "draft", "")
	for unit := budget.InputTokens; unit <= budget.USD; unit++ {
		for per := budget.PerCall; per <= budget.PerTotal; per++ {
			b.refuse(policy(reject(0, unit, per)), s, budget.Amounts{})
			b.refuse(policy(reject(0, unit, per)), s, budget.Amounts{Input: 1, Output: 1, Calls: 1, Cost: 1})
		}
	}
	if n := b.count("counter"); n != 0 {
		t.Errorf("%d counters were made by refused calls", n)
	}
}

func TestWithoutARuleEverythingPasses(t *testing.T) {
	b := newBooks(t)
	s := b.scope("acme", "draft", "")
	for _, p := range []*budget.Policy{nil, {}, {Steps: map[string][]budget.Rule{"other": {reject(0, budget.Calls, budget.PerDay)}}}} {
		call, v, err := b.reserve(p, s, call300)
		if err != nil || v.State != budget.OK || p.Hard("draft") || p.Fits(s, call300) != nil {
			t.Errorf("%+v: %v %v, hard %v", p, v, err, p.Hard("draft"))
		}
		b.settle(call, call300)
	}
	if n := b.count("counter"); n != 0 {
		t.Errorf("%d counters without a rule", n)
	}
}

func TestAFullWindowRefusesWhateverComes(t *testing.T) {
	b := newBooks(t)
	s := b.scope("acme", "draft", "")
	p := policy(reject(300, budget.InputTokens, budget.PerDay))
	b.settle(b.admit(p, s, budget.Amounts{Input: 299}), budget.Amounts{Input: 299})
	b.release(b.admit(p, s, budget.Amounts{Calls: 1})) // one token is left
	b.settle(b.admit(p, s, budget.Amounts{Input: 1}), budget.Amounts{Input: 1})
	if e := b.refuse(p, s, budget.Amounts{Calls: 1}); e.Used != 300 || e.Needed != 0 {
		t.Errorf("refused with %+v", e)
	}
}

func TestSettleReleaseLose(t *testing.T) {
	p := policy(
		reject(1000, budget.InputTokens, budget.PerDay), reject(1000, budget.OutputTokens, budget.PerDay),
		reject(1000, budget.Tokens, budget.PerDay), reject(1000, budget.Calls, budget.PerDay), reject(1000, budget.USD, budget.PerDay))
	need := budget.Amounts{Input: 300, Output: 100, Calls: 1, Cost: 50}
	spent := budget.Amounts{Input: 310, Output: 20, Calls: 1, Cost: 33}
	lost := budget.Amounts{Input: 300, Calls: 1, Cost: 50}
	type step func(*books, int64)
	settle := func(a budget.Amounts) step { return func(b *books, call int64) { b.settle(call, a) } }
	for _, test := range []struct {
		name string
		end  []step
		used budget.Amounts
	}{
		{"settled", []step{settle(spent)}, spent},
		{"settled twice", []step{settle(spent), settle(need)}, spent},
		{"settled above its reservation", []step{settle(budget.Amounts{Input: 5000, Output: 4000, Calls: 1, Cost: 9000})}, budget.Amounts{Input: 5000, Output: 4000, Calls: 1, Cost: 9000}},
		{"settled with nonsense", []step{settle(budget.Amounts{Input: -1000, Output: math.MinInt64, Calls: -1, Cost: -5})}, budget.Amounts{}},
		{"settled with absurd figures", []step{settle(budget.Amounts{Input: math.MaxInt64, Output: math.MaxInt64, Calls: 1})}, budget.Amounts{Input: 1 << 40, Output: 1 << 40, Calls: 1}},
		{"released", []step{(*books).release}, budget.Amounts{}},
		{"released, then settled", []step{(*books).release, settle(spent)}, budget.Amounts{}},
		{"settled, then released", []step{settle(spent), (*books).release}, spent},
		{"lost", []step{(*books).lose}, lost},
		{"lost twice", []step{(*books).lose, (*books).lose}, lost},
		{"lost, then settled", []step{(*books).lose, settle(spent)}, spent},
		{"lost twice, then settled twice", []step{(*books).lose, (*books).lose, settle(spent), settle(spent)}, spent},
		{"lost, then released", []step{(*books).lose, (*books).release}, budget.Amounts{}},
		{"settled, then lost", []step{settle(spent), (*books).lose}, spent},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBooks(t)
			s := b.scope("acme", "draft", "")
			other := b.admit(p, s, budget.Amounts{Input: 7, Output: 7, Calls: 1, Cost: 7})
			call := b.admit(p, s, need)
			b.want(budget.Tokens, budget.PerDay, 0, 414)
			for _, end := range test.end {
				end(b, call)
			}
			for unit := budget.InputTokens; unit <= budget.USD; unit++ {
				b.want(unit, budget.PerDay, test.used.Of(unit), budget.Amounts{Input: 7, Output: 7, Calls: 1, Cost: 7}.Of(unit))
			}
			b.release(other)
			for unit := budget.InputTokens; unit <= budget.USD; unit++ {
				b.want(unit, budget.PerDay, test.used.Of(unit), 0)
			}
		})
	}
}

// A call that ends badly must not take from what others have used, even where
// somebody has changed the counter by hand.
func TestCountersNeverFallBelowZero(t *testing.T) {
	b := newBooks(t)
	s := b.scope("acme", "draft", "")
	p := policy(reject(1000, budget.Tokens, budget.PerDay))
	tamper := func() {
		b.do(func(tx *store.Tx) error {
			_, err := tx.Exec("UPDATE counter SET used = 5, reserved = 5")
			return err
		})
	}
	call := b.admit(p, s, call300)
	tamper()
	b.settle(call, budget.Amounts{Input: 10})
	b.want(budget.Tokens, budget.PerDay, 15, 0)

	call = b.admit(p, s, call300)
	b.lose(call)
	tamper()
	b.settle(call, budget.Amounts{Input: 10})
	b.want(budget.Tokens, budget.PerDay, 10, 5)
}

func TestALateCallIsChargedToTheWindowItBeganIn(t *testing.T) {
	b := newBooks(t)
	s := b.scope("acme", "draft", "")
	p := policy(reject(1000, budget.Tokens, budget.PerDay))
	p.Location = zone(t, "Europe/Berlin")
	b.now = moment(t, "2026-12-01T23:59:59+01:00")
	late := b.admit(p, s, call300)
	if e := b.refuse(p, s, budget.Amounts{Input: 601}); e.ResetsAt.Format(time.RFC3339) != "2026-12-02T00:00:00+01:00" || e.Reserved != 400 {
		t.Errorf("before midnight: %+v", e)
	}
	b.now = moment(t, "2026-12-02T00:00:05+01:00")
	b.settle(late, budget.Amounts{Input: 300, Output: 50})
	b.admit(p, s, budget.Amounts{Input: 1000}) // the new day is whole
	if e := b.refuse(p, s, budget.Amounts{Input: 1}); e.Used != 0 || e.Reserved != 1000 {
		t.Errorf("after midnight: %+v", e)
	}
	b.now = moment(t, "2026-12-01T23:00:00+01:00")
	if e := b.refuse(p, s, budget.Amounts{Input: 700}); e.Used != 350 || e.Reserved != 0 {
		t.Errorf("the old day: %+v", e)
	}
}

// The path of production: the transaction's time is the clock's.
func TestTheClockOpensANewWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "x.db"), store.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		p := policy(reject(1, budget.Calls, budget.PerMinute))
		scope := budget.Scope{Tenant: 1, Step: 1, StepName: "draft"}
		reserve := func(call int64) error {
			return s.Update(t.Context(), func(tx *store.Tx) error {
				_, err := p.Reserve(tx, call, scope, call300)
				return err
			})
		}
		if err := reserve(1); err != nil {
			t.Fatal(err)
		}
		time.Sleep(59 * time.Second)
		exceeded, ok := errors.AsType[*budget.Exceeded](reserve(2))
		if !ok {
			t.Fatal("two calls in a minute that allows one")
		}
		time.Sleep(time.Until(exceeded.ResetsAt))
		if err := reserve(3); err != nil {
			t.Fatal(err)
		}
	})
}

func TestAChangedLimitKeepsWhatWasUsed(t *testing.T) {
	b := newBooks(t)
	s := b.scope("acme", "draft", "")
	at := func(limit int64) *budget.Policy { return policy(reject(limit, budget.InputTokens, budget.PerMonth)) }
	b.settle(b.admit(at(1000), s, budget.Amounts{Input: 800}), budget.Amounts{Input: 800})
	if e := b.refuse(at(500), s, budget.Amounts{Input: 1}); e.Used != 800 || e.Rule.Limit != 500 {
		t.Errorf("lowered: %+v", e)
	}
	b.release(b.admit(at(900), s, budget.Amounts{Input: 100}))
	if e := b.refuse(at(900), s, budget.Amounts{Input: 101}); e.Used != 800 {
		t.Errorf("raised: %+v", e)
	}
}

func TestCountersSurviveARestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	b := newBooks(t)
	b.store = storetest.Open(t, path, store.Options{})
	s := b.scope("acme", "draft", "")
	p := policy(reject(1000, budget.InputTokens, budget.PerDay))
	b.settle(b.admit(p, s, budget.Amounts{Input: 500}), budget.Amounts{Input: 500})
	running := b.admit(p, s, budget.Amounts{Input: 300})
	if err := b.store.Close(); err != nil {
		t.Fatal(err)
	}
	b.store = storetest.Open(t, path, store.Options{})
	if e := b.refuse(p, s, budget.Amounts{Input: 201}); e.Used != 500 || e.Reserved != 300 {
		t.Errorf("after the restart: %+v", e)
	}
	b.lose(running)
	b.want(budget.InputTokens, budget.PerDay, 800, 0)
}

func TestRefusedCallsHoldNothing(t *testing.T) {
	b := newBooks(t)
	s := b.scope("acme", "draft", "")
	p := &budget.Policy{
		Default: []budget.Rule{reject(1000, budget.InputTokens, budget.PerDay), reject(1000, budget.Tokens, budget.PerMonth), flagging(1, budget.Calls, budget.PerHour)},
		Global:  []budget.Rule{reject(350, budget.Tokens, budget.PerTotal)},
	}
	// The refusal is recorded in the transaction that refused.
	b.do(func(tx *store.Tx) error {
		_, err := p.Reserve(tx, 99, s, call300)
		if e, ok := errors.AsType[*budget.Exceeded](err); !ok || !e.AllSteps || e.Rule.Per != budget.PerTotal {
			t.Errorf("got %v, want the rule over all steps", err)
		}
		_, err = tx.Intern("run", "recorded all the same")
		return err
	})
	if b.count("counter") != 0 || b.count("reservation") != 0 || b.count("run") != 1 {
		t.Errorf("%d counters, %d reservations and %d records; want only the record", b.count("counter"), b.count("reservation"), b.count("run"))
	}
}

func TestTheFirstRuleInOrderIsReported(t *testing.T) {
	b := newBooks(t)
	s := b.scope("acme", "draft", "")
	wide, narrow := reject(1000, budget.Tokens, budget.PerDay), reject(100, budget.Tokens, budget.PerDay)
	calls, all, one := reject(0, budget.Calls, budget.PerHour), reject(0, budget.USD, budget.PerMonth), reject(10, budget.InputTokens, budget.PerCall)
	for _, test := range []struct {
		step, global []budget.Rule
		want         budget.Rule
	}{
		{[]budget.Rule{wide, calls, narrow}, []budget.Rule{all}, calls},
		{[]budget.Rule{wide, narrow, calls}, []budget.Rule{all}, narrow}, // one counter, two limits
		{[]budget.Rule{narrow, wide}, nil, narrow},
		{[]budget.Rule{wide}, []budget.Rule{all}, all},
		{[]budget.Rule{calls, one}, []budget.Rule{all}, one}, // no waiting helps against this one
	} {
		p := &budget.Policy{Steps: map[string][]budget.Rule{"draft": test.step}, Global: test.global, Default: []budget.Rule{reject(0, budget.Calls, budget.PerMinute)}}
		if e := b.refuse(p, s, call300); e.Rule != test.want {
			t.Errorf("%v and %v: refused by %v, want %v", test.step, test.global, e.Rule, test.want)
		}
	}
}

func TestRulesOverOneCounterCountOnce(t *testing.T) {
	b := newBooks(t)
	s := b.scope("acme", "draft", "")
	p := policy(flagging(350, budget.Tokens, budget.PerDay), reject(1000, budget.Tokens, budget.PerDay), reject(800, budget.Tokens, budget.PerDay))
	b.admit(p, s, call300)
	b.want(budget.Tokens, budget.PerDay, 0, 400)
	b.admit(p, s, call300)
	if e := b.refuse(p, s, call300); e.Rule.Limit != 1000 || e.Reserved != 800 {
		t.Errorf("400 more: %+v", e)
	}
	if e := b.refuse(p, s, budget.Amounts{Input: 1}); e.Rule.Limit != 800 || e.Reserved != 800 {
		t.Errorf("one more: %+v", e)
	}
	b.want(budget.Tokens, budget.PerDay, 0, 800)
}

func TestScopesAreCountedApart(t *testing.T) {
	b := newBooks(t)
	p := &budget.Policy{
		Default: []budget.Rule{reject(1, budget.Calls, budget.PerDay)},
		Steps:   map[string][]budget.Rule{"free": {reject(100, budget.Calls, budget.PerDay)}, "empty": {}},
		Global:  []budget.Rule{reject(4, budget.Calls, budget.PerDay)},
	}
	for _, step := range []string{"draft", "review", "empty"} {
		b.admit(p, b.scope("acme", step, ""), call300)
		if e := b.refuse(p, b.scope("acme", step, ""), call300); e.AllSteps || e.Step != step {
			t.Errorf("%s again: %+v", step, e)
		}
	}
	b.admit(p, b.scope("acme", "free", ""), call300)
	if e := b.refuse(p, b.scope("acme", "free", ""), call300); !e.AllSteps || e.Step != "free" || e.Reserved != 4 {
		t.Errorf("a fifth call of the tenant: %+v", e)
	}
	b.admit(p, b.scope("other", "draft", ""), call300)
}

func TestRunsAreCountedApartAndUnnamedOnesTogether(t *testing.T) {
	b := newBooks(t)
	p := policy(reject(1000, budget.InputTokens, budget.PerRun))
	for _, run := range []string{"8812", "8813", ""} {
		s := b.scope("acme", "draft", run)
		for range 3 {
			b.settle(b.admit(p, s, call300), call300)
			b.now = b.now.AddDate(0, 1, 0) // a run has no end in time
		}
		if e := b.refuse(p, s, call300); e.Used != 900 || e.Run != run || !e.ResetsAt.IsZero() {
			t.Errorf("run %q: %+v", run, e)
		}
	}
	b.admit(p, b.scope("acme", "review", ""), call300)
}

func TestFlagsAndWarnings(t *testing.T) {
	b := newBooks(t)
	s := b.scope("acme", "draft", "")
	p := &budget.Policy{
		Default: []budget.Rule{
			{Unit: budget.InputTokens, Limit: 350, Per: budget.PerCall, Action: budget.Flag, FlagAt: 340},
			{Unit: budget.InputTokens, Limit: 1000, Per: budget.PerDay, Action: budget.Reject, FlagAt: 800},
		},
		Global: []budget.Rule{{Unit: budget.InputTokens, Limit: 750, Per: budget.PerDay, Action: budget.Flag}},
	}
	for i, test := range []struct {
		input int64
		state budget.State
		notes []budget.State
	}{
		{300, budget.OK, nil},
		{340, budget.Near, []budget.State{budget.Near}}, // 640
		{110, budget.OK, nil},                           // 750: all of it
		{49, budget.Over, []budget.State{budget.Over}},  // 799
		{1, budget.Over, []budget.State{budget.Near, budget.Over}},
		{200, budget.Over, []budget.State{budget.Near, budget.Over}}, // 1000: all of it
	} {
		_, v, err := b.reserve(p, s, budget.Amounts{Input: test.input})
		if err != nil {
			t.Fatalf("call %d: %v", i, err)
		}
		var got []budget.State
		for _, n := range v.Notes {
			got = append(got, n.State)
		}
		if v.State != test.state || fmt.Sprint(got) != fmt.Sprint(test.notes) {
			t.Errorf("call %d of %d tokens: %v %v, want %v %v", i, test.input, v.State, got, test.state, test.notes)
		}
	}
	if e := b.refuse(p, s, budget.Amounts{Input: 1}); e.Rule.Limit != 1000 {
		t.Errorf("the flag of the other rule hid the limit: %+v", e)
	}
	if _, v, _ := b.reserve(policy(flagging(350, budget.InputTokens, budget.PerCall)), s, budget.Amounts{Input: 351}); v.State != budget.Over {
		t.Errorf("over a flagging limit per call: %v", v.State)
	}
	both := policy(flagging(0, budget.Calls, budget.PerCall), budget.Rule{Unit: budget.Calls, Limit: 9, Per: budget.PerTotal, FlagAt: 1})
	if _, v, _ := b.reserve(both, s, call300); v.State != budget.Over || len(v.Notes) != 2 || v.Notes[1].State != budget.Near {
		t.Errorf("over one limit and near another: %+v", v)
	}
}

func TestAFlagNeverRefuses(t *testing.T) {
	b := newBooks(t)
	s := b.scope("acme", "draft", "")
	p := policy(flagging(0, budget.Tokens, budget.PerDay))
	for range 3 {
		call, v, err := b.reserve(p, s, budget.Amounts{Input: math.MaxInt64, Output: math.MaxInt64})
		if err != nil || v.State != budget.Over {
			t.Fatalf("%v %v", v, err)
		}
		b.settle(call, call300)
	}
	b.want(budget.Tokens, budget.PerDay, 1200, 0)
}

func TestNeedsAreHeldWithinReason(t *testing.T) {
	b := newBooks(t)
	s := b.scope("acme", "draft", "")
	p := policy(flagging(1, budget.InputTokens, budget.PerDay))
	b.admit(p, s, budget.Amounts{Input: -1000})
	b.want(budget.InputTokens, budget.PerDay, 0, 0)
	for range 3 { // three times the largest integer would overflow the counter
		b.admit(p, s, budget.Amounts{Input: math.MaxInt64})
	}
	b.want(budget.InputTokens, budget.PerDay, 0, 3<<40)
}

func TestAStoreErrorIsNoRefusal(t *testing.T) {
	b := newBooks(t)
	p := policy(reject(1000, budget.Calls, budget.PerDay))
	s := b.scope("acme", "draft", "")
	call := b.admit(p, s, call300)
	for name, err := range map[string]error{
		"a call that reserves twice": b.store.Update(t.Context(), func(tx *store.Tx) error {
			_, err := p.Reserve(tx, call, s, call300)
			return err
		}),
		"a read-only transaction": b.store.View(t.Context(), func(tx *store.Tx) error { return budget.Settle(tx, call, call300) }),
	} {
		if _, refused := errors.AsType[*budget.Exceeded](err); refused || !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
	}
	err := b.store.Update(t.Context(), func(tx *store.Tx) error {
		_, err := p.Reserve(tx, 77, budget.Scope{Tenant: 1, StepName: "draft"}, call300)
		return err
	})
	if err == nil {
		t.Error("a call without a step was counted among all steps")
	}
	b.want(budget.Calls, budget.PerDay, 0, 1)
}

func TestPrune(t *testing.T) {
	b := newBooks(t)
	s := b.scope("acme", "draft", "8812")
	p := policy()
	for per := budget.PerRun; per <= budget.PerTotal; per++ {
		p.Default = append(p.Default, reject(1000, budget.Calls, per))
	}
	prune := func(before string) {
		b.do(func(tx *store.Tx) error { return budget.Prune(tx, moment(t, before)) })
	}
	b.lose(b.admit(p, s, call300))
	prune("2026-12-31T00:00:00Z")
	if n := b.count("counter"); n != 7 {
		t.Errorf("%d counters of 7 while their month runs", n)
	}
	running := b.admit(p, s, call300)
	prune("2027-02-15T00:00:00Z")
	if n := b.count("counter"); n != 7 {
		t.Errorf("%d counters of 7 while a call holds in them", n)
	}
	b.settle(running, call300)
	prune("2027-02-15T00:00:00Z")
	if counters, held := b.count("counter"), b.count("reservation"); counters != 2 || held != 2 {
		t.Errorf("%d counters and %d reservations of the lost call; want those of run and total", counters, held)
	}
}

// BenchmarkReserveSettle is what a call under four rules costs inside the
// transactions that it shares with others.
func BenchmarkReserveSettle(b *testing.B) {
	books := newBooks(b)
	s := books.scope("acme", "draft", "8812")
	p := &budget.Policy{
		Location: zone(b, "Europe/Berlin"),
		Default: []budget.Rule{reject(1<<60, budget.InputTokens, budget.PerRun), reject(1<<60, budget.Tokens, budget.PerDay),
			flagging(1<<60, budget.Calls, budget.PerHour)},
		Global: []budget.Rule{reject(1<<60, budget.USD, budget.PerMonth)},
	}
	books.do(func(tx *store.Tx) error {
		for call := int64(1); b.Loop(); call++ {
			if _, err := p.Reserve(tx, call, s, call300); err != nil {
				return err
			}
			if err := budget.Settle(tx, call, call300); err != nil {
				return err
			}
		}
		return nil
	})
}
