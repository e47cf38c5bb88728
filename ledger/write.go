package ledger

import "llmproxy/store"

const callColumns = `id, tenant_id, step_id, run_id, model_id, key64, endpoint, outcome, status, attempt, retry, flags,
	input, basis, resent, up_input, up_cached, up_output, up_reasoning, cost,
	avoided_input, avoided_output, avoided_cost, first_us, total_us, finish, source, correction`

const callParameters = `$1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26, $27, $28`

// A row may be written again after a commit whose answer was lost.
const insertCall = `INSERT INTO call (` + callColumns + `) VALUES (` + callParameters + `) ON CONFLICT (id) DO NOTHING`

// insertFree is insertCall for a call that cost nothing, with constants where
// its figures are zero or unknown: each parameter costs.
const insertFree = `INSERT INTO call (id, tenant_id, step_id, run_id, model_id, key64, endpoint, outcome, status, attempt, retry, flags,
	input, basis, avoided_input, avoided_output, first_us, total_us, finish, source,
	resent, up_input, up_cached, up_output, up_reasoning, cost, avoided_cost, correction)
	VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, 0, NULL, NULL, NULL, NULL, NULL, 0, 0)
	ON CONFLICT (id) DO NOTHING`

func (c *Call) freeValues(n names) []any {
	var finish any
	if c.Finish != "" {
		finish = c.Finish
	}
	return []any{c.ID, n.tenant, n.step, n.run, n.model, c.Key64, int64(c.Endpoint), int64(c.Outcome), int64(c.Status),
		c.Attempt, int64(c.Retry), int64(c.Flags), c.Input, int64(c.Basis), c.AvoidedInput, c.AvoidedOutput,
		c.First.Microseconds(), c.Total.Microseconds(), finish, c.Source}
}

func (c *Call) free() bool {
	return c.Usage == nil && c.Cost == nil && c.Resent == 0 && c.AvoidedCost == 0
}

func (c *Call) values(n names) []any {
	var usage [4]any
	if u := c.Usage; u != nil {
		usage = [4]any{u.Input, u.Cached, u.Output, u.Reasoning}
	}
	var cost, finish any
	if c.Cost != nil {
		cost = *c.Cost
	}
	if c.Finish != "" {
		finish = c.Finish
	}
	return []any{c.ID, n.tenant, n.step, n.run, n.model, c.Key64, int64(c.Endpoint), int64(c.Outcome), int64(c.Status),
		c.Attempt, int64(c.Retry), int64(c.Flags), c.Input, int64(c.Basis), c.Resent,
		usage[0], usage[1], usage[2], usage[3], cost,
		c.AvoidedInput, c.AvoidedOutput, c.AvoidedCost, c.First.Microseconds(), c.Total.Microseconds(), finish, c.Source, c.Correction}
}

// OpenCall writes the row of a call that is about to go upstream.
func OpenCall(tx *store.Tx, c *Call, instance int64) error {
	n, err := c.intern(tx)
	if err != nil {
		return err
	}
	c.Outcome = Open
	if _, err := tx.Exec(insertCall, c.values(n)...); err != nil {
		return err
	}
	if err := c.writeWork(tx); err != nil {
		return err
	}
	_, err = tx.Exec(`INSERT INTO open_call (call_id, instance_id) VALUES ($1, $2)`, c.ID, instance)
	return err
}

// writeWork notes which work a call was made for.
func (c *Call) writeWork(tx *store.Tx) error {
	work, err := tx.Intern("work", c.Work)
	if err != nil || work == 0 {
		return err
	}
	_, err = tx.Exec(`INSERT INTO work_call (call_id, work_id) VALUES ($1, $2) ON CONFLICT (call_id) DO NOTHING`, c.ID, work)
	return err
}

// KeepTree keeps the fingerprint tree of a call. It explains later misses and
// is not worth a place in the transactions that a call waits for.
func KeepTree(tx *store.Tx, c *Call) error {
	_, err := tx.Exec(`INSERT INTO fingerprint (call_id, tree) VALUES ($1, $2) ON CONFLICT (call_id) DO NOTHING`, c.ID, c.Tree)
	return err
}

const closeCall = `INSERT INTO call AS c (` + callColumns + `)
	VALUES (` + callParameters + `)
	ON CONFLICT (id) DO UPDATE SET outcome = excluded.outcome, status = excluded.status, flags = excluded.flags,
	up_input = excluded.up_input, up_cached = excluded.up_cached, up_output = excluded.up_output,
	up_reasoning = excluded.up_reasoning, cost = excluded.cost,
	first_us = excluded.first_us, total_us = excluded.total_us, finish = excluded.finish`

const closeOpen = `UPDATE call SET outcome = $1, status = $2, flags = $3, up_input = $4, up_cached = $5, up_output = $6,
	up_reasoning = $7, cost = $8, first_us = $9, total_us = $10, finish = $11 WHERE id = $12 AND outcome = 0`

// CloseCall writes how an upstream call ended. It may be repeated, it corrects
// a row that recovery has given up as lost, and it writes the whole row where
// none was opened; sums count the call once in each case.
func CloseCall(tx *store.Tx, c *Call) error {
	n, err := c.intern(tx)
	if err != nil {
		return err
	}
	v := c.values(n)
	closed, err := tx.Exec(closeOpen, v[7], v[8], v[11], v[15], v[16], v[17], v[18], v[19], v[23], v[24], v[25], c.ID)
	if err != nil {
		return err
	}
	if closed == 0 {
		if again, err := reclose(tx, c, n, v); err != nil || again {
			return err
		}
	}
	if _, err := tx.Exec(`DELETE FROM open_call WHERE call_id = $1`, c.ID); err != nil {
		return err
	}
	return addUp(tx, map[hourKey]sums{c.hourKey(n): c.sums()})
}

