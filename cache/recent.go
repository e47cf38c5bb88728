package cache

import "llmproxy/store"

// latestEntries bounds how many entries a question about the latest ones reads.
const latestEntries = 5000

// Answered names a stored answer and the call that made it.
type Answered struct {
	Key  Key
	Call int64
}

// Recent lists the latest stored answers of a tenant's step, the latest first, at
// most limit. It looks among the latest of all answers only, so that its work is
// bounded.
func Recent(tx *store.Tx, tenant, step string, limit int) (recent []Answered, err error) {
	const query = `SELECT key, fence FROM (SELECT id, key, fence, tenant_id, step_id FROM entry ORDER BY id DESC LIMIT $1)
		WHERE tenant_id = (SELECT id FROM tenant WHERE name = $2) AND step_id = (SELECT id FROM step WHERE name = $3)
		ORDER BY id DESC LIMIT $4`
	err = tx.Each(query, []any{latestEntries, tenant, step, limit}, func(scan func(...any) error) error {
		var a Answered
		var key []byte
		if err := scan(&key, &a.Call); err != nil {
			return err
		}
		copy(a.Key[:], key)
		recent = append(recent, a)
		return nil
	})
	return recent, err
}

// Models lists the models that a tenant's latest answers are of, by name. It
// looks where Recent does.
func Models(tx *store.Tx, tenant string) (names []string, err error) {
	const query = `SELECT name FROM model WHERE id IN (
		SELECT model_id FROM (SELECT tenant_id, model_id FROM entry ORDER BY id DESC LIMIT $1)
		WHERE tenant_id = (SELECT id FROM tenant WHERE name = $2)) ORDER BY name`
	err = tx.Each(query, []any{latestEntries, tenant}, func(scan func(...any) error) error {
		var name string
		err := scan(&name)
		names = append(names, name)
		return err
	})
	return names, err
}
