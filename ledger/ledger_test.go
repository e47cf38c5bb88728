package ledger_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"llmproxy/ledger"
	"llmproxy/store"
	"llmproxy/store/storetest"
)

// fixture is a ledger with an instance of its own.
type fixture struct {
	*testing.T
	store *store.Store
	ids   ledger.IDs
}

const instance = 1

func newFixture(t *testing.T) *fixture { return &fixture{T: t, store: storetest.New(t)} }

func (f *fixture) call(outcome ledger.Outcome) *ledger.Call {
	return &ledger.Call{ID: f.ids.Next(time.Now(), instance), Tenant: "t", Step: "draft", Run: "r1", Model: "m",
		Key64: 7, Endpoint: ledger.Chat, Outcome: outcome, Status: 200, Attempt: 1, Input: 500}
}

func (f *fixture) update(fn func(*store.Tx) error) {
	f.Helper()
	if err := f.store.Update(context.Background(), fn); err != nil {
		f.Fatal(err)
	}
}

func (f *fixture) paid(c *ledger.Call, usage *ledger.Usage) {
	f.Helper()
	f.update(func(tx *store.Tx) error { return ledger.OpenCall(tx, c, instance) })
	c.Outcome, c.Usage = ledger.Miss, usage
	f.update(func(tx *store.Tx) error { return ledger.CloseCall(tx, c) })
}

// sums reads the rollup of an outcome: calls, upstream calls, input, output.
func (f *fixture) sums(outcome ledger.Outcome) (s [4]int64) {
	f.Helper()
	err := f.store.View(context.Background(), func(tx *store.Tx) error {
		_, err := tx.Get(`SELECT coalesce(sum(calls), 0), coalesce(sum(upstream), 0), coalesce(sum(input), 0), coalesce(sum(output), 0)
			FROM rollup WHERE outcome = $1`, []any{int64(outcome)}, &s[0], &s[1], &s[2], &s[3])
		return err
	})
	if err != nil {
		f.Fatal(err)
	}
	return s
}

func (f *fixture) rows(where string) (n int) {
	f.Helper()
	err := f.store.View(context.Background(), func(tx *store.Tx) error {
		_, err := tx.Get(`SELECT count(*) FROM `+where, nil, &n)
		return err
	})
	if err != nil {
		f.Fatal(err)
	}
	return n
}

func TestAPaidCallIsOneRowAndCountedOnce(t *testing.T) {
	f := newFixture(t)
	c := f.call(ledger.Open)
	f.paid(c, &ledger.Usage{Input: 510, Cached: 100, Output: 20})
	want := [4]int64{1, 1, 510, 20}
	if got := f.sums(ledger.Miss); got != want {
		t.Errorf("sums %v, want %v", got, want)
	}
	// The same close again, as after a commit whose answer was lost.
	f.update(func(tx *store.Tx) error { return ledger.CloseCall(tx, c) })
	if got := f.sums(ledger.Miss); got != want {
		t.Errorf("after closing twice: sums %v, want %v", got, want)
	}
	if n := f.rows("call"); n != 1 {
		t.Errorf("%d rows", n)
	}
	if n := f.rows("open_call"); n != 0 {
		t.Errorf("%d open calls", n)
	}
}

func TestALostCallIsChargedItsInputAndCorrectedWhenItSettlesLate(t *testing.T) {
	f := newFixture(t)
	c := f.call(ledger.Open)
	f.update(func(tx *store.Tx) error { return ledger.OpenCall(tx, c, instance) })
	f.update(func(tx *store.Tx) error {
		lost, err := ledger.LoseAll(tx, instance)
		if len(lost) != 1 || lost[0] != c.ID {
			t.Errorf("lost %v, want the one open call", lost)
		}
		return err
	})
	if got, want := f.sums(ledger.Lost), ([4]int64{1, 1, 500, 0}); got != want {
		t.Errorf("lost: sums %v, want %v", got, want)
	}
	c.Outcome, c.Usage = ledger.Miss, &ledger.Usage{Input: 501, Output: 9}
	f.update(func(tx *store.Tx) error { return ledger.CloseCall(tx, c) })
	if got := f.sums(ledger.Lost); got != [4]int64{} {
		t.Errorf("the lost call is still summed: %v", got)
	}
	if got, want := f.sums(ledger.Miss), ([4]int64{1, 1, 501, 9}); got != want {
		t.Errorf("late settle: sums %v, want %v", got, want)
	}
}

