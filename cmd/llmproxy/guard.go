package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"llmproxy/guard"
	"llmproxy/store"
)

// Exit codes of the commands below guard. They are those of sysexits.h where it
// has one, and none that the commands people run use themselves.
const (
	exitReplay      = 10 // begin: it was done already
	exitGuardUsage  = 64 // the command line is wrong
	exitBadWork     = 65 // the input makes no key, or the key was used for another input
	exitUnavailable = 69 // the guard cannot be asked; nothing was executed
	exitInProgress  = 75 // another run is at it
	exitUndecided   = 79 // it may have happened: held, or the lease was lost
)

func newGuardCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "guard",
		Short: "Make a command or a call happen once, however often it is retried",
		Long: `Guard keeps a record per unit of work: a run claims it, acts, and reports. Whoever
comes again with the same work gets the result of the first run instead of acting.
"llmproxy guard run" does all of it around a command; begin, complete, fail and
extend are its parts, for scripts. The others show and decide.

They work on the database file of the configuration, beside a running server or
without one, or with --server through a server's API. Both keep the same records.
What is the same work is told by tenant, namespace, step and key or input. On the
file the tenant is --tenant, else tenant: of the configuration, else "default";
a server takes it from the proxy key: give that key the same tenant: and a unit
that was done through one is done for the other.

Exit codes: 64 wrong command line, 65 unusable input or another input under the
same key, 69 the guard cannot be asked (nothing was executed), 75 in progress,
79 it may have happened.`,
		Example: `  llmproxy guard run --step nightly --key "report $(date +%F)" -- ./send-report.sh
  llmproxy guard list --state unknown
  llmproxy guard resolve 3f9a --outcome done --reason "found it in the outbox"`,
		Args: unknownCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newGuardRunCmd(a), newGuardBeginCmd(a), newGuardCompleteCmd(a), newGuardFailCmd(a), newGuardExtendCmd(a),
		newGuardStatusCmd(a), newGuardListCmd(a), newGuardResolveCmd(a), newGuardPurgeCmd(a), newGuardKeyCmd(a))
	withGuardCodes(cmd)
	for _, sub := range cmd.Commands() {
		withGuardCodes(sub)
	}
	return cmd
}

// exitError ends the command with an exit code of its own.
type exitError struct {
	code int
	err  error // nil: everything is said
}

func (e *exitError) Error() string { return fmt.Sprint(e.err) }
func (e *exitError) Unwrap() error { return e.err }

// withGuardCodes gives the errors of a command the guard's exit codes.
func withGuardCodes(cmd *cobra.Command) {
	args, runE := cmd.Args, cmd.RunE
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return guardExit(flagError(cmd, err)) })
	cmd.Args = func(cmd *cobra.Command, given []string) error { return guardExit(args(cmd, given)) }
	cmd.RunE = func(cmd *cobra.Command, given []string) error { return guardExit(runE(cmd, given)) }
}

func guardExit(err error) error {
	if err == nil {
		return nil
	}
	if _, coded := errors.AsType[*exitError](err); coded {
		return err
	}
	code := exitFailed
	if _, wrong := errors.AsType[*usageError](err); wrong {
		code = exitGuardUsage
	} else if _, bad := errors.AsType[*guard.InputError](err); bad {
		code = exitBadWork
	} else if problem, refused := errors.AsType[*guard.Problem](err); refused {
		code, err = problemCode(problem), errors.New(problem.Message)
	} else if _, unreachable := errors.AsType[*url.Error](err); unreachable || errors.Is(err, guard.ErrUnavailable) {
		code = exitUnavailable
	}
	return &exitError{code, err}
}

