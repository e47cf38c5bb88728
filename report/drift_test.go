package report_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"llmproxy/ledger"
	"llmproxy/report"
	"llmproxy/store"
	"llmproxy/store/storetest"
)

// billed is a call of a shape that was billed otherwise than counted.
func billed(model string, shape int, counted, difference int64) ledger.Call {
	c := miss("draft-reply", model, "", counted, counted, 10)
	c.Usage.Input += difference
	c.Flags |= shape
	return c
}

// drifting is a ledger of models that drift in several ways.
func drifting(t *testing.T) *store.Store {
	s := storetest.New(t)
	c := (&calls{}).at(at(t, "2026-12-01T06:00:00Z"))
	for i := range int64(30) {
		c.add(billed("exact-1", 0, 500+i, 0))
		c.add(billed("exact-1", ledger.WithTools, 900+i, 7*min(i, 1))) // one of thirty is exact
		c.add(billed("ratio-1", 0, 1000+100*i, (1000+100*i)*18/100))
		c.add(billed("noisy-1", 0, 800, i*i%41-15))
		if i < 19 {
			c.add(billed("seldom-1", ledger.WithStructured, 400, 5))
		}
	}
	image := billed("exact-1", ledger.WithImages|ledger.Uncounted, 1000, -600)
	image.Basis = 2
	c.add(image)
	// None of these has a bill.
	estimated := billed("none", 0, 100, 50)
	estimated.Flags |= ledger.UsageEstimated
	odd := billed("none", 0, 100, 50)
	odd.Flags |= ledger.UsageOdd
	c.add(estimated).add(odd).add(again(image, ledger.Hit, 0))
	c.add(unanswered(image, ledger.Lost, 0, &ledger.Usage{Input: 900}, nil))
	c.add(unanswered(image, ledger.Failed, 500, &ledger.Usage{Input: 900}, nil))
	insert(t, s, c.rows)
	return s
}

func readDrift(t *testing.T, s *store.Store, q report.Query) *report.Drift {
	t.Helper()
	d, err := report.ReadDrift(t.Context(), s, q)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func writeDrift(t *testing.T, d *report.Drift, format report.Format) string {
	t.Helper()
	var b bytes.Buffer
	if err := d.Write(&b, format); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestDriftOfBills(t *testing.T) {
	s := drifting(t)
	until := at(t, "2026-12-02T00:00:00Z")
	d := readDrift(t, s, report.Query{Until: until})
	d.Factors = []report.Factor{{Model: "claude-sonnet-4-5", Ratio: 1.18312, Low: 1.1, High: 1.25, Calls: 64}}
	golden(t, "drift.txt", writeDrift(t, d, report.Table))
	golden(t, "drift.md", writeDrift(t, d, report.Markdown))
	golden(t, "drift.csv", writeDrift(t, d, report.CSV))
	golden(t, "drift.json", writeDrift(t, d, report.JSON))
	if err := d.Write(new(bytes.Buffer), "xml"); err == nil {
		t.Error("written as XML")
	}
	want := map[string]report.Mend{"exact-1 tools": {Constant: 7, Share: 29.0 / 30}, "ratio-1 text": {Ratio: 1.18}}
	for i := range d.Rows {
		r := &d.Rows[i]
		m, ok := r.Mend()
		if w, steady := want[r.Model+" "+r.Shape]; ok != steady || m != w && ok {
			t.Errorf("%s %s: mended by %+v %v, want %+v %v", r.Model, r.Shape, m, ok, w, steady)
		}
		if r.Model == "none" {
			t.Errorf("a row without bills: %+v", r)
		}
	}
	if len(d.Rows) != 6 || d.Total.Calls != 30*4+19+1 || d.Total.Min != -600 {
		t.Errorf("%d rows, total %+v", len(d.Rows), d.Total)
	}
}

func TestDriftIsNarrowedAndCut(t *testing.T) {
	s := drifting(t)
	until := at(t, "2026-12-02T00:00:00Z")
	d := readDrift(t, s, report.Query{Until: until, Limit: 2})
	if text := writeDrift(t, d, report.Table); len(d.Rows) != 2 || !strings.Contains(text, "4 more rows are not shown, but in the total.") {
		t.Errorf("%d rows:\n%s", len(d.Rows), text)
	}
	if d := readDrift(t, s, report.Query{Until: at(t, "2026-12-01T06:04:00Z")}); d.Total.Calls != 4 {
		t.Errorf("%d calls in the first four minutes", d.Total.Calls)
	}
	if _, err := report.ReadDrift(t.Context(), s, report.Query{Step: "nobody"}); err == nil || !strings.Contains(err.Error(), `"nobody"`) {
		t.Errorf("an unknown step: %v", err)
	}
}

func TestNoDriftYet(t *testing.T) {
	d := readDrift(t, storetest.New(t), report.Query{})
	if text := writeDrift(t, d, report.Table); !strings.HasPrefix(text, "No bill can be set beside a count yet.\n") {
		t.Error(text)
	}
	var decoded struct {
		Rows, Factors []any
		Total         map[string]any
	}
	if err := json.Unmarshal([]byte(writeDrift(t, d, report.JSON)), &decoded); err != nil {
		t.Fatal(err)
	}
	if decoded.Rows == nil || decoded.Factors == nil || decoded.Total["mean_difference"] != nil || decoded.Total["ratio_median"] != nil {
		t.Errorf("%+v", decoded)
	}
}
