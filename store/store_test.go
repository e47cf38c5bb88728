package store_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"llmproxy/store"
	"llmproxy/store/storetest"
)

func put(name string) func(*store.Tx) error {
	return func(tx *store.Tx) error {
		_, err := tx.Exec("INSERT INTO setting (name, value) VALUES ($1, $2)", name, []byte(name))
		return err
	}
}

func count(t *testing.T, s *store.Store) (n int) {
	t.Helper()
	err := s.View(t.Context(), func(tx *store.Tx) error {
		_, err := tx.Get("SELECT count(*) FROM setting", nil, &n)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestUpdatesOfManyCallersAllCommit(t *testing.T) {
	s := storetest.New(t)
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			if err := s.Update(t.Context(), put(strings.Repeat("x", i+1))); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := count(t, s); got != 200 {
		t.Fatalf("%d rows, want 200", got)
	}
}

func TestAFailingUnitUndoesItselfAlone(t *testing.T) {
	s := storetest.New(t)
	sentinel := errors.New("no")
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			err := s.Update(t.Context(), func(tx *store.Tx) error {
				if err := put(strings.Repeat("y", i+1))(tx); err != nil {
					return err
				}
				switch i % 3 {
				case 0:
					return sentinel
				case 1:
					panic("a faulty caller")
				}
				return nil
			})
			if (err == nil) != (i%3 == 2) {
				t.Errorf("unit %d: %v", i, err)
			}
			if i%3 == 0 && !errors.Is(err, sentinel) {
				t.Errorf("unit %d: %v, want its own error", i, err)
			}
		})
	}
	wg.Wait()
	if got := count(t, s); got != 16 {
		t.Fatalf("%d rows, want the 16 that did not fail", got)
	}
}

func TestASwallowedDatabaseErrorStillFailsItsUnit(t *testing.T) {
	s := storetest.New(t)
	err := s.Update(t.Context(), func(tx *store.Tx) error {
		put("a")(tx)
		put("a")(tx) // violates the primary key; the error is dropped
		put("b")(tx)
		return nil
	})
	if !errors.Is(err, store.ErrUnavailable) {
		t.Fatalf("got %v", err)
	}
	if got := count(t, s); got != 0 {
		t.Fatalf("%d rows of a failed unit", got)
	}
}

