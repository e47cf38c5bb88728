// Package storetest gives each test a fresh real database.
package storetest

import (
	"path/filepath"
	"testing"

	"llmproxy/store"
)

// New opens a database of the test's own and closes it when the test ends.
func New(t testing.TB) *store.Store {
	return Open(t, filepath.Join(t.TempDir(), "test.db"), store.Options{})
}

// Open opens the database at path, to be closed when the test ends.
func Open(t testing.TB, path string, opts store.Options) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), path, opts)
	if err != nil {
		t.Fatalf("opening the test's database: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("closing the test's database: %v", err)
		}
	})
	return s
}
