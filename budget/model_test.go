package budget_test

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"llmproxy/budget"
	"llmproxy/store"
	"llmproxy/store/storetest"
)

var seedFlag = flag.Uint64("seed", 0, "repeat the model test with this seed")

// The model is the package without a database: counters in a map, windows of
// UTC by plain division, and admission as its definition reads.
type model struct {
	rand     *rand.Rand
	now      time.Time
	steps    map[string][]budget.Rule // with the step "*"
	global   []budget.Rule
	counters map[modelKey]*figures
	calls    []*modelCall
}

type modelKey struct {
	tenant, step, run int64
	unit              budget.Unit
	per               budget.Period
	start             int64
}

type modelCall struct {
	id      int64
	need    budget.Amounts
	keys    []modelKey // where it holds
	lost    bool
	settled bool
}

// start is the window's start in UTC, in Unix seconds.
func (m *model) start(per budget.Period) int64 {
	const monday = 4 * 86400 // 1970-01-05
	now := m.now.Unix()
	switch per {
	case budget.PerMinute:
		return now - now%60
	case budget.PerHour:
		return now - now%3600
	case budget.PerDay:
		return now - now%86400
	case budget.PerWeek:
		return now - (now-monday)%(7*86400)
	case budget.PerMonth:
		return time.Date(m.now.Year(), m.now.Month(), 1, 0, 0, 0, 0, time.UTC).Unix()
	}
	return 0
}

func (m *model) key(r budget.Rule, s budget.Scope, allSteps bool) modelKey {
	k := modelKey{tenant: s.Tenant, step: s.Step, unit: r.Unit, per: r.Per, start: m.start(r.Per)}
	if allSteps {
		k.step = 0
	}
	if r.Per == budget.PerRun {
		k.run = s.Run
	}
	return k
}

func (m *model) own(s budget.Scope) []budget.Rule {
	if rules, ok := m.steps[s.StepName]; ok {
		return rules
	}
	return m.steps["*"]
}

// admit says which rule refuses a call, or where it holds what it needs.
func (m *model) admit(s budget.Scope, need budget.Amounts) (refusing *budget.Rule, keys []modelKey) {
	own := m.own(s)
	rules := slices.Concat(own, m.global)
	for _, r := range rules {
		if r.Per == budget.PerCall && r.Action == budget.Reject && need.Of(r.Unit) > r.Limit {
			return &r, nil
		}
	}
	for i, r := range rules {
		if r.Per == budget.PerCall {
			continue
		}
		k := m.key(r, s, i >= len(own))
		var f figures
		if c := m.counters[k]; c != nil {
			f = *c
		}
		full := f.used+f.reserved >= r.Limit
		if r.Action == budget.Reject && (full || f.used+f.reserved+need.Of(r.Unit) > r.Limit) {
			return &r, nil
		}
		if !slices.Contains(keys, k) {
			keys = append(keys, k)
		}
	}
	return nil, keys
}

// end takes away what a call holds or was charged for, and charges it anew.
func (m *model) end(c *modelCall, spent budget.Amounts) {
	if c.settled {
		return
	}
	for _, k := range c.keys {
		if c.lost {
			m.counters[k].used -= lostOf(c.need).Of(k.unit)
		} else {
			m.counters[k].reserved -= c.need.Of(k.unit)
		}
		m.counters[k].used += spent.Of(k.unit)
	}
	c.settled = true
}

func (m *model) lose(c *modelCall) {
	if c.settled || c.lost {
		return
	}
	for _, k := range c.keys {
		m.counters[k].reserved -= c.need.Of(k.unit)
		m.counters[k].used += lostOf(c.need).Of(k.unit)
	}
	c.lost = true
}

func lostOf(a budget.Amounts) budget.Amounts {
	return budget.Amounts{Input: a.Input, Calls: a.Calls, Cost: a.Cost}
}

func (m *model) amounts(most int64) budget.Amounts {
	return budget.Amounts{Input: m.rand.Int64N(most), Output: m.rand.Int64N(most), Calls: 1, Cost: m.rand.Int64N(most)}
}

