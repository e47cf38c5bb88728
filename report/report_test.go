package report_test

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"llmproxy/ledger"
	"llmproxy/report"
	"llmproxy/store"
	"llmproxy/store/storetest"
)

func TestAPromptAskedSevenTimesIsPaidOnce(t *testing.T) {
	s := storetest.New(t)
	rows := retried()
	for _, c := range rows {
		c.Work = "ticket 4711"
	}
	insert(t, s, rows)
	for _, by := range report.Dimensions() {
		total := run(t, s, report.Query{By: by, Until: at(t, "2026-12-01T10:00:00Z")}).Total
		got := [...]int64{total.Calls, total.Upstream, total.Hits, total.Collapsed, total.Served(), total.Failed, total.Refused, total.Lost,
			total.Input, total.Output, total.Cost, total.Unpriced, total.AvoidedInput, total.AvoidedOutput, total.AvoidedCost}
		want := [...]int64{7, 2, 3, 2, 5, 1, 0, 0, 500, 120, 1960, 0, 2500, 600, 9800}
		if got != want {
			t.Errorf("by %s: got %v, want %v", by, got, want)
		}
		if total.Drift() != 0 {
			t.Errorf("by %s: a drift of %v from a call that was charged nothing", by, total.Drift())
		}
	}
	r := run(t, s, report.Query{By: report.ByOutcome, Until: at(t, "2026-12-01T10:00:00Z")})
	golden(t, "retried.txt", write(t, r, report.Table))
}

func TestWrittenReports(t *testing.T) {
	s := mixed(t)
	q := report.Query{
		Since: at(t, "2026-12-01T00:00:00+01:00"), Until: at(t, "2026-12-01T12:00:00+01:00"), Location: zone(t, "Europe/Berlin"),
	}
	for name, by := range map[string]report.Dimension{
		"step": report.ByStep, "model": report.ByModel, "run": report.ByRun, "hour": report.ByHour, "outcome": report.ByOutcome,
	} {
		q := q
		q.By = by
		golden(t, name+".txt", write(t, run(t, s, q), report.Table))
	}
	byKey := q
	byKey.By, byKey.Limit = report.ByKey, 5
	golden(t, "key.txt", write(t, run(t, s, byKey), report.Table))
	golden(t, "key.csv", write(t, run(t, s, byKey), report.CSV))
	oneStep := q
	oneStep.Step = "summarize-ticket"
	golden(t, "one-step.txt", write(t, run(t, s, oneStep), report.Table))
	golden(t, "step.md", write(t, run(t, s, q), report.Markdown))
	golden(t, "step.csv", write(t, run(t, s, q), report.CSV))
	golden(t, "step.json", write(t, run(t, s, q), report.JSON))
}

func TestTablesFitTheirWidth(t *testing.T) {
	s := storetest.New(t)
	c := (&calls{}).at(at(t, "2026-12-01T08:00:00Z"))
	for i := range int64(4) {
		call := miss(strings.Repeat("long step name ", 9), strings.Repeat("模型", 40), strings.Repeat("r", 128), i+1, 1e15, 1e15)
		call.Usage.Cached, call.Usage.Reasoning, call.Flags, call.Resent = 1e14, 1e14, ledger.OverBudget, 1e15
		c.add(call).add(again(call, ledger.Hit, time.Hour)).add(unanswered(call, ledger.Lost, 0, &ledger.Usage{Input: 1e15}, nil))
	}
	insert(t, s, c.rows)
	for _, by := range report.Dimensions() {
		text := write(t, run(t, s, report.Query{By: by}), report.Table)
		for line := range strings.Lines(text) {
			wide := 0
			for _, c := range strings.TrimSuffix(line, "\n") {
				if wide++; c > 0x2fff {
					wide++
				}
			}
			if wide > 100 && !strings.Contains(line, "sent upstream") && !strings.HasPrefix(line, "By ") {
				t.Errorf("by %s: a line of %d columns: %s", by, wide, line)
			}
		}
		if by == report.ByStep && !strings.Contains(text, "…") {
			t.Errorf("a long name is not marked as cut:\n%s", text)
		}
	}
}

