package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"regexp"

	"github.com/spf13/cobra"

	"llmproxy/cache"
	"llmproxy/ledger"
	"llmproxy/store"
)

func newCacheExportCmd(a *app) *cobra.Command {
	var sel cache.Selection
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Write stored answers as lines of JSON",
		Long: `Export writes stored answers to standard output, one a line, in the order of
their keys, so that a file of them can be kept beside tests and compared from one
version to the next. "cache import" reads it into another database, and "serve
--replay-only" gives the answers there. It works while the server runs.

A line holds the answer byte for byte, JSON as JSON, its key, tenant, step, model,
times and tokens, and short hashes of the parts of its request, which tell later
what another request differs in. Requests themselves are not stored and not in it;
their hashes are kept for 30 days.

A key depends on the tenant. Answers that are to be found in another database need
one that has a name there too: record them under tenant: in the configuration,
or serve --tenant, or with proxy keys.`,
		Example: `  llmproxy cache export --step summarize-ticket > testdata/answers.jsonl
  llmproxy cache export --key 1f3a9c0d`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, _, err := cache.KeyRange(sel.Prefix); err != nil {
				return usagef("--key: %w", err)
			}
			settings, err := a.loadSettings(cmd.Flags())
			if err != nil {
				return err
			}
			return exportAnswers(cmd, settings.Database, sel)
		},
	}
	addConfigFlags(cmd, "database")
	cmd.Flags().StringVar(&sel.Step, "step", "", "only answers of this `step`")
	cmd.Flags().StringVar(&sel.Prefix, "key", "", "only answers whose `key` begins so")
	return cmd
}

// exportAnswers writes the answers of a selection, each as it is at its moment:
// one at a time is held in memory, and no reading lasts longer than one.
func exportAnswers(cmd *cobra.Command, database string, sel cache.Selection) (err error) {
	s, err := store.OpenReader(cmd.Context(), database)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.CloseReader()) }()
	var (
		out      = bufio.NewWriterSize(cmd.OutOrStdout(), 64<<10)
		told     = &progress{}
		after    *cache.Key
		line     []byte
		exported int64
		damaged  int64
		private  int64
	)
	if !isTerminal(cmd.OutOrStdout()) { // else the lines tell
		told = newProgress(cmd)
	}
	defer told.clear()
	for {
		record, tree, err := nextRecord(cmd.Context(), s, sel, after)
		if record == nil {
			if err != nil {
				return err
			}
			break
		}
		after = &record.Key
		if err == nil {
			line, err = appendRecord(line[:0], record, tree)
		}
		if errors.Is(err, cache.ErrDamaged) {
			damaged++
			fmt.Fprintf(cmd.ErrOrStderr(), "the answer %s is left out: %v\n", record.Key, err)
			continue
		}
		if err != nil {
			return err
		}
		if _, err := out.Write(line); err != nil {
			return fmt.Errorf("writing the answers: %w", err)
		}
		exported++
		if isPrivate(record.Tenant) {
			private++
		}
		told.tell(func() string { return counted(exported, "answer", "answers") + " exported" })
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("writing the answers: %w", err)
	}
	told.clear()
	if exported+damaged == 0 && sel != (cache.Selection{}) {
		return errors.New("no stored answer matches; \"llmproxy cache list\" shows what is stored")
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "Exported %s.\n", counted(exported, "answer", "answers"))
	tellPrivate(cmd, private)
	if damaged > 0 {
		return fmt.Errorf("%s could not be read", counted(damaged, "answer", "answers"))
	}
	return nil
}

// nextRecord reads an answer and the fingerprint of its request. An error that
// wraps cache.ErrDamaged comes with the record's key.
func nextRecord(ctx context.Context, s *store.Store, sel cache.Selection, after *cache.Key) (r *cache.Record, tree []byte, err error) {
	err = s.View(ctx, func(tx *store.Tx) (err error) {
		if r, err = cache.Next(tx, sel, after); err != nil || r == nil {
			return err
		}
		tree, err = ledger.Tree(tx, r.Origin.Call)
		return err
	})
	return r, tree, err
}

var privateTenant = regexp.MustCompile(`^t_[0-9a-f]{16}$`)

// isPrivate tells whether a tenant is named after a credential and the database's
// secret, so that its answers are found in that database only.
func isPrivate(tenant string) bool { return privateTenant.MatchString(tenant) }

func tellPrivate(cmd *cobra.Command, answers int64) {
	if answers == 0 {
		return
	}
	belong := "answers belong"
	if answers == 1 {
		belong = "answer belongs"
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "warning: %s %s to a credential's own tenant (t_…) and will not be found in another database; record under a tenant with a name: serve --tenant NAME\n", thousands(answers), belong)
}