func (m *model) policy() *budget.Policy {
	p := &budget.Policy{Steps: maps.Clone(m.steps), Default: m.steps["*"], Global: m.global}
	delete(p.Steps, "*")
	return p
}

// operate does one random thing to both, and tells what it was.
func (m *model) operate(tx *store.Tx, scopes []budget.Scope) (string, error) {
	tx.Now = m.now.UnixMilli()
	if m.rand.IntN(100) < 45 || len(m.calls) == 0 {
		return m.reserve(tx, scopes[m.rand.IntN(len(scopes))])
	}
	// Mostly a recent call; now and then one that has long ended.
	recent := m.calls[max(0, len(m.calls)-8):]
	if m.rand.IntN(6) == 0 {
		recent = m.calls
	}
	c := recent[m.rand.IntN(len(recent))]
	switch n := m.rand.IntN(55); {
	case n < 25:
		spent := m.amounts(500)
		m.end(c, spent)
		return fmt.Sprintf("settle %d with %+v", c.id, spent), budget.Settle(tx, c.id, spent)
	case n < 30:
		m.end(c, budget.Amounts{})
		return fmt.Sprintf("release %d", c.id), budget.Release(tx, c.id)
	case n < 40:
		m.lose(c)
		return fmt.Sprintf("lose %d", c.id), budget.Lose(tx, c.id)
	case n < 52:
		m.now = m.now.Add(time.Duration(m.rand.ExpFloat64() * float64(40*time.Minute)))
		return fmt.Sprintf("wait until %v", m.now), nil
	}
	rules := [][]budget.Rule{m.steps["draft"], m.steps["review"], m.steps["*"], m.global}[m.rand.IntN(4)]
	r := &rules[m.rand.IntN(len(rules))]
	r.Limit = r.Limit * (50 + m.rand.Int64N(120)) / 100
	return fmt.Sprintf("change a limit to %+v", *r), nil
}

func (m *model) reserve(tx *store.Tx, s budget.Scope) (string, error) {
	c := &modelCall{id: int64(len(m.calls) + 1), need: m.amounts(450)}
	refusing, keys := m.admit(s, c.need)
	what := fmt.Sprintf("reserve %d of %+v for %+v", c.id, c.need, s)
	_, err := m.policy().Reserve(tx, c.id, s, c.need)
	exceeded, refused := errors.AsType[*budget.Exceeded](err)
	switch {
	case err != nil && !refused:
		return what, err
	case refused && refusing == nil:
		return what, fmt.Errorf("refused, the model admits it: %v", err)
	case !refused && refusing != nil:
		return what, fmt.Errorf("admitted, the model refuses it by %+v", *refusing)
	case refused && exceeded.Rule != *refusing:
		return what, fmt.Errorf("refused by %+v, the model by %+v", exceeded.Rule, *refusing)
	case refused:
		return what + ": refused", nil
	}
	c.keys = keys
	for _, k := range keys {
		if m.counters[k] == nil {
			m.counters[k] = &figures{}
		}
		m.counters[k].reserved += c.need.Of(k.unit)
	}
	m.calls = append(m.calls, c)
	for _, r := range m.own(s) {
		if f := m.counters[m.key(r, s, false)]; r.Action == budget.Reject && r.Per != budget.PerCall && f.used+f.reserved > r.Limit {
			return what, fmt.Errorf("admitted past %+v: %+v", r, *f)
		}
	}
	return what, nil
}

// compare holds the database against the model.
func (m *model) compare(tx *store.Tx) error {
	got := map[modelKey]figures{}
	err := tx.Each(`SELECT tenant_id, step_id, run_id, c.unit, per, window_start, used, reserved, coalesce(sum(r.amount), 0)
		FROM counter c LEFT JOIN reservation r ON r.counter_id = c.id AND r.unit = c.unit GROUP BY c.id`, nil, func(scan func(...any) error) error {
		var k modelKey
		var f figures
		var held int64
		if err := scan(&k.tenant, &k.step, &k.run, &k.unit, &k.per, &k.start, &f.used, &f.reserved, &held); err != nil {
			return err
		}
		if held != f.reserved || f.used < 0 || f.reserved < 0 {
			return fmt.Errorf("%+v: used %d, reserved %d, its calls hold %d", k, f.used, f.reserved, held)
		}
		got[k] = f
		return nil
	})
	if err != nil {
		return err
	}
	for k, want := range m.counters {
		if got[k] != *want {
			return fmt.Errorf("%+v: %+v, the model has %+v", k, got[k], *want)
		}
	}
	if len(got) != len(m.counters) {
		return fmt.Errorf("%d counters, the model has %d", len(got), len(m.counters))
	}
	return nil
}