// problemCode is the exit code for what the guard refused.
func problemCode(p *guard.Problem) int {
	switch guard.Refusal(p.Code) {
	case guard.InProgress, guard.RetryLater:
		return exitInProgress
	case guard.Undecided, guard.LeaseLost, guard.AlreadyCompleted, guard.WorkTooOld:
		return exitUndecided
	case guard.UnknownEffect, guard.BadToken, guard.NotCompleted:
		return exitFailed
	}
	if p.Status == http.StatusBadRequest || p.Status == http.StatusRequestEntityTooLarge || p.Status == http.StatusUnprocessableEntity {
		return exitBadWork
	}
	return exitUnavailable // no access, no guard at that address, or it is broken
}

// guardFlags say which guard a command works with.
type guardFlags struct {
	server, keyEnv, namespace string
}

func (f *guardFlags) add(cmd *cobra.Command) {
	addConfigFlags(cmd, "database")
	flags := cmd.Flags()
	flags.StringVar(&f.server, "server", "", "work through the server at this `URL`, not on the database file")
	flags.StringVar(&f.keyEnv, "server-key-env", "LLMPROXY_KEY", "environment `variable` with the proxy key for --server")
	flags.String("tenant", "", "`tenant` of the work on the file (default: that of the configuration, else default)")
	flags.StringVar(&f.namespace, "namespace", "", "`namespace` of the work, such as prod or test (default: default)")
}

// guardAccess is what a command does with the database.
type guardAccess int

const (
	toDerive guardAccess = iota // nothing
	toRead                      // the file must be there
	toDecide                    // the file must be there, and is written
	toBegin                     // the file is made where it is not
)

// defaultGuardTenant is whose the work on a database file is where nothing says so.
const defaultGuardTenant = "default"

// open returns a client of the guard that the flags name; done must be called.
// Its errors mean that the guard cannot be asked.
func (a *app) openGuard(cmd *cobra.Command, f *guardFlags, access guardAccess) (client *guard.Client, done func(), err error) {
	if f.server != "" {
		for _, other := range []string{"database", "tenant", "config"} {
			if cmd.Flags().Changed(other) {
				return nil, nil, usagef("--%s is for work on the database file; leave it out with --server, which knows the tenant by the proxy key", other)
			}
		}
		client, err := guard.NewClient(f.server, a.env[f.keyEnv])
		if err != nil {
			return nil, nil, usagef("%w", err)
		}
		return client, func() {}, nil
	}
	g, done, err := a.openLocalGuard(cmd, access)
	if err != nil {
		return nil, nil, err
	}
	return g, done, nil
}

func (a *app) openLocalGuard(cmd *cobra.Command, access guardAccess) (*guard.Client, func(), error) {
	settings, err := a.loadSettings(cmd.Flags())
	if err != nil {
		return nil, nil, &exitError{exitUnavailable, err}
	}
	log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	g := &guard.Guard{Log: log, Step: guardSteps(settings.Guard), Redact: settings.Guard.Redact, KeySecret: guardSecret(settings.Guard, a.env)}
	done := func() {}
	if access != toDerive {
		if g.Store, done, err = openGuardStore(cmd, settings, access, log); err != nil {
			return nil, nil, &exitError{exitUnavailable, err}
		}
	}
	return g.Local(orDefault(settings.Tenant, defaultGuardTenant)), done, nil
}

// guardSteps says how steps are guarded by a server and on the file alike.
func guardSteps(cfg GuardConfig) func(name string) guard.Step {
	onUnknown, _ := guard.ParseOnUnknown(cfg.DefaultOnUnknown) // checked when it was read
	return func(string) guard.Step { return guard.Step{OnUnknown: onUnknown} }
}

// guardSecret keys the hashes of keys, nil where nothing is to.
func guardSecret(cfg GuardConfig, env map[string]string) []byte {
	if cfg.KeySecretEnv == "" {
		return nil
	}
	return []byte(env[cfg.KeySecretEnv])
}

