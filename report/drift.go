package report

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"llmproxy/ledger"
	"llmproxy/store"
)

// Drift is how far upstreams' bills lie from what was counted before the
// calls, for each kind of request by itself: one of model, endpoint, shape and
// basis. It is of answered calls whose upstream gave a usable figure.
type Drift struct {
	Since, Until time.Time // the range that was read, in its location
	Step, Tenant string    // the filters of the query
	Rows         []DriftRow
	Total        DriftRow
	Factors      []Factor // what counts of models without a rule are corrected by
	Notes        []string // what a reader must know about the figures, as sentences
}

// DriftRow sums up the bills of one kind of request. Differences are billed
// less counted, in tokens.
type DriftRow struct {
	Model    string
	Endpoint string
	Shape    string // what the requests hold: "text", "tools+images"
	Basis    string // of the counts

	Calls   int64
	Counted int64 // as budgets were charged
	Billed  int64
	Exact   int64 // calls billed what was counted
	Near    int64 // calls within 3 tokens of it
	Min     int64 // difference
	Max     int64

	differences map[int64]int64 // difference → calls, of the first maxDifferences there are
	ratios      map[int]int64   // billed over counted in thousandths → calls
}

// Factor is a factor learned from bills, and between which two nine of ten of
// its calls lie.
type Factor struct {
	Model            string
	Ratio, Low, High float64
	Calls            int
}

// When the drift of a kind is steady.
const (
	steadyCalls    = 20   // at least so many calls
	steadyShare    = 0.9  // so much of them with the very same difference
	steadyRatio    = 0.01 // or nine of ten within so much of their median ratio
	maxDifferences = 4096 // told apart
	maxDriftRows   = 500  // kinds told apart
	mostRatio      = 10.0 // a higher one is taken for this one
)

// Mend says what would make the counts of a steady kind right.
type Mend struct {
	Constant int64   // tokens to add, where Ratio is 0
	Share    float64 // of the calls that this makes exact, 0 to 1
	Ratio    float64 // what to multiply by
}

// Mend tells what would mend the counts; ok is false where their drift is not
// steady, or there is none.
func (r *DriftRow) Mend() (m Mend, ok bool) {
	if r.Calls < steadyCalls {
		return m, false
	}
	for difference, calls := range r.differences {
		if share := ratio(calls, r.Calls); share >= steadyShare {
			return Mend{Constant: difference, Share: share}, difference != 0
		}
	}
	low, median, high := r.Ratios()
	if math.Abs(median-1) > steadyRatio/2 && high-median <= steadyRatio*median && median-low <= steadyRatio*median {
		return Mend{Ratio: median}, true
	}
	return m, false
}

// Ratios are the 5th, the 50th and the 95th percentile of billed over counted,
// to a thousandth.
func (r *DriftRow) Ratios() (low, median, high float64) {
	bins := make([]int, 0, len(r.ratios))
	for bin := range r.ratios {
		bins = append(bins, bin)
	}
	slices.Sort(bins)
	at := func(p float64) float64 {
		rank := int64(math.Ceil(p * float64(r.Calls)))
		for _, bin := range bins {
			if rank -= r.ratios[bin]; rank <= 0 {
				return float64(bin) / 1000
			}
		}
		return 0
	}
	return at(0.05), at(0.5), at(0.95)
}

// Mean is the mean difference, in tokens.
func (r *DriftRow) Mean() float64 { return ratio(r.Billed-r.Counted, r.Calls) }

func (r *DriftRow) add(b *ledger.Bill) {
	difference := b.Billed - b.Input
	if r.Calls == 0 {
		r.Min, r.Max = difference, difference
		r.differences, r.ratios = map[int64]int64{}, map[int]int64{}
	}
	r.Calls++
	r.Counted += b.Input
	r.Billed += b.Billed
	r.Min, r.Max = min(r.Min, difference), max(r.Max, difference)
	if difference == 0 {
		r.Exact++
	}
	if -3 <= difference && difference <= 3 {
		r.Near++
	}
	if _, known := r.differences[difference]; known || len(r.differences) < maxDifferences {
		r.differences[difference]++
	}
	r.ratios[int(math.Round(min(ratio(b.Billed, b.Input), mostRatio)*1000))]++
}

// kind is what tells the rows apart.
type kind struct {
	model    string
	endpoint ledger.Endpoint
	shape    string
	basis    uint8
}

// ReadDrift reads the drift of the calls that q asks for; q.By is not used.
// It fails as Run does.
func ReadDrift(ctx context.Context, s *store.Store, q Query) (*Drift, error) {
	q.By = ByModel
	if err := q.normalize(); err != nil {
		return nil, fmt.Errorf("asking for the drift: %w", err)
	}
	a := &answer{ctx: ctx, store: s, query: q}
	since, err := a.begin()
	if err != nil {
		return nil, fmt.Errorf("reading the ledger: %w", err)
	}
	d := &Drift{Since: a.report.Since, Until: a.report.Until, Step: q.Step, Tenant: q.Tenant, Rows: []DriftRow{}, Notes: []string{}}
	if a.report.First.IsZero() {
		return d, nil
	}
	rows := map[kind]*DriftRow{}
	left := int64(0)
	all := span{since.UnixMilli(), a.report.Until.UnixMilli()}
	err = a.eachSlice(all, func(tx *store.Tx, from, to int64) error {
		return ledger.Bills(tx, from, to, a.step, a.tenant, func(b ledger.Bill) {
			d.Total.add(&b)
			k := kind{b.Model, b.Endpoint, b.Shape(), b.Basis}
			r := rows[k]
			if r == nil {
				if len(rows) == maxDriftRows {
					left++
					return
				}
				r = &DriftRow{Model: b.Model, Endpoint: b.Endpoint.String(), Shape: k.shape, Basis: b.BasisName()}
				rows[k] = r
			}
			r.add(&b)
		})
	})
	if err != nil {
		return nil, fmt.Errorf("reading the ledger: %w", err)
	}
	for _, r := range rows {
		d.Rows = append(d.Rows, *r)
	}
	d.finish(q.Limit, left)
	return d, nil
}

// finish sorts the rows, those whose bills are off most first, and cuts them to
// the limit.
func (d *Drift) finish(limit int, left int64) {
	off := func(r *DriftRow) int64 { return max(r.Billed-r.Counted, r.Counted-r.Billed) }
	slices.SortFunc(d.Rows, func(x, y DriftRow) int {
		return cmp.Or(cmp.Compare(off(&y), off(&x)), cmp.Compare(y.Calls, x.Calls), cmp.Compare(x.Model, y.Model),
			cmp.Compare(x.Endpoint, y.Endpoint), cmp.Compare(x.Shape, y.Shape), cmp.Compare(x.Basis, y.Basis))
	})
	if left > 0 {
		d.Notes = append(d.Notes, fmt.Sprintf("Only %s kinds of request are told apart; %s of others, and in the total.", grouped(maxDriftRows), counted(left, "call is", "calls are")))
	}
	if more := len(d.Rows) - limit; limit > 0 && more > 0 {
		d.Rows = d.Rows[:limit]
		d.Notes = append(d.Notes, fmt.Sprintf("%s not shown, but in the total.", counted(int64(more), "more row is", "more rows are")))
	}
}
