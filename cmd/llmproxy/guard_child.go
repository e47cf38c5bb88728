package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"time"

	"golang.org/x/term"
)

// maxCapture is how much of standard output is kept.
const maxCapture = 1 << 20

// leftOpen is how long standard output of a command that was killed may stay open.
const leftOpen = time.Second

// forwarded are the signals that go on to the command. SIGPIPE is among them
// only so that it does not end this process when whoever reads its output has
// left: the command's end must be reported all the same.
func forwarded() []os.Signal {
	return []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGPIPE}
}

// child is a running command and all that it starts in its process group.
//
// Where standard input is a terminal it stays in the group of this process,
// because no other may read from it; the terminal then sends Ctrl-C to both.
type child struct {
	command  *exec.Cmd
	terminal bool
	stdout   tee
	pipe     *os.File // the end of its standard output that is read; nil: it has ours
	ended    chan struct{}
	waited   error // of the command; read after ended
}

// startChild starts a command. With capture, stdout gets what it prints through
// a pipe and a copy is kept.
func startChild(command *exec.Cmd, stdout io.Writer, capture bool) (*child, error) {
	c := &child{command: command, stdout: tee{to: stdout}, ended: make(chan struct{})}
	if in, ok := command.Stdin.(*os.File); ok {
		c.terminal = term.IsTerminal(int(in.Fd()))
	}
	command.SysProcAttr = childAttributes(!c.terminal)
	var write *os.File
	if _, isFile := stdout.(*os.File); capture || !isFile {
		var err error
		if c.pipe, write, err = os.Pipe(); err != nil {
			return nil, err
		}
		defer write.Close()
		command.Stdout = write
	} else {
		command.Stdout = stdout
	}
	if err := command.Start(); err != nil {
		if c.pipe != nil {
			c.pipe.Close()
		}
		return nil, err
	}
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		if c.pipe != nil {
			_, c.stdout.err = io.Copy(&c.stdout, c.pipe)
			c.pipe.Close()
		}
	}()
	go func() {
		c.waited = command.Wait()
		<-copied // its output may be held open by what it started, as in a shell
		close(c.ended)
	}()
	return c, nil
}

// signal sends a signal to the command and its group. That they have ended is
// no error: they may at any moment.
func (c *child) signal(s syscall.Signal) {
	pid := c.command.Process.Pid
	if !c.terminal {
		pid = -pid
	}
	if err := syscall.Kill(pid, s); err != nil && !errors.Is(err, syscall.ESRCH) {
		fmt.Fprintf(os.Stderr, "llmproxy: sending %v to the command: %v\n", s, err)
	}
}

func (c *child) forward(s os.Signal) {
	number, ok := s.(syscall.Signal)
	fromTerminal := c.terminal && slices.Contains([]syscall.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGHUP}, number)
	if ok && number != syscall.SIGPIPE && !fromTerminal {
		c.signal(number)
	}
}

func (c *child) terminate() { c.signal(syscall.SIGTERM) }

// kill ends the group, and the reading of output that somebody outside of it
// still holds open.
func (c *child) kill() {
	c.signal(syscall.SIGKILL)
	if c.pipe != nil {
		time.AfterFunc(leftOpen, func() { c.pipe.Close() })
	}
}

// status is the exit code as a shell tells it, and the signal that ended the
// command, if one did.
func (c *child) status() (code int, signal string) {
	state := c.command.ProcessState
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal()), status.Signal().String()
	}
	return state.ExitCode(), ""
}

// tee passes on what is written and keeps a copy. It takes everything: where
// its reader has left, the command still runs to its end.
type tee struct {
	to   io.Writer
	gone error // of the first write that failed
	kept []byte
	over bool // there was more than maxCapture; nothing is kept
	err  error
}

func (t *tee) Write(b []byte) (int, error) {
	if t.gone == nil {
		_, t.gone = t.to.Write(b)
	}
	switch {
	case t.over:
	case len(t.kept)+len(b) > maxCapture:
		t.kept, t.over = nil, true
	default:
		t.kept = append(t.kept, b...)
	}
	return len(b), nil
}
