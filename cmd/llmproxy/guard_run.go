package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"llmproxy/guard"
)

// runFlags are those of guard run.
type runFlags struct {
	target                         guardFlags
	unit                           workFlags
	how                            beginFlags
	timeout                        Duration
	probe, capture, resourceIDFrom string
	success, notDone, unknown      string
	report                         string
	exportToken                    bool
}

func newGuardRunCmd(a *app) *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run [flags] -- COMMAND [ARG]...",
		Short: "Run a command once for each unit of work, and replay its result",
		Long: `Run claims the unit of work, runs the command under a lease that it renews, and
stores the end. The same work again prints what the command printed and exits with
its code, without running it.

  success (--success-codes)    done: later runs replay it
  --not-done-codes             it certainly did not act: the next run acts
  no such command              the same
  any other end, a signal,     it may have acted: --on-unknown says whether the
  --timeout                    next run acts (retry, after some seconds) or not (hold)

The command gets GUARD_KEY, GUARD_DOWNSTREAM_KEY (give it to the service as its
idempotency key), GUARD_FENCE, GUARD_TAKEOVER (true where an earlier run may have
acted), GUARD_NAMESPACE and GUARD_STEP. Signals go on to it and its children. If the
lease is lost they are ended, because another run may be acting.

Exit codes of its own, beside the command's: 64 wrong command line, 65 unusable
input or another input under the same key, 69 the guard cannot be asked and nothing
was executed, 75 in progress, 79 it may have happened: held, lease lost, --timeout,
or its end could not be stored.`,
		Example: `  llmproxy guard run --step nightly --key "report $(date +%F)" --on-unknown hold \
      --database /var/lib/llmproxy/llmproxy.db -- ./send-report.sh
  llmproxy guard run --step post --key-from item.json --select /id \
      --not-done-codes 7 --resource-id-from json:/id -- curl -sf https://api.example/posts -d @item.json`,
		Args: func(cmd *cobra.Command, args []string) error {
			if cmd.ArgsLenAtDash() != 0 || len(args) == 0 {
				return usagef("give the command after --, as in: llmproxy guard run --step S --key K -- ./send.sh")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return a.guardRun(cmd, &f, args) },
	}
	f.target.add(cmd)
	f.unit.add(cmd)
	f.how.add(cmd)
	flags := cmd.Flags()
	flags.Var(&durationFlag{&f.timeout}, "timeout", "end the command after so long; it may have acted then (default: never)")
	flags.StringVar(&f.probe, "probe", "", "shell `command` that looks whether an earlier run acted: exit 0 it did (prints the resource id), 1 it did not, else it can't tell")
	flags.StringVar(&f.success, "success-codes", "0", "exit `codes` that mean it is done, such as 0,3-5")
	flags.StringVar(&f.notDone, "not-done-codes", "", "exit `codes` that mean it certainly did not act")
	flags.StringVar(&f.unknown, "unknown-codes", "", "exit `codes` that mean it may have acted, although another list has them (default: all in no list)")
	flags.StringVar(&f.capture, "capture", "stdout", "what to keep for replays: stdout (up to 1 MiB) or none")
	flags.StringVar(&f.resourceIDFrom, "resource-id-from", "", "`place` of the resource id in standard output: json:/pointer, or regex:pattern (its first group, if any)")
	flags.StringVar(&f.report, "report", "", "`file` to write what happened to, as JSON")
	flags.BoolVar(&f.exportToken, "export-token", false, "give the command GUARD_TOKEN as well, so that it can report for itself")
	return cmd
}

// guardRun is one run, from the claim to the report.
type guardRun struct {
	client    *guard.Client
	request   guard.Request
	codes     exitCodes
	timeout   time.Duration
	probe     string
	keep      bool // standard output, for replays
	extract   func(stdout []byte) (string, error)
	token     bool // the command gets it
	args      []string
	env       []string
	stdin     io.Reader
	stdout    io.Writer
	stderr    io.Writer
	signals   chan os.Signal
	reporting *os.File // of --report; nil: none
	told      runReport
}

