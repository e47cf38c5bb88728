package report

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"
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

// field is one figure of a row for programs. A figure that is not known has no
// value: null in JSON, empty in CSV.
type field struct {
	name  string
	value func(*Row) (n int64, known bool)
}

// fields are the figures of a row in JSON and CSV. Their names stay.
func fields() []field {
	always := func(get func(*Row) int64) func(*Row) (int64, bool) {
		return func(r *Row) (int64, bool) { return get(r), true }
	}
	return []field{
		{"calls", always(func(r *Row) int64 { return r.Calls })},
		{"upstream_calls", always(func(r *Row) int64 { return r.Upstream })},
		{"retries_served", always((*Row).Served)},
		{"hits", always(func(r *Row) int64 { return r.Hits })},
		{"collapsed", always(func(r *Row) int64 { return r.Collapsed })},
		{"refused", always(func(r *Row) int64 { return r.Refused })},
		{"failed", always(func(r *Row) int64 { return r.Failed })},
		{"lost", always(func(r *Row) int64 { return r.Lost })},
		{"flagged", always(func(r *Row) int64 { return r.Flagged })},
		{"input_tokens", always(func(r *Row) int64 { return r.Input })},
		{"cached_input_tokens", always(func(r *Row) int64 { return r.Cached })},
		{"output_tokens", always(func(r *Row) int64 { return r.Output })},
		{"reasoning_tokens", always(func(r *Row) int64 { return r.Reasoning })},
		{"counted_input_tokens", always(func(r *Row) int64 { return r.Counted })},
		{"resent_tokens", always(func(r *Row) int64 { return r.Resent })},
		{"answered_input_tokens", always(func(r *Row) int64 { return r.AnsweredInput })},
		{"answered_counted_tokens", always(func(r *Row) int64 { return r.AnsweredCounted })},
		{"cost_micro_usd", func(r *Row) (int64, bool) { return r.Cost, r.CostKnown() }},
		{"unpriced_calls", always(func(r *Row) int64 { return r.Unpriced })},
		{"avoided_input_tokens", always(func(r *Row) int64 { return r.AvoidedInput })},
		{"avoided_output_tokens", always(func(r *Row) int64 { return r.AvoidedOutput })},
		{"avoided_cost_micro_usd", always(func(r *Row) int64 { return r.AvoidedCost })},
		{"latency_calls", always(func(r *Row) int64 { return r.Latencies })},
		{"p50_us", func(r *Row) (int64, bool) { return r.P50.Microseconds(), r.Latencies > 0 }},
		{"p95_us", func(r *Row) (int64, bool) { return r.P95.Microseconds(), r.Latencies > 0 }},
	}
}

// labels are the names of a row for programs.
func (r *Report) labels() []string {
	if r.By == ByKey {
		return []string{"name", "step", "model"}
	}
	return []string{"name"}
}

// jsonRow writes a row as an object whose members keep the order of fields.
type jsonRow struct {
	labels []string
	row    *Row
}

