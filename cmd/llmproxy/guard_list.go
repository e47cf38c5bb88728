package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"llmproxy/cache"
	"llmproxy/guard"
)

func newGuardListCmd(a *app) *cobra.Command {
	var target guardFlags
	var state, step, format string
	var limit int
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List effects with what is known of each attempt",
		Long: `List shows the effects of a namespace, the newest first. AGE is how long ago the
latest attempt began. KNOWN tells of each attempt, by its fence, how it ended: done, none (it did
not act), unknown (it may have) or running. It only reads, and works while the
server runs; a server wants a key with the scope admin.`,
		Example: `  llmproxy guard list --state unknown
  llmproxy guard list --step nightly --format json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFormat(format, tableFormats()); err != nil {
				return err
			}
			if limit < 1 {
				return usagef("--limit %d is less than 1", limit)
			}
			q := guard.Query{Step: step}
			if state != "" {
				var err error
				if q.State, err = guard.ParseState(state); err != nil || q.State == guard.Absent {
					return unknownChoice("--state", state, []string{"pending", "completed", "failed", "unknown"})
				}
			}
			client, done, err := a.openGuard(cmd, &target, toRead)
			if err != nil {
				return err
			}
			defer done()
			effects, more, err := listEffects(cmd.Context(), client, target.namespace, q, limit)
			if err != nil {
				return err
			}
			if format == "json" {
				return printEffects(cmd.OutOrStdout(), effects, more)
			}
			return tableEffects(cmd.OutOrStdout(), effects, more, time.Now())
		},
	}
	target.add(cmd)
	cmd.Flags().StringVar(&state, "state", "", "only effects in this `state`: pending, completed, failed or unknown")
	cmd.Flags().StringVar(&step, "step", "", "only effects of this `step`")
	cmd.Flags().IntVar(&limit, "limit", tableRows, "most `effects`")
	addFormatFlag(cmd, &format, tableFormats())
	return cmd
}

// listEffects reads effects with their attempts. more tells whether there are
// others beside the limit.
func listEffects(ctx context.Context, client *guard.Client, namespace string, q guard.Query, limit int) (effects []guard.Effect, more bool, err error) {
	for cursor := ""; ; {
		page, next, err := client.List(ctx, namespace, q, cursor)
		if err != nil {
			return nil, false, err
		}
		for _, listed := range page {
			if len(effects) == limit {
				return effects, true, nil
			}
			e, err := client.Find(ctx, namespace, listed.Key)
			if isRefusal(err, guard.UnknownEffect) {
				continue // it was forgotten in between
			}
			if err != nil {
				return nil, false, err
			}
			effects = append(effects, *e)
		}
		if next == "" {
			return effects, false, nil
		}
		cursor = next
	}
}

func printEffects(w io.Writer, effects []guard.Effect, more bool) error {
	raw := make([]json.RawMessage, len(effects))
	for i := range effects {
		raw[i] = effects[i].Raw
	}
	return printJSON(w, struct {
		Effects []json.RawMessage `json:"effects"`
		More    bool              `json:"more"`
	}{raw, more})
}

func tableEffects(w io.Writer, effects []guard.Effect, more bool, now time.Time) error {
	if len(effects) == 0 {
		_, err := fmt.Fprintln(w, "There are no such effects in this namespace.")
		return err
	}
	columns := []column{{"AGE", true}, {head: "STEP"}, {head: "KEY"}, {head: "STATE"}, {"ATTEMPTS", true}, {head: "KNOWN"}, {head: "NOTE"}}
	rows := make([][]string, len(effects))
	for i, e := range effects {
		began, note := e.CreatedAt, ""
		if last := len(e.Attempts) - 1; last >= 0 {
			began, note = e.Attempts[last].StartedAt, e.Attempts[last].Note
		}
		rows[i] = []string{span(now.Sub(began)), shown(e.Step, 24), e.Key[:shownDigits], e.State,
			strconv.Itoa(len(e.Attempts)), shown(attemptsText(e.Attempts), 40), shown(note, 48)}
	}
	if err := writeTable(w, columns, rows); err != nil {
		return err
	}
	if more {
		_, err := fmt.Fprintf(w, "\nThere are more; see them with --limit %d.\n", 10*len(rows))
		return err
	}
	return nil
}

// attemptsText tells of each attempt how it ended, such as "#1 unknown, #2 done".
func attemptsText(attempts []guard.Attempted) string {
	texts := make([]string, len(attempts))
	for i, a := range attempts {
		texts[i] = fmt.Sprintf("#%d %s", a.Fence, a.Outcome)
	}
	return strings.Join(texts, ", ")
}

// effectKey is the check of the argument of a command about one effect.
func effectKey(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usagef("%s takes a key or the beginning of one, but got %s", cmd.CommandPath(), counted(int64(len(args)), "argument", "arguments"))
	}
	if _, _, err := cache.KeyRange(args[0]); err != nil {
		return usagef("%w", err)
	}
	return nil
}

// findEffect finds the one effect whose key begins with prefix.
func findEffect(ctx context.Context, client *guard.Client, namespace, prefix string) (*guard.Effect, error) {
	prefix = strings.ToLower(prefix)
	key := prefix
	if len(prefix) < 2*len(guard.Key{}) {
		const named = 4
		page, _, err := client.List(ctx, namespace, guard.Query{Prefix: prefix, Limit: named}, "")
		switch {
		case err != nil:
			return nil, err
		case len(page) == 0:
			return nil, fmt.Errorf("no effect in this namespace has a key that begins with %q; \"llmproxy guard list\" shows them", prefix)
		case len(page) > 1:
			var keys []string
			for _, e := range page {
				keys = append(keys, e.Key[:min(len(prefix)+4, len(e.Key))])
			}
			return nil, fmt.Errorf("several effects have a key that begins with %q, such as %s; write more digits", prefix, enumerate(keys, "and"))
		}
		key = page[0].Key
	}
	e, err := client.Find(ctx, namespace, key)
	if isRefusal(err, guard.UnknownEffect) {
		return nil, fmt.Errorf("no effect in this namespace has the key %s", key)
	}
	return e, err
}

func newGuardStatusCmd(a *app) *cobra.Command {
	var target guardFlags
	var unit workFlags
	var format string
	cmd := &cobra.Command{
		Use:   "status [KEY]",
		Short: "Show what is known of one unit of work",
		Long: `Status shows an effect and its attempts, found by its key, by the beginning of it,
or by the flags that it was begun with. It only reads.`,
		Example: `  llmproxy guard status 3f9a
  llmproxy guard status --step nightly --key "report 2026-12-01"`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 && unit.given(cmd) {
				return nil
			}
			return effectKey(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkFormat(format, keyFormats()); err != nil {
				return err
			}
			if len(args) > 0 && unit.given(cmd) {
				return usagef("give either a key or the flags that it is made of")
			}
			var work guard.Work
			if len(args) == 0 {
				var err error
				if work, err = unit.work(cmd, target.namespace); err != nil {
					return err
				}
			}
			client, done, err := a.openGuard(cmd, &target, toRead)
			if err != nil {
				return err
			}
			defer done()
			key := ""
			if len(args) > 0 {
				key = args[0]
			} else {
				made, err := client.Derive(cmd.Context(), work)
				if err != nil {
					return err
				}
				key = made.Key
			}
			e, err := findEffect(cmd.Context(), client, target.namespace, key)
			if err != nil {
				return err
			}
			if format == "json" {
				return printJSON(cmd.OutOrStdout(), e.Raw)
			}
			return printEffect(cmd.OutOrStdout(), e)
		},
	}
	target.add(cmd)
	unit.add(cmd)
	addFormatFlag(cmd, &format, keyFormats())
	return cmd
}

// printEffect writes what is known of an effect; what is not, is left out.
func printEffect(w io.Writer, e *guard.Effect) error {
	at := func(t time.Time) string {
		if t.IsZero() {
			return ""
		}
		return t.Format(time.RFC3339)
	}
	lines := [][2]string{{"key", e.Key}, {"step", e.Step}, {"namespace", e.NS}, {"state", e.State}, {"on unknown", e.OnUnknown},
		{"created", at(e.CreatedAt)}, {"completed", at(e.CompletedAt)}, {"resource id", e.ResourceID}, {"resolved by", e.ResolvedBy}, {"reason", e.Reason}}
	if e.State == guard.Pending.String() {
		lines = append(lines, [2]string{"lease until", at(e.LeaseExpiresAt)})
	}
	if e.DuplicateEffects > 0 {
		lines = append(lines, [2]string{"duplicates", strconv.FormatInt(e.DuplicateEffects, 10)})
	}
	if e.DownstreamKey != e.Key {
		lines = append(lines, [2]string{"downstream", e.DownstreamKey})
	}
	for _, line := range lines {
		if line[1] == "" {
			continue
		}
		if _, err := fmt.Fprintf(w, "%-12s %s\n", line[0], shown(line[1], 1000)); err != nil {
			return err
		}
	}
	if len(e.Attempts) == 0 {
		return nil
	}
	rows := make([][]string, len(e.Attempts))
	for i, a := range e.Attempts {
		rows[i] = []string{strconv.FormatInt(a.Fence, 10), at(a.StartedAt), at(a.EndedAt), a.Outcome, shown(a.ResourceID, 40), shown(a.Note, 60)}
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return err
	}
	return writeTable(w, []column{{"FENCE", true}, {head: "BEGAN"}, {head: "ENDED"}, {head: "OUTCOME"}, {head: "RESOURCE"}, {head: "NOTE"}}, rows)
}
