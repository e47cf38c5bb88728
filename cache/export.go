package cache

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"

	"llmproxy/store"
)

// A Record is a stored answer with all that another database needs to give it,
// names in place of ids.
type Record struct {
	Key                 Key
	Tenant, Step, Model string
	Origin              Origin // without EntryID
	Head                Head
	Body                Packed
}

const nextRecord = `SELECT e.key, coalesce(tenant.name, ''), coalesce(step.name, ''), coalesce(model.name, ''),
	e.fence, e.fingerprint, e.created_at, e.expires_at, e.input, e.basis,
	e.up_input, e.up_cached, e.up_output, e.up_reasoning, e.cost, e.form, e.codec, e.raw_size, e.crc, e.header, e.body
	FROM entry e
	LEFT JOIN tenant ON tenant.id = e.tenant_id
	LEFT JOIN step ON step.id = e.step_id
	LEFT JOIN model ON model.id = e.model_id
	WHERE e.step_id >= $1 AND e.step_id <= $2 AND e.key >= $3 AND e.key <= $4 AND e.expires_at <= $5
	ORDER BY e.key LIMIT 1`

// Next reads the answer of a selection whose key is the least of those after a
// key, nil where there is none: walking on from record to record reads them all,
// in an order that does not depend on when they were stored. after nil begins. An
// error that wraps ErrDamaged comes with the key, so that one can walk on.
func Next(tx *store.Tx, sel Selection, after *Key) (*Record, error) {
	bounds, err := sel.bounds(tx)
	if err != nil || bounds == nil {
		return nil, err
	}
	if after != nil {
		from, more := after.next()
		if !more {
			return nil, nil
		}
		if least, ok := bounds[2].([]byte); ok && bytes.Compare(from[:], least) > 0 {
			bounds[2] = from[:]
		}
	}
	var (
		r           = Record{Head: Head{Status: http.StatusOK}}
		key         []byte
		fingerprint []byte
		usage       [4]*int64
		header      string
	)
	found, err := tx.Get(nextRecord, bounds, &key, &r.Tenant, &r.Step, &r.Model, &r.Origin.Call, &fingerprint,
		&r.Origin.CreatedAt, &r.Origin.ExpiresAt, &r.Origin.Input, &r.Origin.Basis,
		&usage[0], &usage[1], &usage[2], &usage[3], &r.Origin.Cost,
		&r.Head.Form, &r.Body.codec, &r.Body.rawSize, &r.Body.crc, &header, &r.Body.bytes)
	if err != nil || !found {
		return nil, err
	}
	copy(r.Key[:], key)
	r.Origin.Usage = usageOf(usage)
	if len(fingerprint) == len(Key{}) {
		r.Origin.Fingerprint = (*Key)(fingerprint)
	}
	if err := json.Unmarshal([]byte(header), &r.Head.Header); err != nil {
		return &r, fmt.Errorf("%w: header: %w", ErrDamaged, err)
	}
	return &r, nil
}

// next is the least key that is greater; more is false for the greatest.
func (k Key) next() (next Key, more bool) {
	for i := len(k) - 1; i >= 0; i-- {
		if k[i]++; k[i] != 0 {
			return k, true
		}
	}
	return Key{}, false
}

// Events unpacks what was packed. An error wraps ErrDamaged.
func (p Packed) Events() ([][]byte, error) { return p.unpack() }

// Restore stores records and tells of each whether it did: an answer that is
// stored already, is not over and was made by a later call stays, unless it is to
// be overwritten. Servers that have others in memory drop them within a second.
func Restore(tx *store.Tx, records []*Record, overwrite bool) (restored []bool, err error) {
	const remove = `DELETE FROM entry WHERE key = $1 AND (expires_at <= $2 OR $3 <> 0) RETURNING id`
	var ids []int64
	for _, r := range records {
		e := Entry{Key: r.Key, Origin: r.Origin, Head: r.Head, Body: r.Body}
		if e.Tenant, err = tx.Intern("tenant", r.Tenant); err != nil {
			return nil, err
		}
		if e.Step, err = tx.Intern("step", r.Step); err != nil {
			return nil, err
		}
		if e.Model, err = tx.Intern("model", r.Model); err != nil {
			return nil, err
		}
		var old int64
		found, err := tx.Get(remove, []any{r.Key[:], tx.Now, overwrite}, &old)
		if err != nil {
			return nil, err
		}
		if found {
			if _, err := tx.Exec(`DELETE FROM served WHERE entry_id = $1`, old); err != nil {
				return nil, err
			}
		}
		id, err := Put(tx, &e)
		if err != nil {
			return nil, err
		}
		restored = append(restored, id != 0)
		if id != 0 {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return restored, nil
	}
	if err := MarkServed(tx, ids); err != nil {
		return nil, err
	}
	_, err = tx.Exec(markPurge, []byte(rand.Text()))
	return restored, err
}
