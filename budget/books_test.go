package budget_test

import (
	"errors"
	"testing"
	"time"

	"llmproxy/budget"
	"llmproxy/store"
	"llmproxy/store/storetest"
)

// books is a database whose transactions happen at a time of the test's choice.
type books struct {
	t     testing.TB
	store *store.Store
	now   time.Time
	calls int64 // ids given
}

func newBooks(t testing.TB) *books {
	return &books{t: t, store: storetest.New(t), now: moment(t, "2026-12-01T12:00:00Z")}
}

// do runs fn at b.now and fails the test on any error but a refusal.
func (b *books) do(fn func(*store.Tx) error) error {
	b.t.Helper()
	err := b.store.Update(b.t.Context(), func(tx *store.Tx) error {
		tx.Now = b.now.UnixMilli()
		return fn(tx)
	})
	if _, refused := errors.AsType[*budget.Exceeded](err); err != nil && !refused {
		b.t.Fatal(err)
	}
	return err
}

// scope interns the names of a call.
func (b *books) scope(tenant, step, run string) (s budget.Scope) {
	b.t.Helper()
	s.StepName, s.RunName = step, run
	b.do(func(tx *store.Tx) (err error) {
		if s.Tenant, err = tx.Intern("tenant", tenant); err != nil {
			return err
		}
		if s.Step, err = tx.Intern("step", step); err != nil {
			return err
		}
		s.Run, err = tx.Intern("run", run)
		return err
	})
	return s
}

func (b *books) reserve(p *budget.Policy, s budget.Scope, need budget.Amounts) (call int64, v budget.Verdict, err error) {
	b.t.Helper()
	b.calls++
	call = b.calls
	err = b.do(func(tx *store.Tx) (err error) {
		v, err = p.Reserve(tx, call, s, need)
		return err
	})
	return call, v, err
}

// admit reserves what must be admitted.
func (b *books) admit(p *budget.Policy, s budget.Scope, need budget.Amounts) (call int64) {
	b.t.Helper()
	call, _, err := b.reserve(p, s, need)
	if err != nil {
		b.t.Fatalf("refused: %v", err)
	}
	return call
}

// refuse reserves what must be refused.
func (b *books) refuse(p *budget.Policy, s budget.Scope, need budget.Amounts) *budget.Exceeded {
	b.t.Helper()
	_, v, err := b.reserve(p, s, need)
	exceeded, ok := errors.AsType[*budget.Exceeded](err)
	if !ok {
		b.t.Fatalf("admitted with %+v, want a refusal", v)
	}
	return exceeded
}

func (b *books) settle(call int64, spent budget.Amounts) {
	b.t.Helper()
	b.do(func(tx *store.Tx) error { return budget.Settle(tx, call, spent) })
}

func (b *books) release(call int64) {
	b.t.Helper()
	b.do(func(tx *store.Tx) error { return budget.Release(tx, call) })
}

func (b *books) lose(call int64) {
	b.t.Helper()
	b.do(func(tx *store.Tx) error { return budget.Lose(tx, call) })
}

// figures is what counters of a unit and period hold, over all windows.
type figures struct{ used, reserved int64 }

func (b *books) figures(unit budget.Unit, per budget.Period) (f figures) {
	b.t.Helper()
	b.do(func(tx *store.Tx) error {
		_, err := tx.Get("SELECT coalesce(sum(used), 0), coalesce(sum(reserved), 0) FROM counter WHERE unit = $1 AND per = $2",
			[]any{int64(unit), int64(per)}, &f.used, &f.reserved)
		return err
	})
	return f
}

func (b *books) want(unit budget.Unit, per budget.Period, used, reserved int64) {
	b.t.Helper()
	if got := b.figures(unit, per); got != (figures{used, reserved}) {
		b.t.Errorf("%s per %s: used %d, reserved %d; want %d and %d", unit, per, got.used, got.reserved, used, reserved)
	}
}

// count is the number of rows of a table.
func (b *books) count(table string) (n int) {
	b.t.Helper()
	b.do(func(tx *store.Tx) error {
		_, err := tx.Get("SELECT count(*) FROM "+table, nil, &n)
		return err
	})
	return n
}

func policy(rules ...budget.Rule) *budget.Policy { return &budget.Policy{Default: rules} }

func reject(limit int64, unit budget.Unit, per budget.Period) budget.Rule {
	return budget.Rule{Unit: unit, Limit: limit, Per: per}
}

func flagging(limit int64, unit budget.Unit, per budget.Period) budget.Rule {
	return budget.Rule{Unit: unit, Limit: limit, Per: per, Action: budget.Flag}
}

var call300 = budget.Amounts{Input: 300, Output: 100, Calls: 1}
