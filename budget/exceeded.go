package budget

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Exceeded refuses a call: the first rule in order that does not admit it.
type Exceeded Note

// Code is the error's stable code.
func (e *Exceeded) Code() string {
	if e.Rule.Per == PerCall {
		return "request_over_budget"
	}
	return "budget_exceeded"
}

// Error is the message for the caller. Automation tools show nothing else of
// an error, so every figure and what to do next stand in it. Clients match on
// phrases of upstreams' own errors (and would then send the call again, or cut
// its messages): the words here avoid them.
func (e *Exceeded) Error() string {
	budget := "its budget"
	if e.AllSteps {
		budget = "the budget of all steps"
	}
	figures := e.windowFigures
	if e.Rule.Per == PerCall {
		figures = e.callFigures
	}
	return fmt.Sprintf("Step %q is over %s: %s; %s (%s)", e.Step, budget, figures(), e.advice(), e.Code())
}

func (e *Exceeded) callFigures() string {
	unit := e.Rule.Unit
	return fmt.Sprintf("this call needs %s %s, and %s are allowed per call", unit.format(e.Needed), unit.words(), unit.format(e.Rule.Limit))
}

func (e *Exceeded) windowFigures() string {
	unit := e.Rule.Unit
	var b strings.Builder
	fmt.Fprintf(&b, "%s of %s %s used ", unit.format(e.Used), unit.format(e.Rule.Limit), unit.words())
	switch {
	case e.Rule.Per == PerTotal:
		b.WriteString("in total")
	case e.Rule.Per == PerRun && e.Run == "":
		b.WriteString("by calls that name no run")
	case e.Rule.Per == PerRun:
		fmt.Fprintf(&b, "in run %q", e.Run)
	default:
		fmt.Fprintf(&b, "this %s", e.Rule.Per)
	}
	if e.Reserved > 0 {
		fmt.Fprintf(&b, " and %s held by running calls", unit.format(e.Reserved))
	}
	if e.Needed == 0 {
		b.WriteString(", nothing is left for this call")
	} else {
		fmt.Fprintf(&b, ", this call needs %s", unit.format(e.Needed))
	}
	return b.String()
}

// advice names the nearest way out.
func (e *Exceeded) advice() string {
	switch {
	case e.Rule.Limit == 0:
		return "a limit of 0 allows nothing, raise it to let calls through"
	case e.Needed > e.Rule.Limit:
		return "send a smaller request or raise the limit" // no new window helps
	case e.Rule.Per == PerRun && e.Run == "":
		return "name each run in the header X-LLMProxy-Run or raise the limit"
	case e.Rule.Per == PerRun:
		return "start a new run or raise the limit"
	case e.Rule.Per == PerTotal:
		return "raise the limit"
	}
	return fmt.Sprintf("the %s ends %s", e.Rule.Per, e.ResetsAt.Format(time.RFC3339))
}

func (u Unit) words() string {
	if u == USD {
		return "USD"
	}
	return strings.ReplaceAll(u.String(), "_", " ")
}

// format writes an amount for people: 1,998,200 tokens, 4.9982 USD.
func (u Unit) format(n int64) string {
	if u != USD {
		return thousands(n)
	}
	cents := fmt.Sprintf("%06d", n%1e6)
	return thousands(n/1e6) + "." + cents[:2] + strings.TrimRight(cents[2:], "0")
}

func thousands(n int64) string {
	digits := strconv.FormatInt(n, 10)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}
