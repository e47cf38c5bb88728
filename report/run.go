package report

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"math"
	"slices"
	"time"

	"llmproxy/ledger"
	"llmproxy/store"
)

const (
	sliceHours   = 24        // of hourly sums read in one snapshot
	sliceCalls   = 5000      // calls read in one snapshot, whether they match or not
	sliceNames   = 1000      // rows named in one snapshot
	maxLatencies = 1_000_000 // beyond, percentiles would cost more than they tell
)

// Run answers q from s. It fails with *[UnknownName] where q names a step or a
// tenant that the ledger does not know, and with an error that wraps
// [store.ErrUnavailable] where the database cannot be read.
func Run(ctx context.Context, s *store.Store, q Query) (*Report, error) {
	if err := q.normalize(); err != nil {
		return nil, fmt.Errorf("asking for a report: %w", err)
	}
	a := &answer{ctx: ctx, store: s, query: q, groups: map[group]*sums{}}
	if err := a.run(); err != nil {
		return nil, fmt.Errorf("reading the ledger: %w", err)
	}
	return a.report, nil
}

// answer is a report in the making.
type answer struct {
	ctx          context.Context
	store        *store.Store
	query        Query
	step, tenant int64 // ids of the filters, 0 for none
	groups       map[group]*sums
	report       *Report
}

// group tells rows apart.
type group struct {
	from int64 // where its span begins
	id   int64 // of the dimension, 0 by day and hour
}

// sums is a row in the making. In a group of many steps or models, first holds
// those of the group's first call.
type sums struct {
	Row
	group group
	first traits
}

func (a *answer) run() error {
	since, err := a.begin()
	if err != nil || a.report.First.IsZero() {
		return err
	}
	all := spans(a.query.By, since, a.report.Until)
	for _, s := range all {
		if err := a.sum(s); err != nil {
			return err
		}
	}
	for _, g := range a.groups {
		a.report.Total.add(&g.Row)
	}
	if err := a.measure(all); err != nil {
		return err
	}
	return a.finish()
}

// begin settles the range and the filters and starts the report. since is where
// reading starts: never before the first call.
func (a *answer) begin() (since time.Time, err error) {
	q := &a.query
	err = a.view(func(tx *store.Tx) error {
		if a.tenant, err = lookup(tx, "tenant", q.Tenant); err != nil {
			return err
		}
		if a.step, err = lookup(tx, "step", q.Step); err != nil {
			return err
		}
		if q.Until.IsZero() {
			q.Until = time.UnixMilli(tx.Now)
		}
		a.report = &Report{
			By: q.By, Since: q.Since.In(q.Location), Until: q.Until.In(q.Location), Location: q.Location,
			Step: q.Step, Tenant: q.Tenant, Rows: []Row{}, Notes: []string{},
		}
		first, found, err := firstOf(tx)
		if err != nil || !found {
			return err
		}
		a.report.First = first.In(q.Location)
		if q.Since.IsZero() && a.report.First.Before(q.Until) {
			a.report.Since = a.report.First
		}
		_, err = tx.Get(runningCalls, []any{idAt(a.report.Since.UnixMilli()), idAt(q.Until.UnixMilli()), a.step, a.tenant}, &a.report.Running)
		return err
	})
	if err != nil {
		return since, err
	}
	if since = a.report.Since; since.Before(a.report.First) {
		since = a.report.First
	}
	return since, nil
}

// firstOf tells when the ledger's first call began, or the hour where only its
// hourly sum is left.
func firstOf(tx *store.Tx) (first time.Time, found bool, err error) {
	var id, hour sql.Null[int64]
	if _, err := tx.Get(firstCall, nil, &id, &hour); err != nil {
		return first, false, err
	}
	call, summed := ledger.Time(id.V), time.UnixMilli(hour.V*hourMillis)
	if !id.Valid || hour.Valid && summed.Add(time.Hour).Before(call) {
		return summed, hour.Valid, nil
	}
	return call, true, nil
}

// lookup finds the id of a name; the empty name is 0.
func lookup(tx *store.Tx, kind, name string) (id int64, err error) {
	if name == "" {
		return 0, nil
	}
	found, err := tx.Get("SELECT id FROM "+kind+" WHERE name = $1", []any{name}, &id)
	if err != nil || found {
		return id, err
	}
	unknown := &UnknownName{Kind: kind, Name: name}
	err = tx.Each("SELECT name FROM "+kind+" ORDER BY name", nil, func(scan func(...any) error) error {
		var known string
		err := scan(&known)
		unknown.Known = append(unknown.Known, known)
		return err
	})
	if err != nil {
		return 0, err
	}
	return 0, unknown
}

