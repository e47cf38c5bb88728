package report_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"llmproxy/ledger"
	"llmproxy/report"
	"llmproxy/store"
	"llmproxy/store/storetest"
)

var seed = flag.Uint64("seed", rand.Uint64(), "`seed` of the random ledgers")

func seeded(t *testing.T) *rand.Rand {
	t.Logf("go test -seed %d repeats this", *seed)
	return rand.New(rand.NewPCG(*seed, 0))
}

// random makes calls of every kind between two times.
func random(rng *rand.Rand, n int, from, to time.Time) []*ledger.Call {
	var ids ledger.IDs
	pick := func(names ...string) string { return names[rng.IntN(len(names))] }
	gap := to.Sub(from) / time.Duration(n)
	rows := make([]*ledger.Call, n)
	for i := range rows {
		input := rng.Int64N(5000)
		c := &ledger.Call{
			ID:     ids.Next(from.Add(time.Duration(i)*gap+time.Duration(rng.Int64N(int64(gap)))), 0),
			Tenant: pick("acme", "globex"), Step: pick("draft", "sort", "send"), Model: pick("big", "small"), Run: pick("", "r1", "r2", "r3"),
			Work:  pick("", "order 1", "order 2"),
			Key64: rng.Int64N(40) - 20, Outcome: ledger.Outcome(1 + rng.IntN(7)), Attempt: 1 + rng.Int64N(3),
			Flags: rng.IntN(1024), Input: input, Resent: rng.Int64N(input + 1), Total: time.Duration(rng.Int64N(1e7)) * time.Microsecond,
		}
		switch c.Outcome {
		case ledger.Hit, ledger.Collapsed:
			c.AvoidedInput, c.AvoidedOutput, c.AvoidedCost = input, rng.Int64N(900), rng.Int64N(9000)
		case ledger.Refused:
		default:
			if c.Outcome == ledger.Failed && rng.IntN(2) == 0 {
				break // nobody answered
			}
			c.Usage = &ledger.Usage{Input: rng.Int64N(5000), Cached: rng.Int64N(100), Output: rng.Int64N(900), Reasoning: rng.Int64N(50)}
			if rng.IntN(3) > 0 {
				c.Cost = micros(rng.Int64N(90000))
			}
		}
		rows[i] = c
	}
	return rows
}

// sum adds the calls up one by one, as a row must have them.
func sum(rows []*ledger.Call, include func(*ledger.Call) bool) (r report.Row) {
	for _, c := range rows {
		if !include(c) {
			continue
		}
		r.Calls++
		switch c.Outcome {
		case ledger.Hit:
			r.Hits++
		case ledger.Collapsed:
			r.Collapsed++
		case ledger.Refused:
			r.Refused++
		case ledger.Failed:
			r.Failed++
		case ledger.Lost:
			r.Lost++
		}
		if c.Flags&ledger.OverBudget != 0 {
			r.Flagged++
		}
		if u := c.Usage; u != nil {
			r.Upstream++
			r.Input += u.Input
			r.Cached += u.Cached
			r.Output += u.Output
			r.Reasoning += u.Reasoning
			r.Counted += c.Input
			r.Resent += c.Resent
			if c.Outcome == ledger.Miss || c.Outcome == ledger.Bypass {
				r.AnsweredInput += u.Input
				r.AnsweredCounted += c.Input
			}
			if c.Cost != nil {
				r.Cost += *c.Cost
			} else {
				r.Unpriced++
			}
		}
		r.AvoidedInput += c.AvoidedInput
		r.AvoidedOutput += c.AvoidedOutput
		r.AvoidedCost += c.AvoidedCost
	}
	return r
}

// groupOf is the name of the row that a call belongs to.
func groupOf(by report.Dimension, c *ledger.Call, loc *time.Location) string {
	began := ledger.Time(c.ID).In(loc)
	switch by {
	case report.ByStep:
		return c.Step
	case report.ByModel:
		return c.Model
	case report.ByRun:
		return c.Run
	case report.ByWork:
		return c.Work
	case report.ByOutcome:
		return c.Outcome.String()
	case report.ByDay:
		return began.Format("2006-01-02")
	case report.ByHour:
		return began.Format("2006-01-02T15:00Z07:00")
	}
	if c.Key64 == 0 {
		return ""
	}
	return fmt.Sprintf("%016x", uint64(c.Key64))
}

