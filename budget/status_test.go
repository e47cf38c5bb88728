package budget_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"llmproxy/budget"
	"llmproxy/store"
)

func TestStatus(t *testing.T) {
	b := newBooks(t)
	p := &budget.Policy{
		Location: zone(t, "Europe/Berlin"),
		Steps: map[string][]budget.Rule{
			"review": {reject(1000, budget.Tokens, budget.PerDay), flagging(5, budget.Calls, budget.PerDay), reject(500, budget.Tokens, budget.PerDay)},
			"draft":  {reject(10, budget.InputTokens, budget.PerCall), reject(2000, budget.InputTokens, budget.PerRun)},
			"empty":  {},
		},
		Default: []budget.Rule{reject(100, budget.Calls, budget.PerHour), flagging(200, budget.Calls, budget.PerTotal)},
		Global:  []budget.Rule{reject(9000, budget.Tokens, budget.PerMonth)},
	}
	lines := func() (got []string) {
		t.Helper()
		err := b.store.View(t.Context(), func(tx *store.Tx) error {
			tx.Now = b.now.UnixMilli()
			lines, err := p.Status(tx)
			for _, l := range lines {
				span := "-"
				if !l.Start.IsZero() {
					span = l.Start.Format(time.RFC3339) + ".." + l.End.Format(time.RFC3339)
				}
				got = append(got, fmt.Sprintf("%s/%s/%s %s %d per %s: %d+%d %s", l.Tenant, l.Step, l.Run, l.Rule.Unit, l.Rule.Limit, l.Rule.Per, l.Used, l.Reserved, span))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	const (
		hour  = "2026-12-01T13:00:00+01:00..2026-12-01T14:00:00+01:00"
		day   = "2026-12-01T00:00:00+01:00..2026-12-02T00:00:00+01:00"
		month = "2026-12-01T00:00:00+01:00..2027-01-01T00:00:00+01:00"
	)
	untouched := []string{
		"/draft/ input_tokens 10 per call: 0+0 -",
		"/draft/ input_tokens 2000 per run: 0+0 -",
		"/review/ tokens 1000 per day: 0+0 " + day,
		"/review/ calls 5 per day: 0+0 " + day,
		"/review/ tokens 500 per day: 0+0 " + day,
		"/*/ calls 100 per hour: 0+0 " + hour,
		"/*/ calls 200 per total: 0+0 -",
		"// tokens 9000 per month: 0+0 " + month,
	}
	if got := lines(); !slices.Equal(got, untouched) {
		t.Errorf("before any call:\n%q\nwant\n%q", got, untouched)
	}

	small := budget.Amounts{Input: 10, Output: 20, Calls: 1}
	b.admit(p, b.scope("acme", "draft", "8811"), small)
	for range 2 {
		b.settle(b.admit(p, b.scope("acme", "draft", "8812"), small), small)
	}
	b.settle(b.admit(p, b.scope("acme", "review", ""), call300), small)
	b.admit(p, b.scope("zeta", "review", ""), call300)
	b.admit(p, b.scope("acme", "mail", ""), small)
	b.admit(p, b.scope("acme", "empty", ""), small)
	want := []string{
		"/draft/ input_tokens 10 per call: 0+0 -",
		"acme/draft/8812 input_tokens 2000 per run: 20+0 -",
		"acme/review/ tokens 1000 per day: 30+0 " + day,
		"zeta/review/ tokens 1000 per day: 0+400 " + day,
		"acme/review/ calls 5 per day: 1+0 " + day,
		"zeta/review/ calls 5 per day: 0+1 " + day,
		"acme/review/ tokens 500 per day: 30+0 " + day,
		"zeta/review/ tokens 500 per day: 0+400 " + day,
		"acme/empty/ calls 100 per hour: 0+1 " + hour,
		"acme/mail/ calls 100 per hour: 0+1 " + hour,
		"acme/empty/ calls 200 per total: 0+1 -",
		"acme/mail/ calls 200 per total: 0+1 -",
		"acme// tokens 9000 per month: 90+90 " + month,
		"zeta// tokens 9000 per month: 0+400 " + month,
	}
	if got := lines(); !slices.Equal(got, want) {
		t.Errorf("after some calls:\n%q\nwant\n%q", got, want)
	}
	b.now = b.now.Add(time.Hour)
	if got := lines()[8]; got != "/*/ calls 100 per hour: 0+0 2026-12-01T14:00:00+01:00..2026-12-01T15:00:00+01:00" {
		t.Errorf("in the next hour: %s", got)
	}
	p = nil
	if got := lines(); got != nil {
		t.Errorf("without a policy: %q", got)
	}
}
