package report

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"
)

// Write writes the drift to w.
func (d *Drift) Write(w io.Writer, format Format) error {
	switch format {
	case Table:
		return writeText(w, d.lines(), func(b *strings.Builder) {
			if len(d.Rows) > 0 {
				writeBlocks(b, d.columns(nameWidth), 3, withTotal(d.Rows, &d.Total, 0))
			}
		}, d.notes())
	case Markdown:
		return writeMarkdown(w, d.lines(), func(b *strings.Builder) {
			if len(d.Rows) > 0 {
				markdownTable(b, d.columns(math.MaxInt), withTotal(d.Rows, &d.Total, 0))
			}
		}, d.notes())
	case CSV:
		return writeCSV(w, append(driftLabels(), driftFields()...), d.Rows)
	case JSON:
		factors := make([]jsonRow[Factor], len(d.Factors))
		for i := range d.Factors {
			factors[i] = jsonRow[Factor]{factorFields(), &d.Factors[i]}
		}
		return writeIndented(w, struct {
			Since   *string             `json:"since"` // null where the ledger is empty and no time was asked for
			Until   string              `json:"until"`
			Step    string              `json:"step"`
			Tenant  string              `json:"tenant"`
			Rows    []jsonRow[DriftRow] `json:"rows"`
			Total   jsonRow[DriftRow]   `json:"total"`
			Factors []jsonRow[Factor]   `json:"factors"`
			Notes   []string            `json:"notes"`
		}{rfc3339(d.Since), d.Until.Format(time.RFC3339), d.Step, d.Tenant,
			jsonRows(append(driftLabels(), driftFields()...), d.Rows), jsonRow[DriftRow]{driftFields(), &d.Total}, factors, d.Notes})
	}
	return fmt.Errorf("no format %q", format)
}

// rfc3339 writes a time for programs; the zero time is none.
func rfc3339(t time.Time) *string {
	if t.IsZero() {
		return nil
	}
	text := t.Format(time.RFC3339)
	return &text
}

// lines are the drift in a sentence, and what it is of.
func (d *Drift) lines() []string {
	t := &d.Total
	scope := fmt.Sprintf("Answered calls whose upstream told their input, %s.", rangeText(d.Since, d.Until, d.Step, d.Tenant))
	if t.Calls == 0 {
		return []string{"No bill can be set beside a count yet.", scope}
	}
	return []string{fmt.Sprintf("%s billed %s input tokens where %s were counted (%+.2f%%); %s of the calls were billed exactly what was counted.",
		counted(t.Calls, "call was", "calls were"), grouped(t.Billed), grouped(t.Counted),
		100*ratio(t.Billed-t.Counted, t.Counted), percentage(ratio(t.Exact, t.Calls))), scope}
}

// notes add the factors in words.
func (d *Drift) notes() []string {
	notes := slices.Clone(d.Notes)
	for _, f := range d.Factors {
		notes = append(notes, fmt.Sprintf("No rule is known for %s: its counts are multiplied by %.3f, learned from its latest %s; nine of ten lie between %.3f and %.3f.",
			visible(f.Model), f.Ratio, counted(int64(f.Calls), "bill", "bills"), f.Low, f.High))
	}
	return notes
}

func factorFields() []field[Factor] {
	return []field[Factor]{
		{"model", func(f *Factor) any { return f.Model }},
		{"ratio", func(f *Factor) any { return rounded(f.Ratio) }},
		{"low", func(f *Factor) any { return rounded(f.Low) }},
		{"high", func(f *Factor) any { return rounded(f.High) }},
		figure("calls", func(f *Factor) int64 { return int64(f.Calls) }),
	}
}

func driftLabels() []field[DriftRow] {
	return []field[DriftRow]{
		{"model", func(r *DriftRow) any { return r.Model }},
		{"endpoint", func(r *DriftRow) any { return r.Endpoint }},
		{"shape", func(r *DriftRow) any { return r.Shape }},
		{"basis", func(r *DriftRow) any { return r.Basis }},
	}
}

