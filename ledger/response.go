package ledger

import (
	"crypto/sha256"

	"llmproxy/store"
)

// responseKey names a response that an upstream keeps: its tenant's, so that
// nobody learns from another's ids.
func responseKey(tenant, id string) []byte {
	sum := sha256.Sum256([]byte(tenant + "\x00" + id))
	return sum[:16]
}

// KeepResponse writes down how many tokens a response carries into a call that
// goes on from it by its id.
func KeepResponse(tx *store.Tx, tenant, id string, call, tokens int64) error {
	_, err := tx.Exec(`INSERT INTO response (id, call_id, tokens) VALUES ($1, $2, $3) ON CONFLICT (id) DO NOTHING`,
		responseKey(tenant, id), call, tokens)
	return err
}

// ResponseTokens is what KeepResponse has written of a response; found is false
// for one that was not made through this database.
func ResponseTokens(tx *store.Tx, tenant, id string) (tokens int64, found bool, err error) {
	found, err = tx.Get(`SELECT tokens FROM response WHERE id = $1`, []any{responseKey(tenant, id)}, &tokens)
	return tokens, found, err
}

// ForgetResponses drops up to limit responses of calls before an id and tells
// how many: upstreams keep them for a month.
func ForgetResponses(tx *store.Tx, beforeID, limit int64) (n int64, err error) {
	return tx.Exec(`DELETE FROM response WHERE id IN (SELECT id FROM response WHERE call_id < $1 LIMIT $2)`, beforeID, limit)
}
