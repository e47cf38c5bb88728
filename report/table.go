package report

import (
	"fmt"
	"io"
	"strings"
	"time"
)

const barWidth = 12

// columns are the columns worth showing: the names, cut to a width, and those
// figures that are not zero everywhere.
func (r *Report) columns(longest int) []column[Row] {
	all := r.nameColumns(longest)
	all = append(all, r.shareColumn())
	all = append(all, r.tokenColumns()...)
	all = append(all, r.callColumns()...)
	return telling(all, r.Rows, &r.Total)
}

func (r *Report) nameColumns(longest int) []column[Row] {
	none := map[Dimension]string{ByRun: "(no run)", ByKey: "(no key)"}[r.By]
	if none == "" {
		none = "(none)"
	}
	named := func(name, empty string) string {
		if name == "" {
			return empty
		}
		return shorten(visible(name), longest)
	}
	columns := []column[Row]{{head: strings.ToUpper(string(r.By)), left: true, text: func(row *Row) string {
		if row == &r.Total {
			return "TOTAL"
		}
		return named(row.Name, none)
	}}}
	if r.By == ByKey {
		columns = append(columns,
			column[Row]{head: "USED BY", left: true, text: func(row *Row) string { return named(row.Step, "") }})
	}
	return columns
}

// shareColumn shows the row's part of all input, the bar in relation to the
// largest row, so that the biggest eater is seen before any number is read.
func (r *Report) shareColumn() column[Row] {
	largest := int64(0)
	for i := range r.Rows {
		largest = max(largest, r.Rows[i].Input)
	}
	return column[Row]{
		head: "SHARE OF INPUT", left: true,
		text: func(row *Row) string {
			percent := fmt.Sprintf("%4s", percentage(ratio(row.Input, r.Total.Input)))
			if row == &r.Total {
				return percent
			}
			return percent + " " + bar(ratio(row.Input, largest), barWidth)
		},
		zero: func(total *Row) bool { return total.Input == 0 },
	}
}

// tokenColumns tell what was sent and received.
func (r *Report) tokenColumns() []column[Row] {
	money := moneyFormat(max(r.Total.Cost, r.Total.AvoidedCost))
	cost := func(row *Row) string {
		switch {
		case !row.CostKnown():
			return "unpriced"
		case row.Unpriced > 0:
			return "≥ " + money(row.Cost)
		case row.Upstream == 0:
			return "–"
		}
		return money(row.Cost)
	}
	resent := func(row *Row) string {
		if row.Counted == 0 {
			return "–"
		}
		return percentage(row.ResentShare())
	}
	drift := func(row *Row) string {
		if row.AnsweredCounted == 0 {
			return "–"
		}
		return fmt.Sprintf("%+.1f%%", row.Drift()*100)
	}
	return []column[Row]{
		count("INPUT", func(r *Row) int64 { return r.Input }),
		count("OUTPUT", func(r *Row) int64 { return r.Output }),
		{head: "COST", text: cost, zero: func(r *Row) bool { return r.Upstream == 0 }},
		count("CACHED", func(r *Row) int64 { return r.Cached }).in(1),
		count("REASONING", func(r *Row) int64 { return r.Reasoning }).in(1),
		{head: "RE-SENT", group: 1, text: resent, zero: func(r *Row) bool { return r.Resent == 0 }},
		{head: "DRIFT", group: 1, text: drift, zero: func(r *Row) bool { return r.AnsweredInput == r.AnsweredCounted }},
	}
}

