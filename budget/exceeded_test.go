package budget_test

import (
	"strings"
	"testing"

	"llmproxy/budget"
)

func TestRefusalsSayWhatHappenedAndWhatToDo(t *testing.T) {
	ends := moment(t, "2026-12-02T00:00:00+01:00").In(zone(t, "Europe/Berlin"))
	rule := func(limit int64, unit budget.Unit, per budget.Period) budget.Rule { return reject(limit, unit, per) }
	for _, test := range []struct {
		exceeded budget.Exceeded
		want     string
	}{
		{budget.Exceeded{Rule: rule(2_000_000, budget.Tokens, budget.PerDay), Used: 1_998_200, Needed: 4_100, ResetsAt: ends},
			`Step "summarize-ticket" is over its budget: 1,998,200 of 2,000,000 tokens used this day, this call needs 4,100; the day ends 2026-12-02T00:00:00+01:00 (budget_exceeded)`},
		{budget.Exceeded{Rule: rule(2_000_000, budget.Tokens, budget.PerWeek), Used: 990, Reserved: 1_998_200, Needed: 4_100, ResetsAt: ends},
			`Step "summarize-ticket" is over its budget: 990 of 2,000,000 tokens used this week and 1,998,200 held by running calls, this call needs 4,100; the week ends 2026-12-02T00:00:00+01:00 (budget_exceeded)`},
		{budget.Exceeded{AllSteps: true, Rule: rule(50_000_000, budget.USD, budget.PerMonth), Used: 49_998_200, Needed: 4_100, ResetsAt: ends},
			`Step "summarize-ticket" is over the budget of all steps: 49.9982 of 50.00 USD used this month, this call needs 0.0041; the month ends 2026-12-02T00:00:00+01:00 (budget_exceeded)`},
		{budget.Exceeded{Rule: rule(100, budget.Calls, budget.PerHour), Used: 100, Needed: 1, ResetsAt: ends},
			`Step "summarize-ticket" is over its budget: 100 of 100 calls used this hour, this call needs 1; the hour ends 2026-12-02T00:00:00+01:00 (budget_exceeded)`},
		{budget.Exceeded{Rule: rule(1_000, budget.OutputTokens, budget.PerMinute), Used: 1_000, ResetsAt: ends},
			`Step "summarize-ticket" is over its budget: 1,000 of 1,000 output tokens used this minute, nothing is left for this call; the minute ends 2026-12-02T00:00:00+01:00 (budget_exceeded)`},
		{budget.Exceeded{Rule: rule(4_000, budget.InputTokens, budget.PerDay), Used: 12, Needed: 4_100, ResetsAt: ends},
			`Step "summarize-ticket" is over its budget: 12 of 4,000 input tokens used this day, this call needs 4,100; send a smaller request or raise the limit (budget_exceeded)`},
		{budget.Exceeded{Rule: rule(4_100, budget.InputTokens, budget.PerDay), Used: 12, Needed: 4_100, ResetsAt: ends},
			`Step "summarize-ticket" is over its budget: 12 of 4,100 input tokens used this day, this call needs 4,100; the day ends 2026-12-02T00:00:00+01:00 (budget_exceeded)`},
		{budget.Exceeded{Rule: rule(0, budget.Calls, budget.PerDay), Needed: 1, ResetsAt: ends},
			`Step "summarize-ticket" is over its budget: 0 of 0 calls used this day, this call needs 1; a limit of 0 allows nothing, raise it to let calls through (budget_exceeded)`},
		{budget.Exceeded{Run: "8812", Rule: rule(60_000, budget.InputTokens, budget.PerRun), Used: 59_000, Needed: 4_100},
			`Step "summarize-ticket" is over its budget: 59,000 of 60,000 input tokens used in run "8812", this call needs 4,100; start a new run or raise the limit (budget_exceeded)`},
		{budget.Exceeded{Rule: rule(60_000, budget.InputTokens, budget.PerRun), Used: 59_000, Needed: 4_100},
			`Step "summarize-ticket" is over its budget: 59,000 of 60,000 input tokens used by calls that name no run, this call needs 4,100; name each run in the header X-LLMProxy-Run or raise the limit (budget_exceeded)`},
		{budget.Exceeded{Rule: rule(1_000_000, budget.USD, budget.PerTotal), Used: 1_000_000, Needed: 1},
			`Step "summarize-ticket" is over its budget: 1.00 of 1.00 USD used in total, this call needs 0.000001; raise the limit (budget_exceeded)`},
		{budget.Exceeded{Rule: rule(8_000, budget.InputTokens, budget.PerCall), Needed: 9_200},
			`Step "summarize-ticket" is over its budget: this call needs 9,200 input tokens, and 8,000 are allowed per call; send a smaller request or raise the limit (request_over_budget)`},
		{budget.Exceeded{AllSteps: true, Rule: rule(0, budget.InputTokens, budget.PerCall), Needed: 1_234_567_890},
			`Step "summarize-ticket" is over the budget of all steps: this call needs 1,234,567,890 input tokens, and 0 are allowed per call; a limit of 0 allows nothing, raise it to let calls through (request_over_budget)`},
	} {
		test.exceeded.Step = "summarize-ticket"
		if got := test.exceeded.Error(); got != test.want {
			t.Errorf("got  %s\nwant %s", got, test.want)
		}
		if code := test.exceeded.Code(); !strings.HasSuffix(test.want, "("+code+")") {
			t.Errorf("code %s of %s", code, test.want)
		}
	}
}

// Clients read some phrases as an upstream's error that a repetition or a
// shorter history cures.
func TestRefusalsAvoidWhatClientsMatchOn(t *testing.T) {
	for unit := budget.InputTokens; unit <= budget.USD; unit++ {
		for per := budget.PerCall; per <= budget.PerTotal; per++ {
			for _, needed := range []int64{0, 1, 100} {
				for _, limit := range []int64{0, 10} {
					for _, run := range []string{"", "8812"} {
						for _, all := range []bool{false, true} {
							e := budget.Exceeded{Step: "draft", Run: run, AllSteps: all, Rule: reject(limit, unit, per), Used: 10, Reserved: 1, Needed: needed}
							message := strings.ToLower(e.Error())
							for _, phrase := range []string{"rate limit", "rate_limit", "quota", "billing", "context length", "context window", "maximum context",
								"too many", "try again", "retry", "exceeds", "overloaded", "timeout", "insufficient"} {
								if strings.Contains(message, phrase) {
									t.Errorf("%q in %s", phrase, message)
								}
							}
						}
					}
				}
			}
		}
	}
}
