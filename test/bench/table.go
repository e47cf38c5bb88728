package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// bound is what a figure is wanted to be; the zero value wants nothing.
type bound struct {
	op    string // "≤" or "≥"
	value float64
}

func atMost(v float64) bound  { return bound{"≤", v} }
func atLeast(v float64) bound { return bound{"≥", v} }

// met returns "yes" or "no", or "" where nothing is wanted.
func (b bound) met(v float64) string {
	switch {
	case b.op == "":
		return ""
	case b.op == "≤" && v <= b.value, b.op == "≥" && v >= b.value:
		return "yes"
	}
	return "no"
}

// format returns the bound with its value as in show.
func (b bound) format(show func(float64) string) string {
	if b.op == "" {
		return ""
	}
	return b.op + " " + show(b.value)
}

// table collects the rows of one section. A row that says a figure of both sides
// compares them; one without the other side has its bound on the figure itself.
type table struct {
	title string
	rows  [][]string
	notes []string
}

func newTable(title, ours, base string) *table {
	return &table{title: title, rows: [][]string{{"case", "figure", ours, base, "compared", "wanted", "met"}}}
}

func (t *table) row(cells ...string) { t.rows = append(t.rows, cells) }

// figure adds a row with a figure of our side only.
func (t *table) figure(of, name string, v float64, show func(float64) string, wanted bound) {
	t.row(of, name, show(v), "", "", wanted.format(show), wanted.met(v))
}

// measure is a figure of one round.
type measure struct {
	name string
	of   func(sample) float64
	show func(float64) string
}

// ratio adds a row that compares the sides by the ratio of ours to base.
func (t *table) ratio(of string, m measure, ours, base []sample, wanted bound) {
	t.compare(of, m, ours, base, func(a, b float64) float64 { return a / b }, plain, wanted)
}

// difference adds a row that compares the sides by ours − base.
func (t *table) difference(of string, m measure, ours, base []sample, wanted bound) {
	t.compare(of, m, ours, base, func(a, b float64) float64 { return a - b }, millis, wanted)
}

func (t *table) compare(of string, m measure, ours, base []sample, by func(a, b float64) float64, show func(float64) string, wanted bound) {
	a, b := each(ours, m.of), each(base, m.of)
	compared := pairwise(a, b, by)
	if median(a) == 0 { // too short a round for a tick of CPU
		compared = nil
	}
	text, met := spread(compared, show, wanted)
	t.row(of, m.name, m.show(median(a)), m.show(median(b)), text, wanted.format(show), met)
}

// added adds a row with the ratio of what the server adds to a figure over its
// baseline in one case to what it adds in another.
func (t *table) added(of string, m measure, one, other pair, wanted bound) {
	minus := func(a, b float64) float64 { return a - b }
	a := pairwise(each(one.ours, m.of), each(one.base, m.of), minus)
	b := pairwise(each(other.ours, m.of), each(other.base, m.of), minus)
	compared := pairwise(a, b, func(a, b float64) float64 { return a / b })
	if slices.Min(b) <= 0 { // noise outweighs what is added
		compared = nil
	}
	text, met := spread(compared, plain, wanted)
	t.row(of, m.name+", added", "", "", text, wanted.format(plain), met)
}

// spread returns the median of the rounds, with the least and the greatest in
// brackets, and whether it is as wanted.
func spread(rounds []float64, show func(float64) string, wanted bound) (text, met string) {
	v := median(rounds)
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return "not measurable", ""
	}
	text = show(v)
	if len(rounds) > 1 {
		text += fmt.Sprintf(" (%s–%s)", show(slices.Min(rounds)), show(slices.Max(rounds)))
	}
	return text, wanted.met(v)
}

// pairwise combines the figures of each round of two sides.
func pairwise(a, b []float64, by func(a, b float64) float64) []float64 {
	made := make([]float64, len(a))
	for i := range a {
		made[i] = by(a[i], b[i])
	}
	return made
}

