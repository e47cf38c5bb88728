package guard

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"llmproxy/store"
)

// failedRetention is how long it is remembered that nothing happened.
const failedRetention = 7 * 24 * time.Hour

// Names are looked up in subqueries: joined, the same query took twenty times
// as long in SQLite, found or not.
const (
	effectColumns = ` e.id, e.key, (SELECT s.name FROM step s WHERE s.id = e.step_id), e.state, e.mode, e.fence, e.epoch, e.lease_until, e.lease_limit,
 e.retry_at, e.confirm, e.boot, e.instance_id, e.on_unknown, e.lease, e.max_lease, e.drain, e.retention, e.tombstone,
 e.idempotent, e.duplicates, e.completed_at, e.completed_by, e.expires_at, e.tombstone_until, e.created_at, e.updated_at,
 e.fingerprint, e.resolved_by, e.reason, e.resource_id, e.status, e.header, e.truncated,
 e.instance_id <> 0 AND NOT EXISTS (SELECT 1 FROM instance i WHERE i.id = e.instance_id AND i.alive_until > $1), `

	loadSQL = `SELECT` + effectColumns + `e.body FROM effect e
WHERE e.namespace_id = (SELECT n.id FROM namespace n WHERE n.name = $2) AND e.key = $3`
	loadIDSQL = `SELECT` + effectColumns + `e.body FROM effect e WHERE e.id = $2`

	attemptsSQL = `SELECT fence, token, started_at, ended_at, outcome, closed, duplicate, resource_id, note
FROM attempt WHERE effect_id = $1 ORDER BY fence`

	insertSQL = `INSERT INTO effect (namespace_id, key, step_id, state, mode, fence, epoch, lease_until, lease_limit,
 retry_at, confirm, boot, instance_id, on_unknown, lease, max_lease, drain, retention, tombstone,
 idempotent, duplicates, completed_at, completed_by, expires_at, tombstone_until, sweep_at, created_at, updated_at,
 fingerprint, resolved_by, reason, resource_id, status, header, truncated, body)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20,
 $21, $22, $23, $24, $25, $26, $27, $28, $29, $30, $31, $32, $33, $34, $35, $36) RETURNING id`

	updateSQL = `UPDATE effect SET step_id = $1, state = $2, mode = $3, fence = $4, epoch = $5, lease_until = $6, lease_limit = $7,
 retry_at = $8, confirm = $9, boot = $10, instance_id = $11, on_unknown = $12, lease = $13, max_lease = $14, drain = $15,
 retention = $16, tombstone = $17, idempotent = $18, duplicates = $19, completed_at = $20, completed_by = $21,
 expires_at = $22, tombstone_until = $23, sweep_at = $24, created_at = $25, updated_at = $26, fingerprint = $27,
 resolved_by = $28, reason = $29, resource_id = $30, status = $31, header = $32, truncated = $33, body = $34
WHERE id = $35`

	deleteSQL = `DELETE FROM effect WHERE id = $1`

	putAttemptSQL = `INSERT INTO attempt (effect_id, fence, token, started_at, ended_at, outcome, closed, duplicate, resource_id, note)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
ON CONFLICT (effect_id, fence) DO UPDATE SET token = excluded.token, started_at = excluded.started_at, ended_at = excluded.ended_at,
 outcome = excluded.outcome, closed = excluded.closed, duplicate = excluded.duplicate, resource_id = excluded.resource_id, note = excluded.note`

	dropAttemptSQL = `DELETE FROM attempt WHERE effect_id = $1 AND fence = $2`
)

// row is a stored effect; the zero row is none.
type row struct {
	id     int64
	effect ID    // without its NS where that was not asked by
	boot   int64 // the process that granted or extended the lease last
	record Record
}

// load reads an effect with its attempts. boot is the asking process.
func load(tx *store.Tx, id ID, boot int64) (row, error) {
	r, err := loadRow(tx, boot, loadSQL, tx.Now, id.NS, id.Key[:])
	r.effect = id
	return r, err
}

func loadRow(tx *store.Tx, boot int64, query string, args ...any) (r row, err error) {
	if err := r.read(tx, boot, query, args...); err != nil || r.id == 0 {
		return row{}, err
	}
	if err := r.loadAttempts(tx); err != nil {
		return row{}, fmt.Errorf("reading an effect's attempts: %w", err)
	}
	return r, nil
}

// read reads an effect without its attempts; r.id stays 0 where there is none.
func (r *row) read(tx *store.Tx, boot int64, query string, args ...any) error {
	scan := func(dest ...any) error {
		_, err := tx.Get(query, args, dest...)
		return err
	}
	if err := r.scan(scan, boot); err != nil {
		return fmt.Errorf("reading an effect: %w", err)
	}
	return nil
}

