package cache

import (
	"math"

	"llmproxy/store"
)

// Summary is a stored answer without its body.
type Summary struct {
	Key                        Key
	Tenant, Step, Model        string
	Form                       Form
	Call                       int64 // that led for it
	Explicit                   bool  // the key is from an Idempotency-Key
	CreatedAt, ExpiresAt       int64 // Unix ms
	ServedAt                   int64 // Unix ms, to the minute; when it was stored, if never since
	Input                      int64 // tokens counted before the call
	Usage                      *Usage
	StoredBytes, ResponseBytes int64 // compressed, and as served
}

// Selection says which stored answers are meant. Its zero value means all.
type Selection struct {
	Step    string // of this step
	Prefix  string // of keys that begin with these hex digits
	Expired bool   // whose time is over
}

// Inventory is the answers of a selection.
type Inventory struct {
	Answers     []Summary // the most recently served first, up to the limit
	Count       int64     // of the whole selection
	StoredBytes int64     // of the whole selection
}

const countEntries = `SELECT count(*), coalesce(sum(e.size), 0) FROM entry e
	WHERE e.step_id >= $1 AND e.step_id <= $2 AND e.key >= $3 AND e.key <= $4 AND e.expires_at <= $5`

const listEntries = `SELECT e.key, coalesce(tenant.name, ''), coalesce(step.name, ''), coalesce(model.name, ''),
	e.form, e.fence, e.fingerprint IS NOT NULL, e.created_at, e.expires_at, coalesce(served.at, e.created_at) AS served_at,
	e.input, e.up_input, e.up_cached, e.up_output, e.up_reasoning, e.size, e.raw_size
	FROM entry e
	LEFT JOIN served ON served.entry_id = e.id
	LEFT JOIN tenant ON tenant.id = e.tenant_id
	LEFT JOIN step ON step.id = e.step_id
	LEFT JOIN model ON model.id = e.model_id
	WHERE e.step_id >= $1 AND e.step_id <= $2 AND e.key >= $3 AND e.key <= $4 AND e.expires_at <= $5
	ORDER BY served_at DESC, e.id DESC LIMIT $6`

// List reads what is stored of a selection, at most limit answers (0: all),
// those that expired and were not swept yet included.
func List(tx *store.Tx, sel Selection, limit int) (inv Inventory, err error) {
	bounds, err := sel.bounds(tx)
	if err != nil || bounds == nil {
		return inv, err
	}
	if _, err := tx.Get(countEntries, bounds, &inv.Count, &inv.StoredBytes); err != nil {
		return inv, err
	}
	most := int64(limit)
	if limit == 0 {
		most = math.MaxInt64
	}
	err = tx.Each(listEntries, append(bounds, most), func(scan func(...any) error) error {
		var a Summary
		var key []byte
		var usage [4]*int64
		err := scan(&key, &a.Tenant, &a.Step, &a.Model, &a.Form, &a.Call, &a.Explicit, &a.CreatedAt, &a.ExpiresAt, &a.ServedAt,
			&a.Input, &usage[0], &usage[1], &usage[2], &usage[3], &a.StoredBytes, &a.ResponseBytes)
		if err != nil {
			return err
		}
		copy(a.Key[:], key)
		a.Usage = usageOf(usage)
		inv.Answers = append(inv.Answers, a)
		return nil
	})
	return inv, err
}

// bounds are the least and the greatest step, the least and the greatest key
// and the latest expiry that sel means; nil where there is no such step.
func (sel Selection) bounds(tx *store.Tx) ([]any, error) {
	from, to, err := KeyRange(sel.Prefix)
	if err != nil {
		return nil, err
	}
	firstStep, lastStep, expiry := int64(0), int64(math.MaxInt64), int64(math.MaxInt64)
	if sel.Step != "" {
		found, err := tx.Get(`SELECT id FROM step WHERE name = $1`, []any{sel.Step}, &firstStep)
		if err != nil || !found {
			return nil, err
		}
		lastStep = firstStep
	}
	if sel.Expired {
		expiry = tx.Now
	}
	return []any{firstStep, lastStep, from[:], to[:], expiry}, nil
}

// Tenants lists everyone that an answer may belong to, by name.
func Tenants(tx *store.Tx) (names []string, err error) {
	err = tx.Each(`SELECT name FROM tenant ORDER BY name`, nil, func(scan func(...any) error) error {
		var name string
		err := scan(&name)
		names = append(names, name)
		return err
	})
	return names, err
}

func usageOf(columns [4]*int64) *Usage {
	for _, c := range columns {
		if c == nil {
			return nil
		}
	}
	return &Usage{*columns[0], *columns[1], *columns[2], *columns[3]}
}
