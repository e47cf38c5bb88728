//go:build unix

package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// soon bounds the waiting for what never comes. Nothing is measured by it.
const soon = time.Minute

// bench is a folder with a database, in which runs are real processes.
type bench struct {
	t      *testing.T
	folder string
}

func newBench(t *testing.T) *bench { return &bench{t, t.TempDir()} }

func (b *bench) path(name string) string { return filepath.Join(b.folder, name) }

// start starts llmproxy guard ARGS.
func (b *bench) start(args ...string) *guardProcess {
	b.t.Helper()
	p := &guardProcess{bench: b, ended: make(chan struct{})}
	p.cmd = exec.Command("llmproxy", append([]string{"guard"}, args...)...)
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = b.folder, &p.stdout, &p.stderr
	p.cmd.Env = append(os.Environ(), "LLMPROXY_DATABASE="+b.path("guard.db"))
	p.cmd.WaitDelay = time.Second // a command that outlives a killed run holds its output open
	if err := p.cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
	go func() {
		p.cmd.Wait() //nolint:errcheck // the state tells
		close(p.ended)
	}()
	b.t.Cleanup(func() {
		p.kill(syscall.SIGKILL)
		<-p.ended
	})
	return p
}

// run runs a guarded shell script to its end.
func (b *bench) run(key, script string, flags ...string) *guardProcess {
	b.t.Helper()
	p := b.start(runArgs(key, script, flags...)...)
	p.wait()
	return p
}

func runArgs(key, script string, flags ...string) []string {
	return append(append([]string{"run", "--step", "test", "--key", key}, flags...), "--", "sh", "-c", script)
}

// await waits until a file is there.
func (b *bench) await(name string) {
	b.t.Helper()
	for deadline := time.Now().Add(soon); ; time.Sleep(2 * time.Millisecond) {
		if _, err := os.Stat(b.path(name)); err == nil {
			return
		}
		if time.Now().After(deadline) {
			b.t.Fatalf("%s never comes", name)
		}
	}
}

type guardProcess struct {
	bench          *bench
	cmd            *exec.Cmd
	stdout, stderr strings.Builder
	ended          chan struct{}
}

func (p *guardProcess) kill(s syscall.Signal) {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.bench.t.Error(err)
	}
}

func (p *guardProcess) wait() {
	p.bench.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(soon):
		p.bench.t.Fatalf("%v does not end", p.cmd.Args)
	}
}

func (p *guardProcess) code() int { return p.cmd.ProcessState.ExitCode() }

func (p *guardProcess) String() string {
	return fmt.Sprintf("%q: exit code %d, stdout %q, stderr %q", p.cmd.Args[2:], p.code(), p.stdout.String(), p.stderr.String())
}

// TestKilledRunsActAtMostOnce kills runs at any moment, under hold: no unit of
// work has a second effect, whoever comes again, and none that is told as done
// has none.
func TestKilledRunsActAtMostOnce(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	b := newBench(t)
	const units = 24
	script := func(unit string) string {
		return fmt.Sprintf("touch started-%s; sleep 0.05; echo x >> effects-%s; touch acted-%[1]s; sleep 0.05", unit, unit)
	}
	flags := []string{"--on-unknown", "hold", "--lease", "1s"}
	b.run("warm", "true") // makes the database
	for i := range units {
		unit := strconv.Itoa(i)
		act := script(unit)
		switch i % 4 { // long enough to be killed in, however busy the machine is
		case 0:
			act = strings.Replace(act, "sleep 0.05", "sleep 2", 1)
		case 1:
			act += "; sleep 2"
		}
		p := b.start(runArgs(unit, act, flags...)...)
		switch i % 4 {
		case 0:
			b.await("started-" + unit)
		case 1:
			b.await("acted-" + unit)
		default:
			time.Sleep(time.Duration(random.Int64N(int64(200 * time.Millisecond))))
		}
		p.kill(syscall.SIGKILL)
		p.wait()
	}
	again := make([]*guardProcess, units)
	for i := range units { // each waits until the lease of the killed one is over
		again[i] = b.start(runArgs(strconv.Itoa(i), script(strconv.Itoa(i)), append(flags, "--wait", "50s")...)...)
	}
	codes := map[int]int{}
	for i, p := range again {
		p.wait()
		effects := lines(t, b.path(fmt.Sprintf("effects-%d", i)))
		switch codes[p.code()]++; {
		case effects > 1:
			t.Errorf("unit %d has %d effects: %s", i, effects, p)
		case p.code() == 0 && effects != 1:
			t.Errorf("unit %d is told as done with %d effects: %s", i, effects, p)
		case p.code() != 0 && p.code() != exitUndecided:
			t.Errorf("unit %d: %s", i, p)
		case i%4 == 1 && (p.code() != exitUndecided || effects != 1):
			t.Errorf("unit %d acted and was killed; then %d effects: %s", i, effects, p)
		case i%4 == 0 && runtime.GOOS == "linux" && (p.code() != exitUndecided || effects != 0):
			t.Errorf("unit %d was killed before it acted, and its command must end with it; then %d effects: %s", i, effects, p)
		}
	}
	t.Logf("exit codes of the second runs: %v", codes)
}

