package main

import (
	"strings"
	"testing"
	"time"

	"llmproxy/budget"
)

func TestPrintBudget(t *testing.T) {
	now := time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)
	midnight := time.Date(2026, 12, 2, 0, 0, 0, 0, time.UTC)
	month := time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
	rule := func(limit int64, unit budget.Unit, per budget.Period, action budget.Action, flagAt int64) budget.Rule {
		return budget.Rule{Limit: limit, Unit: unit, Per: per, Action: action, FlagAt: flagAt}
	}
	lines := []budget.Line{
		{Step: "draft", Tenant: "acme", Rule: rule(2_000_000, budget.Tokens, budget.PerDay, budget.Reject, 1_600_000), Used: 1_598_200, Reserved: 4_100, End: midnight},
		{Step: "draft", Tenant: "zeta", Rule: rule(2_000_000, budget.Tokens, budget.PerDay, budget.Reject, 0), Used: 3, End: midnight},
		{Step: "draft", Tenant: "acme", Run: "8812", Rule: rule(60_000, budget.InputTokens, budget.PerRun, budget.Flag, 0), Used: 60_000},
		{Step: "draft", Tenant: "acme", Rule: rule(60_000, budget.InputTokens, budget.PerRun, budget.Flag, 0), Used: 1},
		{Step: "*", Rule: rule(1, budget.Calls, budget.PerTotal, budget.Reject, 0)},
		{Step: "evil\x1b[2J", Rule: rule(0, budget.Calls, budget.PerHour, budget.Reject, 0), End: now.Add(time.Hour)},
		{Rule: rule(50_000_000, budget.USD, budget.PerMonth, budget.Flag, 0), Tenant: "acme", Used: 51_234_500, End: month},
	}
	var b strings.Builder
	if err := printBudget(&b, lines, now); err != nil {
		t.Fatal(err)
	}
	const want = `
STEP         TENANT  RULE                                     USED  RESERVED  SHARE               RESETS
draft        acme    2,000,000 tokens per day            1,598,200     4,100  ██████▍   80% near  00:00 UTC
draft        zeta    2,000,000 tokens per day                    3         0  ▏         <1%       00:00 UTC
draft        acme    60,000 input tokens per run, flags     60,000         0  ████████ 100% full  run 8812
draft        acme    60,000 input tokens per run, flags          1         0  ▏         <1%       calls without a run
*                    1 call in total                             0         0             0%       never
evil\x1b[2J          0 calls per hour                            0         0  ████████ 100% full  13:00 UTC
(all steps)  acme    50.0000 USD per month, flags          51.2345    0.0000  ████████ 102% over  Jan 1 00:00
`
	if got := "\n" + b.String(); got != want {
		t.Errorf("got%s\nwant%s", got, want)
	}
}
