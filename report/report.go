// Package report answers read-only questions over the ledger: who spends the
// tokens, what the store answered instead of an upstream, what it cost.
//
// The model: a [Query] asks for a range of time, cut into groups along one
// [Dimension]; the answer is a [Report] with one [Row] a group and their total.
//
//   - A call belongs to the moment it began. The range is half open and exact:
//     whole hours come from the ledger's hourly sums, the hours that an end of
//     the range or of a day cuts come from the calls themselves. Runs and keys
//     are summed from the calls alone, because no hourly sum knows them.
//   - Only closed calls count. Those still running are told apart.
//   - Reading is cut into short snapshots, so that a long report never stops the
//     server's write-ahead log from being folded back. Calls that end while a
//     report is made may be in one of its figures and not in another.
//   - Money is in micro-dollars. What has no price is told as unpriced and is
//     never a zero.
package report

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Dimension is what the rows of a report stand for.
type Dimension string

// The dimensions of a report.
const (
	ByStep    Dimension = "step"
	ByModel   Dimension = "model"
	ByRun     Dimension = "run"
	ByWork    Dimension = "work" // only of calls that named one
	ByDay     Dimension = "day"
	ByHour    Dimension = "hour"
	ByKey     Dimension = "key"
	ByOutcome Dimension = "outcome"
)

// Dimensions lists every dimension in the order in which help shows them.
func Dimensions() []Dimension {
	return []Dimension{ByStep, ByModel, ByRun, ByWork, ByDay, ByHour, ByKey, ByOutcome}
}

// overTime tells whether the rows follow one another in time.
func (d Dimension) overTime() bool { return d == ByDay || d == ByHour }

// Query is a question. Its zero value asks for all calls up to now by step.
type Query struct {
	By       Dimension      // empty: ByStep
	Since    time.Time      // inclusive; zero: from the first call
	Until    time.Time      // exclusive; zero: now
	Step     string         // only calls of this step; empty: of all
	Tenant   string         // only calls of this tenant; empty: of all
	Location *time.Location // whose days and hours are meant; nil: UTC
	Limit    int            // most rows: the largest, or the latest where rows follow time; 0: all
}

// normalize fills in the defaults and refuses what cannot be answered.
func (q *Query) normalize() error {
	if q.By == "" {
		q.By = ByStep
	}
	if !slices.Contains(Dimensions(), q.By) {
		return fmt.Errorf("no report by %q", q.By)
	}
	if q.Location == nil {
		q.Location = time.UTC
	}
	if q.Limit < 0 {
		return errors.New("a negative limit of rows")
	}
	if !q.Until.IsZero() && !q.Since.Before(q.Until) {
		return fmt.Errorf("the range is empty: it begins %s and ends %s",
			q.Since.In(q.Location).Format(time.RFC3339), q.Until.In(q.Location).Format(time.RFC3339))
	}
	return nil
}

// UnknownName says that a query names what no call in the ledger has.
type UnknownName struct {
	Kind  string   // "step" or "tenant"
	Name  string   // as asked
	Known []string // what there is, in alphabetical order
}

func (e *UnknownName) Error() string {
	if len(e.Known) == 0 {
		return fmt.Sprintf("no call has the %s %q; there are no calls yet", e.Kind, e.Name)
	}
	const shown = 12
	known, more := e.Known, ""
	if len(known) > shown {
		known, more = known[:shown], fmt.Sprintf(" and %d more", len(e.Known)-shown)
	}
	return fmt.Sprintf("no call has the %s %q; the ledger knows %s%s", e.Kind, e.Name, strings.Join(known, ", "), more)
}

// Report is an answer.
type Report struct {
	By       Dimension
	Since    time.Time // the range that was summed, in Location
	Until    time.Time
	Location *time.Location
	Step     string // the filters of the query
	Tenant   string
	First    time.Time // when the ledger's first call began, of whatever step; zero: there is none

	Rows    []Row // largest input first, or in order of time
	Omitted int   // rows beyond the query's limit; they are in Total
	Total   Row
	Running int64    // calls of the range that have not ended yet and are in no row
	Notes   []string // what a reader must know about the figures, as sentences
}

// Row holds the sums of one group of calls. Token figures are of calls that
// went upstream, except the avoided ones.
type Row struct {
	Name  string    // of the group: a step, a day such as 2026-12-01, a key's first 16 hex digits; empty for calls without one
	Begin time.Time // by day or hour: when it began, or the range did
	Step  string    // by key: a step that used the key
	Model string    // by key: the model it asks for

	Calls     int64 // requests that ended, of every outcome
	Upstream  int64 // of them, those that reached an upstream
	Hits      int64 // answered from the store
	Collapsed int64 // answered by the upstream call of another request
	Refused   int64 // over a budget or otherwise not let through
	Failed    int64 // ended in an error
	Lost      int64 // the server died while the upstream worked
	Flagged   int64 // let through over a budget that only flags

	Input     int64 // tokens sent upstream: its figure, else our count
	Cached    int64 // of Input, at the upstream's price for cached tokens
	Output    int64 // tokens received
	Reasoning int64 // of Output
	Counted   int64 // our count of what went upstream, whether it was paid for or failed unpaid
	Resent    int64 // of Counted, what the same step and run had sent before

	AnsweredInput   int64 // Input of the calls that were answered well
	AnsweredCounted int64 // our count of the same

	Cost     int64 // micro-USD of the priced upstream calls
	Unpriced int64 // upstream calls whose model has no price

	AvoidedInput  int64 // tokens that hits and collapsed calls did not send
	AvoidedOutput int64
	AvoidedCost   int64 // micro-USD; what has no price is missing from it

	Latencies int64         // answered calls that P50 and P95 are of; 0: not measured
	P50, P95  time.Duration // from the request to the end of the answer
}

// Served is how many calls were answered without an upstream call of their own.
func (r *Row) Served() int64 { return r.Hits + r.Collapsed }

// CostKnown tells whether Cost says anything: it does not where upstream calls
// have no price and the others cost nothing.
func (r *Row) CostKnown() bool { return r.Unpriced == 0 || r.Cost > 0 }

// ResentShare is the part of the counted input that had been sent before, 0 to 1.
func (r *Row) ResentShare() float64 { return ratio(r.Resent, r.Counted) }

// Drift is how far the upstream's input figure lies from our count, as a part
// of our count: 0.02 where it reports 2 % more. It is of answered calls, since
// others may be charged nothing. Where the upstream reported no figure the two
// are the same.
func (r *Row) Drift() float64 { return ratio(r.AnsweredInput-r.AnsweredCounted, r.AnsweredCounted) }

func ratio(part, whole int64) float64 {
	if whole == 0 {
		return 0
	}
	return float64(part) / float64(whole)
}

// add adds the sums of o; names and latencies stay.
func (r *Row) add(o *Row) {
	r.Calls += o.Calls
	r.Upstream += o.Upstream
	r.Hits += o.Hits
	r.Collapsed += o.Collapsed
	r.Refused += o.Refused
	r.Failed += o.Failed
	r.Lost += o.Lost
	r.Flagged += o.Flagged
	r.Input += o.Input
	r.Cached += o.Cached
	r.Output += o.Output
	r.Reasoning += o.Reasoning
	r.Counted += o.Counted
	r.Resent += o.Resent
	r.AnsweredInput += o.AnsweredInput
	r.AnsweredCounted += o.AnsweredCounted
	r.Cost += o.Cost
	r.Unpriced += o.Unpriced
	r.AvoidedInput += o.AvoidedInput
	r.AvoidedOutput += o.AvoidedOutput
	r.AvoidedCost += o.AvoidedCost
}
