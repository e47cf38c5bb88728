package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os/exec"
	"runtime"
	"time"

	"llmproxy/guard"
)

const (
	killAfter   = 10 * time.Second // from SIGTERM to SIGKILL
	reportFor   = 30 * time.Second // how long an end is reported again where the guard can't be asked
	requestTime = 20 * time.Second // of one request to the guard
)

// proceed runs the command under the claim e and reports its end.
func (r *guardRun) proceed(ctx context.Context, e *guard.Effect) error {
	claim := guard.Claim{Namespace: r.request.Namespace, Key: e.Key, Token: e.Token}
	asked := time.Now()
	work := context.WithoutCancel(ctx)
	extended, err := r.extend(work, claim)
	if err != nil || ctx.Err() != nil {
		r.reportNone(work, claim, "nothing was executed")
		if err == nil {
			return r.interrupted()
		}
		return err
	}
	if e.Takeover {
		r.note("an earlier run may have acted (%s); this one runs all the same, by --on-unknown retry", attemptsText(e.Attempts))
	}
	beat := &heartbeat{until: asked.Add(extended), lease: extended,
		extend: func(ctx context.Context) (time.Duration, error) { return r.extend(ctx, claim) }}
	token := ""
	if r.token {
		token = e.Token
	}
	command := exec.Command(r.args[0], r.args[1:]...)
	command.Env, command.Stdin, command.Stderr = r.environment(e, token), r.stdin, r.stderr
	end := r.execute(work, command, beat)
	return r.settle(work, claim, end)
}

// extend renews the lease and tells its length from the moment of asking.
func (r *guardRun) extend(ctx context.Context, claim guard.Claim) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	e, err := r.client.Extend(ctx, claim, 0)
	if err != nil {
		return 0, err
	}
	return time.Duration(e.LeaseSeconds * float64(time.Second)), nil
}

// heartbeat renews a lease while its holder works.
type heartbeat struct {
	lease  time.Duration
	until  time.Time // the lease holds up to here by this machine's clock
	extend func(context.Context) (time.Duration, error)
}

// run returns nil when ctx ends, and otherwise why the lease is lost. Where the
// guard can't be asked it tries on, until the lease is over: then another run
// may hold it.
func (h *heartbeat) run(ctx context.Context) error {
	wait := h.lease / 3
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
		asked := time.Now()
		try, cancel := context.WithDeadline(ctx, h.until)
		granted, err := h.extend(try)
		cancel()
		switch {
		case err == nil:
			h.lease, h.until = granted, asked.Add(granted)
			wait = max(h.lease/3, 100*time.Millisecond) // near the longest it may be extended, leases get short
		case ctx.Err() != nil:
			return nil
		case decided(err):
			return err
		case !time.Now().Before(h.until):
			return fmt.Errorf("it is over and could not be renewed: %w", err)
		default:
			wait = min(h.lease/10, time.Second)
		}
	}
}

// decided tells whether the guard has answered, so that asking again is no use.
func decided(err error) bool {
	problem, answered := errors.AsType[*guard.Problem](err)
	if answered {
		return problem.Status < http.StatusInternalServerError && problem.Status != http.StatusTooManyRequests
	}
	_, wrong := errors.AsType[*guard.InputError](err)
	return wrong
}

func isRefusal(err error, refusal guard.Refusal) bool {
	problem, answered := errors.AsType[*guard.Problem](err)
	return answered && problem.Code == string(refusal)
}

// end is how a command ended.
type end struct {
	started  bool
	code     int // as a shell tells it: 128 + number for a signal
	outcome  guard.Outcome
	words    string
	forced   bool // we ended it: the code is not its own word
	stdout   []byte
	complete bool // stdout is all of it
}

// execute runs the command until it ends or is ended. The thread is locked
// because on Linux the command dies with the thread that started it: should this
// process be killed, the command must not act on under a lease nobody renews.
func (r *guardRun) execute(ctx context.Context, command *exec.Cmd, beat *heartbeat) end {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c, err := startChild(command, r.stdout, r.keep || r.extract != nil)
	if err != nil {
		return notStarted(err)
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	lost := make(chan error, 1)
	go func() { lost <- beat.run(ctx) }()
	var timeout, kill <-chan time.Time
	if r.timeout > 0 {
		timeout = time.After(r.timeout)
	}
	why := ""
	for running := true; running; {
		stopping := ""
		select {
		case <-c.ended:
			running = false
		case s := <-r.signals:
			c.forward(s)
		case err := <-lost:
			stopping = fmt.Sprintf("the lease was lost: %v", err)
		case <-timeout:
			stopping = fmt.Sprintf("it took longer than %s", Duration(r.timeout))
		case <-kill:
			c.kill()
		}
		if stopping != "" && why == "" {
			why = stopping
			r.note("%s; ending the command", why)
			c.terminate()
			kill = time.After(killAfter)
		}
	}
	if why != "" {
		c.kill() // what it left running must not act either
	}
	return r.judge(c, why)
}

// notStarted is the end of a command that is none, with the codes of a shell.
func notStarted(err error) end {
	code := 126
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		code = 127
	}
	return end{code: code, outcome: guard.OutcomeNone, words: "it could not be started: " + err.Error()}
}