// errors adds a row with the requests of both sides that got no right answer,
// and a note for what failed first in each round. Without a base its column is
// empty.
func (t *table) errors(of string, ours, base []sample) {
	count := func(side []sample) (n int) {
		for _, s := range side {
			n += s.failed
			if s.failure != nil {
				t.note("%s: %v", of, s.failure)
			}
		}
		return n
	}
	n, wanted := count(ours), atMost(0)
	other := ""
	if base != nil {
		other = strconv.Itoa(count(base))
	}
	t.row(of, "errors", strconv.Itoa(n), other, "", wanted.format(whole), wanted.met(float64(n)))
}

func (t *table) note(format string, args ...any) {
	if note := fmt.Sprintf(format, args...); !slices.Contains(t.notes, note) {
		t.notes = append(t.notes, note)
	}
}

// gap adds an empty row between cases.
func (t *table) gap() { t.row(make([]string, len(t.rows[0]))...) }

// print writes the table in aligned columns, then the notes.
func (t *table) print(w io.Writer) error {
	var text strings.Builder
	tw := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	above := ""
	for _, cells := range t.rows {
		shown := slices.Clone(cells)
		if shown[0] == above {
			shown[0] = ""
		}
		above = cells[0]
		fmt.Fprintln(tw, strings.Join(shown, "\t"))
	}
	tw.Flush() // into memory, so without an error
	for _, note := range t.notes {
		fmt.Fprintln(&text, "note:", note)
	}
	page := t.title + "\n\n"
	for line := range strings.Lines(strings.TrimRight(text.String(), " \n")) {
		page += strings.TrimRight("  "+line, " \n") + "\n"
	}
	_, err := io.WriteString(w, page+"\n")
	return err
}

// each returns the figure of every round.
func each(rounds []sample, of func(sample) float64) []float64 {
	figures := make([]float64, len(rounds))
	for i, s := range rounds {
		figures[i] = of(s)
	}
	return figures
}

// The figures of a round, in seconds or 1/s.
var (
	cpuPerRequest = measure{"CPU/request", func(s sample) float64 { return s.serverCPU.Seconds() / float64(s.answered) }, micros}
	throughput    = measure{"throughput", func(s sample) float64 { return float64(s.answered) / s.elapsed.Seconds() }, rate}
	latencyP50    = measure{"latency p50", func(s sample) float64 { return quantile(s.latencies, 0.5).Seconds() }, millis}
	latencyP99    = measure{"latency p99", func(s sample) float64 { return quantile(s.latencies, 0.99).Seconds() }, millis}
	clientCost    = measure{"client's CPU/request", func(s sample) float64 { return s.clientCPU.Seconds() / float64(s.answered) }, micros}
	firstP50      = measure{"first chunk p50", func(s sample) float64 { return quantile(s.first, 0.5).Seconds() }, millis}
	firstP99      = measure{"first chunk p99", func(s sample) float64 { return quantile(s.first, 0.99).Seconds() }, millis}
	delayP50      = measure{"chunk delay p50", func(s sample) float64 { return quantile(s.delays, 0.5).Seconds() }, millis}
	delayP99      = measure{"chunk delay p99", func(s sample) float64 { return quantile(s.delays, 0.99).Seconds() }, millis}
	chunkRate     = measure{"chunks", func(s sample) float64 { return float64(len(s.delays)) / s.elapsed.Seconds() }, rate}
	delayMax      = measure{"chunk delay max", func(s sample) float64 { return quantile(s.delays, 1).Seconds() }, millis}
)

func plain(v float64) string  { return fmt.Sprintf("%.2f", v) }
func whole(v float64) string  { return fmt.Sprintf("%.0f", v) }
func rate(v float64) string   { return fmt.Sprintf("%.0f/s", v) }
func micros(v float64) string { return fmt.Sprintf("%.1f µs", v*1e6) }
func millis(v float64) string { return fmt.Sprintf("%.2f ms", v*1e3) }
func mebi(v float64) string   { return fmt.Sprintf("%.1f MiB", v/(1<<20)) }
func mega(v float64) string   { return fmt.Sprintf("%.1f MB", v/1e6) }

// median returns the middle value, the mean of the two of an even number.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	if n == 0 {
		return math.NaN()
	}
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// quantile returns the q-quantile by the nearest rank, 0 of nothing.
func quantile(times []time.Duration, q float64) time.Duration {
	if len(times) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(times))
	return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)]
}