func TestAgainstAModel(t *testing.T) {
	seeds := []uint64{1, uint64(time.Now().UnixNano())}
	if *seedFlag != 0 {
		seeds = []uint64{*seedFlag}
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) { testAgainstModel(t, seed) })
	}
}

func testAgainstModel(t *testing.T, seed uint64) {
	m := &model{
		rand: rand.New(rand.NewPCG(seed, 0)), now: moment(t, "2026-12-29T22:00:00Z"), counters: map[modelKey]*figures{},
		steps: map[string][]budget.Rule{
			"draft": {reject(2000, budget.InputTokens, budget.PerHour), reject(5000, budget.Tokens, budget.PerDay), flagging(2000, budget.Tokens, budget.PerDay),
				reject(4000, budget.Tokens, budget.PerDay), reject(4, budget.Calls, budget.PerMinute), reject(400, budget.InputTokens, budget.PerCall)},
			"review": {reject(4000, budget.OutputTokens, budget.PerRun), flagging(900, budget.USD, budget.PerMonth), reject(40, budget.Calls, budget.PerDay)},
			"*":      {reject(120, budget.Calls, budget.PerTotal), reject(9000, budget.InputTokens, budget.PerWeek)},
		},
		global: []budget.Rule{reject(30000, budget.Tokens, budget.PerMonth), flagging(3, budget.Calls, budget.PerHour), reject(9000, budget.USD, budget.PerDay)},
	}
	path := filepath.Join(t.TempDir(), "x.db")
	b := newBooks(t)
	b.store = storetest.Open(t, path, store.Options{})
	var scopes []budget.Scope
	for _, tenant := range []string{"acme", "zeta"} {
		for _, step := range []string{"draft", "review", "mail", "chat"} {
			for _, run := range []string{"", "8811", "8812"} {
				scopes = append(scopes, b.scope(tenant, step, run))
			}
		}
	}
	var history []string
	// check runs operations in one transaction, comparing after every tenth.
	check := func(operations int, operate func(*store.Tx, int) (string, error)) {
		t.Helper()
		b.do(func(tx *store.Tx) error {
			for i := range operations {
				what, err := operate(tx, i)
				history = append(history, what)
				if err == nil && (i%10 == 9 || i == operations-1) {
					err = m.compare(tx)
				}
				if err != nil {
					return fmt.Errorf("operation %d: %w\nseed %d, the last operations:\n%s", len(history), err, seed,
						strings.Join(history[max(0, len(history)-10):], "\n"))
				}
			}
			return nil
		})
	}
	for range 3 {
		for range 10 {
			check(50, func(tx *store.Tx, _ int) (string, error) { return m.operate(tx, scopes) })
		}
		if err := b.store.Close(); err != nil {
			t.Fatal(err)
		}
		b.store = storetest.Open(t, path, store.Options{})
	}
	check(len(m.calls), func(tx *store.Tx, i int) (string, error) {
		m.lose(m.calls[i])
		return fmt.Sprintf("lose %d", m.calls[i].id), budget.Lose(tx, m.calls[i].id)
	})
	for k, f := range m.counters {
		if f.reserved != 0 {
			t.Errorf("no call runs, and %+v holds %d", k, f.reserved)
		}
	}
	refused := 0
	for _, line := range history {
		if strings.HasSuffix(line, ": refused") {
			refused++
		}
	}
	t.Logf("seed %d: %d operations, %d calls admitted, %d refused", seed, len(history), len(m.calls), refused)
	if len(m.calls) < 50 || refused < 50 {
		t.Errorf("%d calls admitted and %d refused: the run proves little", len(m.calls), refused)
	}
}