// runReport is what --report tells.
type runReport struct {
	Decision     guard.Decision `json:"decision"` // empty: the guard gave none
	Key          string         `json:"key"`
	Namespace    string         `json:"namespace"`
	Step         string         `json:"step"`
	Fence        int64          `json:"fence"`
	State        string         `json:"state"` // after the run
	Replayed     bool           `json:"replayed"`
	Takeover     bool           `json:"takeover"`
	Drift        bool           `json:"drift"`
	ResourceID   string         `json:"resource_id"`
	Executed     bool           `json:"executed"`      // the command was started
	CommandCode  *int           `json:"command_code"`  // null where it did not exit
	CommandEnded string         `json:"command_ended"` // how, in words
	ExitCode     int            `json:"exit_code"`     // of guard run
	Error        string         `json:"error,omitempty"`
}

// guardRun runs the command line; its error carries the exit code.
func (a *app) guardRun(cmd *cobra.Command, f *runFlags, args []string) error {
	r, err := f.prepare(cmd, args)
	if err != nil {
		return err
	}
	if f.report != "" { // before the act: afterwards it is too late to find it can't be written
		if r.reporting, err = os.Create(f.report); err != nil {
			return usagef("--report: %w", err)
		}
		defer r.reporting.Close()
	}
	signal.Notify(r.signals, forwarded()...)
	defer signal.Stop(r.signals)
	client, done, err := a.openGuard(cmd, &f.target, toBegin)
	if err == nil {
		defer done()
		r.client = client
		for name, value := range a.env {
			if name != "GUARD_TOKEN" { // it would be that of a run around this one
				r.env = append(r.env, name+"="+value)
			}
		}
		err = r.run(cmd.Context())
	}
	return r.finish(err)
}

// prepare checks all that can be wrong before anything happens.
func (f *runFlags) prepare(cmd *cobra.Command, args []string) (r *guardRun, err error) {
	r = &guardRun{timeout: time.Duration(f.timeout), probe: f.probe, keep: f.capture == "stdout", token: f.exportToken, args: args,
		stdin: cmd.InOrStdin(), stdout: cmd.OutOrStdout(), stderr: cmd.ErrOrStderr(), signals: make(chan os.Signal, 16)}
	if err := checkChoice("--capture", f.capture, []string{"stdout", "none"}); err != nil {
		return nil, err
	}
	if r.codes, err = parseExitCodes(f.success, f.notDone, f.unknown); err != nil {
		return nil, err
	}
	if r.extract, err = parseExtract(f.resourceIDFrom); err != nil {
		return nil, err
	}
	switch {
	case f.probe != "" && f.how.onUnknown == "":
		f.how.onUnknown = "probe"
	case f.probe != "" && f.how.onUnknown != "probe":
		return nil, usagef("--probe is asked under --on-unknown probe, not %s", f.how.onUnknown)
	case f.probe == "" && f.how.onUnknown == "probe" && f.target.server == "":
		return nil, usagef("--on-unknown probe needs --probe, the command that looks whether it happened")
	}
	work, err := f.unit.work(cmd, f.target.namespace)
	if err != nil {
		return nil, err
	}
	if f.unit.stdin != nil {
		r.stdin = bytes.NewReader(f.unit.stdin) // the command gets the same input
	}
	if r.request, err = f.how.request(work); err != nil {
		return nil, err
	}
	r.request.Confirm = true
	if r.request.Note == "" {
		r.request.Note = attemptNote(args)
	}
	r.told.Step, r.told.Namespace = work.Step, orDefault(work.Namespace, "default")
	return r, nil
}

// attemptNote says where an attempt runs, for whoever has to look into it.
func attemptNote(args []string) string {
	host, err := os.Hostname()
	if err != nil {
		host = "unnamed host"
	}
	return fmt.Sprintf("%s, pid %d: %s", host, os.Getpid(), args[0])
}

