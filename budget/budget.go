// Package budget says who may spend how much, and when a call is refused.
//
// The model is that of a card payment. [Policy.Reserve] holds what a call can
// cost before it is made (authorise), in the transaction that admits the call;
// [Settle] replaces what was held by what was used (capture); [Release] gives
// it back where nothing was spent (void); [Lose] charges a call whose process
// died. What a window has used and holds stands in a counter; a counter's key
// is (tenant, step, run, unit, period, start of the window), so a window needs
// no job that resets it: the next one simply has another key.
//
// The rules:
//
//   - Every rule that matches a call must admit it: those of its step (or of
//     the step "*" where it has none), and those over all steps of its tenant.
//   - A rule admits a call if used + reserved + needed ≤ limit. A full window
//     refuses a call that needs nothing of the unit as well, hence a limit of
//     0 allows nothing.
//   - A call is charged to the windows it was reserved in, however long it runs.
//   - Limits live in the [Policy] alone: changing one never changes what was
//     used. Rules with the same scope, unit and period share one counter.
//   - With no call running, nothing is reserved.
//
// The limits: a counter's window is found by its start, so another time zone
// in the configuration begins new days, weeks and months. What a call used
// beyond its reservation (an answer longer than assumed, an upstream that
// counts more than we do) is charged in full and can pass a limit; the next
// call is then refused.
package budget

import (
	"fmt"
	"iter"
	"math"
	"time"
)

// Unit is what a rule counts. The values are stored; they never change.
type Unit uint8

const (
	InputTokens  Unit = 1
	OutputTokens Unit = 2
	Tokens       Unit = 3 // input and output
	Calls        Unit = 4
	USD          Unit = 5 // in micro-dollars
)

// Period is the length of a rule's window. The values are stored; they never change.
type Period uint8

const (
	PerCall   Period = 1
	PerRun    Period = 2
	PerMinute Period = 3
	PerHour   Period = 4
	PerDay    Period = 5
	PerWeek   Period = 6 // ISO 8601, from Monday
	PerMonth  Period = 7
	PerTotal  Period = 8 // for ever
)

// Action is what a rule does with a call that it does not admit.
type Action uint8

const (
	Reject Action = iota // refuse it
	Flag                 // let it through and say so
)

// The names of the configuration, by value.
var (
	unitNames   = [...]string{InputTokens: "input_tokens", OutputTokens: "output_tokens", Tokens: "tokens", Calls: "calls", USD: "usd"}
	periodNames = [...]string{PerCall: "call", PerRun: "run", PerMinute: "minute", PerHour: "hour", PerDay: "day", PerWeek: "week", PerMonth: "month", PerTotal: "total"}
	actionNames = [...]string{Reject: "reject", Flag: "flag"}
)

func (u Unit) String() string   { return nameOf(unitNames[:], int(u)) }
func (p Period) String() string { return nameOf(periodNames[:], int(p)) }
func (a Action) String() string { return nameOf(actionNames[:], int(a)) }

// ParseUnit reads a unit as the configuration spells it.
func ParseUnit(name string) (Unit, error) {
	i, err := indexOf(unitNames[:], "unit", name)
	return Unit(i), err
}

// ParsePeriod reads a period as the configuration spells it.
func ParsePeriod(name string) (Period, error) {
	i, err := indexOf(periodNames[:], "period", name)
	return Period(i), err
}

// ParseAction reads an action as the configuration spells it.
func ParseAction(name string) (Action, error) {
	i, err := indexOf(actionNames[:], "action", name)
	return Action(i), err
}

func nameOf(names []string, i int) string {
	if i >= len(names) || names[i] == "" {
		return fmt.Sprintf("invalid(%d)", i)
	}
	return names[i]
}

func indexOf(names []string, kind, name string) (int, error) {
	var known []string
	for i, n := range names {
		if n == name && n != "" {
			return i, nil
		}
		if n != "" {
			known = append(known, n)
		}
	}
	return 0, fmt.Errorf("unknown %s %q; one of %q", kind, name, known)
}

// Rule limits one unit in windows of one length.
type Rule struct {
	Unit   Unit
	Limit  int64 // in the unit; micro-dollars for USD
	Per    Period
	Action Action
	FlagAt int64 // warn once this much is used or held; 0 never
}

// Validate tells what makes a rule unusable. A [Policy] may only hold valid rules.
func (r Rule) Validate() error {
	switch {
	case r.Unit < InputTokens || r.Unit > USD:
		return fmt.Errorf("a rule has the unit %d, which does not exist", r.Unit)
	case r.Per < PerCall || r.Per > PerTotal:
		return fmt.Errorf("a rule over %s has the period %d, which does not exist", r.Unit, r.Per)
	case r.Action > Flag:
		return fmt.Errorf("a rule over %s has the action %d, which does not exist", r.Unit, r.Action)
	case r.Limit < 0:
		return fmt.Errorf("the limit of %s is negative; 0 allows nothing, and without a rule there is no limit", r.Unit)
	case r.FlagAt < 0 || r.FlagAt > r.Limit:
		return fmt.Errorf("the warning for %s is at %d, outside of 0 to the limit of %d", r.Unit, r.FlagAt, r.Limit)
	}
	return nil
}

// Policy is every rule there is. It must not be changed once it is in use; a
// nil Policy allows everything.
type Policy struct {
	Location *time.Location    // of days, weeks and months; nil is UTC
	Steps    map[string][]Rule // step → its rules
	Default  []Rule            // the step "*": for each step without rules of its own
	Global   []Rule            // over all steps of a tenant together
}