// driftFields are the figures of a row in JSON and CSV. What would mend the
// counts is only known of one kind of request whose drift is steady.
func driftFields() []field[DriftRow] {
	some := func(r *DriftRow) bool { return r.Calls > 0 }
	ratioAt := func(of func(low, median, high float64) float64) func(*DriftRow) any {
		return func(r *DriftRow) any { return known(of(r.Ratios()), some(r)) }
	}
	mend := func(r *DriftRow) (Mend, bool) {
		m, ok := r.Mend()
		return m, ok && r.Model != ""
	}
	return []field[DriftRow]{
		figure("calls", func(r *DriftRow) int64 { return r.Calls }),
		figure("counted_input_tokens", func(r *DriftRow) int64 { return r.Counted }),
		figure("billed_input_tokens", func(r *DriftRow) int64 { return r.Billed }),
		{"mean_difference", func(r *DriftRow) any { return known(rounded(r.Mean()), some(r)) }},
		{"min_difference", func(r *DriftRow) any { return known(r.Min, some(r)) }},
		{"max_difference", func(r *DriftRow) any { return known(r.Max, some(r)) }},
		figure("exact_calls", func(r *DriftRow) int64 { return r.Exact }),
		figure("calls_within_3", func(r *DriftRow) int64 { return r.Near }),
		{"ratio_p5", ratioAt(func(low, _, _ float64) float64 { return low })},
		{"ratio_median", ratioAt(func(_, median, _ float64) float64 { return median })},
		{"ratio_p95", ratioAt(func(_, _, high float64) float64 { return high })},
		{"mend_constant", func(r *DriftRow) any { m, ok := mend(r); return known(m.Constant, ok && m.Ratio == 0) }},
		{"mend_share", func(r *DriftRow) any { m, ok := mend(r); return known(rounded(m.Share), ok && m.Ratio == 0) }},
		{"mend_ratio", func(r *DriftRow) any { m, ok := mend(r); return known(m.Ratio, ok && m.Ratio != 0) }},
	}
}

func (d *Drift) columns(longest int) []column[DriftRow] {
	name := func(head string, of func(*DriftRow) string) column[DriftRow] {
		return column[DriftRow]{head: head, left: true, text: func(r *DriftRow) string { return shorten(visible(of(r)), longest) }}
	}
	share := func(head string, of func(*DriftRow) int64) column[DriftRow] {
		return column[DriftRow]{head: head, group: 1, text: func(r *DriftRow) string { return percentage(ratio(of(r), r.Calls)) }}
	}
	difference := func(head string, of func(*DriftRow) float64) column[DriftRow] {
		return column[DriftRow]{head: head, group: 1, text: func(r *DriftRow) string { return signed(of(r)) }}
	}
	return []column[DriftRow]{
		name("MODEL", func(r *DriftRow) string {
			if r == &d.Total {
				return "TOTAL"
			}
			return r.Model
		}),
		name("ENDPOINT", func(r *DriftRow) string { return r.Endpoint }),
		name("SHAPE", func(r *DriftRow) string { return r.Shape }),
		name("BASIS", func(r *DriftRow) string { return r.Basis }),
		count("CALLS", func(r *DriftRow) int64 { return r.Calls }),
		count("COUNTED", func(r *DriftRow) int64 { return r.Counted }),
		count("BILLED", func(r *DriftRow) int64 { return r.Billed }),
		difference("MEAN", (*DriftRow).Mean),
		share("EXACT", func(r *DriftRow) int64 { return r.Exact }),
		share("WITHIN 3", func(r *DriftRow) int64 { return r.Near }),
		difference("MIN", func(r *DriftRow) float64 { return float64(r.Min) }),
		difference("MAX", func(r *DriftRow) float64 { return float64(r.Max) }),
		{head: "MEND", group: 1, text: func(r *DriftRow) string {
			m, ok := r.Mend()
			switch {
			case !ok || r == &d.Total:
				return "–"
			case m.Ratio != 0:
				return fmt.Sprintf("× %.3f", m.Ratio)
			}
			return fmt.Sprintf("%s (%s)", signed(float64(m.Constant)), percentage(m.Share))
		}},
	}
}
