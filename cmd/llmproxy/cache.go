package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"llmproxy/cache"
	"llmproxy/ledger"
	"llmproxy/store"
)

func newCacheCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "cache",
		Short:   "List, show, purge, export and import stored answers",
		Example: "  llmproxy cache list --step summarize-ticket",
	}
	cmd.AddCommand(newCacheListCmd(a), newCacheShowCmd(a), newCachePurgeCmd(a), newCacheExportCmd(a), newCacheImportCmd(a))
	return cmd
}

// view reads the database of the settings in one snapshot, beside a running
// server or without one.
func view(ctx context.Context, settings Settings, read func(*store.Tx) error) (err error) {
	s, err := store.OpenReader(ctx, settings.Database)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.CloseReader()) }()
	return s.View(ctx, read)
}

func newCacheListCmd(a *app) *cobra.Command {
	var sel cache.Selection
	var format string
	limit := -1
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the stored answers, the most recently served first",
		Long: `List shows what is stored: each answer's key, step and model, its times, its
tokens and its size as stored. It only reads, and works while the server
runs. AGE is how long ago it was stored, LEFT how much longer it is given again,
SERVED how long ago it last was, to the minute. IN and OUT are tokens by the
upstream's figures; a figure marked ~ is our own count.`,
		Example: `  llmproxy cache list
  llmproxy cache list --step summarize-ticket --limit 0
  llmproxy cache list --format json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFormat(format, tableFormats()); err != nil {
				return err
			}
			if limit < -1 {
				return usagef("--limit %d is negative; write 0 for all answers", limit)
			}
			settings, err := a.loadSettings(cmd.Flags())
			if err != nil {
				return err
			}
			if limit == -1 {
				limit = 0
				if format == "table" {
					limit = tableRows
				}
			}
			var inv cache.Inventory
			err = view(cmd.Context(), settings, func(tx *store.Tx) (err error) {
				inv, err = cache.List(tx, sel, limit)
				return err
			})
			if err != nil {
				return err
			}
			if format == "json" {
				return printJSON(cmd.OutOrStdout(), newInventoryJSON(inv))
			}
			return printInventory(cmd.OutOrStdout(), inv, time.Now())
		},
	}
	addConfigFlags(cmd, "database")
	cmd.Flags().StringVar(&sel.Step, "step", "", "only answers of this `step`")
	cmd.Flags().IntVar(&limit, "limit", -1, fmt.Sprintf("most `answers`, 0 for all (default all, but %d in a table)", tableRows))
	cmd.Flags().Lookup("limit").DefValue = "0" // the usage says it
	addFormatFlag(cmd, &format, tableFormats())
	return cmd
}

// shownDigits is how many digits of a key a table shows: enough to name one.
const shownDigits = 12

func printInventory(w io.Writer, inv cache.Inventory, now time.Time) error {
	if inv.Count == 0 {
		_, err := fmt.Fprintln(w, "No answers are stored, or none that match.")
		return err
	}
	columns := []column{{head: "KEY"}, {head: "STEP"}, {head: "MODEL"}, {"AGE", true}, {"LEFT", true}, {"SERVED", true}, {"IN", true}, {"OUT", true}, {"SIZE", true}}
	rows := make([][]string, len(inv.Answers))
	for i, a := range inv.Answers {
		since := func(ms int64) time.Duration { return now.Sub(time.UnixMilli(ms)) }
		left := "expired"
		if d := -since(a.ExpiresAt); d > 0 {
			left = span(d)
		}
		in, out := "~"+thousands(a.Input), "?"
		if a.Usage != nil {
			in, out = thousands(a.Usage.Input), thousands(a.Usage.Output)
		}
		rows[i] = []string{a.Key.String()[:shownDigits], shown(a.Step, 20), shown(a.Model, 18),
			span(since(a.CreatedAt)), left, span(since(a.ServedAt)), in, out, size(a.StoredBytes)}
	}
	if err := writeTable(w, columns, rows); err != nil {
		return err
	}
	summary := fmt.Sprintf("\n%s, %s as stored.", counted(inv.Count, "answer", "answers"), size(inv.StoredBytes))
	if hidden := inv.Count - int64(len(rows)); hidden > 0 {
		summary += fmt.Sprintf(" %s more with --limit 0.", thousands(hidden))
	}
	_, err := fmt.Fprintln(w, summary)
	return err
}

// size writes a number of bytes in the unit that suits it.
func size(bytes int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	n, unit := float64(bytes), 0
	for n >= 1024 && unit < len(units)-1 {
		n, unit = n/1024, unit+1
	}
	if unit == 0 || n >= 100 {
		return fmt.Sprintf("%.0f %s", n, units[unit])
	}
	return fmt.Sprintf("%.1f %s", n, units[unit])
}

type inventoryJSON struct {
	Answers     []answerJSON `json:"answers"`
	Count       int64        `json:"count"`        // of the whole selection
	StoredBytes int64        `json:"stored_bytes"` // of the whole selection
}

// answerJSON is a stored answer for programs. What the upstream did not report
// is null.
type answerJSON struct {
	Key           string `json:"key"`
	Tenant        string `json:"tenant"`
	Step          string `json:"step"`
	Model         string `json:"model"`
	Form          string `json:"form"` // json or sse
	Call          string `json:"call"` // whose answer it is
	Explicit      bool   `json:"explicit_key"`
	StoredAt      string `json:"stored_at"`
	ExpiresAt     string `json:"expires_at"`
	ServedAt      string `json:"served_at"` // to the minute
	CountedInput  int64  `json:"counted_input_tokens"`
	Input         *int64 `json:"input_tokens"`
	CachedInput   *int64 `json:"cached_input_tokens"`
	Output        *int64 `json:"output_tokens"`
	Reasoning     *int64 `json:"reasoning_tokens"`
	StoredBytes   int64  `json:"stored_bytes"`
	ResponseBytes int64  `json:"response_bytes"`
}

func newAnswerJSON(a cache.Summary) answerJSON {
	at := func(ms int64) string { return time.UnixMilli(ms).UTC().Format(time.RFC3339) }
	out := answerJSON{
		Key: a.Key.String(), Tenant: a.Tenant, Step: a.Step, Model: a.Model, Form: "json",
		Call: ledger.Name(a.Call), Explicit: a.Explicit,
		StoredAt: at(a.CreatedAt), ExpiresAt: at(a.ExpiresAt), ServedAt: at(a.ServedAt),
		CountedInput: a.Input, StoredBytes: a.StoredBytes, ResponseBytes: a.ResponseBytes,
	}
	if a.Form == cache.SSE {
		out.Form = "sse"
	}
	if u := a.Usage; u != nil {
		out.Input, out.CachedInput, out.Output, out.Reasoning = &u.Input, &u.Cached, &u.Output, &u.Reasoning
	}
	return out
}

func newInventoryJSON(inv cache.Inventory) inventoryJSON {
	out := inventoryJSON{Answers: []answerJSON{}, Count: inv.Count, StoredBytes: inv.StoredBytes}
	for _, a := range inv.Answers {
		out.Answers = append(out.Answers, newAnswerJSON(a))
	}
	return out
}

func printJSON(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}

func newCacheShowCmd(a *app) *cobra.Command {
	var format string
	formats := []string{"json", "raw"}
	cmd := &cobra.Command{
		Use:   "show KEY",
		Short: "Show a stored answer",
		Long: `Show prints what is known of a stored answer, and the answer itself. The
beginning of the key is enough where no other stored key begins so; responses
carry it in X-LLMProxy-Key. An answer that came as a stream is a list of its
chunks. With --format raw only the answer is printed, byte for byte.`,
		Example: `  llmproxy cache show 1f3a9c0d
  llmproxy cache show 1f3a9c0d --format raw`,
		Args: oneKey,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkFormat(format, formats); err != nil {
				return err
			}
			settings, err := a.loadSettings(cmd.Flags())
			if err != nil {
				return err
			}
			var answer cache.Summary
			var recording *cache.Recording
			err = view(cmd.Context(), settings, func(tx *store.Tx) error {
				if answer, err = answerOf(tx, args[0]); err != nil {
					return err
				}
				recording, err = cache.Find(tx, answer.Key)
				return err
			})
			switch {
			case err != nil:
				return err
			case recording == nil:
				return fmt.Errorf("the answer %s expired at %s and is not served any more", answer.Key, newAnswerJSON(answer).ExpiresAt)
			}
			return printAnswer(cmd.OutOrStdout(), answer, recording, format)
		},
	}
	addConfigFlags(cmd, "database")
	addFormatFlag(cmd, &format, formats)
	return cmd
}

// oneKey is the argument check of a command about one stored answer.
func oneKey(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usagef("%s takes a key or the beginning of one, but got %s", cmd.CommandPath(), counted(int64(len(args)), "argument", "arguments"))
	}
	if _, _, err := cache.KeyRange(args[0]); err != nil {
		return usagef("%w", err)
	}
	return nil
}

// answerOf finds the one stored answer whose key begins with prefix.
func answerOf(tx *store.Tx, prefix string) (a cache.Summary, err error) {
	const named = 4
	inv, err := cache.List(tx, cache.Selection{Prefix: prefix}, named)
	switch {
	case err != nil:
		return a, err
	case inv.Count == 0:
		return a, fmt.Errorf("no stored answer has a key that begins with %q; \"llmproxy cache list\" shows what is stored", prefix)
	case inv.Count > 1:
		var keys []string
		for _, a := range inv.Answers {
			keys = append(keys, a.Key.String()[:min(len(prefix)+4, 2*len(a.Key))])
		}
		return a, fmt.Errorf("%s have a key that begins with %q, such as %s; write more digits",
			counted(inv.Count, "stored answer", "stored answers"), prefix, enumerate(keys, "and"))
	}
	return inv.Answers[0], nil
}

func printAnswer(w io.Writer, answer cache.Summary, rec *cache.Recording, format string) error {
	if format == "raw" {
		for _, event := range rec.Events() {
			if _, err := w.Write(event); err != nil {
				return err
			}
		}
		return nil
	}
	var content any
	if answer.Form == cache.JSON {
		content = jsonOrText(rec.Events()[0])
	} else {
		chunks := []any{}
		for _, event := range rec.Events() {
			if data, ok := strings.CutPrefix(strings.TrimSpace(string(event)), "data:"); ok {
				chunks = append(chunks, jsonOrText([]byte(strings.TrimSpace(data))))
			}
		}
		content = chunks
	}
	return printJSON(w, struct {
		answerJSON
		Headers map[string][]string `json:"headers"`
		Answer  any                 `json:"answer"`
	}{newAnswerJSON(answer), rec.At(0).Head.Header, content})
}

// jsonOrText is data as it stands where it is JSON, else as a string.
func jsonOrText(data []byte) any {
	if json.Valid(data) {
		return json.RawMessage(data)
	}
	return string(data)
}

func newCachePurgeCmd(a *app) *cobra.Command {
	var sel cache.Selection
	var all, yes bool
	cmd := &cobra.Command{
		Use:   "purge",
		Short: "Delete stored answers",
		Long: `Purge deletes stored answers after asking, so that the next call for them goes
upstream again. It works while the server runs: a running server notices within
a second and serves none of them from memory after that. What budgets have used
and the ledger stay as they are.

Choose what to delete by exactly one of --step, --key, --expired and --all.`,
		Example: `  llmproxy cache purge --key 1f3a9c0d
  llmproxy cache purge --step summarize-ticket
  llmproxy cache purge --all --yes`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			chosen := 0
			for _, flag := range []string{"step", "key", "expired", "all"} {
				if f := cmd.Flags().Lookup(flag); f.Changed && f.Value.String() != "false" && f.Value.String() != "" {
					chosen++
				}
			}
			if chosen != 1 {
				return usagef("choose what to delete by exactly one of --step, --key, --expired and --all")
			}
			if _, _, err := cache.KeyRange(sel.Prefix); err != nil {
				return usagef("--key: %w", err)
			}
			return a.purge(cmd, sel, yes)
		},
	}
	addConfigFlags(cmd, "database")
	cmd.Flags().StringVar(&sel.Step, "step", "", "the answers of this `step`")
	cmd.Flags().StringVar(&sel.Prefix, "key", "", "the one answer whose `key` begins so")
	cmd.Flags().BoolVar(&sel.Expired, "expired", false, "the answers whose time is over")
	cmd.Flags().BoolVar(&all, "all", false, "every answer")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

// purge tells what would be deleted, asks, and deletes it.
func (a *app) purge(cmd *cobra.Command, sel cache.Selection, yes bool) (err error) {
	settings, err := a.loadSettings(cmd.Flags())
	if err != nil {
		return err
	}
	ctx, out := cmd.Context(), cmd.OutOrStdout()
	var inv cache.Inventory
	// Reading first also refuses a file that is not there, which writing would make.
	err = view(ctx, settings, func(tx *store.Tx) (err error) {
		if sel.Prefix != "" {
			answer, err := answerOf(tx, sel.Prefix)
			if err != nil {
				return err
			}
			sel.Prefix = answer.Key.String() // this one, whatever is stored meanwhile
		}
		inv, err = cache.List(tx, sel, 1)
		return err
	})
	if err != nil {
		return err
	}
	if inv.Count == 0 {
		_, err := fmt.Fprintln(out, "No stored answer matches; nothing was deleted.")
		return err
	}
	what := fmt.Sprintf("%s (%s)", counted(inv.Count, "stored answer", "stored answers"), size(inv.StoredBytes))
	if !yes {
		agreed, err := agree(cmd, fmt.Sprintf("Delete %s from %s?", what, settings.Database))
		if err != nil || !agreed {
			return err
		}
	}
	s, err := store.Open(ctx, settings.Database, store.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	deleted, err := cache.Purge(ctx, s, sel)
	if err != nil {
		return fmt.Errorf("deleting failed after %s: %w", counted(deleted, "answer", "answers"), err)
	}
	them := "them"
	if deleted == 1 {
		them = "it"
	}
	_, err = fmt.Fprintf(out, "Deleted %s. A running server stops serving %s from memory within a second.\n",
		counted(deleted, "stored answer", "stored answers"), them)
	return err
}

// agree asks whether to delete, and tells that nothing was where it is a no.
func agree(cmd *cobra.Command, question string) (bool, error) {
	yes, err := confirm(cmd, question)
	if err == nil && !yes {
		_, err = fmt.Fprintln(cmd.OutOrStdout(), "Nothing was deleted.")
	}
	return yes, err
}

// confirm asks a question on standard error. Where nobody can answer it is an
// error, not a no.
func confirm(cmd *cobra.Command, question string) (bool, error) {
	in := cmd.InOrStdin()
	if file, ok := in.(*os.File); ok && !term.IsTerminal(int(file.Fd())) {
		return false, usagef("%s Nobody can answer here; add --yes", question)
	}
	fmt.Fprint(cmd.ErrOrStderr(), question+" [y/N] ")
	line, err := bufio.NewReader(in).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return false, fmt.Errorf("reading the answer: %w", err)
	}
	answer := strings.ToLower(strings.TrimSpace(line))
	return answer == "y" || answer == "yes", nil
}
