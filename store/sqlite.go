package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/mattn/go-sqlite3"
	"github.com/maypok86/otter/v2"
)

const (
	// oldestSQLite is the first version without the bug that could lose
	// commits when one connection reset the log while another wrote to it.
	oldestSQLite    = 3_051_003
	applicationID   = 0x4c4c4d50 // "LLMP": tells our files from other programs'
	walTruncateSize = 32 << 20
	walCheckEvery   = time.Second
)

// Open opens the database, creating or migrating it as needed. dsn is a file's
// path; the file is made with mode 0600, a missing folder with 0700.
func Open(ctx context.Context, dsn string, opts Options) (*Store, error) {
	if strings.Contains(dsn, "://") {
		return nil, fmt.Errorf("database %q: only a file's path is served by this version", redactURL(dsn))
	}
	if _, number, _ := sqlite3.Version(); number < oldestSQLite {
		return nil, fmt.Errorf("SQLite %d.%d.%d can lose commits; build with 3.51.3 or newer", number/1e6, number/1e3%1e3, number%1e3)
	}
	if opts.BusyTimeout == 0 {
		opts.BusyTimeout = 5 * time.Second
	}
	path, err := filepath.Abs(dsn)
	if err != nil {
		return nil, err
	}
	if err := prepareFile(path); err != nil {
		return nil, fmt.Errorf("database %s: %w", dsn, err)
	}
	s := &Store{
		path: path, opts: opts,
		jobs: make(chan *job, queueLength), done: make(chan struct{}), stop: make(chan struct{}),
		writeStmts: map[string]*sql.Stmt{}, execStmts: map[string]driver.StmtExecContext{},
		names: otter.Must(&otter.Options[nameKey, int64]{MaximumSize: namesCached}),
	}
	if err := s.connect(ctx); err != nil {
		return nil, fmt.Errorf("database %s: %w", dsn, explain(err))
	}
	go s.write()
	s.tending.Go(s.tend)
	return s, nil
}

// OpenReader opens an existing database for reading only, beside a running
// server or without one. Update fails on it.
func OpenReader(ctx context.Context, dsn string) (*Store, error) {
	if _, err := os.Stat(dsn); err != nil {
		return nil, fmt.Errorf("database %s: %w (has the server run with this configuration?)", dsn, err)
	}
	s := &Store{path: dsn, closed: true, done: make(chan struct{}), stop: make(chan struct{})}
	s.names = otter.Must(&otter.Options[nameKey, int64]{MaximumSize: namesCached})
	s.opts.BusyTimeout = 5 * time.Second
	var err error
	if s.reader, err = s.openReaders(); err != nil {
		return nil, err
	}
	var version int
	if err := s.reader.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		s.reader.Close()
		return nil, fmt.Errorf("database %s: %w", dsn, explain(err))
	}
	if version != len(migrations) {
		s.reader.Close()
		return nil, fmt.Errorf("database %s has schema %d, this program reads %d: use the server's version of llmproxy", dsn, version, len(migrations))
	}
	return s, nil
}

// CloseReader closes what OpenReader opened.
func (s *Store) CloseReader() error { return s.reader.Close() }

func (s *Store) connect(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			for _, db := range []*sql.DB{s.writer, s.reader} {
				if db != nil {
					db.Close()
				}
			}
		}
	}()
	if s.writer, err = sql.Open("sqlite3", s.sqliteDSN("_txlock=immediate&_cache_size=-8000")); err != nil {
		return err
	}
	s.writer.SetMaxOpenConns(1)
	if s.conn, err = s.writer.Conn(ctx); err != nil {
		return err
	}
	if err = initialise(ctx, s.conn); err != nil {
		return err
	}
	if err = migrate(ctx, s.conn, s.path); err != nil {
		return err
	}
	s.reader, err = s.openReaders()
	return err
}