func (j jsonRow) MarshalJSON() ([]byte, error) {
	out := []byte{'{'}
	member := func(name string, value any) error {
		text, err := json.Marshal(value)
		if err != nil {
			return err
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = strconv.AppendQuote(out, name)
		out = append(append(out, ':'), text...)
		return nil
	}
	names := []string{j.row.Name, j.row.Step, j.row.Model}
	for i, label := range j.labels {
		if err := member(label, names[i]); err != nil {
			return nil, err
		}
	}
	for _, f := range fields() {
		var value any
		if n, known := f.value(j.row); known {
			value = n
		}
		if err := member(f.name, value); err != nil {
			return nil, err
		}
	}
	return append(out, '}'), nil
}

func (r *Report) writeJSON(w io.Writer) error {
	rows := make([]jsonRow, len(r.Rows))
	for i := range r.Rows {
		rows[i] = jsonRow{r.labels(), &r.Rows[i]}
	}
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(struct {
		By       Dimension `json:"by"`
		Since    *string   `json:"since"` // null where the ledger is empty and no time was asked for
		Until    string    `json:"until"`
		Timezone string    `json:"timezone"`
		Step     string    `json:"step"`
		Tenant   string    `json:"tenant"`
		Rows     []jsonRow `json:"rows"`
		Total    jsonRow   `json:"total"`
		Omitted  int       `json:"omitted_rows"`
		Running  int64     `json:"running_calls"`
		Notes    []string  `json:"notes"`
	}{r.By, r.sinceText(), r.Until.Format(time.RFC3339), r.Location.String(), r.Step, r.Tenant,
		rows, jsonRow{nil, &r.Total}, r.Omitted, r.Running, r.Notes})
}

func (r *Report) sinceText() *string {
	if r.Since.IsZero() {
		return nil
	}
	text := r.Since.Format(time.RFC3339)
	return &text
}

// writeCSV writes a header and the rows, without the total, so that a sum over
// a column is right.
func (r *Report) writeCSV(w io.Writer) error {
	labels := r.labels()
	header := append([]string{}, labels...)
	for _, f := range fields() {
		header = append(header, f.name)
	}
	out := csv.NewWriter(w)
	if err := out.Write(header); err != nil {
		return err
	}
	for i := range r.Rows {
		row := &r.Rows[i]
		record := make([]string, 0, len(header))
		for _, name := range []string{row.Name, row.Step, row.Model}[:len(labels)] {
			record = append(record, inertCell(visible(name)))
		}
		for _, f := range fields() {
			text := ""
			if n, known := f.value(row); known {
				text = strconv.FormatInt(n, 10)
			}
			record = append(record, text)
		}
		if err := out.Write(record); err != nil {
			return err
		}
	}
	out.Flush()
	return out.Error()
}

// inertCell keeps a spreadsheet from running a name as a formula.
func inertCell(name string) string {
	if name != "" && strings.ContainsRune("=+-@＝＋－＠", []rune(name)[0]) {
		return "'" + name
	}
	return name
}

// writeMarkdown writes the summary, one table of all columns that are not
// empty, and the notes.
func (r *Report) writeMarkdown(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n%s\n", escapeMarkdown(r.summary()), escapeMarkdown(r.scope()))
	if len(r.Rows) > 0 {
		columns := r.columns(math.MaxInt)
		heads, rules := make([]string, len(columns)), make([]string, len(columns))
		for i, c := range columns {
			heads[i], rules[i] = c.head, "---:"
			if c.left {
				rules[i] = "---"
			}
		}
		fmt.Fprintf(&b, "\n| %s |\n| %s |\n", strings.Join(heads, " | "), strings.Join(rules, " | "))
		for i := range r.Rows {
			fmt.Fprintf(&b, "| %s |\n", strings.Join(markdownCells(columns, &r.Rows[i]), " | "))
		}
		if len(r.Rows) > 1 || r.Omitted > 0 {
			fmt.Fprintf(&b, "| %s |\n", strings.Join(markdownCells(columns, &r.Total), " | "))
		}
	}
	for _, note := range r.Notes {
		fmt.Fprintf(&b, "\n%s\n", escapeMarkdown(note))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func markdownCells(columns []column, row *Row) []string {
	cells := make([]string, len(columns))
	for i, c := range columns {
		cells[i] = escapeMarkdown(strings.TrimSpace(c.text(row)))
	}
	return cells
}

// escapeMarkdown keeps text from being read as markup.
func escapeMarkdown(text string) string {
	return markdownEscapes.Replace(text)
}

var markdownEscapes = strings.NewReplacer(
	`\`, `\\`, `|`, `\|`, "`", "\\`", `*`, `\*`, `_`, `\_`, `[`, `\[`, `]`, `\]`, `<`, `\<`, `>`, `\>`, `~`, `\~`, `$`, `\$`, `&`, `\&`)
