package report

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"llmproxy/ledger"
)

// Sent is one request of a log, in the order in which they were sent.
type Sent struct {
	Step, Run, Model string
	Tokens           int      // of the input
	Hashes           []uint64 // of each message
	Each             []int    // tokens of each message
}

// Growth tells from a log of requests which steps drag a growing context
// along: how much of their input had been sent before, and how the input grew
// from call to call. Its memory is bounded, however long the log is.
//
// A message counts as sent again if the same step sent it before in the same
// run, by the same memory as the server's; requests without a run are one run
// of their step. Growth is from one request of a run to its next.
type Growth struct {
	By    Dimension // ByStep, ByModel or ByRun
	Rows  []GrowthRow
	Total GrowthRow
	Notes []string // what a reader must know about the figures, as sentences

	contexts *ledger.Contexts
	index    map[string]int        // row's name → its place in Rows
	previous map[ledger.RunKey]int // run of a step → tokens of its latest request
	crowded  int                   // requests of rows beyond maxGrowthRows
	forgot   bool                  // previous was full and began anew
}

// What is remembered at most.
const (
	maxGrowthRows = 5000 // further ones are summed up in one row
	maxGrowthRuns = 500_000
	crowdedRow    = "(all others)"
)

// GrowthRow is the requests of one step, model or run.
type GrowthRow struct {
	Name   string
	Calls  int64
	Runs   int64 // runs of steps among them
	Tokens int64 // input of all calls
	Max    int64 // of one call
	Resent int64 // of Tokens
	grown  int64 // tokens that requests had more than their run's previous one, net
	later  int64 // requests that had a previous one
	tokens sample
}

// Growths lists the dimensions of a Growth.
func Growths() []Dimension { return []Dimension{ByStep, ByModel, ByRun} }

// NewGrowth returns an empty growth by one of Growths.
func NewGrowth(by Dimension) *Growth {
	return &Growth{By: by, Rows: []GrowthRow{}, Notes: []string{}, contexts: ledger.NewContexts(),
		index: map[string]int{}, previous: map[ledger.RunKey]int{}}
}

// Add counts a request in.
func (g *Growth) Add(s Sent) {
	run := ledger.RunKey{Step: s.Step, Run: s.Run}
	resent := g.contexts.Resent(run, s.Hashes, s.Each)
	g.contexts.Sent(run, s.Hashes)
	before, later := g.previous[run]
	if len(g.previous) >= maxGrowthRuns && !later {
		clear(g.previous)
		g.forgot = true
	}
	g.previous[run] = s.Tokens
	for _, row := range []*GrowthRow{g.row(&s), &g.Total} {
		row.Calls++
		row.Tokens += int64(s.Tokens)
		row.Max = max(row.Max, int64(s.Tokens))
		row.Resent += resent
		row.tokens.add(s.Tokens)
		if later {
			row.later++
			row.grown += int64(s.Tokens - before)
		} else {
			row.Runs++
		}
	}
}

// row is the row that a request belongs to.
func (g *Growth) row(s *Sent) *GrowthRow {
	name := s.Step
	switch g.By {
	case ByModel:
		name = s.Model
	case ByRun:
		name = s.Run
	}
	at, ok := g.index[name]
	if !ok {
		if len(g.Rows) >= maxGrowthRows {
			name = crowdedRow
			g.crowded++
		}
		if at, ok = g.index[name]; !ok {
			at = len(g.Rows)
			g.Rows = append(g.Rows, GrowthRow{Name: name})
			g.index[name] = at
		}
	}
	return &g.Rows[at]
}

// Median is that of the tokens of a call, by nearest rank; of very many calls
// it is that of an even sample.
func (r *GrowthRow) Median() int64 {
	sorted := slices.Sorted(slices.Values(r.tokens.values))
	if len(sorted) == 0 {
		return 0
	}
	return int64(sorted[(len(sorted)-1)/2])
}

// ResentShare is the part of the input that had been sent before, 0 to 1.
func (r *GrowthRow) ResentShare() float64 { return ratio(r.Resent, r.Tokens) }

// PerCall is by how many tokens a request is larger than the previous one of
// its run, on average; ok is false where no run has two.
func (r *GrowthRow) PerCall() (growth float64, ok bool) { return ratio(r.grown, r.later), r.later > 0 }

// sample keeps a bounded, even sample of a series, in its order.
type sample struct {
	values []int32
	every  int // one of so many is kept
	seen   int
}

const maxSample = 1 << 13

func (s *sample) add(n int) {
	if s.every == 0 {
		s.every = 1
	}
	if s.seen%s.every == 0 {
		if len(s.values) == maxSample {
			for i := range maxSample / 2 {
				s.values[i] = s.values[2*i]
			}
			s.values = s.values[:maxSample/2]
			s.every *= 2
		}
		if s.seen%s.every == 0 {
			s.values = append(s.values, int32(min(n, math.MaxInt32)))
		}
	}
	s.seen++
}

// sparkline draws the series in at most so many cells, from zero to its
// largest value; a cell is the mean of its part.
func (s *sample) sparkline(cells int) string {
	levels := []rune("▁▂▃▅▇")
	n := len(s.values)
	cells = min(cells, n)
	means := make([]float64, cells)
	for i := range means {
		part := s.values[i*n/cells : (i+1)*n/cells]
		for _, v := range part {
			means[i] += float64(v) / float64(len(part))
		}
	}
	var b strings.Builder
	for _, mean := range means {
		level := int(mean / max(slices.Max(means), 1) * float64(len(levels)))
		b.WriteRune(levels[min(level, len(levels)-1)])
	}
	return b.String()
}

