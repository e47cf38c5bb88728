package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"llmproxy/cache"
	"llmproxy/ledger"
	"llmproxy/store"
)

const (
	// practicallyForEver is how long imported answers hold.
	practicallyForEver = Duration(100 * 365 * day)
	// maxLine bounds a line of an import: an answer of the greatest default size,
	// every byte of it escaped, is shorter.
	maxLine = 512 << 20
	// Answers are stored some at a time, since each writing waits for the disk.
	importLines = 64
	importBytes = 8 << 20
	// shownMistakes is how many lines are told what is wrong with.
	shownMistakes = 20
)

func newCacheImportCmd(a *app) *cobra.Command {
	var overwrite bool
	var ttl string
	cmd := &cobra.Command{
		Use:   "import FILE",
		Short: "Read exported answers into the database",
		Long: `Import stores the answers of an export, so that a server on this database gives
them. FILE may be - for standard input. The database is made if it is not there. It
works while the server runs.

Each line is checked and stored as a whole or not at all. Lines that are not usable
are named with what mends them, the others are stored, and the command exits with 1.
An answer that is stored already stays where it is newer, unless --overwrite is
given.

Imported answers do not expire in practice (100 years), or after --ttl. They count
for cache.max_bytes like all others.`,
		Example: `  llmproxy cache import testdata/answers.jsonl --database test.db
  llmproxy serve --database test.db --tenant tests --replay-only`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("%s takes one file, or - for standard input, but got %d", cmd.CommandPath(), len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			holds := practicallyForEver
			if ttl != "" {
				if err := holds.UnmarshalText([]byte(ttl)); err != nil {
					return usagef("--ttl %q %w", ttl, err)
				}
				if holds == 0 {
					return usagef("--ttl %q is over at once; write one such as 24h", ttl)
				}
			}
			settings, err := a.loadSettings(cmd.Flags())
			if err != nil {
				return err
			}
			return importAnswers(cmd, settings.Database, args[0], time.Duration(holds), overwrite)
		},
	}
	addConfigFlags(cmd, "database")
	cmd.Flags().BoolVar(&overwrite, "overwrite", false, "replace newer answers too")
	cmd.Flags().StringVar(&ttl, "ttl", "", "how `long` the answers hold, such as 30d (default 100 years)")
	return cmd
}

// importer reads lines and stores what they hold.
type importer struct {
	cmd       *cobra.Command
	store     *store.Store
	ttl       time.Duration
	overwrite bool

	waiting []imported
	bytes   int64 // of waiting

	stored, kept, wrong, private int64
}

// imported is the content of a line.
type imported struct {
	record *cache.Record
	tree   []byte
}

func importAnswers(cmd *cobra.Command, database, name string, ttl time.Duration, overwrite bool) (err error) {
	file, label, whole, err := openInput(cmd, name)
	if err != nil {
		return err
	}
	defer file.Close()
	s, err := store.Open(cmd.Context(), database, store.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	told := newProgress(cmd)
	defer told.clear()
	lines := newLineReader(file)
	lines.limit = maxLine
	im := &importer{cmd: cmd, store: s, ttl: ttl, overwrite: overwrite}
	for {
		line, err := lines.next()
		if errors.Is(err, io.EOF) {
			break
		}
		switch {
		case err == nil:
			err = im.take(line)
		case errors.Is(err, errLongLine):
			err = fmt.Errorf("is longer than %s; leave it out", size(maxLine))
		default:
			return fmt.Errorf("reading %s: %w", label, err)
		}
		switch {
		case errors.Is(err, store.ErrUnavailable):
			return fmt.Errorf("%s:%d: storing the answers up to here failed after %s: %w", label, lines.number, counted(im.stored, "answer", "answers"), err)
		case err != nil:
			told.clear()
			im.refuse(label, lines.number, err)
		}
		told.tell(func() string { return portion(lines.offset, whole) + " read" })
	}
	if err := im.flush(); err != nil {
		return fmt.Errorf("storing the last answers failed after %s: %w", counted(im.stored, "answer", "answers"), err)
	}
	told.clear()
	return im.report()
}

// take checks a line and stores it, alone or with others later.
func (im *importer) take(line []byte) error {
	line = bytes.TrimSpace(line)
	if len(line) == 0 {
		return nil
	}
	now := time.Now()
	record, tree, err := parseRecord(line, now)
	if err != nil {
		return err
	}
	record.Origin.ExpiresAt = now.Add(im.ttl).UnixMilli()
	im.waiting = append(im.waiting, imported{record, tree})
	if im.bytes += record.Body.Size(); len(im.waiting) < importLines && im.bytes < importBytes {
		return nil
	}
	return im.flush()
}

// flush stores what waits, all of it or none.
func (im *importer) flush() error {
	if len(im.waiting) == 0 {
		return nil
	}
	var records []*cache.Record
	for _, w := range im.waiting {
		records = append(records, w.record)
	}
	var restored []bool
	err := im.store.Update(im.cmd.Context(), func(tx *store.Tx) (err error) {
		if restored, err = cache.Restore(tx, records, im.overwrite); err != nil {
			return err
		}
		for i, w := range im.waiting {
			if restored[i] && w.tree != nil {
				if err := ledger.KeepTree(tx, &ledger.Call{ID: w.record.Origin.Call, Tree: w.tree}); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for i, w := range im.waiting {
		if !restored[i] {
			im.kept++
			continue
		}
		im.stored++
		if isPrivate(w.record.Tenant) {
			im.private++
		}
	}
	im.waiting, im.bytes = nil, 0
	return nil
}

func (im *importer) refuse(label string, line int, err error) {
	if im.wrong++; im.wrong <= shownMistakes {
		fmt.Fprintf(im.cmd.ErrOrStderr(), "%s:%d: %v\n", label, line, err)
	}
}

func (im *importer) report() error {
	text := "Imported " + counted(im.stored, "answer", "answers") + "."
	if im.kept > 0 {
		text += fmt.Sprintf(" %s stored already and newer; --overwrite replaces that.", counted(im.kept, "is", "are"))
	}
	if _, err := fmt.Fprintln(im.cmd.OutOrStdout(), text); err != nil {
		return err
	}
	tellPrivate(im.cmd, im.private)
	if im.wrong > shownMistakes {
		fmt.Fprintf(im.cmd.ErrOrStderr(), "… and %s more\n", thousands(im.wrong-shownMistakes))
	}
	if im.wrong > 0 {
		return fmt.Errorf("%s not usable", counted(im.wrong, "line is", "lines are"))
	}
	return nil
}
