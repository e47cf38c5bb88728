package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Exit codes of the command.
const (
	exitDone   = 0
	exitFailed = 1 // the command could not do its work
	exitUsage  = 2 // the command line itself is wrong
)

// app is what the subcommands share. Standard output and error are those of
// the *cobra.Command (OutOrStdout, ErrOrStderr).
type app struct {
	env     map[string]string // name → value, the environment the command runs in
	started bool              // the command line was accepted; errors from here on are failures
}

// run executes the command line args (without the program's name) in the
// environment env, as os.Environ writes it, and returns the exit code. Errors
// are written to stderr.
func run(ctx context.Context, args, env []string, stdout, stderr io.Writer) int {
	a := &app{env: environ(env)}
	root := newRootCmd(a, stdout, stderr)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitDone
	}
	exit, coded := errors.AsType[*exitError](err)
	if !coded || exit.err != nil {
		fmt.Fprintf(stderr, "llmproxy: %v\n", err)
	}
	code := exitFailed
	if _, wrong := errors.AsType[*usageError](err); wrong || !a.started {
		fmt.Fprintf(stderr, "Run \"%s --help\" for usage and examples.\n", cmd.CommandPath())
		code = exitUsage
	}
	if coded {
		code = exit.code
	}
	return code
}

// newRootCmd builds the command tree. A new subcommand is a file of its own
// with func newXCmd(a *app) *cobra.Command, and one line here.
func newRootCmd(a *app, stdout, stderr io.Writer) *cobra.Command {
	root := &cobra.Command{
		Use:   "llmproxy",
		Short: "A caching proxy with token budgets for automations that retry",
		Long: `llmproxy stands between automations and an OpenAI-compatible API. It answers
a repeated request from its store instead of paying twice, counts the tokens of
each step of an automation, and refuses or flags a step that is over its budget.`,
		Example: `  llmproxy demo                         # see what it does: no key, no network
  llmproxy serve                        # start on 127.0.0.1:8484
  llmproxy config check                 # what is in force, or every mistake in it
  llmproxy keys new ci                  # a key for a client
  llmproxy tokens body.json             # what a request costs, part by part`,
		SilenceErrors:     true,
		SilenceUsage:      true,
		Version:           buildVersion(),
		PersistentPreRunE: func(*cobra.Command, []string) error { a.started = true; return nil },
	}
	root.SetOut(stdout) // before completion is made, which keeps the writer it finds
	root.SetErr(stderr)
	root.SetVersionTemplate("llmproxy {{.Version}}\n")
	root.SetFlagErrorFunc(flagError)
	root.AddCommand(
		newBudgetCmd(a),
		newCacheCmd(a),
		newConfigCmd(a),
		newDemoCmd(a),
		newGuardCmd(a),
		newKeyCmd(a),
		newKeysCmd(a),
		newReportCmd(a),
		newServeCmd(a),
		newTokensCmd(a),
		newVersionCmd(a),
	)
	root.SetHelpCommand(newHelpCmd(root))
	root.InitDefaultCompletionCmd("completion")
	finish(root)
	return root
}

// finish gives every command of the tree what cobra leaves out: a group of
// commands that refuses an unknown one, and an example for completion.
func finish(cmd *cobra.Command) {
	if cmd.Name() == "completion" {
		cmd.Example = "  source <(llmproxy completion bash)"
	}
	if cmd.HasSubCommands() && !cmd.Runnable() {
		cmd.Args = unknownCommand
		cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	}
	for _, sub := range cmd.Commands() {
		finish(sub)
	}
}

// unknownCommand is the argument check of a command that only groups others.
func unknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names []string
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, sub.Name())
		}
	}
	if near, ok := nearest(args[0], names); ok {
		return usagef("unknown command %q; did you mean %q?", args[0], near)
	}
	return usagef("unknown command %q; the commands are %s", args[0], enumerate(names, "and"))
}

// flagError turns pflag's errors into usage errors and proposes the flag that
// was probably meant.
func flagError(cmd *cobra.Command, err error) error {
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok {
		return usagef("%w", err)
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	if near, ok := nearest(unknown.GetSpecifiedName(), names); ok {
		return usagef("%w; did you mean --%s?", err, near)
	}
	return usagef("%w", err)
}

func newHelpCmd(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:     "help [command]",
		Short:   "Explain a command",
		Example: "  llmproxy help config check",
		RunE: func(_ *cobra.Command, args []string) error {
			cmd, rest, err := root.Find(args)
			if err != nil {
				return usagef("%w", err)
			}
			if err := unknownCommand(cmd, rest); err != nil {
				return err
			}
			return cmd.Help()
		},
	}
}

// usageError is a mistake on the command line; run exits with 2 for it.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error {
	return &usageError{fmt.Errorf(format, args...)}
}

// environ turns os.Environ's form into name → value.
func environ(env []string) map[string]string {
	vars := make(map[string]string, len(env))
	for _, entry := range env {
		if name, value, ok := strings.Cut(entry, "="); ok {
			vars[name] = value
		}
	}
	return vars
}

// nearest returns the candidate that word is most likely a misspelling of, and
// whether any is near enough: two slips, or one in a short word.
func nearest(word string, candidates []string) (string, bool) {
	best, distance := "", 3
	if len(word) < 5 {
		distance = 2
	}
	for _, c := range candidates {
		if len(word)-len(c) >= distance || len(c)-len(word) >= distance {
			continue
		}
		if d := editDistance(strings.ToLower(word), strings.ToLower(c)); d < distance {
			best, distance = c, d
		}
	}
	return best, best != ""
}

// editDistance counts the insertions, deletions, replacements and swaps of
// neighbours between a and b (optimal string alignment).
func editDistance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			replace := rows[i-1][j-1]
			if a[i-1] != b[j-1] {
				replace++
			}
			rows[i][j] = min(replace, rows[i-1][j]+1, rows[i][j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}

// enumerate joins words as a sentence does: "a, b or c".
func enumerate(words []string, conjunction string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " " + conjunction + " " + words[last]
}