func checkChoice(flag, word string, known []string) error {
	if slices.Contains(known, word) {
		return nil
	}
	return unknownChoice(flag, word, known)
}

// parseExtract reads --resource-id-from.
func parseExtract(place string) (func([]byte) (string, error), error) {
	kind, rest, _ := strings.Cut(place, ":")
	switch {
	case place == "":
		return nil, nil
	case kind == "json":
		if _, err := guard.TextAt([]byte("null"), rest); err != nil && !strings.HasPrefix(rest, "/") {
			return nil, usagef("--resource-id-from: %w", err)
		}
		return func(stdout []byte) (string, error) { return guard.TextAt(stdout, rest) }, nil
	case kind == "regex":
		pattern, err := regexp.Compile(rest)
		if err != nil {
			return nil, usagef("--resource-id-from: %w", err)
		}
		return func(stdout []byte) (string, error) {
			found := pattern.FindSubmatch(stdout)
			if found == nil {
				return "", fmt.Errorf("nothing matches %s", rest)
			}
			return string(found[min(1, len(found)-1)]), nil
		}, nil
	}
	return nil, usagef("--resource-id-from %q is no place; write json:/pointer or regex:pattern", place)
}

// note tells people what happens, beside what the command itself says.
func (r *guardRun) note(format string, args ...any) {
	fmt.Fprintf(r.stderr, "llmproxy: "+format+"\n", args...)
}

// finish writes the report of a run and makes err the exit of the command.
func (r *guardRun) finish(err error) error {
	err = guardExit(err)
	if exit, coded := errors.AsType[*exitError](err); coded {
		if exit.code == exitFailed && exit.err != nil { // ours, not the command's; nothing was executed
			exit.code = exitUnavailable
		}
		r.told.ExitCode = exit.code
		if exit.err != nil {
			r.told.Error = exit.err.Error()
		}
	}
	if r.reporting != nil {
		if failed := printJSON(r.reporting, r.told); failed != nil {
			r.note("the report could not be written: %v", failed)
		}
	}
	return err
}

// ended is the error of a run whose command has ended or was replayed.
func ended(code int) error {
	if code == 0 {
		return nil
	}
	return &exitError{code: code}
}

func (r *guardRun) run(ctx context.Context) error {
	e, err := r.begin(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return r.interrupted()
		}
		return err
	}
	r.told.Decision, r.told.Key, r.told.State = e.Decision, e.Key, e.State
	r.told.Fence, r.told.Takeover, r.told.Drift = e.Fence, e.Takeover, e.Drift
	switch e.Decision {
	case guard.Replay:
		return r.replay(e)
	case guard.Proceed:
		return r.proceed(ctx, e)
	}
	return refusedBegin(e)
}

// interrupted is the end of a run that was told to end before it executed anything.
func (r *guardRun) interrupted() error {
	code := 128 + int(syscall.SIGTERM)
	select {
	case s := <-r.signals:
		if number, ok := s.(syscall.Signal); ok {
			code = 128 + int(number)
		}
	default:
	}
	return &exitError{code, errors.New("told to end; nothing was executed")}
}

// begin claims the work, and asks the probe where the answer depends on it.
func (r *guardRun) begin(ctx context.Context) (*guard.Effect, error) {
	for {
		e, err := beginWaiting(ctx, r.client, r.request)
		if err != nil || e.Decision != guard.Held || e.AskedAt == "" || r.probe == "" {
			return e, err
		}
		verdict, resourceID := r.ask(ctx, e)
		if verdict == 0 {
			return e, nil
		}
		_, err = r.client.Resolve(ctx, r.request.Namespace, e.Key, guard.Resolve{Verdict: verdict, By: "probe", Reason: "the probe of guard run",
			Result: guard.Result{ResourceID: resourceID}, Probed: true, Fence: e.Fence}, e.AskedAt)
		if problem, refused := errors.AsType[*guard.Problem](err); refused && problem.Status == 409 {
			continue // the effect has moved on meanwhile
		}
		if err != nil {
			return nil, err
		}
	}
}

