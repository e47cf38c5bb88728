package cache

import "llmproxy/store"

// Lease is the exclusive right of one process to call upstream for a key. Its
// fence is the leading call's id, which grows with time, so that a late settle
// can be told from a newer one.
type Lease struct {
	Fence       int64
	Instance    int64
	Fingerprint *Key // the body's own key, where the key is explicit
	Live        bool // the instance is alive; a lease that is not is free
}

const takeLease = `INSERT INTO lease (key, fence, instance_id, fingerprint) VALUES ($1, $2, $3, $4)
	ON CONFLICT (key) DO NOTHING`

const readLease = `SELECT l.fence, l.instance_id, l.fingerprint, coalesce(i.alive_until, 0)
	FROM lease l LEFT JOIN instance i ON i.id = l.instance_id WHERE l.key = $1`

// Acquire takes the lease of a key where nobody has it; otherwise it returns
// the lease that stands in the way.
func Acquire(tx *store.Tx, key Key, mine Lease) (standing *Lease, err error) {
	got, err := tx.Exec(takeLease, key[:], mine.Fence, mine.Instance, keyBytes(mine.Fingerprint))
	if err != nil || got == 1 {
		return nil, err
	}
	return Holder(tx, key)
}

// Holder returns the lease of a key, nil where there is none.
func Holder(tx *store.Tx, key Key) (*Lease, error) {
	var (
		l           Lease
		fingerprint []byte
		aliveUntil  int64
	)
	found, err := tx.Get(readLease, []any{key[:]}, &l.Fence, &l.Instance, &fingerprint, &aliveUntil)
	if err != nil || !found {
		return nil, err
	}
	if len(fingerprint) == len(Key{}) {
		l.Fingerprint = (*Key)(fingerprint)
	}
	l.Live = aliveUntil > tx.Now
	return &l, nil
}

// Release gives up a lease that still has the given fence.
func Release(tx *store.Tx, key Key, fence int64) error {
	_, err := tx.Exec(`DELETE FROM lease WHERE key = $1 AND fence = $2`, key[:], fence)
	return err
}

// ReleaseAll frees the leases of a dead instance.
func ReleaseAll(tx *store.Tx, instance int64) error {
	_, err := tx.Exec(`DELETE FROM lease WHERE instance_id = $1`, instance)
	return err
}
