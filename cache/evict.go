package cache

import (
	"context"

	"llmproxy/store"
)

const (
	// evictBatch keeps the writer's pause for one batch of deletes near 3 ms.
	evictBatch  = 100
	vacuumPages = 256
)

// Evicted tells what a sweep removed.
type Evicted struct{ Expired, Oversize int }

// Sweep deletes expired entries, then the least recently served ones until the
// stored bodies are at most maxBytes, in small batches between which other
// writes go on. maxBytes 0 means no limit.
func (c *Cache) Sweep(ctx context.Context, s *store.Store, maxBytes int64) (done Evicted, err error) {
	for {
		n, err := c.deleteBatch(ctx, s, maxInt, `SELECT e.id, e.key, s.size FROM served s JOIN entry e ON e.id = s.entry_id
			WHERE s.expires_at <= $1 AND e.expires_at <= $2 LIMIT $3`, true)
		done.Expired += n
		if err != nil {
			return done, err
		}
		if n < evictBatch {
			break
		}
	}
	for maxBytes > 0 {
		var size int64
		err := s.View(ctx, func(tx *store.Tx) error {
			_, err := tx.Get(`SELECT coalesce(sum(size), 0) FROM served`, nil, &size)
			return err
		})
		if err != nil || size <= maxBytes {
			return done, err
		}
		n, err := c.deleteBatch(ctx, s, size-maxBytes,
			`SELECT e.id, e.key, s.size FROM served s JOIN entry e ON e.id = s.entry_id ORDER BY s.at LIMIT $1`, false)
		done.Oversize += n
		if err != nil || n == 0 {
			return done, err
		}
	}
	return done, nil
}

const maxInt = 1<<63 - 1

// deleteBatch deletes entries in the order of query until enough bytes are
// freed, at most evictBatch of them.
func (c *Cache) deleteBatch(ctx context.Context, s *store.Store, enough int64, query string, byTime bool) (int, error) {
	var keys []Key
	err := s.Update(ctx, func(tx *store.Tx) error {
		keys = nil
		args := []any{evictBatch}
		if byTime {
			args = []any{tx.Now, tx.Now, evictBatch}
		}
		var ids []int64
		var freed int64
		err := tx.Each(query, args, func(scan func(...any) error) error {
			var id, size int64
			var key []byte
			if err := scan(&id, &key, &size); err != nil || freed >= enough {
				return err
			}
			freed += size
			ids = append(ids, id)
			keys = append(keys, Key(key))
			return nil
		})
		if err != nil {
			return err
		}
		for _, id := range ids {
			if _, err := tx.Exec(`DELETE FROM served WHERE entry_id = $1`, id); err != nil {
				return err
			}
			if _, err := tx.Exec(`DELETE FROM entry WHERE id = $1`, id); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	for _, key := range keys {
		c.Forget(key)
	}
	if len(keys) > 0 {
		if err := s.Vacuum(ctx, vacuumPages); err != nil {
			return len(keys), err
		}
	}
	return len(keys), nil
}