func (s *Store) openReaders() (*sql.DB, error) {
	db, err := sql.Open("sqlite3", s.sqliteDSN("_query_only=1"))
	if err != nil {
		return nil, err
	}
	n := min(16, max(4, 2*runtime.GOMAXPROCS(0)))
	s.views = make(chan struct{}, n)
	// One more than Views can hold: a new statement is prepared on a connection
	// of its own, and must not wait for Views that wait for the same.
	db.SetMaxOpenConns(n + 1)
	db.SetMaxIdleConns(n + 1)
	return db, nil
}

// sqliteDSN puts the settings into the DSN, so that they hold on each
// connection of a pool.
func (s *Store) sqliteDSN(more string) string {
	return fmt.Sprintf("file:%s?_busy_timeout=%d&_synchronous=FULL&%s",
		(&url.URL{Path: s.path}).EscapedPath(), s.opts.BusyTimeout.Milliseconds(), more)
}

// initialise sets what is fixed at a file's creation, what belongs to the one
// writing connection, and refuses a file that is another program's.
func initialise(ctx context.Context, conn *sql.Conn) error {
	// A file without tables is new, or another process is just making it, or died
	// at that. It has our id before it has tables: they are counted first.
	var id, tables int64
	if err := conn.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_schema").Scan(&tables); err != nil {
		return err
	}
	if err := conn.QueryRowContext(ctx, "PRAGMA application_id").Scan(&id); err != nil {
		return err
	}
	if id != applicationID && tables > 0 {
		return errors.New("this SQLite file belongs to another program; name a new file under `database:`")
	}
	if id != applicationID {
		_, err := conn.ExecContext(ctx, fmt.Sprintf(
			"PRAGMA page_size=8192; PRAGMA auto_vacuum=INCREMENTAL; PRAGMA application_id=%d", applicationID))
		if err != nil {
			return err
		}
	}
	_, err := conn.ExecContext(ctx, `PRAGMA journal_mode=WAL; PRAGMA wal_autocheckpoint=4000; PRAGMA journal_size_limit=67108864; PRAGMA temp_store=MEMORY`)
	return err
}

func prepareFile(path string) error {
	folder := filepath.Dir(path)
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	if err := refuseNetworkFolder(folder); err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	return file.Close()
}

// explain adds what a person can do to errors that SQLite words tersely.
func explain(err error) error {
	var se sqlite3.Error
	if !errors.As(err, &se) {
		return err
	}
	switch se.Code {
	case sqlite3.ErrNotADB:
		return fmt.Errorf("%w: the file is damaged or no SQLite database; move it away or restore a backup", err)
	case sqlite3.ErrBusy, sqlite3.ErrLocked:
		return fmt.Errorf("%w: another program holds a write lock; close it and start again", err)
	}
	return err
}

func redactURL(dsn string) string {
	if u, err := url.Parse(dsn); err == nil {
		return u.Redacted()
	}
	return "…"
}

// tend keeps the write-ahead log short. Overlapping readers can stop every
// automatic checkpoint, so above walTruncateSize new readers are held back for
// one truncating checkpoint.
func (s *Store) tend() {
	ticker := time.NewTicker(walCheckEvery)
	defer ticker.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-ticker.C:
		}
		if info, err := os.Stat(s.path + "-wal"); err == nil && info.Size() > walTruncateSize {
			s.truncateLog()
		}
	}
}

func (s *Store) truncateLog() {
	s.gate.Lock()
	defer s.gate.Unlock()
	// A reader of another process can still make this report busy; the next
	// tick tries again. The writer's own connection may be in a transaction, so
	// the checkpoint uses a connection of its own.
	var busy, pages, moved int
	row := s.reader.QueryRow("PRAGMA wal_checkpoint(TRUNCATE)")
	_ = row.Scan(&busy, &pages, &moved)
}

// Vacuum gives up to pages free pages back to the file system, after deletes.
func (s *Store) Vacuum(ctx context.Context, pages int) error {
	return s.Update(ctx, func(tx *Tx) error {
		// Exec would step once and free one page.
		return tx.Each(fmt.Sprintf("PRAGMA incremental_vacuum(%d)", pages), nil,
			func(func(...any) error) error { return nil })
	})
}