func TestTryUndoesItsPartOnly(t *testing.T) {
	s := storetest.New(t)
	err := s.Update(t.Context(), func(tx *store.Tx) error {
		if err := put("kept")(tx); err != nil {
			return err
		}
		if err := tx.Try(func(tx *store.Tx) error {
			put("undone")(tx)
			return errors.New("no")
		}); err == nil {
			t.Error("Try hid its error")
		}
		return put("also kept")(tx)
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := count(t, s); got != 2 {
		t.Fatalf("%d rows, want 2", got)
	}
}

func TestInternedNamesSurviveOnlyWithTheirUnit(t *testing.T) {
	s := storetest.New(t)
	intern := func(fail bool) (id int64) {
		err := s.Update(t.Context(), func(tx *store.Tx) (err error) {
			if id, err = tx.Intern("step", "draft"); err == nil && fail {
				err = errors.New("no")
			}
			return err
		})
		if (err != nil) != fail {
			t.Fatal(err)
		}
		return id
	}
	intern(true)
	first, second := intern(false), intern(false)
	if first == 0 || first != second {
		t.Fatalf("ids %d and %d for one name", first, second)
	}
}

func TestACommitThatFails(t *testing.T) {
	for _, applied := range []bool{false, true} {
		failing := true
		path := filepath.Join(t.TempDir(), "x.db")
		s := storetest.Open(t, path, store.Options{AroundCommit: func(commit func() error) error {
			if failing && applied {
				return errors.Join(commit(), errors.New("answer lost"))
			} else if failing {
				return errors.New("disk gone")
			}
			return commit()
		}})
		if err := s.Update(t.Context(), put("a")); !errors.Is(err, store.ErrUnavailable) {
			t.Fatalf("got %v", err)
		}
		failing = false
		if err := s.Update(t.Context(), put("b")); err != nil {
			t.Fatalf("after the fault: %v", err)
		}
		want := 1
		if applied {
			want = 2
		}
		if got := count(t, s); got != want {
			t.Errorf("applied=%v: %d rows, want %d", applied, got, want)
		}
	}
}

func TestWhatIsRefusedAtOpen(t *testing.T) {
	dir := t.TempDir()
	foreign := filepath.Join(dir, "foreign.db")
	db, err := sql.Open("sqlite3", foreign)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec("CREATE TABLE t (x); PRAGMA user_version = 7"); err != nil {
		t.Fatal(err)
	}
	db.Close()
	garbage := filepath.Join(dir, "garbage.db")
	if err := os.WriteFile(garbage, []byte(strings.Repeat("not a database ", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	newer := filepath.Join(dir, "newer.db")
	s, err := store.Open(t.Context(), newer, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	if db, err = sql.Open("sqlite3", newer); err == nil {
		_, err = db.Exec("PRAGMA user_version = 999")
	}
	if err != nil {
		t.Fatal(err)
	}
	db.Close()
	for path, want := range map[string]string{
		foreign:               "belongs to another program",
		garbage:               "damaged or no SQLite database",
		newer:                 "use the newer llmproxy",
		"postgres://u:pw@h/d": "only a file's path",
	} {
		if _, err := store.Open(t.Context(), path, store.Options{}); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "pw@") {
			t.Errorf("%s: %v, want %q", filepath.Base(path), err, want)
		}
	}
}

// TestOpenFinishesAHalfMadeFile: a process that died while it made the file
// must not make it unusable.
func TestOpenFinishesAHalfMadeFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "half.db")
	db, err := sql.Open("sqlite3", "file:"+path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec("PRAGMA page_size=8192; PRAGMA auto_vacuum=INCREMENTAL"); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Size() == 0 {
		t.Fatalf("the file has nothing in it: %v, %v", info, err)
	}
	s, err := store.Open(t.Context(), path, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestFileIsPrivateAndReopens(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new folder", "x.db")
	s, err := store.Open(t.Context(), path, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Update(t.Context(), put("a")); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]os.FileMode{path: 0o600, path + "-wal": 0o600, filepath.Dir(path): 0o700} {
		if info, err := os.Stat(name); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v %v, want %o", name, info.Mode(), err, want)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Update(t.Context(), put("late")); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("a write after Close: %v", err)
	}
	if got := count(t, storetest.Open(t, path, store.Options{})); got != 1 {
		t.Errorf("%d rows after reopening", got)
	}
}

func TestAForeignWriteLockIsWaitedForThenReported(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	s := storetest.Open(t, path, store.Options{BusyTimeout: 50e6})
	shell, err := sql.Open("sqlite3", path+"?_txlock=immediate")
	if err != nil {
		t.Fatal(err)
	}
	defer shell.Close()
	lock, err := shell.Begin()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Update(t.Context(), put("a")); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("under a foreign lock: %v", err)
	}
	if got := count(t, s); got != 0 { // readers are not blocked
		t.Errorf("%d rows", got)
	}
	lock.Rollback()
	if err := s.Update(t.Context(), put("a")); err != nil {
		t.Errorf("after the lock: %v", err)
	}
}

func TestUpdateDoesNotQueueForAGoneCaller(t *testing.T) {
	s := storetest.New(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	// The queue has room, so the write may still be taken: either outcome is
	// right, but it must be told truthfully.
	err := s.Update(ctx, put("a"))
	if got := count(t, s); (err == nil) != (got == 1) {
		t.Errorf("error %v with %d rows", err, got)
	}
}

// TestManyReadersCanAskNewQueries has as many snapshots open as there may be, and
// each then asks what nobody has asked before.
func TestManyReadersCanAskNewQueries(t *testing.T) {
	s := storetest.New(t)
	readers := min(16, max(4, 2*runtime.GOMAXPROCS(0)))
	var begun, done sync.WaitGroup
	begun.Add(readers)
	for i := range readers {
		done.Go(func() {
			err := s.View(t.Context(), func(tx *store.Tx) error {
				begun.Done()
				begun.Wait()
				_, err := tx.Get(fmt.Sprintf("SELECT count(*) + %d FROM setting", i), nil, new(int))
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	finished := make(chan struct{})
	go func() { done.Wait(); close(finished) }()
	select {
	case <-finished:
	case <-time.After(20 * time.Second):
		t.Fatal("the readers wait for one another")
	}
}

// BenchmarkGroupCommit compares one commit a call with what many callers share.
func BenchmarkGroupCommit(b *testing.B) {
	for name, parallelism := range map[string]int{"callers=1": 0, "callers=256": 128} {
		b.Run(name, func(b *testing.B) {
			s := storetest.New(b)
			unit := func(tx *store.Tx) error {
				_, err := tx.Exec("INSERT INTO counter (tenant_id, step_id, run_id, unit, per, window_start, used, reserved) VALUES ($1, 1, 0, 1, 5, 0, 1, 0) ON CONFLICT (tenant_id, step_id, run_id, unit, per, window_start) DO UPDATE SET used = counter.used + 1", 1)
				return err
			}
			if parallelism == 0 {
				for b.Loop() {
					if err := s.Update(b.Context(), unit); err != nil {
						b.Fatal(err)
					}
				}
			} else {
				b.SetParallelism(parallelism)
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						if err := s.Update(b.Context(), unit); err != nil {
							b.Error(err)
						}
					}
				})
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "commits/s")
		})
	}
}
