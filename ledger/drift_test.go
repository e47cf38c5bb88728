package ledger_test

import (
	"math"
	"slices"
	"testing"

	"llmproxy/ledger"
	"llmproxy/store"
)

// TestBillsAreReadAsTheyWereMade writes calls of every kind and holds the
// ledger's bills to those of the calls.
func TestBillsAreReadAsTheyWereMade(t *testing.T) {
	f := newFixture(t)
	var want []ledger.Bill
	for outcome := ledger.Miss; outcome <= ledger.Lost; outcome++ {
		for _, flags := range []int{0, ledger.Streamed, ledger.UsageEstimated, ledger.UsageOdd, ledger.Uncounted, ledger.WithTools | ledger.WithImages} {
			for _, usage := range []*ledger.Usage{nil, {}, {Input: 600, Output: 7}} {
				for _, endpoint := range []ledger.Endpoint{ledger.Other, ledger.Chat, ledger.Embeddings} {
					for _, correction := range []int64{0, -20, 50} {
						c := f.call(outcome)
						c.Flags, c.Usage, c.Endpoint, c.Correction, c.Basis = flags, usage, endpoint, correction, 2
						f.update(func(tx *store.Tx) error { return ledger.CloseCall(tx, c) })
						if b, ok := c.Bill(); ok {
							want = append(want, b)
						}
					}
				}
			}
		}
	}
	if len(want) != 2*4*1*2*3 { // answered · usable · with usage · counted endpoints · corrections
		t.Fatalf("%d calls have a bill", len(want))
	}
	var all, latest, other []ledger.Bill
	f.update(func(tx *store.Tx) error {
		if err := ledger.Bills(tx, 0, math.MaxInt64, 0, 0, func(b ledger.Bill) { all = append(all, b) }); err != nil {
			return err
		}
		if err := ledger.Bills(tx, 0, math.MaxInt64, 99, 0, func(b ledger.Bill) { other = append(other, b) }); err != nil {
			return err
		}
		return ledger.LatestBills(tx, func(b ledger.Bill) { latest = append(latest, b) })
	})
	if !slices.Equal(all, want) || !slices.Equal(latest, want) {
		t.Errorf("read %d and %d bills, made %d\n%+v\n%+v", len(all), len(latest), len(want), all, want)
	}
	if len(other) != 0 {
		t.Errorf("another step has %d bills", len(other))
	}
}

func TestAHitHasNoCorrection(t *testing.T) {
	f := newFixture(t)
	f.update(func(tx *store.Tx) error { return ledger.Write(tx, []*ledger.Call{f.call(ledger.Hit)}) })
	if n := f.rows("call WHERE correction = 0"); n != 1 {
		t.Errorf("%d rows", n)
	}
}

func TestShapesAreNamed(t *testing.T) {
	for flags, want := range map[int]string{
		0:                                     "text",
		ledger.Streamed | ledger.Stored:       "text",
		ledger.WithTools | ledger.WithImages:  "tools+images",
		ledger.WithStructured:                 "structured",
		ledger.WithToolCalls:                  "tool-calls",
		ledger.WithAudio | ledger.Uncounted:   "audio+uncounted",
		ledger.Uncounted | ledger.ClientLeft:  "uncounted",
		ledger.WithStructured | ledger.Stored: "structured",
	} {
		b := ledger.Bill{Flags: flags}
		if got := b.Shape(); got != want {
			t.Errorf("flags %b: %q, want %q", flags, got, want)
		}
	}
	for flags, want := range map[int]bool{0: true, ledger.WithTools: true, ledger.WithImages: false, ledger.WithAudio: false, ledger.Uncounted: false} {
		b := ledger.Bill{Flags: flags}
		if b.Teaches() != want {
			t.Errorf("flags %b teach: %v", flags, b.Teaches())
		}
	}
}