// judge says what the end of a command means; why is set if we ended it.
func (r *guardRun) judge(c *child, why string) end {
	d := end{started: true, forced: why != "", stdout: c.stdout.kept, complete: !c.stdout.over}
	if err := c.stdout.err; err != nil {
		r.note("standard output was not read to its end: %v", err)
	}
	if err := c.stdout.gone; err != nil {
		r.note("standard output could not be passed on to its end: %v", err)
	}
	signal := ""
	d.code, signal = c.status()
	switch {
	case d.forced:
		d.outcome, d.words = guard.OutcomeUnknown, why
	case signal != "":
		d.outcome, d.words = guard.OutcomeUnknown, "ended by a signal: "+signal
	default:
		d.outcome, d.words = r.codes.outcome(d.code), fmt.Sprintf("exit code %d", d.code)
		r.told.CommandCode = &d.code
	}
	return d
}

// settle reports an end to the guard and makes the exit code of it.
func (r *guardRun) settle(ctx context.Context, claim guard.Claim, d end) error {
	r.told.Executed, r.told.CommandEnded = d.started, d.words
	if r.token && r.reportedItself(ctx, claim) {
		return ended(d.code)
	}
	var err error
	switch d.outcome {
	case guard.OutcomeDone:
		err = r.complete(ctx, claim, d)
	default:
		err = r.patiently(ctx, func(ctx context.Context) (*guard.Effect, error) {
			return r.client.Fail(ctx, claim, d.outcome == guard.OutcomeNone, d.words, 0)
		})
	}
	switch {
	case !d.started:
		if err != nil {
			r.note("that nothing was executed could not be stored: %v", err)
		}
		return &exitError{d.code, errors.New(d.words)}
	case isRefusal(err, guard.AlreadyCompleted):
		return &exitError{exitUndecided, fmt.Errorf("the command ended (%s), but another run has done the same work: there may be two effects. See: llmproxy guard status %s", d.words, claim.Key[:shownDigits])}
	case err != nil:
		return &exitError{exitUndecided, fmt.Errorf("the command ended (%s), but that was not stored: %w. Look, then: llmproxy guard resolve %s", d.words, err, claim.Key[:shownDigits])}
	case d.forced:
		return &exitError{exitUndecided, fmt.Errorf("the command was ended and may have acted: %s", d.words)}
	}
	return ended(d.code)
}

// reportedItself tells whether the command, which had the token, has reported.
func (r *guardRun) reportedItself(ctx context.Context, claim guard.Claim) bool {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	e, err := r.client.Find(ctx, claim.Namespace, claim.Key)
	if err != nil {
		return false // reporting it once more tells what is wrong
	}
	for _, a := range e.Attempts {
		if a.Fence == r.told.Fence && a.Outcome != guard.OutcomeRunning.String() {
			r.told.State, r.told.ResourceID = e.State, a.ResourceID
			return true
		}
	}
	return false
}

func (r *guardRun) complete(ctx context.Context, claim guard.Claim, d end) error {
	id := ""
	if r.extract != nil {
		found, err := r.extract(d.stdout)
		if err == nil {
			err = checkResourceID(found)
		}
		if err != nil {
			r.note("there is no resource id: %v", err)
		} else {
			id = found
		}
	}
	result, err := encodeResult(d.code, d.stdout, r.keep, d.complete)
	if err != nil {
		return err
	}
	r.told.ResourceID = id
	return r.patiently(ctx, func(ctx context.Context) (*guard.Effect, error) {
		return r.client.Complete(ctx, claim, id, json.RawMessage(result))
	})
}

// patiently reports again while the guard can't be asked: a report may be
// repeated, and what it tells is lost with this process.
func (r *guardRun) patiently(ctx context.Context, report func(context.Context) (*guard.Effect, error)) error {
	deadline := time.Now().Add(reportFor)
	for wait := 200 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		try, cancel := context.WithTimeout(ctx, requestTime)
		e, err := report(try)
		cancel()
		if err == nil {
			r.told.State = e.State
			return nil
		}
		if decided(err) || time.Now().Add(wait).After(deadline) {
			return err
		}
		time.Sleep(wait)
	}
}

// reportNone gives a claim back that was not acted on. Where that fails it
// lapses by itself.
func (r *guardRun) reportNone(ctx context.Context, claim guard.Claim, reason string) {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	e, err := r.client.Fail(ctx, claim, true, reason, 0)
	if err != nil {
		r.note("the claim could not be given back: %v", err)
		return
	}
	r.told.State = e.State
}
