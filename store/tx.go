package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
)

// Tx is one transaction as a slice sees it.
type Tx struct {
	// Now is the transaction's time in Unix milliseconds. Every comparison of
	// times in it uses this one value.
	Now int64

	ctx    context.Context
	stmt   func(query string) (*sql.Stmt, error)
	exec   func(query string, args []driver.NamedValue) (driver.Result, error) // nil when reading
	args   *[]driver.NamedValue                                                // reused from statement to statement
	store  *Store
	learnt map[nameKey]int64 // names first seen in this batch; nil when reading
	err    error             // the first database error: later statements must not run outside the transaction it may have ended
}

type nameKey struct{ table, name string }

// Exec runs a statement that returns no rows and tells how many it changed.
func (tx *Tx) Exec(query string, args ...any) (changed int64, err error) {
	if tx.err != nil {
		return 0, tx.err
	}
	if tx.exec == nil {
		return 0, fmt.Errorf("writing in a read transaction: %.60q", query)
	}
	*tx.args = (*tx.args)[:0]
	for i, arg := range args {
		value, err := driver.DefaultParameterConverter.ConvertValue(arg)
		if err != nil {
			return 0, tx.fail(query, err)
		}
		*tx.args = append(*tx.args, driver.NamedValue{Ordinal: i + 1, Value: value})
	}
	result, err := tx.exec(query, *tx.args)
	if err != nil {
		return 0, tx.fail(query, err)
	}
	return result.RowsAffected()
}

// Get scans the first row of a query into dest. found is false where there is
// no row. It also serves INSERT/UPDATE/DELETE … RETURNING.
func (tx *Tx) Get(query string, args []any, dest ...any) (found bool, err error) {
	stmt, err := tx.prepare(query)
	if err != nil {
		return false, err
	}
	switch err := stmt.QueryRowContext(tx.ctx, args...).Scan(dest...); {
	case errors.Is(err, sql.ErrNoRows):
		return false, nil
	case err != nil:
		return false, tx.fail(query, err)
	}
	return true, nil
}

// Each calls row for every row of a query; row calls scan to read it. An error
// of row ends the reading and is returned.
func (tx *Tx) Each(query string, args []any, row func(scan func(dest ...any) error) error) error {
	stmt, err := tx.prepare(query)
	if err != nil {
		return err
	}
	rows, err := stmt.QueryContext(tx.ctx, args...)
	if err != nil {
		return tx.fail(query, err)
	}
	defer rows.Close()
	for rows.Next() {
		if err := row(rows.Scan); err != nil {
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return tx.fail(query, err)
	}
	return nil
}

// Try runs fn under a savepoint: an error of fn undoes fn alone and is
// returned, and the transaction goes on.
func (tx *Tx) Try(fn func(*Tx) error) error {
	failed, err := tx.savepoint("try", fn)
	if err != nil {
		return err
	}
	return failed
}

// Intern returns the id of name in a table of (id, name), adding it when it is
// new. The empty name is 0 and never stored.
func (tx *Tx) Intern(table, name string) (int64, error) {
	if name == "" {
		return 0, nil
	}
	key := nameKey{table, name}
	if id, ok := tx.store.names.GetIfPresent(key); ok {
		return id, nil
	}
	if id, ok := tx.learnt[key]; ok {
		return id, nil
	}
	var id int64
	_, err := tx.Get(`INSERT INTO `+table+` (name) VALUES ($1)
		ON CONFLICT (name) DO UPDATE SET name = excluded.name RETURNING id`, []any{name}, &id)
	if err != nil {
		return 0, fmt.Errorf("naming a %s: %w", table, err)
	}
	tx.learnt[key] = id
	return id, nil
}

// savepoint runs fn between SAVEPOINT and RELEASE. failed is fn's own error,
// err says that the whole transaction is lost.
func (tx *Tx) savepoint(name string, fn func(*Tx) error) (failed, err error) {
	if _, err := tx.Exec("SAVEPOINT " + name); err != nil {
		return nil, err
	}
	learnt := tx.learnt
	tx.learnt = map[nameKey]int64{}
	failed = guarded(tx, fn)
	fresh := tx.learnt
	tx.learnt = learnt
	if failed == nil {
		for key, id := range fresh {
			learnt[key] = id
		}
		_, err = tx.Exec("RELEASE " + name)
		return nil, err
	}
	tx.err = nil
	if _, err := tx.Exec("ROLLBACK TO " + name); err != nil {
		return nil, errors.Join(failed, err)
	}
	if _, err := tx.Exec("RELEASE " + name); err != nil {
		return nil, errors.Join(failed, err)
	}
	return failed, nil
}

// guarded turns a panic of fn into an error: one faulty caller must not end
// the writer that all of them share.
func guarded(tx *Tx, fn func(*Tx) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic in a transaction: %v", p)
		}
	}()
	if err := fn(tx); err != nil {
		return err
	}
	return tx.err // an error that fn swallowed
}

func (tx *Tx) prepare(query string) (*sql.Stmt, error) {
	if tx.err != nil {
		return nil, tx.err
	}
	stmt, err := tx.stmt(query)
	if err != nil {
		return nil, tx.fail(query, err)
	}
	return stmt, nil
}

func (tx *Tx) fail(query string, err error) error {
	tx.err = fmt.Errorf("%w: %w in %.60q", ErrUnavailable, err, query)
	return tx.err
}