// reclose writes a row that is not open: it was never written, was lost, or,
// again, is closed like this already.
func reclose(tx *store.Tx, c *Call, n names, values []any) (again bool, err error) {
	earlier, err := take(tx, c.ID)
	if err != nil {
		return false, err
	}
	if earlier != nil {
		if earlier.Outcome == c.Outcome {
			return true, nil
		}
		if err := addUp(tx, map[hourKey]sums{earlier.hourKey(n): earlier.sums().times(-1)}); err != nil {
			return false, err
		}
	}
	_, err = tx.Exec(closeCall, values...)
	return false, err
}

// take reads what the sums of a stored row were made of.
func take(tx *store.Tx, id int64) (*Call, error) {
	c := &Call{ID: id}
	var usage [4]*int64
	var totalUS int64
	found, err := tx.Get(`SELECT outcome, attempt, flags, input, resent, up_input, up_cached, up_output, up_reasoning, cost, total_us
		FROM call WHERE id = $1`, []any{id}, &c.Outcome, &c.Attempt, &c.Flags, &c.Input, &c.Resent,
		&usage[0], &usage[1], &usage[2], &usage[3], &c.Cost, &totalUS)
	if err != nil || !found {
		return nil, err
	}
	if usage[0] != nil {
		c.Usage = &Usage{*usage[0], *usage[1], *usage[2], *usage[3]}
	}
	c.Total = microseconds(totalUS)
	return c, nil
}

// Write adds finished calls. One row a statement is the fastest here: SQLite
// takes longer over a statement with many rows than over many statements.
func Write(tx *store.Tx, calls []*Call) error {
	byHour := map[hourKey]sums{}
	var n names
	for i, c := range calls {
		var err error
		if i == 0 || !c.namedLike(calls[i-1]) {
			if n, err = c.intern(tx); err != nil {
				return err
			}
		}
		if c.free() {
			_, err = tx.Exec(insertFree, c.freeValues(n)...)
		} else {
			_, err = tx.Exec(insertCall, c.values(n)...)
		}
		if err == nil {
			err = c.writeWork(tx)
		}
		if err != nil {
			return err
		}
		key := c.hourKey(n)
		byHour[key] = byHour[key].plus(c.sums())
	}
	return addUp(tx, byHour)
}

// LoseAll closes the open calls of a dead instance as lost, their counted input
// as used, and returns their ids.
func LoseAll(tx *store.Tx, instance int64) (ids []int64, err error) {
	err = tx.Each(`SELECT call_id FROM open_call WHERE instance_id = $1`, []any{instance}, func(scan func(...any) error) error {
		var id int64
		if err := scan(&id); err != nil {
			return err
		}
		ids = append(ids, id)
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		if err := lose(tx, id); err != nil {
			return nil, err
		}
	}
	return ids, nil
}

func lose(tx *store.Tx, id int64) error {
	var n names
	c, err := take(tx, id)
	if err != nil || c == nil {
		return err
	}
	if _, err := tx.Get(`UPDATE call SET outcome = $1, up_input = input, up_cached = 0, up_output = 0, up_reasoning = 0, finish = 'lost'
		WHERE id = $2 RETURNING tenant_id, step_id, run_id, model_id`, []any{int64(Lost), id}, &n.tenant, &n.step, &n.run, &n.model); err != nil {
		return err
	}
	if _, err := tx.Exec(`DELETE FROM open_call WHERE call_id = $1`, id); err != nil {
		return err
	}
	c.Outcome, c.Usage = Lost, &Usage{Input: c.Input}
	return addUp(tx, map[hourKey]sums{c.hourKey(n): c.sums()})
}

// Withdraw takes back the row of a call that was opened and then not made.
func Withdraw(tx *store.Tx, id int64) error {
	for _, query := range []string{
		`DELETE FROM open_call WHERE call_id = $1`,
		`DELETE FROM fingerprint WHERE call_id = $1`,
		`DELETE FROM work_call WHERE call_id = $1`,
		`DELETE FROM call WHERE id = $1 AND outcome = 0`,
	} {
		if _, err := tx.Exec(query, id); err != nil {
			return err
		}
	}
	return nil
}

// ForgetTrees drops up to limit fingerprint trees of calls before an id and
// tells how many: they explain misses and fill the memory of runs, and both
// only matter for a while.
func ForgetTrees(tx *store.Tx, beforeID, limit int64) (n int64, err error) {
	return tx.Exec(`DELETE FROM fingerprint WHERE call_id IN (SELECT call_id FROM fingerprint WHERE call_id < $1 ORDER BY call_id LIMIT $2)`, beforeID, limit)
}

// Known tells whether a call has a row.
func Known(tx *store.Tx, id int64) (bool, error) {
	return tx.Get(`SELECT id FROM call WHERE id = $1`, []any{id}, &id)
}

// Attempts counts the calls for a key that were not served from another's
// answer.
func Attempts(tx *store.Tx, key64 int64) (n int64, err error) {
	_, err = tx.Get(`SELECT count(*) FROM call WHERE key64 = $1 AND key64 <> 0 AND outcome NOT IN (2, 3)`, []any{key64}, &n)
	return n, err
}

// Refreshes counts the calls for a key since a time that asked for a fresh
// answer and got one.
func Refreshes(tx *store.Tx, key64 int64, sinceID int64) (n int64, err error) {
	_, err = tx.Get(`SELECT count(*) FROM call WHERE key64 = $1 AND key64 <> 0 AND outcome NOT IN (2, 3) AND id >= $2 AND flags & $3 <> 0`,
		[]any{key64, sinceID, int64(Refreshed | Rejected)}, &n)
	return n, err
}
