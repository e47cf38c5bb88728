// Package store keeps everything llmproxy remembers in one SQL database and
// knows no domain word: the slices (cache, budget, ledger) own their SQL, the
// store owns the transactions it runs in.
//
// The model: one writer, many readers.
//
//   - [Store.Update] hands a function to the single writer. The writer takes
//     whatever is queued into one transaction, commits with full durability,
//     and only then answers every caller. A function that fails undoes itself
//     alone. This is group commit: under load the cost of a commit is shared,
//     alone it is not delayed, because the writer never lingers.
//   - [Store.View] reads in a short snapshot from a pool. Readers never block
//     the writer and are never blocked by it.
//
// All SQL is written once: parameters are $1, $2, … in ascending order of
// appearance (SQLite numbers them by appearance), times are Unix milliseconds.
// Each transaction carries one time, [Tx.Now]; SQL never asks for its own.
package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/maypok86/otter/v2"
)

// ErrUnavailable is wrapped by every error that means the database could not
// be read or written: locked by another program, full disk, closed.
var ErrUnavailable = errors.New("store unavailable")

const (
	queueLength = 1024
	maxBatch    = 512
	namesCached = 16384
)

// Options of a store. The zero value is what production uses.
type Options struct {
	// BusyTimeout is how long a write waits for another program's lock.
	// Zero means 5 s.
	BusyTimeout time.Duration
	// AroundCommit, if set, stands around each commit of a batch. Tests use it
	// to make commits fail before or after they were applied.
	AroundCommit func(commit func() error) error
}

// Store is an open database. It is safe for concurrent use.
type Store struct {
	path   string
	opts   Options
	writer *sql.DB
	conn   *sql.Conn // the writer's only connection; used by the writer goroutine alone
	reader *sql.DB
	views  chan struct{} // has a place for each View that may run
	gate   sync.RWMutex  // held for reading by every View, for writing by a WAL truncation

	mu      sync.RWMutex // guards closed against sends on jobs
	closed  bool
	jobs    chan *job
	done    chan struct{} // closed when the writer has ended
	stop    chan struct{} // closed to end the maintenance goroutine
	tending sync.WaitGroup

	writeStmts map[string]*sql.Stmt              // query → statement on conn; writer goroutine only
	execStmts  map[string]driver.StmtExecContext // the same for statements that return no rows
	careful    int                               // batches whose jobs are still kept apart; writer goroutine only
	readStmts  sync.Map                          // query → *sql.Stmt on reader
	names      *otter.Cache[nameKey, int64]
}

type job struct {
	fn   func(*Tx) error
	done chan error
}

// Update runs fn in the next write transaction and returns when that is
// durable. An error of fn undoes fn alone and is returned as it is. An error of
// the database wraps [ErrUnavailable]; what fn wrote is then undone as well,
// except where the commit itself was interrupted, whose outcome is unknown.
//
// ctx bounds only the wait for a place in the queue: once taken, fn runs and
// commits whatever becomes of the caller, so a client that leaves can neither
// interrupt nor lose a write. fn must not block and must not use the store. It
// may run twice, the first run undone: what it assigns outside, it must assign
// anew each time.
func (s *Store) Update(ctx context.Context, fn func(*Tx) error) error {
	j := &job{fn: fn, done: make(chan error, 1)}
	s.mu.RLock()
	if s.closed {
		s.mu.RUnlock()
		return fmt.Errorf("%w: closed", ErrUnavailable)
	}
	select {
	case s.jobs <- j:
		s.mu.RUnlock()
		return <-j.done
	case <-ctx.Done():
		s.mu.RUnlock()
		return fmt.Errorf("waiting for the writer: %w", context.Cause(ctx))
	}
}

// View runs fn in a read-only snapshot. Keep it short: a long snapshot stops
// the write-ahead log from being folded back into the file.
func (s *Store) View(ctx context.Context, fn func(*Tx) error) error {
	leave, err := s.enterView(ctx)
	if err != nil {
		return err
	}
	defer leave()
	stx, err := s.reader.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return fmt.Errorf("%w: beginning a read: %w", ErrUnavailable, err)
	}
	defer stx.Rollback() //nolint:errcheck // a read has nothing to lose
	return fn(&Tx{ctx: ctx, Now: nowMillis(), stmt: func(query string) (*sql.Stmt, error) {
		stmt, err := s.readStmt(query)
		if err != nil {
			return nil, err
		}
		return stx.StmtContext(ctx, stmt), nil
	}, store: s})
}

// Look is a View for one question: each query sees the state of its own moment,
// and the transaction around them is saved, which costs more than the query.
func (s *Store) Look(ctx context.Context, fn func(*Tx) error) error {
	leave, err := s.enterView(ctx)
	if err != nil {
		return err
	}
	defer leave()
	return fn(&Tx{ctx: ctx, Now: nowMillis(), stmt: s.readStmt, store: s})
}

// enterView takes a place among the readers, until leave is called.
func (s *Store) enterView(ctx context.Context) (leave func(), err error) {
	select {
	case s.views <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("waiting to read: %w", context.Cause(ctx))
	}
	s.gate.RLock()
	return func() {
		s.gate.RUnlock()
		<-s.views
	}, nil
}

// Path is the database file.
func (s *Store) Path() string { return s.path }

