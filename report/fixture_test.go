package report_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"llmproxy/ledger"
	"llmproxy/report"
	"llmproxy/store"
	"llmproxy/store/storetest"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares got with testdata/golden/name.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", "golden", name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs (go test -update writes it anew)\ngot:\n%s\nwant:\n%s", file, got, want)
	}
}

func write(t *testing.T, r *report.Report, format report.Format) string {
	t.Helper()
	var b bytes.Buffer
	if err := r.Write(&b, format); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func run(t *testing.T, s *store.Store, q report.Query) *report.Report {
	t.Helper()
	r, err := report.Run(t.Context(), s, q)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func insert(t testing.TB, s *store.Store, calls []*ledger.Call) {
	t.Helper()
	if err := s.Update(t.Context(), func(tx *store.Tx) error { return ledger.Write(tx, calls) }); err != nil {
		t.Fatal(err)
	}
}

func at(t testing.TB, text string) time.Time {
	t.Helper()
	moment, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return moment
}

func zone(t testing.TB, name string) *time.Location {
	t.Helper()
	loc, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return loc
}

// calls makes rows of a ledger, one a minute unless told otherwise.
type calls struct {
	ids  ledger.IDs
	now  time.Time
	rows []*ledger.Call
}

func (c *calls) at(now time.Time) *calls { c.now = now; return c }

func (c *calls) add(call ledger.Call) *calls {
	call.ID = c.ids.Next(c.now, 0)
	call.Endpoint = ledger.Chat
	c.now = c.now.Add(time.Minute)
	c.rows = append(c.rows, &call)
	return c
}

func micros(n int64) *int64 { return &n }

// miss is a call of input and output tokens that costs 2 and 8 USD a million.
func miss(step, model, run string, key, input, output int64) ledger.Call {
	return ledger.Call{
		Tenant: "acme", Step: step, Model: model, Run: run, Key64: key, Outcome: ledger.Miss, Status: 200, Attempt: 1,
		Input: input, Usage: &ledger.Usage{Input: input, Output: output}, Cost: micros(2*input + 8*output),
		First: 300 * time.Millisecond, Total: 1200 * time.Millisecond, Finish: "stop",
	}
}

// again is a call that was served the answer of an earlier one.
func again(of ledger.Call, outcome ledger.Outcome, total time.Duration) ledger.Call {
	served := of
	served.Outcome, served.Usage, served.Cost, served.Attempt = outcome, nil, nil, 2
	served.AvoidedInput, served.AvoidedOutput, served.AvoidedCost = of.Usage.Input, of.Usage.Output, *of.Cost
	served.First, served.Total = total, total
	return served
}

// unanswered is a call that ended otherwise.
func unanswered(of ledger.Call, outcome ledger.Outcome, status int, usage *ledger.Usage, cost *int64) ledger.Call {
	ended := of
	ended.Outcome, ended.Status, ended.Usage, ended.Cost, ended.Finish = outcome, status, usage, cost, "error"
	return ended
}

// retried is a prompt of 500 tokens that was paid for once: the upstream refused
// the first attempt with 429, the second was answered, three retries came later
// and two while it ran.
func retried() []*ledger.Call {
	c := (&calls{}).at(time.Date(2026, 12, 1, 8, 0, 0, 0, time.UTC))
	paid := miss("draft-reply", "gpt-4.1", "run-1", 0x5a, 500, 120)
	c.add(unanswered(paid, ledger.Failed, 429, &ledger.Usage{}, micros(0)))
	c.add(paid)
	for range 2 {
		c.add(again(paid, ledger.Collapsed, 1100*time.Millisecond))
	}
	for range 3 {
		c.add(again(paid, ledger.Hit, 2*time.Millisecond))
	}
	return c.rows
}

// mixed is a day of several steps with every outcome.
func mixed(t testing.TB) *store.Store {
	s := storetest.New(t)
	c := (&calls{}).at(time.Date(2026, 12, 1, 6, 50, 0, 0, time.UTC))
	for i := range int64(12) { // a context that grows, each call sending the last one again
		call := miss("summarize-ticket", "gpt-4.1-mini", "run-2", 100+i, 4000*(i+1), 150)
		call.Resent = 4000 * i
		call.Usage.Input += 12 // the upstream counts a little more
		call.Usage.Cached = 2048
		c.add(call)
		if i%3 == 0 {
			c.add(again(call, ledger.Hit, 3*time.Millisecond))
		}
	}
	free := miss("classify | triage", "house-model", "", 7, 900, 3)
	free.Cost = nil
	c.add(free)
	hit := free
	hit.Outcome, hit.Usage, hit.AvoidedInput, hit.AvoidedOutput, hit.Total = ledger.Hit, nil, 900, 3, time.Millisecond
	c.add(hit)
	formula := miss("=cmd()", `model, "quoted"`, "-run", 8, 200, 40)
	formula.Usage.Reasoning = 32
	c.add(formula)
	half := formula // the same step with a model that has no price
	half.Key64, half.Model, half.Cost = 9, "house-model", nil
	c.add(half)
	over := miss("summarize-ticket", "gpt-4.1-mini", "run-3", 200, 9000, 10)
	over.Flags = ledger.OverBudget
	c.add(over)
	over.Flags = 0
	c.add(unanswered(over, ledger.Refused, 402, nil, nil))
	c.add(unanswered(over, ledger.Refused, 402, nil, nil))
	c.add(unanswered(over, ledger.Lost, 0, &ledger.Usage{Input: 9000}, micros(18000)))
	c.add(unanswered(miss("draft-reply", "gpt-4.1", "", 0, 700, 0), ledger.Failed, 502, nil, nil)) // nothing answered there
	stream := miss("übersetzen 翻訳", "gpt-4.1", "run-4", 0, 1500, 600)
	stream.Outcome = ledger.Bypass
	stream.Total = 75 * time.Second
	c.add(stream)
	insert(t, s, c.rows)
	return s
}