func openGuardStore(cmd *cobra.Command, settings Settings, access guardAccess, log *slog.Logger) (s *store.Store, done func(), err error) {
	ctx, path := cmd.Context(), settings.Database
	if access == toRead {
		if s, err = store.OpenReader(ctx, path); err != nil {
			return nil, nil, err
		}
		return s, func() { s.CloseReader() }, nil //nolint:errcheck // nothing was written
	}
	// Another folder would make another file, in which nothing is done yet: a
	// relative path makes one only where it stands on the command line.
	if _, err := os.Stat(path); err != nil && (access == toDecide || !filepath.IsAbs(path) && !cmd.Flags().Changed("database")) {
		return nil, nil, fmt.Errorf("database %s: %w; name the file by --database, best by its whole path, or another folder has another file", path, err)
	}
	if s, err = store.Open(ctx, path, store.Options{}); err != nil {
		return nil, nil, err
	}
	return s, func() {
		if err := s.Close(); err != nil {
			log.Warn("closing the database", "err", err)
		}
	}, nil
}

// workFlags say which unit of work a command is about.
type workFlags struct {
	step, key, keyFrom, input, occurrence string
	selected                              []string
	stdin                                 []byte // what was read for --key-from -
}

func (f *workFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.step, "step", "", "`step` of the automation (required)")
	flags.StringVar(&f.key, "key", "", "`text` that names this unit of work, such as \"report 2026-12-01\"")
	flags.StringVar(&f.keyFrom, "key-from", "", "`file` with the JSON input that the work is made of, - for standard input")
	flags.StringVar(&f.input, "input", "", "the `JSON` input itself")
	flags.StringArrayVar(&f.selected, "select", nil, "JSON `pointer` to a part of the input that makes the key, once for each (default: all of it)")
	flags.StringVar(&f.occurrence, "occurrence", "", "`text` that tells a rightful repetition of the same work from the first")
}

// given tells whether any of the flags is.
func (f *workFlags) given(cmd *cobra.Command) bool {
	for _, name := range []string{"step", "key", "key-from", "input", "select", "occurrence"} {
		if cmd.Flags().Changed(name) {
			return true
		}
	}
	return false
}

// work is the unit of work that the flags tell of. A flag that is empty is
// refused: it was an unset variable, and would make other work the same.
func (f *workFlags) work(cmd *cobra.Command, namespace string) (w guard.Work, err error) {
	for _, name := range []string{"step", "key", "key-from", "input", "select", "occurrence", "namespace"} {
		if flag := cmd.Flags().Lookup(name); flag.Changed && (flag.Value.String() == "" || flag.Value.String() == "[]") {
			return w, usagef("--%s is empty; is a variable not set?", name)
		}
	}
	switch {
	case f.step == "":
		return w, usagef("--step is missing; name the step of the automation")
	case f.keyFrom != "" && f.input != "":
		return w, usagef("--key-from and --input both say what the work is made of; give one of them")
	case f.key == "" && f.keyFrom == "" && f.input == "":
		return w, usagef("nothing tells this work from other work; give --key, --key-from or --input")
	case len(f.selected) > 0 && (f.key != "" || f.keyFrom == "" && f.input == ""):
		return w, usagef("--select picks from the input that makes the key; give --key-from or --input, and no --key")
	}
	w = guard.Work{Namespace: namespace, Step: f.step, Select: f.selected, Explicit: f.key, Occurrence: f.occurrence}
	switch {
	case f.input != "":
		w.Input = []byte(f.input)
	case f.keyFrom != "":
		if w.Input, err = readInput(cmd, f.keyFrom); err != nil {
			return w, &exitError{exitBadWork, err}
		}
		if f.keyFrom == "-" {
			f.stdin = w.Input
		}
	}
	return w, nil
}

// readInput reads a file, or standard input for -. It is never nil.
func readInput(cmd *cobra.Command, name string) (text []byte, err error) {
	const most = 1<<20 + 1 // the guard refuses what is larger than 1 MiB
	in := cmd.InOrStdin()
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return nil, fmt.Errorf("reading the input: %w", err)
		}
		defer file.Close()
		in = file
	}
	if text, err = io.ReadAll(io.LimitReader(in, most)); err != nil {
		return nil, fmt.Errorf("reading the input: %w", err)
	}
	return text, nil
}

