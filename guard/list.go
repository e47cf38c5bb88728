package guard

import (
	"context"
	"fmt"
	"strings"

	"llmproxy/store"
)

// MaxListed is the most effects a List returns at once.
const MaxListed = 200

// Query says which effects to list.
type Query struct {
	NS     string // of one namespace
	State  State  // Absent: in any state
	Step   string // empty: of any step
	Prefix string // first hexadecimal digits of the key; empty: of any
	After  int64  // the cursor of an earlier List; 0: from the newest
	Limit  int    // 0, or above MaxListed: MaxListed
}

// Listed is an effect in a list; its Record has no body and no attempts.
type Listed struct {
	ID     ID
	Record Record
}

// A lease that is over makes a pending effect an unknown one or, unconfirmed, a
// failed one, although nobody has written that down yet: whoever asks for those
// gets the pending ones read as well.
const listSQL = `SELECT` + effectColumns + `NULL FROM effect e WHERE e.namespace_id = (SELECT n.id FROM namespace n WHERE n.name = $2)
 AND ($3 = 0 OR e.state = $4 OR (e.state = 1 AND $5 IN (3, 4)))
 AND ($6 = '' OR e.step_id = (SELECT s.id FROM step s WHERE s.name = $7)) AND e.key >= $8 AND e.key <= $9 AND ($10 = 0 OR e.id < $11) ORDER BY e.id DESC LIMIT $12`

// List reads effects, the newest first. next is the cursor for more, 0 if there
// are none; a page may hold fewer than Limit although there are more.
func (g *Guard) List(ctx context.Context, q Query) (effects []Listed, next int64, err error) {
	g.init()
	if q.Limit <= 0 || q.Limit > MaxListed {
		q.Limit = MaxListed
	}
	first, err := ParseKey(q.Prefix + strings.Repeat("0", max(2*len(Key{})-len(q.Prefix), 0)))
	if err != nil {
		return nil, 0, badInput("prefix", "The prefix of a key is up to 64 lower-case hexadecimal digits")
	}
	last, err := ParseKey(q.Prefix + strings.Repeat("f", 2*len(Key{})-len(q.Prefix)))
	if err != nil {
		return nil, 0, err
	}
	err = g.Store.View(ctx, func(tx *store.Tx) error {
		effects, next = nil, 0
		read := 0
		args := []any{tx.Now, q.NS, int64(q.State), int64(q.State), int64(q.State), q.Step, q.Step, first[:], last[:], q.After, q.After, q.Limit}
		return tx.Each(listSQL, args, func(scan func(...any) error) error {
			var r row
			if err := r.scan(scan, g.boot); err != nil {
				return err
			}
			if read++; read == q.Limit {
				next = r.id
			}
			if r.record.State == Pending { // to settle it takes its attempts
				if err := r.loadAttempts(tx); err != nil {
					return err
				}
			}
			r.record = settle(r.record, tx.Now)
			if r.record.State != Absent && (q.State == Absent || r.record.State == q.State) {
				r.record.Attempts = nil
				effects = append(effects, Listed{ID{q.NS, r.effect.Key}, r.record})
			}
			return nil
		})
	})
	if err != nil {
		return nil, 0, fmt.Errorf("listing effects: %w", err)
	}
	return effects, next, nil
}
