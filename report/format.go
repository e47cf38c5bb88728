package report

import (
	"fmt"
	"io"
	"math"
	"strings"
	"time"
)

// Format is a way to write a report.
type Format string

// The formats of a report.
const (
	Table    Format = "table"    // for people, at most 100 columns wide
	JSON     Format = "json"     // for programs: whole numbers, field names that stay
	CSV      Format = "csv"      // for spreadsheets: the rows with the fields of JSON
	Markdown Format = "markdown" // for tickets and pages
)

// Formats lists every format in the order in which help shows them.
func Formats() []Format { return []Format{Table, JSON, CSV, Markdown} }

// Write writes the report to w.
func (r *Report) Write(w io.Writer, format Format) error {
	switch format {
	case Table:
		return r.writeTable(w)
	case JSON:
		return r.writeJSON(w)
	case CSV:
		return r.writeCSV(w)
	case Markdown:
		return r.writeMarkdown(w)
	}
	return fmt.Errorf("no format %q", format)
}

// fields are the figures of a row in JSON and CSV. Their names stay.
func fields() []field[Row] {
	return []field[Row]{
		figure("calls", func(r *Row) int64 { return r.Calls }),
		figure("upstream_calls", func(r *Row) int64 { return r.Upstream }),
		figure("retries_served", (*Row).Served),
		figure("hits", func(r *Row) int64 { return r.Hits }),
		figure("collapsed", func(r *Row) int64 { return r.Collapsed }),
		figure("refused", func(r *Row) int64 { return r.Refused }),
		figure("failed", func(r *Row) int64 { return r.Failed }),
		figure("lost", func(r *Row) int64 { return r.Lost }),
		figure("flagged", func(r *Row) int64 { return r.Flagged }),
		figure("input_tokens", func(r *Row) int64 { return r.Input }),
		figure("cached_input_tokens", func(r *Row) int64 { return r.Cached }),
		figure("output_tokens", func(r *Row) int64 { return r.Output }),
		figure("reasoning_tokens", func(r *Row) int64 { return r.Reasoning }),
		figure("counted_input_tokens", func(r *Row) int64 { return r.Counted }),
		figure("resent_tokens", func(r *Row) int64 { return r.Resent }),
		figure("answered_input_tokens", func(r *Row) int64 { return r.AnsweredInput }),
		figure("answered_counted_tokens", func(r *Row) int64 { return r.AnsweredCounted }),
		{"cost_micro_usd", func(r *Row) any { return known(r.Cost, r.CostKnown()) }},
		figure("unpriced_calls", func(r *Row) int64 { return r.Unpriced }),
		figure("avoided_input_tokens", func(r *Row) int64 { return r.AvoidedInput }),
		figure("avoided_output_tokens", func(r *Row) int64 { return r.AvoidedOutput }),
		figure("avoided_cost_micro_usd", func(r *Row) int64 { return r.AvoidedCost }),
		figure("latency_calls", func(r *Row) int64 { return r.Latencies }),
		{"p50_us", func(r *Row) any { return known(r.P50.Microseconds(), r.Latencies > 0) }},
		{"p95_us", func(r *Row) any { return known(r.P95.Microseconds(), r.Latencies > 0) }},
	}
}

// labels are the names of a row for programs.
func (r *Report) labels() []field[Row] {
	labels := []field[Row]{{"name", func(r *Row) any { return r.Name }}}
	if r.By == ByKey {
		labels = append(labels, field[Row]{"step", func(r *Row) any { return r.Step }}, field[Row]{"model", func(r *Row) any { return r.Model }})
	}
	return labels
}

func (r *Report) writeJSON(w io.Writer) error {
	return writeIndented(w, struct {
		By       Dimension      `json:"by"`
		Since    *string        `json:"since"` // null where the ledger is empty and no time was asked for
		Until    string         `json:"until"`
		Timezone string         `json:"timezone"`
		Step     string         `json:"step"`
		Tenant   string         `json:"tenant"`
		Rows     []jsonRow[Row] `json:"rows"`
		Total    jsonRow[Row]   `json:"total"`
		Omitted  int            `json:"omitted_rows"`
		Running  int64          `json:"running_calls"`
		Notes    []string       `json:"notes"`
	}{r.By, rfc3339(r.Since), r.Until.Format(time.RFC3339), r.Location.String(), r.Step, r.Tenant,
		jsonRows(append(r.labels(), fields()...), r.Rows), jsonRow[Row]{fields(), &r.Total}, r.Omitted, r.Running, r.Notes})
}

func (r *Report) writeCSV(w io.Writer) error {
	return writeCSV(w, append(r.labels(), fields()...), r.Rows)
}

// writeMarkdown writes the summary, one table of all columns that are not
// empty, and the notes.
func (r *Report) writeMarkdown(w io.Writer) error {
	return writeMarkdown(w, []string{r.summary(), r.scope()}, func(b *strings.Builder) {
		if len(r.Rows) > 0 {
			markdownTable(b, r.columns(math.MaxInt), r.rows())
		}
	}, r.Notes)
}