func TestEveryReportAgreesWithItsCalls(t *testing.T) {
	rng := seeded(t)
	// Each stretch holds a change of the clock in its zone: by an hour, by half
	// an hour, at midnight, over a whole day; Kolkata has half hours but no change.
	for _, change := range [][2]string{
		{"UTC", "2026-12-01T00:00:00Z"},
		{"Europe/Berlin", "2026-10-25T01:00:00Z"},
		{"America/New_York", "2026-03-08T07:00:00Z"},
		{"Australia/Lord_Howe", "2026-04-04T15:00:00Z"},
		{"Africa/Cairo", "2026-04-23T22:00:00Z"},
		{"America/Havana", "2026-11-01T05:00:00Z"},
		{"Pacific/Apia", "2011-12-30T10:00:00Z"},
		{"Asia/Kolkata", "2026-12-01T00:00:00Z"},
	} {
		name, around := change[0], change[1]
		t.Run(name, func(t *testing.T) {
			loc, middle := zone(t, name), at(t, around)
			from, to := middle.Add(-40*time.Hour), middle.Add(40*time.Hour)
			rows := random(rng, 900, from, to)
			s := storetest.New(t)
			insert(t, s, rows)
			for range 3 {
				q := report.Query{Location: loc, Until: to.Add(time.Hour)}
				if rng.IntN(3) > 0 { // to the millisecond, within an hour
					q.Since = from.Add(time.Duration(rng.Int64N(40*3600*1000)) * time.Millisecond)
					q.Until = q.Since.Add(time.Duration(1+rng.Int64N(40*3600*1000)) * time.Millisecond)
				}
				if rng.IntN(2) == 0 {
					q.Step = "sort"
				}
				if rng.IntN(2) == 0 {
					q.Tenant = "globex"
				}
				for _, q.By = range report.Dimensions() {
					compare(t, run(t, s, q), rows, q)
				}
			}
		})
	}
}

func compare(t *testing.T, r *report.Report, rows []*ledger.Call, q report.Query) {
	t.Helper()
	asked := func(c *ledger.Call) bool {
		began := ledger.Time(c.ID)
		return !began.Before(q.Since) && began.Before(q.Until) &&
			(q.Step == "" || q.Step == c.Step) && (q.Tenant == "" || q.Tenant == c.Tenant) && (q.By != report.ByWork || c.Work != "")
	}
	groups := map[string]bool{}
	for _, c := range rows {
		if asked(c) {
			groups[groupOf(q.By, c, q.Location)] = true
		}
	}
	if len(groups) != len(r.Rows) {
		t.Errorf("%+v: %d rows, want %d", q, len(r.Rows), len(groups))
	}
	figures := func(r report.Row) report.Row { // without names and latencies
		r.Name, r.Begin, r.Step, r.Model, r.Latencies, r.P50, r.P95 = "", time.Time{}, "", "", 0, 0, 0
		return r
	}
	for _, row := range r.Rows {
		want := sum(rows, func(c *ledger.Call) bool { return asked(c) && groupOf(q.By, c, q.Location) == row.Name })
		if figures(row) != want {
			t.Errorf("%+v: row %q\n got %+v\nwant %+v", q, row.Name, figures(row), want)
		}
	}
	if want := sum(rows, asked); figures(r.Total) != want {
		t.Errorf("%+v: total\n got %+v\nwant %+v", q, figures(r.Total), want)
	}
	answered := int64(0)
	for _, c := range rows {
		if asked(c) && c.Outcome != ledger.Refused && c.Outcome != ledger.Lost {
			answered++
		}
	}
	if r.Total.Latencies != answered {
		t.Errorf("%+v: latencies of %d calls, want %d", q, r.Total.Latencies, answered)
	}
}

func TestDaysFollowTheLocalClock(t *testing.T) {
	s := storetest.New(t)
	c := &calls{}
	for i, began := range []string{ // Berlin's 25 October 2026 has 25 hours
		"2026-10-24T21:59:59Z", // 23:59:59 on the 24th
		"2026-10-24T22:00:00Z", // midnight
		"2026-10-25T00:30:00Z", // 02:30, the first time
		"2026-10-25T01:30:00Z", // 02:30, the second time
		"2026-10-25T22:59:59Z", // 23:59:59
		"2026-10-25T23:00:00Z", // midnight
	} {
		c.at(at(t, began)).add(miss("draft", "gpt-4.1", "", int64(i+1), 1000<<i, 10))
	}
	insert(t, s, c.rows)
	q := report.Query{By: report.ByDay, Until: at(t, "2026-10-27T00:00:00Z"), Location: zone(t, "Europe/Berlin")}
	golden(t, "day-berlin.txt", write(t, run(t, s, q), report.Table))
	q.By = report.ByHour
	golden(t, "hour-berlin.txt", write(t, run(t, s, q), report.Table))
}

