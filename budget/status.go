package budget

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"llmproxy/store"
)

const windowSQL = `SELECT coalesce(tenant.name, '') AS tenant_name, coalesce(step.name, '') AS step_name, coalesce(run.name, '') AS run_name,
  counter.unit, counter.used, counter.reserved
FROM counter
LEFT JOIN tenant ON tenant.id = counter.tenant_id
LEFT JOIN step ON step.id = counter.step_id
LEFT JOIN run ON run.id = counter.run_id
WHERE counter.per = $1 AND counter.window_start = $2
ORDER BY tenant_name, step_name, counter.unit, counter.used + counter.reserved DESC`

// Line tells how one rule stands now for one step of one tenant.
type Line struct {
	Step       string // "*" for the default rules, while no step has used them; empty over all steps
	Tenant     string // empty while nothing is counted
	Run        string // for a rule per run
	Rule       Rule
	Used       int64
	Reserved   int64
	Start, End time.Time // of the window; zero for call, run and total
}

// Status lists every rule in the windows of the transaction's time: the steps
// by name, then the default rules, then those over all steps; for each rule a
// line per tenant and step that counts in it, or one line of zeros. A rule per
// run shows the run that has used most.
func (p *Policy) Status(tx *store.Tx) ([]Line, error) {
	if p == nil {
		return nil, nil
	}
	w := windows{tx: tx, loc: p.location(), read: map[Period][]Line{}}
	for _, step := range slices.Sorted(maps.Keys(p.Steps)) {
		w.list(step, p.Steps[step], func(l Line) bool { return l.Step == step })
	}
	w.list("*", p.Default, func(l Line) bool { return l.Step != "" && len(p.Steps[l.Step]) == 0 })
	w.list("", p.Global, func(l Line) bool { return l.Step == "" })
	if w.err != nil {
		return nil, fmt.Errorf("reading budgets: %w", w.err)
	}
	return w.lines, nil
}

// windows collects the lines of Status.
type windows struct {
	tx    *store.Tx
	loc   *time.Location
	read  map[Period][]Line // period → its counters, with no rule but the unit
	lines []Line
	err   error // the first; nothing is read after it
}

// list adds the lines of a step's rules, from the counters that are its own.
func (w *windows) list(step string, rules []Rule, own func(Line) bool) {
	for _, rule := range rules {
		start, end := Window(rule.Per, time.UnixMilli(w.tx.Now), w.loc)
		before := len(w.lines)
		for _, l := range w.counters(rule.Per, start) {
			if l.Rule.Unit == rule.Unit && own(l) {
				l.Rule, l.Start, l.End = rule, start, end
				w.lines = append(w.lines, l)
			}
		}
		if len(w.lines) == before {
			w.lines = append(w.lines, Line{Step: step, Rule: rule, Start: start, End: end})
		}
	}
}

// counters reads the counters of a period's window once. Of the runs of one
// step only the first, which has used most, is kept.
func (w *windows) counters(per Period, start time.Time) []Line {
	lines, done := w.read[per]
	if done || per == PerCall || w.err != nil {
		return lines
	}
	w.err = w.tx.Each(windowSQL, []any{int64(per), unixStart(start)}, func(scan func(...any) error) error {
		var l Line
		if err := scan(&l.Tenant, &l.Step, &l.Run, &l.Rule.Unit, &l.Used, &l.Reserved); err != nil {
			return err
		}
		lines = append(lines, l)
		return nil
	})
	lines = slices.CompactFunc(lines, func(a, b Line) bool {
		return a.Tenant == b.Tenant && a.Step == b.Step && a.Rule.Unit == b.Rule.Unit
	})
	w.read[per] = lines
	return lines
}
