package tokens

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
)

// How a factor is learned.
const (
	factorWindow = 64   // latest bills of a model that its factor is the median of
	factorAfter  = 5    // bills before which a factor is not used
	factorFrom   = 32   // tokens counted from which a bill teaches: of shorter ones the frame decides, not the text
	factorMost   = 4.0  // no bill is taken for more than this times the count, nor for less than its inverse
	factorModels = 1024 // remembered; beyond, the one that was not billed for longest is forgotten
)

// A Factor is what a model's vendor bills for each token that we count.
type Factor struct {
	Ratio     float64 // the median of the latest bills
	Low, High float64 // the 5th and the 95th percentile: nine of ten bills lie between
	Calls     int     // the bills it is of, at most 64
}

// Factors learns the factors of models that no rule is known for: other
// vendors' models, whose encodings we do not have. A model that has a rule
// never gets a factor; where its bills differ, the rule is to be mended.
//
// A factor is learned from counts as they were before any factor, so it never
// feeds on itself. The zero value is ready for use, by many goroutines at
// once; it must not be copied after first use. What it remembers is bounded.
type Factors struct {
	mu     sync.RWMutex
	models map[string]*ratios // lower-case name → what was billed
	bills  uint64             // learned in all
}

// ratios are the latest bills of a model, each over its count.
type ratios struct {
	recent [factorWindow]float64 // a ring
	count  int                   // learned in all
	last   uint64                // Factors.bills at the latest
	factor Factor
}

// Learnable tells whether counts of the model can be corrected by a factor: no
// rule of its vendor is known.
func Learnable(model string) bool { return modelOf(model).basis == FallbackEncoding }

// Learn notes that a call of the model was billed for so many input tokens,
// where counted is Estimate.Raw of a request of texts only. It ignores models
// that have a rule.
func (f *Factors) Learn(model string, counted, billed int) {
	if counted < factorFrom || billed <= 0 || !Learnable(model) {
		return
	}
	ratio := min(max(float64(billed)/float64(counted), 1/factorMost), factorMost)
	f.mu.Lock()
	defer f.mu.Unlock()
	name := strings.ToLower(model)
	r := f.models[name]
	if r == nil {
		f.forget()
		r = new(ratios)
		f.models[name] = r
	}
	f.bills++
	r.last = f.bills
	r.recent[r.count%factorWindow] = ratio
	r.count++
	r.factor = factorOf(r.recent[:min(r.count, factorWindow)])
}

// forget makes room for one more model; f.mu is held.
func (f *Factors) forget() {
	if f.models == nil {
		f.models = make(map[string]*ratios)
	}
	if len(f.models) < factorModels {
		return
	}
	oldest, last := "", uint64(math.MaxUint64)
	for name, r := range f.models {
		if r.last < last {
			oldest, last = name, r.last
		}
	}
	delete(f.models, oldest)
}

// factorOf is the factor of some ratios; percentiles are by nearest rank.
func factorOf(of []float64) Factor {
	sorted := slices.Sorted(slices.Values(of))
	at := func(p float64) float64 { return sorted[int(math.Ceil(p*float64(len(sorted))))-1] }
	return Factor{Ratio: at(0.5), Low: at(0.05), High: at(0.95), Calls: len(sorted)}
}

// Of returns the factor of a model; ok is false where it has a rule, or has
// not been billed often enough.
func (f *Factors) Of(model string) (factor Factor, ok bool) {
	if !Learnable(model) {
		return factor, false
	}
	f.mu.RLock()
	defer f.mu.RUnlock()
	r := f.models[strings.ToLower(model)]
	if r == nil || r.count < factorAfter {
		return factor, false
	}
	return r.factor, true
}

// learnedFactor begins the rule of the part that a factor adds.
const learnedFactor = "learned-factor"

// correct applies a factor to what was counted as text. What was charged by
// another measure (images, audio, constants) stays as it is: no bill of it was
// learned from.
func (t *tally) correct(f Factor) {
	e := &t.est
	text := 0
	for _, p := range e.Parts {
		if p.Basis < Estimated && shapeOf(p.Rule)&(Images|Audio) == 0 {
			text += p.Tokens
		}
	}
	added := func(ratio float64) int { return int(math.Round(float64(text) * (ratio - 1))) }
	e.Low, e.High = e.Raw+added(f.Low), e.Raw+added(f.High)
	e.Basis = Estimated
	rule := fmt.Sprintf("%s %.3f (%.3f-%.3f, %d calls)", learnedFactor, f.Ratio, f.Low, f.High, f.Calls)
	t.charge("model", rule, Estimated, added(f.Ratio))
	if e.Raw > 0 {
		for i, n := range e.Messages {
			e.Messages[i] = n * e.Tokens / e.Raw
		}
	}
}