// beginFlags are how a unit of work is begun.
type beginFlags struct {
	lease, wait, retention Duration
	onUnknown, drift, note string
}

func (f *beginFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.Var(&durationFlag{&f.lease}, "lease", "how long the claim holds between two signs of life (default: the step's, 1m)")
	flags.Var(&durationFlag{&f.wait}, "wait", "how long to wait for another run that is at it (default: not at all)")
	flags.Var(&durationFlag{&f.retention}, "retention", "how long the result is kept (default: the step's, 30d)")
	flags.StringVar(&f.onUnknown, "on-unknown", "", "`policy` where an earlier run may have acted: retry, hold or probe (default: the step's)")
	flags.StringVar(&f.drift, "drift", "", "what to do where the key was used with another input: replay or reject (default: reject with --key, else replay)")
	flags.StringVar(&f.note, "note", "", "`text` for people who look at this attempt")
}

// request is the begin that the flags ask for.
func (f *beginFlags) request(work guard.Work) (r guard.Request, err error) {
	r = guard.Request{Work: work, Mode: guard.ModeCLI, Lease: time.Duration(f.lease), Wait: time.Duration(f.wait),
		Retention: time.Duration(f.retention), Note: f.note}
	if f.onUnknown != "" {
		if r.OnUnknown, err = guard.ParseOnUnknown(f.onUnknown); err != nil {
			return r, unknownChoice("--on-unknown", f.onUnknown, []string{"retry", "hold", "probe"})
		}
	}
	if f.drift != "" {
		if r.Drift, err = guard.ParseDrift(f.drift); err != nil {
			return r, unknownChoice("--drift", f.drift, []string{"replay", "reject"})
		}
	}
	return r, nil
}

// durationFlag reads a Duration from the command line; 0 shows no default.
type durationFlag struct{ d *Duration }

func (f *durationFlag) Type() string { return "duration" }

func (f *durationFlag) String() string {
	if f.d == nil || *f.d == 0 {
		return ""
	}
	return f.d.String()
}

func (f *durationFlag) Set(text string) error {
	if err := f.d.UnmarshalText([]byte(text)); err != nil {
		return fmt.Errorf("%q %w", text, err)
	}
	return nil
}

// beginWaiting begins, and waits for others as long as the request says, in
// spans that every server and proxy between allows.
func beginWaiting(ctx context.Context, client *guard.Client, r guard.Request) (*guard.Effect, error) {
	const span = 25 * time.Second
	deadline := time.Now().Add(r.Wait)
	for {
		r.Wait = min(max(time.Until(deadline), 0), span)
		e, err := client.Begin(ctx, r)
		if err != nil || e.Decision != guard.Wait || !time.Now().Before(deadline) {
			return e, err
		}
	}
}

// refusedBegin says why a begin was not granted, and what to do.
func refusedBegin(e *guard.Effect) error {
	name := e.Key[:min(len(e.Key), shownDigits)]
	switch e.Decision {
	case guard.Wait:
		text := "another run is at it"
		switch {
		case e.Reason == string(guard.RetryLater):
			text = "the last run asked for a pause"
		case e.State == guard.Unknown.String():
			text = "an earlier run ended without a success, and what it sent may still take effect"
		}
		return &exitError{exitInProgress, fmt.Errorf("key %s: %s; try again in %d s, or wait with --wait", name, text, e.RetryAfter)}
	case guard.Held:
		return &exitError{exitUndecided, fmt.Errorf("key %s is held: an earlier run may have acted (%s). Look, then: llmproxy guard resolve %s --outcome done or not_done",
			name, attemptsText(e.Attempts), name)}
	case guard.Mismatch:
		return &exitError{exitBadWork, fmt.Errorf("key %s was used for another input; give the input it was used for, another key or --occurrence, or --drift replay", name)}
	}
	return &exitError{exitUndecided, errors.New(e.Message)}
}