func TestARowThatWasNeverOpenedIsStillWrittenWhenItCloses(t *testing.T) {
	f := newFixture(t)
	c := f.call(ledger.Miss)
	c.Usage = &ledger.Usage{Input: 3}
	f.update(func(tx *store.Tx) error { return ledger.CloseCall(tx, c) })
	if got, want := f.sums(ledger.Miss), ([4]int64{1, 1, 3, 0}); got != want {
		t.Errorf("sums %v, want %v", got, want)
	}
}

func TestGroupsOfAnySizeAreWrittenOnce(t *testing.T) {
	for _, n := range []int{1, 31, 32, 33, 100} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			f := newFixture(t)
			var calls []*ledger.Call
			for range n {
				c := f.call(ledger.Hit)
				c.AvoidedInput = 500
				calls = append(calls, c)
			}
			f.update(func(tx *store.Tx) error { return ledger.Write(tx, calls) })
			if got := f.rows("call"); got != n {
				t.Errorf("%d rows of %d", got, n)
			}
			if got := f.sums(ledger.Hit); got != ([4]int64{int64(n), 0, 0, 0}) {
				t.Errorf("sums %v", got)
			}
		})
	}
}

func TestIDsGrowAndTellTheirTime(t *testing.T) {
	var a, b ledger.IDs
	now := time.UnixMilli(1_800_000_000_123)
	seen := map[int64]bool{}
	last := int64(0)
	for range 10_000 {
		id := a.Next(now, 1)
		if id <= last || seen[id] {
			t.Fatalf("id %d after %d", id, last)
		}
		last, seen[id] = id, true
		if other := b.Next(now, 2); seen[other] {
			t.Fatalf("two instances made the id %d", other)
		}
	}
	if got := ledger.Time(last); !got.Equal(now) {
		t.Errorf("time %v, want %v", got, now)
	}
	if earlier := a.Next(now.Add(-time.Hour), 1); earlier <= last {
		t.Errorf("a clock set back made an id fall from %d to %d", last, earlier)
	}
}

func TestResentTokensAreThoseTheRunHasSentBefore(t *testing.T) {
	c := ledger.NewContexts()
	run := ledger.RunKey{Tenant: "t", Step: "draft", Run: "1"}
	messages, tokens := []uint64{1, 2, 3}, []int{10, 20, 30}
	if got := c.Resent(run, messages, tokens); got != 0 {
		t.Errorf("first call: %d re-sent", got)
	}
	c.Sent(run, messages[:2])
	if got := c.Resent(run, messages, tokens); got != 30 {
		t.Errorf("second call: %d re-sent, want 30", got)
	}
	if other := (ledger.RunKey{Tenant: "t", Step: "draft", Run: "2"}); c.Known(other) || c.Resent(other, messages, tokens) != 0 {
		t.Error("another run knows the messages")
	}
}

func TestWithdrawnAndRefreshedCalls(t *testing.T) {
	f := newFixture(t)
	c := f.call(ledger.Open)
	c.Tree = []byte{1}
	f.update(func(tx *store.Tx) error { return ledger.OpenCall(tx, c, instance) })
	f.update(func(tx *store.Tx) error { return ledger.Withdraw(tx, c.ID) })
	if n := f.rows("call") + f.rows("open_call") + f.rows("fingerprint"); n != 0 {
		t.Errorf("%d rows are left of a withdrawn call", n)
	}
	for range 3 {
		c := f.call(ledger.Open)
		c.Flags = ledger.Refreshed
		f.paid(c, &ledger.Usage{})
	}
	f.paid(f.call(ledger.Open), &ledger.Usage{})
	f.update(func(tx *store.Tx) error {
		refreshes, err := ledger.Refreshes(tx, 7, ledger.FirstID(time.Now().Add(-time.Hour)))
		if err != nil {
			return err
		}
		attempts, err := ledger.Attempts(tx, 7)
		if refreshes != 3 || attempts != 4 {
			t.Errorf("%d refreshes and %d attempts, want 3 and 4", refreshes, attempts)
		}
		return err
	})
}