func TestPercentilesAreOfTheNearestRank(t *testing.T) {
	s := storetest.New(t)
	c := (&calls{}).at(at(t, "2026-12-01T08:00:00Z"))
	for i := range int64(20) {
		call := miss("draft", "gpt-4.1", "", 1, 1, 1)
		call.Total = time.Duration(20-i) * time.Second
		c.add(call)
	}
	insert(t, s, c.rows)
	total := run(t, s, report.Query{}).Total
	if total.Latencies != 20 || total.P50 != 10*time.Second || total.P95 != 19*time.Second {
		t.Errorf("of 1 s to 20 s: %d calls, p50 %v, p95 %v", total.Latencies, total.P50, total.P95)
	}
}

func TestManyCallsAreReadInSlices(t *testing.T) {
	s := storetest.New(t)
	rng := rand.New(rand.NewPCG(1, 2))
	from := at(t, "2026-11-02T08:10:00Z")
	rows := random(rng, 11_000, from, from.Add(5*24*time.Hour)) // more than two slices of calls and of hours
	insert(t, s, rows)
	for _, by := range []report.Dimension{report.ByKey, report.ByRun, report.ByStep} {
		q := report.Query{By: by, Since: from, Until: from.Add(30 * 24 * time.Hour), Location: time.UTC}
		compare(t, run(t, s, q), rows, q)
	}
}

