package guard

import (
	"context"
	"fmt"
	"reflect"
	"time"

	"llmproxy/store"
)

const (
	sweepEvery = time.Minute
	sweepBatch = 100 // rows a transaction: 3 ms, so that grants do not wait
)

const dueSQL = `SELECT id FROM effect WHERE sweep_at > 0 AND sweep_at <= $1 ORDER BY sweep_at LIMIT $2`

// Run removes what is past its retention until ctx ends.
func (g *Guard) Run(ctx context.Context) {
	ticker := time.NewTicker(sweepEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		for {
			n, err := g.Sweep(ctx)
			if err != nil && ctx.Err() == nil {
				g.log().Error("effects past their retention could not be removed; the next minute tries again", "err", err)
			}
			if err != nil || n < sweepBatch {
				break
			}
		}
	}
}

// Sweep takes one small batch of what time has changed: results of completed
// effects that are past their retention, then their tombstones, and failed
// effects; and leases that ended without a report, so that Observe hears of
// those that nobody asks for any more. It tells how many it took. Unknown effects
// are never removed: somebody must decide them.
func (g *Guard) Sweep(ctx context.Context) (n int, err error) {
	g.init()
	var swept []Transition
	err = g.Store.Update(ctx, func(tx *store.Tx) error {
		swept = nil
		var due []int64
		err := tx.Each(dueSQL, []any{tx.Now, sweepBatch}, func(scan func(...any) error) error {
			var id int64
			err := scan(&id)
			due = append(due, id)
			return err
		})
		if err != nil {
			return err
		}
		for _, id := range due {
			t, err := g.sweep(tx, id)
			if err != nil {
				return err
			}
			if t != nil {
				swept = append(swept, *t)
			}
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("sweeping effects: %w", err)
	}
	for _, t := range swept {
		if t.Before.State == Pending && g.Observe != nil {
			g.Observe(t)
		}
	}
	return len(swept), nil
}

// sweep saves what time has made of an effect, nil where that is nothing yet: a
// lease of another process ends a little later than its row says.
func (g *Guard) sweep(tx *store.Tx, id int64) (*Transition, error) {
	stored, err := loadRow(tx, g.boot, loadIDSQL, tx.Now, id)
	if err != nil {
		return nil, err
	}
	next := settle(stored.record, tx.Now)
	if stored.record.State == Failed {
		next = Record{}
	}
	switch {
	case !reflect.DeepEqual(stored.record, next):
		err = stored.save(tx, &next, g.boot)
		return &Transition{ID: stored.effect, Before: stored.record, After: next, Now: tx.Now}, err
	case next.State == Pending:
		return nil, nil
	}
	return nil, fmt.Errorf("effect %d is due at %d, and at %d there is nothing to do", id, next.sweepAt(), tx.Now)
}
