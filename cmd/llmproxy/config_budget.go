package main

import (
	"cmp"
	"reflect"
	"slices"
	"strconv"

	"go.yaml.in/yaml/v3"
)

// BudgetRule limits one unit per period. The file writes the unit as the key of
// its limit, {tokens: 2000000, per: day, action: reject, flag_at: 80%}.
type BudgetRule struct {
	Unit   string // input_tokens, output_tokens, tokens or calls
	Limit  int64  // 0 allows nothing
	Per    string // call, run, minute, hour, day, week, month or total
	Action string // reject or flag
	FlagAt int64  // count from which to warn, 1 to Limit; 0 is no early warning
}

func budgetUnits() []string { return []string{"input_tokens", "output_tokens", "tokens", "calls"} }
func budgetPeriods() []string {
	return []string{"call", "run", "minute", "hour", "day", "week", "month", "total"}
}
func budgetActions() []string { return []string{"reject", "flag"} }

// budgetKeys are the keys of a rule in the file.
func budgetKeys() []string { return append(budgetUnits(), "per", "action", "flag_at") }

// budgetRule reads a rule and checks it. It returns nil where it is wrong.
func (r *reader) budgetRule(n *yaml.Node, path string) any {
	before := len(r.mistakes)
	members := r.members(n, path, budgetKeys())
	text := func(key string) string {
		if value := members[key]; value != nil {
			s, _ := r.value(value, reflect.TypeFor[string](), join(path, key)).(string)
			return s
		}
		return ""
	}
	unknownKey := len(r.mistakes) > before
	rule := BudgetRule{Per: text("per"), Action: cmp.Or(text("action"), "reject")}
	if rule.Per == "" {
		r.add(join(path, "per"), "is missing; use %s", enumerate(budgetPeriods(), "or"))
	}
	r.oneOf(join(path, "per"), rule.Per, "period", budgetPeriods())
	r.oneOf(join(path, "action"), rule.Action, "action", budgetActions())
	r.limit(&rule, members, path, unknownKey)
	if at := text("flag_at"); at != "" && rule.Unit != "" && !r.isWrong(join(path, rule.Unit)) {
		var err error
		if rule.FlagAt, err = parseFlagAt(at, rule.Limit); err != nil {
			r.bad(join(path, "flag_at"), "%w", err)
		}
	}
	if len(r.mistakes) > before {
		return nil
	}
	return rule
}

// limit reads the one unit that a rule has. Where a key of the rule is unknown
// already, a missing unit is not reported beside it: it is probably that key.
func (r *reader) limit(rule *BudgetRule, members map[string]*yaml.Node, path string, unknownKey bool) {
	var units []string
	for _, unit := range budgetUnits() {
		if n := members[unit]; n != nil && !isNull(n) {
			units = append(units, unit)
		}
	}
	switch {
	case len(units) > 1:
		r.add(path, "has %d limits, %s; make each a rule of its own", len(units), enumerate(units, "and"))
	case len(units) == 1:
		rule.Unit = units[0]
		rule.Limit, _ = r.value(members[rule.Unit], reflect.TypeFor[int64](), join(path, rule.Unit)).(int64)
	case !unknownKey:
		r.add(path, "has no limit; add one of %s", enumerate(budgetUnits(), "or"))
	}
}

// MarshalYAML writes the rule as the file has it, on one line.
func (r BudgetRule) MarshalYAML() (any, error) {
	n := &yaml.Node{Kind: yaml.MappingNode, Style: yaml.FlowStyle}
	set := func(key, value string) {
		n.Content = append(n.Content,
			&yaml.Node{Kind: yaml.ScalarNode, Value: key}, &yaml.Node{Kind: yaml.ScalarNode, Value: value})
	}
	set(r.Unit, strconv.FormatInt(r.Limit, 10))
	set("per", r.Per)
	set("action", r.Action)
	if r.FlagAt > 0 {
		set("flag_at", strconv.FormatInt(r.FlagAt, 10))
	}
	return n, nil
}

// oneOf notes a value that is not among the choices.
func (r *reader) oneOf(path, value, noun string, choices []string) {
	if value == "" && r.isWrong(path) || slices.Contains(choices, value) {
		return
	}
	r.bad(path, "is no %s; use %s", noun, enumerate(choices, "or"))
}
