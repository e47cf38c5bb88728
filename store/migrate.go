package store

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"io/fs"
	"strings"
)

//go:embed schema/*.sql
var schemaFiles embed.FS

// migrations are the schema's steps in order; step n makes version n.
var migrations = readMigrations()

// sqliteTypes spells the column types that the two engines name differently.
var sqliteTypes = strings.NewReplacer(
	"{id}", "INTEGER PRIMARY KEY",
	"{unique id}", "INTEGER PRIMARY KEY AUTOINCREMENT", // never given twice
	"{int}", "INTEGER",
	"{blob}", "BLOB",
	"{strict}", "STRICT",
	"{strict without rowid}", "STRICT, WITHOUT ROWID", // the key is the table: no index beside it
)

func readMigrations() []string {
	names, err := fs.Glob(schemaFiles, "schema/*.sql")
	if err != nil {
		panic(err)
	}
	steps := make([]string, len(names))
	for i, name := range names { // Glob sorts
		text, err := schemaFiles.ReadFile(name)
		if err != nil {
			panic(err)
		}
		steps[i] = sqliteTypes.Replace(string(text))
	}
	return steps
}

// migrate brings the schema to this program's version in one transaction,
// after keeping a copy of an older file beside it. A newer file is refused.
func migrate(ctx context.Context, conn *sql.Conn, path string) (err error) {
	version, err := schemaVersion(ctx, conn)
	if err != nil {
		return err
	}
	switch {
	case version == len(migrations):
		return nil
	case version > len(migrations):
		return fmt.Errorf("the file has schema %d, newer than the %d this program knows; use the newer llmproxy", version, len(migrations))
	case version > 0:
		backup := fmt.Sprintf("%s.schema%d", path, version)
		if _, err := conn.ExecContext(ctx, "VACUUM INTO $1", backup); err != nil {
			return fmt.Errorf("backing up to %s before migrating: %w", backup, err)
		}
	}
	if _, err := conn.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			conn.ExecContext(ctx, "ROLLBACK") //nolint:errcheck // the first error is the one to report
		}
	}()
	// Another process may have migrated while this one waited for the lock.
	if version, err = schemaVersion(ctx, conn); err != nil {
		return err
	}
	for ; version < len(migrations); version++ {
		if _, err := conn.ExecContext(ctx, migrations[version]); err != nil {
			return fmt.Errorf("migrating to schema %d: %w", version+1, err)
		}
	}
	if _, err := conn.ExecContext(ctx, fmt.Sprintf("PRAGMA user_version=%d", version)); err != nil {
		return err
	}
	_, err = conn.ExecContext(ctx, "COMMIT")
	return err
}

func schemaVersion(ctx context.Context, conn *sql.Conn) (version int, err error) {
	err = conn.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version)
	return version, err
}
