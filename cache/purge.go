package cache

import (
	"bytes"
	"context"
	"crypto/rand"
	"slices"

	"llmproxy/store"
)

// A purge deletes entries while servers may hold the same answers in memory.
// Each transaction that deletes some also leaves a new mark in the store;
// servers look for it with [Cache.HeedPurges] and start their memory afresh.

const selectEntries = `SELECT e.id FROM entry e
	WHERE e.step_id >= $1 AND e.step_id <= $2 AND e.key >= $3 AND e.key <= $4 AND e.expires_at <= $5`

const markPurge = `INSERT INTO setting (name, value) VALUES ('purge', $1)
	ON CONFLICT (name) DO UPDATE SET value = excluded.value`

// Purge deletes the answers of a selection that are stored when it begins, in
// small batches between which other writes go on. It tells how many it deleted,
// also where it fails.
func Purge(ctx context.Context, s *store.Store, sel Selection) (deleted int64, err error) {
	var begun int64
	var ids []int64
	err = s.View(ctx, func(tx *store.Tx) error {
		begun = tx.Now
		bounds, err := sel.bounds(tx)
		if err != nil || bounds == nil {
			return err
		}
		return tx.Each(selectEntries, bounds, func(scan func(...any) error) error {
			var id int64
			if err := scan(&id); err != nil {
				return err
			}
			ids = append(ids, id)
			return nil
		})
	})
	if err != nil {
		return 0, err
	}
	for batch := range slices.Chunk(ids, evictBatch) {
		var n int64
		err := s.Update(ctx, func(tx *store.Tx) (err error) {
			n, err = purgeBatch(tx, batch, begun)
			return err
		})
		if err != nil {
			return deleted, err
		}
		deleted += n
		if err := s.Vacuum(ctx, vacuumPages); err != nil {
			return deleted, err
		}
	}
	return deleted, nil
}

// purgeBatch deletes entries unless an answer younger than begun has taken
// their place.
func purgeBatch(tx *store.Tx, ids []int64, begun int64) (deleted int64, err error) {
	for _, id := range ids {
		n, err := tx.Exec(`DELETE FROM entry WHERE id = $1 AND created_at <= $2`, id, begun)
		if err != nil {
			return 0, err
		}
		if n == 0 {
			continue
		}
		deleted += n
		if _, err := tx.Exec(`DELETE FROM served WHERE entry_id = $1`, id); err != nil {
			return 0, err
		}
	}
	_, err = tx.Exec(markPurge, []byte(rand.Text()))
	return deleted, err
}

// purges is what a cache knows of purges.
type purges struct {
	mark  []byte // the latest that was heeded
	again bool   // forget once more at the next look
}

// HeedPurges drops everything from memory where some process has purged since
// the last look. An answer that was read just before a purge may reach memory
// just after this look, so the next one drops everything again. It must not be
// called concurrently.
func (c *Cache) HeedPurges(ctx context.Context, s *store.Store) error {
	var mark []byte
	err := s.View(ctx, func(tx *store.Tx) error {
		_, err := tx.Get(`SELECT value FROM setting WHERE name = 'purge'`, nil, &mark)
		return err
	})
	if err != nil {
		return err
	}
	fresh := !bytes.Equal(mark, c.purges.mark)
	if fresh || c.purges.again {
		c.ForgetAll()
	}
	c.purges = purges{mark: mark, again: fresh}
	return nil
}