func TestTooManyCallsForPercentilesIsSaid(t *testing.T) {
	s := mixed(t)
	err := s.Update(t.Context(), func(tx *store.Tx) error {
		_, err := tx.Exec("UPDATE rollup SET calls = calls + $1 WHERE outcome = 2", 1_000_000)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	r := run(t, s, report.Query{Until: at(t, "2026-12-01T12:00:00Z")})
	golden(t, "many.txt", write(t, r, report.Table))
}

func TestViewsAgreeWithReports(t *testing.T) {
	s := storetest.New(t)
	rng := rand.New(rand.NewPCG(3, 4))
	from := at(t, "2026-12-01T00:00:00Z")
	rows := random(rng, 500, from, from.Add(24*time.Hour))
	insert(t, s, rows)
	if err := s.Update(t.Context(), addCounters); err != nil {
		t.Fatal(err)
	}
	day := report.Query{Until: from.Add(24 * time.Hour)}
	byStep := map[string]report.Row{}
	for _, row := range run(t, s, day).Rows {
		byStep[row.Name] = row
	}
	view(t, s, `SELECT step, sum(calls), sum(upstream_calls), sum(served_again), sum(refused), sum(failed), sum(lost), sum(flagged),
		sum(input), sum(cached), sum(output), sum(reasoning), sum(counted), sum(resent), cast(round(sum(cost_usd) * 1e6) AS INTEGER), sum(unpriced_calls),
		sum(avoided_input), sum(avoided_output), cast(round(sum(avoided_usd) * 1e6) AS INTEGER)
		FROM v_steps_daily WHERE day = '2026-12-01' GROUP BY step`, 3, func(scan func(...any) error) error {
		var name string
		var got [18]int64
		into := []any{&name}
		for i := range got {
			into = append(into, &got[i])
		}
		if err := scan(into...); err != nil {
			return err
		}
		r := byStep[name]
		want := [18]int64{r.Calls, r.Upstream, r.Served(), r.Refused, r.Failed, r.Lost, r.Flagged, r.Input, r.Cached, r.Output, r.Reasoning,
			r.Counted, r.Resent, r.Cost, r.Unpriced, r.AvoidedInput, r.AvoidedOutput, r.AvoidedCost}
		if got != want {
			t.Errorf("v_steps_daily of %s:\n got %v\nwant %v", name, got, want)
		}
		return nil
	})

	byKey := map[string]report.Row{}
	for _, row := range run(t, s, report.Query{By: report.ByKey, Until: day.Until, Tenant: "acme"}).Rows {
		byKey[row.Name] = row
	}
	delete(byKey, "") // calls without a key are no retries
	view(t, s, `SELECT key, sum(calls), sum(upstream_calls), sum(served_again), sum(avoided_input) FROM (
			SELECT * FROM v_retries UNION ALL
			SELECT tenant, step, key, at, at, 1, upstream, outcome IN ('hit', 'collapsed'), avoided_input, 0, 0 FROM v_calls
			WHERE (tenant, step, key) NOT IN (SELECT tenant, step, key FROM v_retries) AND key <> '0000000000000000')
		WHERE tenant = 'acme' GROUP BY key`, len(byKey), func(scan func(...any) error) error {
		var key string
		var got [4]int64
		if err := scan(&key, &got[0], &got[1], &got[2], &got[3]); err != nil {
			return err
		}
		r := byKey[key]
		if want := [4]int64{r.Calls, r.Upstream, r.Served(), r.AvoidedInput}; got != want {
			t.Errorf("v_retries of %s: got %v, want %v", key, got, want)
		}
		return nil
	})

	view(t, s, `SELECT outcome, count(*), sum(over_budget) FROM v_calls GROUP BY outcome`, 7, func(scan func(...any) error) error {
		var outcome string
		var n, flagged int64
		if err := scan(&outcome, &n, &flagged); err != nil {
			return err
		}
		want := sum(rows, func(c *ledger.Call) bool { return c.Outcome.String() == outcome })
		if n != want.Calls || flagged != want.Flagged {
			t.Errorf("v_calls: %d %s, %d flagged, want %d and %d", n, outcome, flagged, want.Calls, want.Flagged)
		}
		return nil
	})
	view(t, s, `SELECT unit || ' ' || per || ' ' || used FROM v_budgets`, 2, func(scan func(...any) error) error {
		var text string
		err := scan(&text)
		if text != "tokens day 1200" && text != "usd month 2.5" {
			t.Errorf("v_budgets: %q", text)
		}
		return err
	})
}

func addCounters(tx *store.Tx) error {
	const insert = `INSERT INTO counter (tenant_id, step_id, run_id, unit, per, window_start, used, reserved) VALUES (1, 1, 0, $1, $2, 86400, $3, 0)`
	if _, err := tx.Exec(insert, 3, 5, 1200); err != nil {
		return err
	}
	_, err := tx.Exec(insert, 5, 7, 2_500_000)
	return err
}

// view reads a query that must have a number of rows.
func view(t *testing.T, s *store.Store, query string, rows int, row func(scan func(...any) error) error) {
	t.Helper()
	n := 0
	err := s.View(t.Context(), func(tx *store.Tx) error {
		return tx.Each(query, nil, func(scan func(...any) error) error { n++; return row(scan) })
	})
	if err != nil {
		t.Fatal(err)
	}
	if n != rows {
		t.Errorf("%d rows, want %d of %.60q", n, rows, query)
	}
}

func TestReportsWhileTheFileIsWritten(t *testing.T) {
	s := storetest.New(t)
	insert(t, s, retried())
	reader, err := store.OpenReader(t.Context(), s.Path())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := reader.CloseReader(); err != nil {
			t.Error(err)
		}
	})
	from := at(t, "2026-12-01T10:00:00Z")
	rows := random(rand.New(rand.NewPCG(5, 6)), 3000, from, from.Add(6*time.Hour))
	written := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(written)
		for start := 0; start < len(rows); start += 50 {
			insert(t, s, rows[start:start+50])
		}
	})
	q := report.Query{Since: from, Until: from.Add(24 * time.Hour), Location: time.UTC}
	seen, reports := int64(0), 0
	for running := true; running; reports++ {
		select {
		case <-written:
			running = false
		default:
		}
		q.By = report.Dimensions()[reports%len(report.Dimensions())]
		r, err := report.Run(t.Context(), reader, q)
		if err != nil {
			t.Error(err)
			break
		}
		if q.By == report.ByWork { // of which not every call is
			continue
		}
		if r.Total.Calls < seen {
			t.Errorf("%d calls after %d", r.Total.Calls, seen)
		}
		seen = r.Total.Calls
	}
	wg.Wait()
	t.Logf("%d reports during the writes", reports)
	for _, q.By = range report.Dimensions() {
		r, err := report.Run(t.Context(), reader, q)
		if err != nil {
			t.Fatal(err)
		}
		compare(t, r, rows, q)
	}
}
