package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) > 1 && isRole(os.Args[1]) {
		if err := playRole(os.Args[1], os.Args[2:]); err != nil {
			fmt.Fprintf(os.Stderr, "bench %s: %v\n", os.Args[1], err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		}
		stop()
		os.Exit(1)
	}
}

// plan says how long each part of a run takes.
type plan struct {
	rounds  int           // rounds of each side
	round   time.Duration // length of one round
	streams int           // streams of the loss count
	rest    time.Duration // from start to the reading of memory at rest
	starts  int           // starts timed
	text    int           // bytes of a text to count
}

var (
	fullPlan  = plan{rounds: 5, round: 1200 * time.Millisecond, streams: 10_000, rest: 2 * time.Second, starts: 7, text: 512 * KB}
	quickPlan = plan{rounds: 1, round: 100 * time.Millisecond, streams: 500, rest: 500 * time.Millisecond, starts: 1, text: 16 * KB}
)

// section is one part of the run, which can be asked for by name.
type section struct {
	name string
	run  func(*bench, context.Context) error
}

// sections in the order in which they run.
var sections = []section{
	{"hit", (*bench).hit},
	{"miss", (*bench).miss},
	{"stream", (*bench).stream},
	{"memory", (*bench).memory},
	{"start", (*bench).start},
	{"count", (*bench).count},
}

// bench is one run of the benchmark.
type bench struct {
	plan plan
	bin  string // the llmproxy binary; "" measures the baselines against themselves
	dir  string // databases, logs and configs of this run
	npm  string // folder whose node_modules has tiktoken
	out  io.Writer

	started int   // processes started so far, for the names of their files
	wrong   error // the first wrong response
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	bin := flags.String("bin", "bin/llmproxy", "the llmproxy `binary` to measure")
	baselines := flags.Bool("baselines", false, "measure no server, but each baseline against itself")
	quick := flags.Bool("quick", false, "a smoke run: one short round of each, figures without meaning")
	only := flags.String("only", "", "run one `section`: hit, miss, stream, memory, start or count")
	streams := flags.Int("streams", 0, "`number` of streams in the count of lost ones (default 10000, 500 with -quick)")
	npm := flags.String("npm", ".", "`folder` whose node_modules has tiktoken, to measure it beside")
	dir := flags.String("dir", "", "`folder` for databases and logs, on the disk to measure (default beside the binary)")
	if err := flags.Parse(args); err != nil {
		return err
	}
	switch {
	case runtime.GOOS != "linux":
		return errors.New("the CPU time and memory of a process are read from /proc: this benchmark runs on Linux only")
	case flags.NArg() > 0:
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case *only != "" && !slices.ContainsFunc(sections, func(s section) bool { return s.name == *only }):
		return fmt.Errorf("no section %q: hit, miss, stream, memory, start or count", *only)
	}
	b := &bench{plan: fullPlan, bin: *bin, npm: *npm, out: stdout}
	if *quick {
		b.plan = quickPlan
	}
	if *streams > 0 {
		b.plan.streams = *streams
	}
	if *baselines {
		b.bin = ""
	}
	remove, err := b.makeDir(*dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove(err)) }()
	return b.runSections(ctx, *only)
}

// makeDir makes the folder of this run inside parent. The func it returns
// removes the folder unless the run failed: then its logs are kept and named.
// An interrupted run has not failed.
func (b *bench) makeDir(parent string) (remove func(error) error, err error) {
	if b.bin != "" {
		if b.bin, err = filepath.Abs(b.bin); err != nil {
			return nil, err
		}
		if _, err := os.Stat(b.bin); err != nil {
			return nil, fmt.Errorf("finding the server to measure: %w (build it, or measure only the baselines with -baselines)", err)
		}
		if parent == "" {
			parent = filepath.Dir(b.bin)
		}
	}
	if b.dir, err = os.MkdirTemp(parent, "bench-"); err != nil {
		return nil, err
	}
	return func(failure error) error {
		if failure != nil && !errors.Is(failure, context.Canceled) {
			return fmt.Errorf("logs and databases are kept in %s", b.dir)
		}
		return os.RemoveAll(b.dir)
	}, nil
}

// runSections runs the section called only, or all of them.
func (b *bench) runSections(ctx context.Context, only string) error {
	if err := b.printMachine(); err != nil {
		return err
	}
	began := time.Now()
	for _, s := range sections {
		if only != "" && s.name != only {
			continue
		}
		if err := s.run(b, ctx); err != nil {
			return fmt.Errorf("measuring %s: %w", s.name, err)
		}
	}
	fmt.Fprintf(b.out, "Measured in %s.\n", time.Since(began).Round(time.Second))
	return b.wrong
}

// printMachine prints what the figures depend on.
func (b *bench) printMachine() error {
	sync, err := syncLatency(b.dir)
	if err != nil {
		return err
	}
	ours := b.bin
	if ours == "" {
		ours = "none, each baseline against itself"
	}
	fmt.Fprintf(b.out, "Server %s. %d processors, %s/%s, %s. %d rounds of %s a side.\n",
		ours, runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version(), b.plan.rounds, b.plan.round)
	fmt.Fprintf(b.out, "fsync of 4 KB takes %s at the median where the database lies.\n\n", micros(sync.Seconds()))
	return nil
}

// syncLatency returns the median time of 41 appends of 4 KB, each followed by fsync.
func syncLatency(dir string) (time.Duration, error) {
	f, err := os.CreateTemp(dir, "sync-")
	if err != nil {
		return 0, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	page := make([]byte, 4096)
	times := make([]time.Duration, 41)
	for i := range times {
		began := time.Now()
		if _, err := f.Write(page); err != nil {
			return 0, err
		}
		if err := f.Sync(); err != nil {
			return 0, err
		}
		times[i] = time.Since(began)
	}
	return quantile(times, 0.5), nil
}
