package report_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"llmproxy/report"
)

// agents is two runs of an agent that sends all it has said before, and
// lookups that share nothing.
func agents(by report.Dimension) *report.Growth {
	g := report.NewGrowth(by)
	for call := range 6 {
		for _, run := range []string{"r1", "r2"} {
			s := report.Sent{Step: "agent", Run: run, Model: "gpt-4o"}
			for m := range call + 1 {
				s.Hashes, s.Each = append(s.Hashes, uint64(m+1)), append(s.Each, 100)
				s.Tokens += 100
			}
			g.Add(s)
		}
		g.Add(report.Sent{Step: "look|up", Model: "gpt-4o-mini", Tokens: 40, Hashes: []uint64{uint64(1000 + call)}, Each: []int{40}})
	}
	return g
}

func writeGrowth(t *testing.T, g *report.Growth, format report.Format) string {
	t.Helper()
	var b bytes.Buffer
	if err := g.Write(&b, format); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestGrowthOfContexts(t *testing.T) {
	g := agents(report.ByStep)
	golden(t, "growth.txt", writeGrowth(t, g, report.Table))
	golden(t, "growth.md", writeGrowth(t, g, report.Markdown))
	golden(t, "growth.csv", writeGrowth(t, g, report.CSV))
	golden(t, "growth.json", writeGrowth(t, g, report.JSON))
	golden(t, "growth-run.txt", writeGrowth(t, agents(report.ByRun), report.Table))
	golden(t, "growth-model.txt", writeGrowth(t, agents(report.ByModel), report.Table))
	if err := g.Write(new(bytes.Buffer), "xml"); err == nil {
		t.Error("written as XML")
	}
	// Each run sends 100 … 600: what is not new is 0 … 500.
	r := g.Rows[0]
	if r.Name != "agent" || r.Tokens != 4200 || r.Resent != 3000 || r.Runs != 2 || r.Max != 600 || r.Median() != 300 {
		t.Errorf("%+v, median %d", r, r.Median())
	}
	if growth, ok := r.PerCall(); !ok || growth != 100 {
		t.Errorf("growth %v %v, want 100", growth, ok)
	}
}

func TestAnotherRunHasSentNothing(t *testing.T) {
	g := report.NewGrowth(report.ByStep)
	for i := range 5 {
		g.Add(report.Sent{Step: "s", Run: fmt.Sprint(i), Tokens: 10, Hashes: []uint64{1}, Each: []int{10}})
		g.Add(report.Sent{Step: fmt.Sprint(i), Tokens: 10, Hashes: []uint64{1}, Each: []int{10}})
	}
	if _, ok := g.Total.PerCall(); ok || g.Total.Resent != 0 || g.Total.Runs != 10 {
		t.Errorf("%+v", g.Total)
	}
}

func TestGrowthOfVeryManyCallsIsBounded(t *testing.T) {
	g := report.NewGrowth(report.ByStep)
	const calls = 100_000
	for i := range calls {
		g.Add(report.Sent{Step: "s", Tokens: i})
	}
	if m := g.Total.Median(); m < 0.49*calls || m > 0.51*calls {
		t.Errorf("the median of 0 … %d is %d", calls, m)
	}
	text := writeGrowth(t, g, report.Table)
	if !strings.Contains(text, "▁▁▁▁▁▂▂▂▂▃▃▃▃▃▅▅▅▅▅▇▇▇▇▇") || !strings.Contains(text, "of an even sample") {
		t.Errorf("no straight rise or no word of the sample:\n%s", text)
	}
	names := report.NewGrowth(report.ByRun)
	for i := range 6000 {
		names.Add(report.Sent{Step: "s", Run: fmt.Sprint(i), Tokens: 1})
	}
	if len(names.Rows) != 5001 || names.Total.Tokens != 6000 || !strings.Contains(writeGrowth(t, names, report.Table), "1,000 requests are of others") {
		t.Errorf("%d rows", len(names.Rows))
	}
}

func TestEmptyGrowth(t *testing.T) {
	g := report.NewGrowth(report.ByStep)
	var decoded struct {
		Rows  []any
		Notes []any
		Total map[string]any
	}
	if err := json.Unmarshal([]byte(writeGrowth(t, g, report.JSON)), &decoded); err != nil {
		t.Fatal(err)
	}
	if decoded.Rows == nil || decoded.Notes == nil || decoded.Total["growth_per_call"] != nil || decoded.Total["calls"] != 0.0 {
		t.Errorf("%+v", decoded)
	}
}