// sum adds the calls of s to the rows.
func (a *answer) sum(s span) error {
	if a.query.By == ByRun || a.query.By == ByWork || a.query.By == ByKey {
		return a.sumCalls(s, s)
	}
	before, hours, after := s.parts()
	if err := a.sumCalls(s, before); err != nil {
		return err
	}
	if err := a.sumHours(s, hours); err != nil {
		return err
	}
	return a.sumCalls(s, after)
}

// sumHours adds the hourly sums of s, a part of whole at full hours.
func (a *answer) sumHours(whole, s span) error {
	const step = sliceHours * hourMillis
	for from := s.from; from < s.to; from += step {
		first, last := from/hourMillis, min(from+step, s.to)/hourMillis
		err := a.view(func(tx *store.Tx) error { return a.collect(tx, whole, hourlySums, first, last) })
		if err != nil {
			return err
		}
	}
	return nil
}

// sumCalls adds the calls of s, a part of whole, one by one.
func (a *answer) sumCalls(whole, s span) error {
	calls := singleCalls
	if a.query.By == ByWork {
		calls = workCalls
	}
	return a.eachSlice(s, func(tx *store.Tx, from, to int64) error {
		return a.collect(tx, whole, calls, from, to)
	})
}

// eachSlice runs fn for consecutive ranges of call ids in s, each in a snapshot
// of its own.
func (a *answer) eachSlice(s span, fn func(tx *store.Tx, from, to int64) error) error {
	end := idAt(s.to)
	for from := idAt(s.from); from < end; {
		err := a.view(func(tx *store.Tx) error {
			to := end
			if _, err := tx.Get(nextSlice, []any{from, end, sliceCalls}, &to); err != nil {
				return err
			}
			err := fn(tx, from, to)
			from = to
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// collect adds what hourlySums or singleCalls return to the groups of whole.
func (a *answer) collect(tx *store.Tx, whole span, query string, from, to int64) error {
	var t traits
	var r Row
	into := []any{&t.step, &t.model, &t.run, &t.key, &t.outcome, &r.Calls, &r.Upstream, &r.Flagged,
		&r.Input, &r.Cached, &r.Output, &r.Reasoning, &r.Counted, &r.Resent, &r.Cost, &r.Unpriced,
		&r.AvoidedInput, &r.AvoidedOutput, &r.AvoidedCost}
	return tx.Each(query, []any{from, to, a.step, a.tenant}, func(scan func(...any) error) error {
		r = Row{}
		if err := scan(into...); err != nil {
			return err
		}
		r.classify(t.outcome)
		key := group{whole.from, a.query.By.of(&t)}
		g := a.groups[key]
		if g == nil {
			g = &sums{group: key, first: t}
			a.groups[key] = g
		}
		g.add(&r)
		return nil
	})
}

// classify fills in the figures that follow from the outcome of all its calls.
func (r *Row) classify(outcome ledger.Outcome) {
	switch outcome {
	case ledger.Hit:
		r.Hits = r.Calls
	case ledger.Collapsed:
		r.Collapsed = r.Calls
	case ledger.Refused:
		r.Refused = r.Calls
	case ledger.Failed:
		r.Failed = r.Calls
	case ledger.Lost:
		r.Lost = r.Calls
	case ledger.Miss, ledger.Bypass:
		r.AnsweredInput, r.AnsweredCounted = r.Input, r.Counted
	}
}

// measure takes the percentiles of the answered calls, unless there are
// too many of them.
func (a *answer) measure(spans []span) error {
	if a.report.Total.Calls > maxLatencies {
		a.report.Notes = append(a.report.Notes, fmt.Sprintf(
			"Latencies are not measured over more than %s calls; ask for a shorter time.", grouped(maxLatencies)))
		return nil
	}
	samples := map[*Row][]int64{}
	var t traits
	var micros int64
	into := []any{&t.step, &t.model, &t.run, &t.key, &t.outcome, &micros}
	times := latencies
	if a.query.By == ByWork {
		times = workLatencies
	}
	for _, s := range spans {
		err := a.eachSlice(s, func(tx *store.Tx, from, to int64) error {
			return tx.Each(times, []any{from, to, a.step, a.tenant}, func(scan func(...any) error) error {
				if err := scan(into...); err != nil {
					return err
				}
				// A call that ended since the sums were made may have no group.
				if g := a.groups[group{s.from, a.query.By.of(&t)}]; g != nil {
					samples[&g.Row] = append(samples[&g.Row], micros)
				}
				return nil
			})
		})
		if err != nil {
			return err
		}
	}
	var all []int64
	for row, of := range samples {
		all = append(all, of...)
		row.takePercentiles(of)
	}
	a.report.Total.takePercentiles(all)
	return nil
}

// takePercentiles sorts the latencies, in µs, and takes percentiles by nearest
// rank. Without any there are none.
func (r *Row) takePercentiles(micros []int64) {
	n := len(micros)
	if n == 0 {
		return
	}
	slices.Sort(micros)
	rank := func(p float64) time.Duration {
		return time.Duration(micros[int(math.Ceil(p*float64(n)))-1]) * time.Microsecond
	}
	r.Latencies, r.P50, r.P95 = int64(n), rank(0.50), rank(0.95)
}

// finish sorts the groups, cuts them to the limit, names them and adds the notes.
func (a *answer) finish() error {
	r := a.report
	groups := make([]*sums, 0, len(a.groups))
	for _, g := range a.groups {
		if g.Calls > 0 { // a lost call that came back leaves an hourly sum of none
			groups = append(groups, g)
		}
	}
	overTime := r.By.overTime()
	slices.SortFunc(groups, func(x, y *sums) int {
		if overTime {
			return cmp.Compare(x.group.from, y.group.from)
		}
		return cmp.Or(cmp.Compare(y.Input, x.Input), cmp.Compare(y.AvoidedInput, x.AvoidedInput),
			cmp.Compare(y.Calls, x.Calls), cmp.Compare(x.group.id, y.group.id))
	})
	if limit := a.query.Limit; limit > 0 && len(groups) > limit {
		r.Omitted = len(groups) - limit
		if overTime {
			groups = groups[r.Omitted:]
		} else {
			groups = groups[:limit]
		}
	}
	for part := range slices.Chunk(groups, sliceNames) {
		err := a.view(func(tx *store.Tx) error {
			for _, g := range part {
				if err := a.name(tx, g); err != nil {
					return err
				}
				r.Rows = append(r.Rows, g.Row)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	r.note()
	return nil
}

// name names the row of a group after the dimension.
func (a *answer) name(tx *store.Tx, g *sums) (err error) {
	switch a.query.By {
	case ByStep:
		g.Name, err = a.nameOf(tx, "step", g.first.step)
	case ByModel:
		g.Name, err = a.nameOf(tx, "model", g.first.model)
	case ByRun:
		g.Name, err = a.nameOf(tx, "run", g.first.run)
	case ByWork:
		g.Name, err = a.nameOf(tx, "work", g.first.run)
	case ByOutcome:
		g.Name = g.first.outcome.String()
	case ByKey:
		if g.first.key == 0 {
			return nil // calls without a key have no step in common
		}
		g.Name = fmt.Sprintf("%016x", uint64(g.first.key))
		if g.Step, err = a.nameOf(tx, "step", g.first.step); err == nil {
			g.Model, err = a.nameOf(tx, "model", g.first.model)
		}
	default:
		g.Begin = time.UnixMilli(g.group.from).In(a.query.Location)
		g.Name = a.query.By.timeName(g.Begin)
	}
	return err
}

// nameOf is the name with an id in a table of names; 0 has none.
func (a *answer) nameOf(tx *store.Tx, table string, id int64) (name string, err error) {
	_, err = tx.Get("SELECT name FROM "+table+" WHERE id = $1", []any{id}, &name)
	return name, err
}

// note tells what the figures do not.
func (r *Report) note() {
	add := func(format string, args ...any) { r.Notes = append(r.Notes, fmt.Sprintf(format, args...)) }
	if n := r.Total.Unpriced; n > 0 {
		add("%s unpriced: no price is known for the model. Costs leave %s out.", counted(n, "upstream call is", "upstream calls are"), pick(n, "it", "them"))
	}
	if n := r.Running; n > 0 {
		add("%s still running and not in these figures.", counted(n, "upstream call is", "upstream calls are"))
	}
	if n := int64(r.Omitted); n > 0 {
		add("%s not shown, but in the total.", counted(n, "more row is", "more rows are"))
	}
}

func (a *answer) view(fn func(*store.Tx) error) error { return a.store.View(a.ctx, fn) }

// idAt is the smallest id of a call that begins at a time in Unix milliseconds.
func idAt(millis int64) int64 { return ledger.FirstID(time.UnixMilli(millis)) }