// Scope says whose call it is. The ids are those of the interned names.
//
// Calls that name no run (Run is 0) count as one run of their step, which never
// ends. A limit per run thus bounds them too, rather than letting them through
// uncounted; the refusal tells the caller to name the runs.
type Scope struct {
	Tenant, Step, Run int64
	StepName, RunName string
}

// Amounts is what one call needs or has used: tokens, calls, and micro-dollars.
type Amounts struct {
	Input, Output, Calls, Cost int64
}

// maxAmount bounds each figure of a call. No honest one comes near, and eight
// million of them still fit into a counter.
const maxAmount = 1 << 40

// Of is the amount in a rule's unit.
func (a Amounts) Of(unit Unit) int64 {
	switch unit {
	case InputTokens:
		return a.Input
	case OutputTokens:
		return a.Output
	case Tokens:
		return sum(a.Input, a.Output)
	case Calls:
		return a.Calls
	case USD:
		return a.Cost
	}
	panic(fmt.Sprintf("budget: no unit %d", unit)) // counting it as 0 would let money through
}

// clamped keeps every figure between 0 and maxAmount, so that a negative report
// of an upstream refills no budget and an absurd one overflows no counter.
func (a Amounts) clamped() Amounts {
	clamp := func(n int64) int64 { return min(max(n, 0), maxAmount) }
	return Amounts{Input: clamp(a.Input), Output: clamp(a.Output), Calls: clamp(a.Calls), Cost: clamp(a.Cost)}
}

// ifLost is what is charged of a reservation when nobody knows how the call
// ended: the upstream has had the input, so that and the call are spent; what
// it wrote is unknown, and the cost is kept whole because it is not divided.
func (a Amounts) ifLost() Amounts {
	a.Output = 0
	return a
}

// sum adds amounts that are not negative, and stops at the largest integer.
func sum(amounts ...int64) (total int64) {
	for _, n := range amounts {
		if total > math.MaxInt64-n {
			return math.MaxInt64
		}
		total += n
	}
	return total
}

// State says how a call stands to the rules that let it through.
type State uint8

const (
	OK   State = iota
	Near       // some rule's FlagAt is reached
	Over       // some flagging rule's limit is passed
)

// String is the word of the response header.
func (s State) String() string { return [...]string{"ok", "near", "over"}[s] }

// Verdict is the answer to a call that was let through.
type Verdict struct {
	State State  // the worst of Notes
	Notes []Note // the rules that are Near or Over, in order
}

// Note tells how one rule stands to one call.
type Note struct {
	State    State
	Step     string // whose call it is
	Run      string // empty for a call that names none
	AllSteps bool   // the rule is over all steps together
	Rule     Rule
	Used     int64     // in the window
	Reserved int64     // in the window, by other calls
	Needed   int64     // by this call
	ResetsAt time.Time // the window's end; zero for call, run and total
}

// judge finds the note's state. A full window is over for whoever comes, even
// with a need of nothing.
func (n *Note) judge() {
	switch held := sum(n.Used, n.Reserved); {
	case sum(held, max(n.Needed, 1)) > n.Rule.Limit:
		n.State = Over
	case n.Rule.FlagAt > 0 && sum(held, n.Needed) >= n.Rule.FlagAt:
		n.State = Near
	default:
		n.State = OK
	}
}

// add takes a note into the verdict, or refuses the call.
func (v *Verdict) add(n Note) error {
	switch {
	case n.State == OK:
		return nil
	case n.State == Over && n.Rule.Action == Reject:
		return (*Exceeded)(&n)
	}
	v.State = max(v.State, n.State)
	v.Notes = append(v.Notes, n)
	return nil
}

// matching yields the rules for calls of a step in order, its own first, each
// with whether it is over all steps.
func (p *Policy) matching(step string) iter.Seq2[Rule, bool] {
	return func(yield func(Rule, bool) bool) {
		if p == nil {
			return
		}
		rules := p.Steps[step]
		if len(rules) == 0 {
			rules = p.Default
		}
		for _, r := range rules {
			if !yield(r, false) {
				return
			}
		}
		for _, r := range p.Global {
			if !yield(r, true) {
				return
			}
		}
	}
}

// Hard tells whether calls of a step must not be made while the store cannot be
// written: some rule refuses by what a window has used.
func (p *Policy) Hard(step string) bool {
	for r := range p.matching(step) {
		if r.Action == Reject && r.Per != PerCall {
			return true
		}
	}
	return false
}

// Metered returns a rule that refuses calls of a step by what their tokens come
// to, if there is one.
func (p *Policy) Metered(step string) (rule Rule, metered bool) {
	for r := range p.matching(step) {
		if r.Action == Reject && r.Unit != Calls {
			return r, true
		}
	}
	return Rule{}, false
}

// Holds tells whether [Policy.Reserve] holds anything for a call of a step: with
// no rule that has a window there is nothing to settle.
func (p *Policy) Holds(step string) bool {
	for r := range p.matching(step) {
		if r.Per != PerCall {
			return true
		}
	}
	return false
}

// Fits checks the rules per call, which need no store. Its error is an
// [*Exceeded]. [Policy.Reserve] checks them again.
func (p *Policy) Fits(s Scope, need Amounts) error {
	_, err := p.perCall(s, need.clamped())
	return err
}

func (p *Policy) perCall(s Scope, need Amounts) (v Verdict, err error) {
	for r, allSteps := range p.matching(s.StepName) {
		if r.Per != PerCall {
			continue
		}
		n := Note{Step: s.StepName, Run: s.RunName, AllSteps: allSteps, Rule: r, Needed: need.Of(r.Unit)}
		n.judge()
		if err := v.add(n); err != nil {
			return Verdict{}, err
		}
	}
	return v, nil
}

func (p *Policy) location() *time.Location {
	if p.Location == nil {
		return time.UTC
	}
	return p.Location
}