// callColumns tell what became of the calls.
func (r *Report) callColumns() []column[Row] {
	money := moneyFormat(max(r.Total.Cost, r.Total.AvoidedCost))
	saved := func(row *Row) string {
		if row.AvoidedCost == 0 { // free or unpriced: the ledger does not tell
			return "–"
		}
		return money(row.AvoidedCost)
	}
	latency := func(of func(*Row) time.Duration) func(*Row) string {
		return func(r *Row) string {
			if r.Latencies == 0 {
				return "–"
			}
			return duration(of(r))
		}
	}
	unmeasured := func(r *Row) bool { return r.Latencies == 0 }
	return []column[Row]{
		count("CALLS", func(r *Row) int64 { return r.Calls }).in(2),
		count("UPSTREAM", func(r *Row) int64 { return r.Upstream }).in(2),
		count("HITS", func(r *Row) int64 { return r.Hits }).in(2),
		count("COLLAPSED", func(r *Row) int64 { return r.Collapsed }).in(2),
		count("AVOIDED", func(r *Row) int64 { return r.AvoidedInput }).in(2),
		{head: "SAVED", group: 2, text: saved, zero: func(r *Row) bool { return r.AvoidedCost == 0 }},
		count("REFUSED", func(r *Row) int64 { return r.Refused }).in(3),
		count("FAILED", func(r *Row) int64 { return r.Failed }).in(3),
		count("LOST", func(r *Row) int64 { return r.Lost }).in(3),
		count("FLAGGED", func(r *Row) int64 { return r.Flagged }).in(3),
		{head: "P50", group: 4, text: latency(func(r *Row) time.Duration { return r.P50 }), zero: unmeasured},
		{head: "P95", group: 4, text: latency(func(r *Row) time.Duration { return r.P95 }), zero: unmeasured},
	}
}

// rows are the rows that people are shown: with the total, where it says more
// than the one row does.
func (r *Report) rows() []*Row { return withTotal(r.Rows, &r.Total, r.Omitted) }

func (r *Report) writeTable(w io.Writer) error {
	return writeText(w, []string{r.summary(), r.scope()}, func(b *strings.Builder) {
		if len(r.Rows) > 0 {
			writeBlocks(b, r.columns(nameWidth), len(r.nameColumns(nameWidth)), r.rows())
		}
	}, r.Notes)
}

// summary is the report in a sentence or two.
func (r *Report) summary() string {
	t := &r.Total
	switch {
	case r.First.IsZero():
		return "There are no calls yet."
	case t.Calls == 0:
		return fmt.Sprintf("No call ended in this time. The first call of all began %s.", r.First.Format(clock))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %s sent upstream; ", counted(t.Calls, "call", "calls"), grouped(t.Upstream))
	if served := t.Served(); served == 0 {
		b.WriteString("no retry was served from the store")
	} else {
		fmt.Fprintf(&b, "%s served from the store saved %s input %s",
			counted(served, "retry", "retries"), short(t.AvoidedInput), pick(t.AvoidedInput, "token", "tokens"))
		if t.AvoidedCost > 0 {
			fmt.Fprintf(&b, " (%s)", moneyFormat(t.AvoidedCost)(t.AvoidedCost))
		}
	}
	b.WriteString(".")
	var bad []string
	for _, n := range []struct {
		calls int64
		what  string
	}{{t.Refused, "refused"}, {t.Failed, "failed"}, {t.Lost, "lost"}, {t.Flagged, "over a budget that only flags"}} {
		if n.calls > 0 {
			bad = append(bad, grouped(n.calls)+" "+n.what)
		}
	}
	if len(bad) > 0 {
		b.WriteString(" " + strings.Join(bad, ", ") + ".")
	}
	return b.String()
}

const clock = "2006-01-02 15:04:05"

// scope says what the figures are of.
func (r *Report) scope() string {
	return fmt.Sprintf("By %s, %s.", r.By, rangeText(r.Since, r.Until, r.Step, r.Tenant))
}

// rangeText says of what time, step and tenant figures are.
func rangeText(since, until time.Time, step, tenant string) string {
	var b strings.Builder
	if !since.IsZero() {
		fmt.Fprintf(&b, "from %s ", since.Format(clock))
	}
	fmt.Fprintf(&b, "to %s (%s)", until.Format(clock), until.Location())
	if step != "" {
		fmt.Fprintf(&b, ", step %s", visible(step))
	}
	if tenant != "" {
		fmt.Fprintf(&b, ", tenant %s", visible(tenant))
	}
	return b.String()
}