func TestNothingToReport(t *testing.T) {
	s := storetest.New(t)
	until := at(t, "2026-12-01T12:00:00Z")
	for format, name := range map[report.Format]string{report.Table: "empty.txt", report.JSON: "empty.json"} {
		golden(t, name, write(t, run(t, s, report.Query{Until: until}), format))
	}
	insert(t, s, retried())
	early := run(t, s, report.Query{Until: at(t, "2026-11-01T00:00:00Z")})
	golden(t, "early.txt", write(t, early, report.Table))
	if got := write(t, early, report.CSV); strings.Count(got, "\n") != 1 {
		t.Errorf("CSV without rows: %q", got)
	}
}

func TestWhatCannotBeAsked(t *testing.T) {
	s := mixed(t)
	noon := at(t, "2026-12-01T12:00:00Z")
	for want, q := range map[string]report.Query{
		`by "colour"`:         {By: "colour"},
		"the range is empty":  {Since: noon, Until: noon},
		"negative limit":      {Limit: -1},
		`the step "draft"`:    {Step: "draft"},
		`the tenant "nobody"`: {Tenant: "nobody"},
	} {
		if _, err := report.Run(t.Context(), s, q); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	_, err := report.Run(t.Context(), s, report.Query{Step: "draft"})
	unknown, ok := errors.AsType[*report.UnknownName](err)
	if !ok || !slices.Contains(unknown.Known, "draft-reply") || !strings.Contains(err.Error(), "draft-reply") {
		t.Errorf("%v does not name the steps there are", err)
	}
}

func TestLimitKeepsTheLargestOrTheLatest(t *testing.T) {
	s := mixed(t)
	until := at(t, "2026-12-01T12:00:00Z")
	all := run(t, s, report.Query{Until: until})
	few := run(t, s, report.Query{Until: until, Limit: 2})
	if few.Omitted != len(all.Rows)-2 || few.Total != all.Total || few.Rows[0].Name != "summarize-ticket" {
		t.Errorf("%d omitted, first %q, total %+v", few.Omitted, few.Rows[0].Name, few.Total)
	}
	hours := run(t, s, report.Query{By: report.ByHour, Until: until, Limit: 1})
	if len(hours.Rows) != 1 || hours.Rows[0].Name != "2026-12-01T07:00Z" {
		t.Errorf("the latest hour: %+v", hours.Rows)
	}
}

func TestRunningCallsAreToldApart(t *testing.T) {
	s := mixed(t)
	open := miss("draft-reply", "gpt-4.1", "", 77, 100, 0)
	open.ID, open.Usage = ledger.FirstID(at(t, "2026-12-01T09:00:00Z")), nil
	if err := s.Update(t.Context(), func(tx *store.Tx) error { return ledger.OpenCall(tx, &open, 1) }); err != nil {
		t.Fatal(err)
	}
	until := at(t, "2026-12-01T12:00:00Z")
	before, after := run(t, mixed(t), report.Query{Until: until}), run(t, s, report.Query{Until: until})
	if after.Running != 1 || after.Total != before.Total {
		t.Errorf("%d running, total %+v, want 1 and the total without it %+v", after.Running, after.Total, before.Total)
	}
	if text := write(t, after, report.Table); !strings.Contains(text, "1 upstream call is still running") {
		t.Errorf("not told:\n%s", text)
	}
	if other := run(t, s, report.Query{Until: until, Step: "summarize-ticket"}); other.Running != 0 {
		t.Errorf("another step's running call is counted")
	}
}

func TestLostCallThatCameBackLeavesNoRow(t *testing.T) {
	s := storetest.New(t)
	call := miss("draft-reply", "gpt-4.1", "", 77, 100, 5)
	call.ID = ledger.FirstID(at(t, "2026-12-01T09:10:00Z"))
	err := s.Update(t.Context(), func(tx *store.Tx) error {
		opened, closed := call, call
		opened.Usage = nil
		if err := ledger.OpenCall(tx, &opened, 1); err != nil {
			return err
		}
		if _, err := ledger.LoseAll(tx, 1); err != nil {
			return err
		}
		return ledger.CloseCall(tx, &closed)
	})
	if err != nil {
		t.Fatal(err)
	}
	r := run(t, s, report.Query{By: report.ByOutcome, Until: at(t, "2026-12-01T12:00:00Z")})
	if len(r.Rows) != 1 || r.Rows[0].Name != "miss" || r.Total.Lost != 0 || r.Total.Input != 100 {
		t.Errorf("rows %+v", r.Rows)
	}
}

func TestUnpricedIsNeverZero(t *testing.T) {
	s := mixed(t)
	r := run(t, s, report.Query{By: report.ByModel, Until: at(t, "2026-12-01T12:00:00Z")})
	var decoded struct {
		Rows []struct {
			Name     string
			Cost     *int64 `json:"cost_micro_usd"`
			Unpriced int64  `json:"unpriced_calls"`
		}
	}
	if err := json.Unmarshal([]byte(write(t, r, report.JSON)), &decoded); err != nil {
		t.Fatal(err)
	}
	found := false
	for _, row := range decoded.Rows {
		if row.Name == "house-model" {
			found = true
			if row.Cost != nil || row.Unpriced != 2 {
				t.Errorf("JSON: cost %v, %d unpriced calls", row.Cost, row.Unpriced)
			}
		} else if row.Cost == nil {
			t.Errorf("%s has no cost", row.Name)
		}
	}
	if !found {
		t.Error("no row for the unpriced model")
	}
	for line := range strings.Lines(write(t, r, report.Table)) {
		if strings.HasPrefix(line, "house-model") && strings.Contains(line, "$0") {
			t.Errorf("a price of nothing: %s", line)
		}
	}
}

func TestNamesCannotBreakOutOfTheirCells(t *testing.T) {
	s := storetest.New(t)
	c := (&calls{}).at(at(t, "2026-12-01T08:00:00Z"))
	names := []string{
		"=1+1", "+1", "-1", "@SUM(A1)", "＝1", "a|b", `a\|b`, "a,b", `say "hi"`, "two\nlines", "\x1b[31mred", "\u202egnp.exe",
		"<script>", "*bold*", "naïve 日本", "👩\u200d👩\u200d👧", "\t=1", "\r=1",
	}
	for i, name := range names {
		c.add(miss("step", name, "", int64(i+1), 10, 1))
	}
	insert(t, s, c.rows)
	r := run(t, s, report.Query{By: report.ByModel, Until: at(t, "2026-12-01T12:00:00Z")})

	records, err := csv.NewReader(strings.NewReader(write(t, r, report.CSV))).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	if len(records) != len(names)+1 {
		t.Fatalf("%d records for %d names", len(records), len(names))
	}
	for _, record := range records[1:] {
		if strings.ContainsAny(record[0][:1], "=+-@\t\r") || strings.ContainsAny(record[0], "\n\x1b\u202e") {
			t.Errorf("a live cell in CSV: %q", record[0])
		}
	}
	for _, format := range []report.Format{report.Table, report.Markdown} {
		if text := write(t, r, format); strings.ContainsAny(text, "\x1b\u202e\r\t") {
			t.Errorf("a live character in %s:\n%q", format, text)
		}
	}
	table := ""
	for line := range strings.Lines(write(t, r, report.Markdown)) {
		if strings.HasPrefix(line, "|") {
			table += line
		}
	}
	width := 0
	for line := range strings.Lines(table) {
		bars := strings.Count(strings.ReplaceAll(strings.ReplaceAll(line, `\\`, ""), `\|`, ""), "|")
		if width == 0 {
			width = bars
		}
		if bars != width {
			t.Errorf("a row of %d bars in a table of %d: %s", bars, width, line)
		}
	}
	if strings.Contains(table, "<script>") || strings.Contains(table, " *bold* ") {
		t.Errorf("live markup:\n%s", table)
	}

	var decoded struct{ Rows []struct{ Name string } }
	if err := json.Unmarshal([]byte(write(t, r, report.JSON)), &decoded); err != nil {
		t.Fatal(err)
	}
	for _, row := range decoded.Rows {
		if !slices.Contains(names, row.Name) {
			t.Errorf("JSON changed a name to %q", row.Name)
		}
	}
}