func (s *Store) readStmt(query string) (*sql.Stmt, error) {
	if stmt, ok := s.readStmts.Load(query); ok {
		return stmt.(*sql.Stmt), nil
	}
	stmt, err := s.reader.Prepare(query)
	if err != nil {
		return nil, err
	}
	if earlier, loaded := s.readStmts.LoadOrStore(query, stmt); loaded {
		stmt.Close()
		return earlier.(*sql.Stmt), nil
	}
	return stmt, nil
}

// write is the writer goroutine: it owns conn and ends when jobs is closed.
func (s *Store) write() {
	defer close(s.done)
	batch := make([]*job, 0, maxBatch)
	for j := range s.jobs {
		// Callers that the last commit woke are about to queue again: letting
		// them run first makes larger batches at no cost in latency.
		runtime.Gosched()
		batch = append(batch[:0], j)
	fill:
		for len(batch) < maxBatch {
			select {
			case j, ok := <-s.jobs:
				if !ok {
					break fill
				}
				batch = append(batch, j)
			default:
				break fill
			}
		}
		s.commitBatch(batch)
	}
}

// commitBatch runs the batch in one transaction and answers every job in it.
func (s *Store) commitBatch(batch []*job) {
	errs, err := s.runBatch(batch)
	for i, j := range batch {
		if err != nil {
			j.done <- fmt.Errorf("%w: %w", ErrUnavailable, err)
		} else {
			j.done <- errs[i]
		}
		batch[i] = nil
	}
}

// careful is for how many batches each job has a savepoint of its own, after
// one has failed among others. Savepoints cost a copy of every page that a job
// changes, and few jobs fail.
const careful = 64

// runBatch returns each job's own error, or the error that undid them all. Jobs
// run together at first; where one of them fails, all are undone and run again,
// each apart from the others.
func (s *Store) runBatch(batch []*job) (errs []error, err error) {
	if s.careful == 0 || len(batch) == 1 {
		errs, err = s.transact(batch, false)
		if err != nil || len(batch) == 1 || errors.Join(errs...) == nil {
			return errs, err
		}
		s.careful = careful
	}
	s.careful--
	return s.transact(batch, true)
}

// transact runs the batch in one transaction, with apart each job under a
// savepoint. Without, the first job that fails undoes the transaction and is
// the last to run.
func (s *Store) transact(batch []*job, apart bool) (errs []error, err error) {
	if err := s.exec("BEGIN IMMEDIATE"); err != nil {
		return nil, fmt.Errorf("beginning a write: %w", err)
	}
	defer func() {
		if err != nil {
			s.exec("ROLLBACK") //nolint:errcheck // fails only where SQLite has rolled back by itself
		}
	}()
	now := nowMillis()
	errs = make([]error, len(batch))
	learnt := map[nameKey]int64{}
	args := new([]driver.NamedValue)
	for i, j := range batch {
		tx := &Tx{ctx: context.Background(), Now: now, stmt: s.writeStmt, exec: s.execArgs, store: s, learnt: learnt, args: args}
		if apart {
			if errs[i], err = tx.savepoint("unit", j.fn); err != nil {
				return nil, err
			}
		} else if errs[i] = guarded(tx, j.fn); errs[i] != nil {
			return errs, s.exec("ROLLBACK")
		}
	}
	commit := func() error { return s.exec("COMMIT") }
	if s.opts.AroundCommit != nil {
		err = s.opts.AroundCommit(commit)
	} else {
		err = commit()
	}
	if err != nil {
		return nil, fmt.Errorf("committing: %w", err)
	}
	for key, id := range learnt {
		s.names.Set(key, id)
	}
	return errs, nil
}

func (s *Store) exec(query string) error {
	_, err := s.execArgs(query, nil)
	return err
}

// execArgs runs a statement without rows by the driver itself: database/sql's
// way to it costs a quarter of a small insert. Only the writer goroutine uses
// conn, so nothing else can be at work on it.
func (s *Store) execArgs(query string, args []driver.NamedValue) (driver.Result, error) {
	stmt, ok := s.execStmts[query]
	if !ok {
		err := s.conn.Raw(func(conn any) error {
			prepared, err := conn.(driver.ConnPrepareContext).PrepareContext(context.Background(), query)
			if err == nil {
				stmt = prepared.(driver.StmtExecContext)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		s.execStmts[query] = stmt
	}
	return stmt.ExecContext(context.Background(), args)
}

func (s *Store) writeStmt(query string) (*sql.Stmt, error) {
	if stmt, ok := s.writeStmts[query]; ok {
		return stmt, nil
	}
	stmt, err := s.conn.PrepareContext(context.Background(), query)
	if err != nil {
		return nil, err
	}
	s.writeStmts[query] = stmt
	return stmt, nil
}

// Close lets queued writes finish, folds the log into the file and closes it.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	close(s.jobs)
	close(s.stop)
	s.mu.Unlock()
	<-s.done
	s.tending.Wait()
	err := s.reader.Close()
	for _, stmt := range s.writeStmts {
		stmt.Close()
	}
	for _, stmt := range s.execStmts {
		err = errors.Join(err, stmt.(driver.Stmt).Close())
	}
	return errors.Join(err, s.conn.Close(), s.writer.Close())
}

func nowMillis() int64 { return time.Now().UnixMilli() }
