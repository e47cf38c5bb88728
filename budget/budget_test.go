package budget_test

import (
	"errors"
	"math"
	"testing"

	"llmproxy/budget"
)

func TestFitsAndHard(t *testing.T) {
	s := budget.Scope{Tenant: 1, Step: 1, StepName: "draft"}
	per, day := reject(300, budget.InputTokens, budget.PerCall), reject(300, budget.InputTokens, budget.PerDay)
	for _, test := range []struct {
		p    *budget.Policy
		fits bool
		hard bool
	}{
		{nil, true, false},
		{policy(per), false, false},
		{policy(flagging(300, budget.InputTokens, budget.PerCall)), true, false},
		{policy(day), true, true},
		{policy(flagging(300, budget.InputTokens, budget.PerDay)), true, false},
		{&budget.Policy{Default: []budget.Rule{per}, Steps: map[string][]budget.Rule{"draft": {day}}}, true, true},
		{&budget.Policy{Global: []budget.Rule{per}}, false, false},
		{&budget.Policy{Default: []budget.Rule{per}, Global: []budget.Rule{day}}, false, true},
	} {
		err := test.p.Fits(s, budget.Amounts{Input: 301})
		if _, refused := errors.AsType[*budget.Exceeded](err); refused == test.fits || (err != nil) == test.fits {
			t.Errorf("%+v: Fits says %v", test.p, err)
		}
		if err := test.p.Fits(s, budget.Amounts{Input: 300}); err != nil {
			t.Errorf("%+v: a call at its limit: %v", test.p, err)
		}
		if test.p.Hard("draft") != test.hard {
			t.Errorf("%+v: Hard says %v", test.p, !test.hard)
		}
	}
}

func TestNames(t *testing.T) {
	for unit := budget.InputTokens; unit <= budget.USD; unit++ {
		if got, err := budget.ParseUnit(unit.String()); got != unit || err != nil {
			t.Errorf("unit %v: %v %v", unit, got, err)
		}
	}
	for per := budget.PerCall; per <= budget.PerTotal; per++ {
		if got, err := budget.ParsePeriod(per.String()); got != per || err != nil {
			t.Errorf("period %v: %v %v", per, got, err)
		}
	}
	for _, action := range []budget.Action{budget.Reject, budget.Flag} {
		if got, err := budget.ParseAction(action.String()); got != action || err != nil {
			t.Errorf("action %v: %v %v", action, got, err)
		}
	}
	for _, name := range []string{"", "Tokens", "token", "fortnight"} {
		_, unit := budget.ParseUnit(name)
		_, per := budget.ParsePeriod(name)
		_, action := budget.ParseAction(name)
		if unit == nil || per == nil || action == nil {
			t.Errorf("%q: %v, %v, %v", name, unit, per, action)
		}
	}
}

func TestValidate(t *testing.T) {
	good := budget.Rule{Unit: budget.USD, Limit: 10, Per: budget.PerTotal, Action: budget.Flag, FlagAt: 10}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	for _, spoil := range []func(*budget.Rule){
		func(r *budget.Rule) { r.Unit = 0 },
		func(r *budget.Rule) { r.Unit = budget.USD + 1 },
		func(r *budget.Rule) { r.Per = 0 },
		func(r *budget.Rule) { r.Per = budget.PerTotal + 1 },
		func(r *budget.Rule) { r.Action = budget.Flag + 1 },
		func(r *budget.Rule) { r.Limit, r.FlagAt = -1, 0 },
		func(r *budget.Rule) { r.FlagAt = -1 },
		func(r *budget.Rule) { r.FlagAt = 11 },
	} {
		bad := good
		spoil(&bad)
		if bad.Validate() == nil {
			t.Errorf("%+v passed", bad)
		}
	}
}

func TestAmountsAreAddedWithoutOverflow(t *testing.T) {
	if got := (budget.Amounts{Input: 1, Output: math.MaxInt64}).Of(budget.Tokens); got != math.MaxInt64 {
		t.Errorf("%d tokens", got)
	}
}
