package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"llmproxy/report"
	"llmproxy/store"
)

// reportFlags are the flags of llmproxy report, as typed.
type reportFlags struct {
	by, since, until, step, tenant, format string
	limit                                  int // negative: not given
}

// tableRows is how many rows a table by run or by key has unless told otherwise.
const tableRows = 30

func newReportCmd(a *app) *cobra.Command {
	var f reportFlags
	cmd := &cobra.Command{
		Use:   "report",
		Short: "Show who spends the tokens and what the store saved",
		Long: `Report sums up the calls of a time: what went upstream and what it cost, how
much of the input had been sent before, how many retries were answered from the
store, and what that saved. It only reads, and works while the server runs.

A time is a span back from now (90m, 24h, 7d), a day (2026-12-01, from its
midnight in the configured time zone), an RFC 3339 time, or all. A call belongs
to the time it began.

INPUT is what upstreams were sent, by their own figure where they gave one.
RE-SENT is the part of it that the same step and run had sent before, DRIFT how
far the upstream's figure lies from our count. AVOIDED is the input of calls
that were answered without paying again: HITS from the store, COLLAPSED by a
call that was already under way. FLAGGED calls were let through over a budget
that only flags. A cost marked ≥ leaves out calls that have no known price.
JSON and CSV give whole numbers: micro-dollars and microseconds.`,
		Example: `  llmproxy report                                  # by step, the last 7 days
  llmproxy report --by day --since 30d
  llmproxy report --by key --since 24h --limit 10  # the ten with the most input
  llmproxy report --by run --step summarize-ticket --since 2026-12-01
  llmproxy report --since 2026-11-01 --until 2026-12-01 --format csv > november.csv`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.report(cmd, f) },
	}
	addConfigFlags(cmd, "database", "timezone")
	flags := cmd.Flags()
	flags.StringVar(&f.by, "by", string(report.ByStep), "`dimension` of the rows: "+choices(report.Dimensions()))
	f.addRange(cmd)
	flags.IntVar(&f.limit, "limit", -1, fmt.Sprintf("most `rows`, 0 for all (default all, but %d in a table by run or key)", tableRows))
	flags.Lookup("limit").DefValue = "0" // the usage says it
	return cmd
}

// addRange gives cmd the flags that say which calls are meant, and the format.
func (f *reportFlags) addRange(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.since, "since", "7d", "`time` of the first calls, or all")
	flags.StringVar(&f.until, "until", "", "`time` before which the last calls began (default now)")
	flags.StringVar(&f.step, "step", "", "only calls of this `step`")
	flags.StringVar(&f.tenant, "tenant", "", "only calls of this `tenant`")
	flags.StringVar(&f.format, "format", string(report.Table), "output `format`: "+choices(report.Formats()))
}

// question is what the flags ask, in the time zone of the settings.
func (a *app) question(cmd *cobra.Command, f reportFlags) (settings Settings, query report.Query, err error) {
	if err := f.check(); err != nil {
		return settings, query, err
	}
	if settings, err = a.loadSettings(cmd.Flags()); err != nil {
		return settings, query, err
	}
	loc, err := time.LoadLocation(settings.Timezone)
	if err != nil {
		return settings, query, fmt.Errorf("loading the time zone: %w", err)
	}
	query, err = f.query(time.Now(), loc)
	return settings, query, err
}

// report answers the flags on cmd's standard output.
func (a *app) report(cmd *cobra.Command, f reportFlags) (err error) {
	settings, query, err := a.question(cmd, f)
	if err != nil {
		return err
	}
	result, err := readReport(cmd.Context(), settings.Database, query)
	if err != nil {
		return err
	}
	if result.First.IsZero() && f.format == string(report.Table) {
		return firstSteps(cmd.OutOrStdout(), settings.Listen)
	}
	return result.Write(cmd.OutOrStdout(), report.Format(f.format))
}

// readReport answers a query from the database file, which it only reads.
func readReport(ctx context.Context, database string, query report.Query) (result *report.Report, err error) {
	s, err := store.OpenReader(ctx, database)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.CloseReader()) }()
	result, err = report.Run(ctx, s, query)
	if err != nil {
		return nil, withNearName(err)
	}
	return result, nil
}