// probeTime is how long a probe may take.
const probeTime = time.Minute

// ask runs the probe. 0 is that it can't tell.
func (r *guardRun) ask(ctx context.Context, e *guard.Effect) (guard.Verdict, string) {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	probe := exec.CommandContext(ctx, "sh", "-c", r.probe)
	probe.Env, probe.Stderr, probe.WaitDelay = r.environment(e, ""), r.stderr, time.Second
	stdout, err := probe.Output()
	failed, exited := errors.AsType[*exec.ExitError](err)
	switch {
	case err == nil:
		id := strings.TrimSpace(string(stdout))
		if err := checkResourceID(id); err != nil {
			r.note("the probe says it is done, but %v; it is kept without", err)
			id = ""
		}
		return guard.VerdictDone, id
	case exited && failed.ExitCode() == 1:
		return guard.VerdictNotDone, ""
	}
	r.note("the probe can't tell: %v", err)
	return 0, ""
}

// environment is that of the command and of the probe.
func (r *guardRun) environment(e *guard.Effect, token string) []string {
	env := append([]string(nil), r.env...)
	for _, v := range effectEnv(e, r.request.Work) {
		env = append(env, v[0]+"="+v[1])
	}
	if token != "" {
		env = append(env, "GUARD_TOKEN="+token)
	}
	return env
}

// runResult is what a run leaves for its replays.
type runResult struct {
	ExitCode     *int    `json:"exit_code"`
	Stdout       *string `json:"stdout,omitempty"`
	StdoutBase64 []byte  `json:"stdout_base64,omitempty"` // where it is no UTF-8
	Truncated    bool    `json:"truncated,omitempty"`     // it was too large, and none of it is kept
}

// maxRunResult is the largest result that the guard takes, as JSON.
const maxRunResult = 1 << 20

// encodeResult is what is stored of a success: the code, and with keep the
// output, if that is complete and not too large.
func encodeResult(code int, stdout []byte, keep, complete bool) (json.RawMessage, error) {
	result := runResult{ExitCode: &code}
	switch {
	case keep && !complete:
		result.Truncated = true
	case keep && utf8.Valid(stdout):
		text := string(stdout)
		result.Stdout = &text
	case keep:
		result.StdoutBase64 = stdout
	}
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(result); err != nil {
		return nil, err
	}
	if b.Len() > maxRunResult {
		return encodeResult(code, nil, true, false)
	}
	return bytes.TrimSpace(b.Bytes()), nil
}

// replay gives what an earlier run gave.
func (r *guardRun) replay(e *guard.Effect) error {
	r.told.Replayed, r.told.ResourceID = true, e.ResourceID
	text := fmt.Sprintf("key %s was done %s", e.Key[:shownDigits], e.CompletedAt.Format(time.RFC3339))
	if e.ResourceID != "" {
		text += ", resource " + e.ResourceID
	}
	if e.Drift {
		text += ", for an input that differs from this one"
	}
	r.note("%s; not run again", text)
	var result runResult
	if err := json.Unmarshal(e.Result, &result); err != nil || result.ExitCode == nil {
		r.note("no output of it is stored; the exit code is 0 because it is done") // reported by another client or a person, or past its retention
		return nil
	}
	stdout := result.StdoutBase64
	if result.Stdout != nil {
		stdout = []byte(*result.Stdout)
	}
	if result.Truncated {
		r.note("its output was larger than 1 MiB and was not kept")
	}
	if _, err := r.stdout.Write(stdout); err != nil {
		r.note("writing the stored output: %v", err)
	}
	return ended(*result.ExitCode)
}

// checkResourceID tells what the guard would refuse of an id.
func checkResourceID(id string) error {
	const most = 255
	bad := func(c rune) bool { return c < ' ' || c == 0x7f || c == utf8.RuneError }
	if len(id) > most || strings.ContainsFunc(id, bad) {
		return fmt.Errorf("the resource id %.40q is longer than %d bytes or has control characters", id, most)
	}
	return nil
}
