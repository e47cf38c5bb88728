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

// Sweep takes one small batch of what is past its retention: results of
// completed effects, then their tombstones, and failed effects. It tells how
// many it took. Unknown effects are never swept: somebody must decide them.
func (g *Guard) Sweep(ctx context.Context) (n int, err error) {
	g.init()
	err = g.Store.Update(ctx, func(tx *store.Tx) error {
		var due []int64
		err := tx.Each(dueSQL, []any{tx.Now, sweepBatch}, func(scan func(...any) error) error {
			var id int64
			err := scan(&id)
			due = append(due, id)
			return err
		})
		if n = len(due); err != nil {
			return err
		}
		for _, id := range due {
			if err := g.sweep(tx, id); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("sweeping effects: %w", err)
	}
	return n, nil
}

func (g *Guard) sweep(tx *store.Tx, id int64) error {
	stored, err := loadRow(tx, g.boot, loadIDSQL, tx.Now, id)
	if err != nil {
		return err
	}
	next := settle(stored.record, tx.Now)
	if next.State == Failed {
		next = Record{}
	}
	if reflect.DeepEqual(stored.record, next) {
		return fmt.Errorf("effect %d is due at %d, and at %d there is nothing to do", id, next.sweepAt(), tx.Now)
	}
	return stored.save(tx, &next, g.boot)
}