// withNearName proposes the name that was probably meant, where err is of one
// that does not exist.
func withNearName(err error) error {
	unknown, ok := errors.AsType[*report.UnknownName](err)
	if !ok {
		return err
	}
	if near, ok := nearest(unknown.Name, unknown.Known); ok {
		return fmt.Errorf("no call has the %s %q; did you mean %q?", unknown.Kind, unknown.Name, near)
	}
	return unknown
}

// check refuses flags whose words do not exist.
func (f reportFlags) check() error {
	if !slices.Contains(report.Dimensions(), report.Dimension(f.by)) {
		return unknownChoice("--by", f.by, report.Dimensions())
	}
	if !slices.Contains(report.Formats(), report.Format(f.format)) {
		return unknownChoice("--format", f.format, report.Formats())
	}
	if f.limit < -1 {
		return usagef("--limit %d is negative; write 0 for all rows", f.limit)
	}
	return nil
}

// query reads the times, relative to now and in loc.
func (f reportFlags) query(now time.Time, loc *time.Location) (report.Query, error) {
	q := report.Query{By: report.Dimension(f.by), Step: f.step, Tenant: f.tenant, Location: loc, Limit: max(0, f.limit)}
	if f.limit == -1 && f.format == string(report.Table) && (q.By == report.ByRun || q.By == report.ByKey) {
		q.Limit = tableRows
	}
	var err error
	if f.since != "all" {
		if q.Since, err = parseTime("--since", f.since, now, loc); err != nil {
			return q, err
		}
	}
	if f.until != "" {
		if q.Until, err = parseTime("--until", f.until, now, loc); err != nil {
			return q, err
		}
	}
	until := q.Until
	if until.IsZero() {
		until = now
	}
	if !q.Since.Before(until) {
		return q, usagef("the range is empty: --since is %s and --until is %s", q.Since.In(loc).Format(time.RFC3339), until.In(loc).Format(time.RFC3339))
	}
	return q, nil
}

// parseTime reads a span back from now, a day or an RFC 3339 time.
func parseTime(flag, text string, now time.Time, loc *time.Location) (time.Time, error) {
	var back Duration
	if err := back.UnmarshalText([]byte(text)); err == nil {
		return now.Add(-time.Duration(back)), nil
	}
	if day, err := time.Parse(time.DateOnly, text); err == nil {
		return report.StartOfDay(day.Year(), day.Month(), day.Day(), loc), nil
	}
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return at, nil
	}
	return time.Time{}, usagef("%s %q is no time; write a span back from now such as 24h or 7d, a day such as 2026-12-01, or an RFC 3339 time such as 2026-12-01T09:30:00Z", flag, text)
}

// firstSteps tells how to make the call that a report could tell about.
func firstSteps(w io.Writer, listen string) error {
	if host, port, err := net.SplitHostPort(listen); err == nil && (host == "" || net.ParseIP(host).IsUnspecified()) {
		listen = net.JoinHostPort("127.0.0.1", port)
	}
	_, err := fmt.Fprintf(w, `There are no calls yet. While "llmproxy serve" runs, send the first one to it, with
the name of a step in the path:

  curl http://%s/steps/my-step/v1/chat/completions \
    -H "Authorization: Bearer $OPENAI_API_KEY" -H "Content-Type: application/json" \
    -d '{"model": "gpt-4.1-mini", "messages": [{"role": "user", "content": "Hello"}]}'

Send it twice: the second time it is answered from the store.
`, listen)
	return err
}

func unknownChoice[T ~string](flag, word string, known []T) error {
	if near, ok := nearest(word, plain(known)); ok {
		return usagef("%s %q does not exist; did you mean %q?", flag, word, near)
	}
	return usagef("%s %q does not exist; use %s", flag, word, choices(known))
}

// choices lists words as a sentence does.
func choices[T ~string](words []T) string { return enumerate(plain(words), "or") }

func plain[T ~string](words []T) []string {
	texts := make([]string, len(words))
	for i, w := range words {
		texts[i] = string(w)
	}
	return texts
}