// scan reads the columns of effectColumns.
func (r *row) scan(scan func(dest ...any) error, boot int64) error {
	var (
		rec     = &r.record
		p       = &rec.Policy
		key     []byte
		confirm int
		header  string
	)
	err := scan(&r.id, &key, &rec.Step, &rec.State, &rec.Mode, &rec.Fence, &rec.Epoch, &rec.LeaseUntil, &rec.LeaseLimit,
		&rec.RetryAt, &confirm, &r.boot, &rec.Instance, &p.OnUnknown, &p.Lease, &p.MaxLease, &p.Drain, &p.Retention, &p.Tombstone,
		&p.Idempotent, &rec.DuplicateEffects, &rec.CompletedAt, &rec.CompletedBy, &rec.ExpiresAt, &rec.TombstoneUntil, &rec.CreatedAt, &rec.UpdatedAt,
		&rec.Fingerprint, &rec.ResolvedBy, &rec.Reason, &rec.Result.ResourceID, &rec.Result.Status, &header, &rec.Result.Truncated,
		&rec.HolderGone, &rec.Result.Body)
	if err != nil || r.id == 0 {
		return err
	}
	copy(r.effect.Key[:], key)
	rec.Confirm, rec.Confirmed = confirm > 0, confirm > 1
	rec.Foreign = r.boot != boot
	if header != "" {
		if err := json.Unmarshal([]byte(header), &rec.Result.Header); err != nil {
			return fmt.Errorf("its stored header: %w", err)
		}
	}
	return nil
}

func (r *row) loadAttempts(tx *store.Tx) error {
	return tx.Each(attemptsSQL, []any{r.id}, func(scan func(...any) error) error {
		var a Attempt
		var token []byte
		err := scan(&a.Fence, &token, &a.StartedAt, &a.EndedAt, &a.Outcome, &a.Closed, &a.Duplicate, &a.ResourceID, &a.Note)
		copy(a.Token[:], token)
		r.record.Attempts = append(r.record.Attempts, a)
		return err
	})
}

// save writes what an effect has become. boot is the writing process.
func (r *row) save(tx *store.Tx, next *Record, boot int64) error {
	if err := r.saveEffect(tx, next, boot); err != nil {
		return fmt.Errorf("writing an effect: %w", err)
	}
	for _, old := range r.record.Attempts {
		if !slices.ContainsFunc(next.Attempts, func(a Attempt) bool { return a.Fence == old.Fence }) {
			if _, err := tx.Exec(dropAttemptSQL, r.id, old.Fence); err != nil {
				return fmt.Errorf("dropping an attempt: %w", err)
			}
		}
	}
	for i := range next.Attempts {
		a := &next.Attempts[i]
		if slices.Contains(r.record.Attempts, *a) {
			continue
		}
		if _, err := tx.Exec(putAttemptSQL, r.id, a.Fence, a.Token[:], a.StartedAt, a.EndedAt, int64(a.Outcome),
			bit(a.Closed), bit(a.Duplicate), a.ResourceID, a.Note); err != nil {
			return fmt.Errorf("writing an attempt: %w", err)
		}
	}
	return nil
}

func (r *row) saveEffect(tx *store.Tx, next *Record, boot int64) error {
	if next.State == Absent {
		_, err := tx.Exec(deleteSQL, r.id)
		return err
	}
	step, err := tx.Intern("step", next.Step)
	if err != nil {
		return err
	}
	if next.Foreign {
		boot = r.boot
	}
	columns, err := columnsOf(next, boot)
	if err != nil {
		return err
	}
	if r.id != 0 {
		_, err := tx.Exec(updateSQL, slices.Concat([]any{step}, columns, []any{r.id})...)
		return err
	}
	namespace, err := tx.Intern("namespace", r.effect.NS)
	if err != nil {
		return err
	}
	_, err = tx.Get(insertSQL, slices.Concat([]any{namespace, r.effect.Key[:], step}, columns), &r.id)
	return err
}

// columnsOf is a record in the order of updateSQL, from state to body.
func columnsOf(r *Record, boot int64) ([]any, error) {
	confirm := 0
	if r.Confirm {
		confirm = 1
		if r.Confirmed {
			confirm = 2
		}
	}
	var header []byte
	if r.Result.Header != nil {
		var err error
		if header, err = json.Marshal(r.Result.Header); err != nil {
			return nil, err
		}
	}
	p := &r.Policy
	return []any{int64(r.State), int64(r.Mode), r.Fence, r.Epoch, r.LeaseUntil, r.LeaseLimit,
		r.RetryAt, confirm, boot, r.Instance, int64(p.OnUnknown), p.Lease, p.MaxLease, p.Drain, p.Retention, p.Tombstone,
		bit(p.Idempotent), r.DuplicateEffects, r.CompletedAt, r.CompletedBy, r.ExpiresAt, r.TombstoneUntil, r.sweepAt(), r.CreatedAt, r.UpdatedAt,
		r.Fingerprint, r.ResolvedBy, r.Reason, r.Result.ResourceID, r.Result.Status, string(header), bit(r.Result.Truncated), r.Result.Body}, nil
}

func bit(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// sweepAt is when the sweeper has something to do: to remove, or to notice that a
// lease ended without a report; 0: never.
func (r *Record) sweepAt() int64 {
	switch {
	case r.State == Pending:
		return r.leaseEnd()
	case r.State == Failed:
		return max(r.UpdatedAt+failedRetention.Milliseconds(), r.RetryAt)
	case r.State != Completed:
		return 0
	case r.Result.available() || r.Attempts != nil:
		return r.ExpiresAt
	}
	return r.TombstoneUntil
}
