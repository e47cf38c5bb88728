package guard

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/maypok86/otter/v2"

	"llmproxy/store"
)

const (
	frontBytes   = 32 << 20
	frontPerItem = 600 // of an effect without its body
	// lookEvery bounds how long a replay may come from memory after another
	// process has reopened or purged the effect.
	lookEvery = time.Second
)

// front keeps completed effects in memory, so that a replay costs no query. A
// completion never changes except by a person's word; whoever undoes one says so
// in the table setting, which each process looks at once a second.
type front struct {
	effects *otter.Cache[ID, Record] // completed ones, without their attempts
	undone  atomic.Int64             // counts what made entries of before invalid

	mu     sync.Mutex
	looked time.Time // when mark was read
	mark   []byte
}

func newFront() *front {
	return &front{effects: otter.Must(&otter.Options[ID, Record]{
		MaximumWeight: frontBytes,
		Weigher:       func(_ ID, r Record) uint32 { return uint32(frontPerItem + len(r.Result.Body)) },
	})}
}

// recall answers a begin from memory. ok is false where that can't be done.
func (f *front) recall(ctx context.Context, g *Guard, id ID, b Begin) (t Transition, ok bool, err error) {
	r, ok := f.effects.GetIfPresent(id)
	if !ok {
		return t, false, nil
	}
	if err := f.look(ctx, g.Store); err != nil {
		return t, false, err
	}
	if r, ok = f.effects.GetIfPresent(id); !ok {
		return t, false, nil
	}
	t = Transition{ID: id, Event: b, Before: r, Now: time.Now().UnixMilli()}
	if t.Now >= r.ExpiresAt {
		f.effects.Invalidate(id)
		return t, false, nil
	}
	t.After, t.Reply = Apply(r, b, t.Now)
	return t, true, nil
}

// keep remembers a completed effect as it was read since undone was seen.
func (f *front) keep(id ID, r Record, now, seen int64) {
	if r.State != Completed || now >= r.ExpiresAt {
		return
	}
	r.Attempts = nil
	f.effects.Set(id, r)
	if f.undone.Load() != seen { // it may have been read before it was undone
		f.effects.Invalidate(id)
	}
}

func (f *front) drop(id ID) {
	f.undone.Add(1)
	f.effects.Invalidate(id)
}

const (
	markSQL    = `INSERT INTO setting (name, value) VALUES ('guard_undone', $1) ON CONFLICT (name) DO UPDATE SET value = excluded.value`
	getMarkSQL = `SELECT value FROM setting WHERE name = 'guard_undone'`
)

// undoes tells whether a transition makes what others remember wrong.
func (t *Transition) undoes() bool {
	return t.Before.State == Completed && (t.After.State != Completed || t.After.ExpiresAt != t.Before.ExpiresAt)
}

// markUndone tells other processes to forget what they remember.
func markUndone(tx *store.Tx) error {
	var mark [8]byte
	rand.Read(mark[:]) //nolint:errcheck // it never fails
	_, err := tx.Exec(markSQL, mark[:])
	return err
}

// look forgets everything if somebody undid a completion since the last look.
func (f *front) look(ctx context.Context, s *store.Store) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.looked.IsZero() && time.Since(f.looked) < lookEvery {
		return nil
	}
	var mark []byte
	err := s.Look(ctx, func(tx *store.Tx) error {
		mark = nil
		_, err := tx.Get(getMarkSQL, nil, &mark)
		return err
	})
	if err != nil {
		return fmt.Errorf("looking for reopened effects: %w", err)
	}
	if !f.looked.IsZero() && !bytes.Equal(mark, f.mark) {
		f.undone.Add(1)
		f.effects.InvalidateAll()
	}
	f.looked, f.mark = time.Now(), mark
	return nil
}

func randomID() int64 {
	var b [8]byte
	rand.Read(b[:]) //nolint:errcheck // it never fails
	return int64(binary.BigEndian.Uint64(b[:]) >> 1)
}
