package proxy

import (
	"llmproxy/budget"
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