// TestKilledRunsUnderRetry shows what retry is: a run that acted and vanished is
// followed by one that acts again, and is told so.
func TestKilledRunsUnderRetry(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	const script = "echo $GUARD_TAKEOVER >> effects; touch acted; sleep $1"
	b.start("list").wait()
	p := b.start("run", "--step", "test", "--key", "1", "--lease", "1s", "--", "sh", "-c", script, "sh", "60")
	b.await("acted")
	p.kill(syscall.SIGKILL)
	p.wait()
	p = b.start("run", "--step", "test", "--key", "1", "--wait", "50s", "--", "sh", "-c", script, "sh", "0")
	p.wait()
	text, err := os.ReadFile(b.path("effects"))
	if err != nil || p.code() != 0 || string(text) != "false\ntrue\n" || !strings.Contains(p.stderr.String(), "an earlier run may have acted") {
		t.Errorf("effects %q, %v, %s", text, err, p)
	}
}

func TestTwoRunsAtOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	const script = "echo x >> effects; touch acted; while [ ! -e go ]; do sleep 0.02; done; echo result"
	first := b.start(runArgs("1", script)...)
	b.await("acted")
	if p := b.run("1", script); p.code() != exitInProgress || p.stdout.Len() > 0 {
		t.Errorf("a second run that does not wait: %s", p)
	}
	waiting := b.start(runArgs("1", script, "--wait", "50s")...)
	interrupted := b.start(runArgs("1", script, "--wait", "50s", "--report", "report")...)
	b.await("report") // is made before the first question
	time.Sleep(300 * time.Millisecond)
	interrupted.kill(syscall.SIGTERM)
	if interrupted.wait(); interrupted.code() != 128+int(syscall.SIGTERM) {
		t.Errorf("told to end while it waits: %s", interrupted)
	}
	if err := os.WriteFile(b.path("go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, p := range []*guardProcess{first, waiting} {
		if p.wait(); p.code() != 0 || p.stdout.String() != "result\n" {
			t.Errorf("%s", p)
		}
	}
	if effects := lines(t, b.path("effects")); effects != 1 {
		t.Errorf("%d effects", effects)
	}
}

// TestManyRunsAtTheSameInstant also race for making the database.
func TestManyRunsAtTheSameInstant(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var all sync.WaitGroup
	for range 6 {
		p := b.start(runArgs("1", "echo x >> effects; echo result", "--wait", "50s")...)
		all.Go(func() {
			if p.wait(); p.code() != 0 || p.stdout.String() != "result\n" {
				t.Errorf("%s", p)
			}
		})
	}
	all.Wait()
	if effects := lines(t, b.path("effects")); effects != 1 {
		t.Errorf("%d effects", effects)
	}
}

// TestALostLeaseEndsTheCommand and all that it has started, even where it
// ignores being told to.
func TestALostLeaseEndsTheCommand(t *testing.T) {
	t.Parallel()
	for name, ignoring := range map[string]string{"at once": "", "in the end": "trap '' TERM;"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			p := b.start(runArgs("1", ignoring+"(while :; do sleep 0.1; done) & echo $! > inner; mv inner started; wait; sleep 60", "--lease", "3s", "--report", "report")...)
			b.await("started")
			key := b.start("key", "--step", "test", "--key", "1")
			key.wait()
			resolve := b.start("resolve", strings.TrimSpace(key.stdout.String()), "--outcome", "not_done", "--reason", "test", "--force", "--yes")
			if resolve.wait(); resolve.code() != 0 {
				t.Fatalf("%s", resolve)
			}
			if p.wait(); p.code() != exitUndecided || !strings.Contains(p.stderr.String(), "the lease was lost") {
				t.Errorf("%s", p)
			}
			text, err := os.ReadFile(b.path("started"))
			if err != nil {
				t.Fatal(err)
			}
			inner, err := strconv.Atoi(strings.TrimSpace(string(text)))
			if err != nil {
				t.Fatal(err)
			}
			for deadline := time.Now().Add(soon); syscall.Kill(inner, 0) == nil && !zombie(inner); time.Sleep(10 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("what the command started goes on")
				}
			}
			if p := b.run("1", "echo now"); p.code() != 0 || p.stdout.String() != "now\n" {
				t.Errorf("after a person said that it did not happen: %s", p)
			}
		})
	}
}

// zombie tells whether a process has ended and waits to be noticed by a parent
// that is not ours. Where there is no /proc it is noticed at once.
func zombie(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && strings.Contains(string(stat), ") Z ")
}

func TestSignalsGoOnToTheGroup(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.start(runArgs("1", "trap 'echo caught; exit 5' TERM; (trap 'touch inner; exit' TERM; touch ready; while :; do sleep 0.05; done) & while [ ! -e ready ]; do sleep 0.01; done; touch started; wait; exit 6", "--not-done-codes", "5")...)
	b.await("started")
	p.kill(syscall.SIGTERM)
	if p.wait(); p.code() != 5 || p.stdout.String() != "caught\n" {
		t.Errorf("%s", p)
	}
	b.await("inner")
	if p := b.run("1", "echo now"); p.stdout.String() != "now\n" {
		t.Errorf("after a code that says it did not act: %s", p)
	}
}