// Write writes the growth to w, rows that sent most again first.
func (g *Growth) Write(w io.Writer, format Format) error {
	slices.SortStableFunc(g.Rows, func(x, y GrowthRow) int {
		return cmp.Or(cmp.Compare(y.Resent, x.Resent), cmp.Compare(y.Tokens, x.Tokens), cmp.Compare(x.Name, y.Name))
	})
	g.index = nil // of the places before
	switch format {
	case Table:
		return writeText(w, g.lines(), func(b *strings.Builder) {
			writeBlocks(b, g.columns(nameWidth), 1, withTotal(g.Rows, &g.Total, 0))
		}, g.notes())
	case Markdown:
		return writeMarkdown(w, g.lines(), func(b *strings.Builder) {
			markdownTable(b, g.columns(math.MaxInt), withTotal(g.Rows, &g.Total, 0))
		}, g.notes())
	case CSV:
		return writeCSV(w, append(nameField(func(r *GrowthRow) string { return r.Name }), growthFields()...), g.Rows)
	case JSON:
		return writeIndented(w, struct {
			By    Dimension            `json:"by"`
			Rows  []jsonRow[GrowthRow] `json:"rows"`
			Total jsonRow[GrowthRow]   `json:"total"`
			Notes []string             `json:"notes"`
		}{g.By, jsonRows(append(nameField(func(r *GrowthRow) string { return r.Name }), growthFields()...), g.Rows),
			jsonRow[GrowthRow]{growthFields(), &g.Total}, g.notes()})
	}
	return fmt.Errorf("no format %q", format)
}

// lines are the growth in a sentence or two.
func (g *Growth) lines() []string {
	t := &g.Total
	return []string{fmt.Sprintf("%s sent %s input %s; %s of them had been sent before by the same step and run.",
		counted(t.Calls, "request", "requests"), grouped(t.Tokens), pick(t.Tokens, "token", "tokens"), percentage(t.ResentShare()))}
}

func (g *Growth) notes() []string {
	notes := slices.Clone(g.Notes)
	if g.crowded > 0 {
		notes = append(notes, fmt.Sprintf("Only %s rows are told apart; %s of others.", grouped(maxGrowthRows), counted(int64(g.crowded), "request is", "requests are")))
	}
	if g.forgot {
		notes = append(notes, fmt.Sprintf("There are more than %s runs; growth from before that many is left out.", grouped(maxGrowthRuns)))
	}
	if g.Total.tokens.every > 1 {
		notes = append(notes, fmt.Sprintf("Medians and curves of more than %s requests are of an even sample.", grouped(maxSample)))
	}
	return notes
}

func growthFields() []field[GrowthRow] {
	return []field[GrowthRow]{
		figure("calls", func(r *GrowthRow) int64 { return r.Calls }),
		figure("runs", func(r *GrowthRow) int64 { return r.Runs }),
		figure("input_tokens", func(r *GrowthRow) int64 { return r.Tokens }),
		figure("median_tokens", (*GrowthRow).Median),
		figure("max_tokens", func(r *GrowthRow) int64 { return r.Max }),
		figure("resent_tokens", func(r *GrowthRow) int64 { return r.Resent }),
		{"resent_share", func(r *GrowthRow) any { return rounded(r.ResentShare()) }},
		{"growth_per_call", func(r *GrowthRow) any { growth, ok := r.PerCall(); return known(rounded(growth), ok) }},
		{"sparkline", func(r *GrowthRow) any { return r.tokens.sparkline(sparkWidth) }},
	}
}

const sparkWidth = 24

func (g *Growth) columns(longest int) []column[GrowthRow] {
	none := map[Dimension]string{ByRun: "(no run)", ByModel: "(no model)"}[g.By]
	columns := []column[GrowthRow]{
		{head: strings.ToUpper(string(g.By)), left: true, text: func(r *GrowthRow) string {
			switch {
			case r == &g.Total:
				return "TOTAL"
			case r.Name == "":
				return none
			}
			return shorten(visible(r.Name), longest)
		}},
		{head: "INPUT BY CALL", left: true, text: func(r *GrowthRow) string { return r.tokens.sparkline(sparkWidth) }},
		count("CALLS", func(r *GrowthRow) int64 { return r.Calls }),
		count("RUNS", func(r *GrowthRow) int64 { return r.Runs }),
		count("TOKENS", func(r *GrowthRow) int64 { return r.Tokens }),
		count("RE-SENT", func(r *GrowthRow) int64 { return r.Resent }).in(1),
		{head: "SHARE", group: 1, text: func(r *GrowthRow) string { return percentage(r.ResentShare()) }},
		count("MEDIAN", (*GrowthRow).Median).in(2),
		count("MAX", func(r *GrowthRow) int64 { return r.Max }).in(2),
		{head: "GROWTH", group: 2, text: func(r *GrowthRow) string {
			growth, ok := r.PerCall()
			if !ok {
				return "–"
			}
			return signed(growth)
		}},
	}
	return columns
}
