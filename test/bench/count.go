package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pkoukk/tiktoken-go"
	loader "github.com/pkoukk/tiktoken-go-loader"
	"golang.org/x/sys/unix"

	"llmproxy/tokens"
)

// roleReady loads the encodings in a fresh process and says how long that took
// and how much CPU time, in nanoseconds, and by how many bytes the process has
// grown.
const roleReady = "role-ready"

// The figures of counting a text, whose bytes stand for requests.
var (
	speed     = measure{"", func(s sample) float64 { return float64(s.answered) / s.clientCPU.Seconds() }, megaPerSecond}
	countTime = measure{"CPU time, beside English", func(s sample) float64 { return s.clientCPU.Seconds() }, millis}
)

func megaPerSecond(v float64) string { return fmt.Sprintf("%.1f MB/s", v/1e6) }

// countFunc counts a text and says how much CPU time that took.
type countFunc func(text string) (tokens int, took time.Duration, err error)

// timed makes a countFunc of what counts in this process.
func timed(count func(text string) (int, error)) countFunc {
	return func(text string) (n int, took time.Duration, err error) {
		took, err = cpuOf(func() (err error) {
			n, err = count(text)
			return err
		})
		return n, took, err
	}
}

// cpuOf returns the CPU time this process takes for f, which runs alone. It
// includes the collection of what f leaves, as node's does, but nothing from
// before.
func cpuOf(f func() error) (time.Duration, error) {
	runtime.GC()
	var before, after unix.Timespec
	err1 := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &before)
	err := f()
	err2 := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &after)
	return time.Duration(after.Nano() - before.Nano()), errors.Join(err1, err, err2)
}

// count measures the tokenizer alone, in this process, beside tiktoken-go and,
// where it is installed, the npm package tiktoken.
func (b *bench) count(ctx context.Context) error {
	tokens.Warm()
	tiktoken.SetBpeLoader(loader.NewOfflineLoader()) // or it downloads the vocabularies
	texts, err := sampleTexts(b.plan.text)
	if err != nil {
		return err
	}
	texts["mixed"] = mixedText(texts, 8*b.plan.text)
	t := newTable("Counting tokens: llmproxy's own tokenizer beside others", "llmproxy", "other")
	for _, encoding := range []string{"o200k_base", "cl100k_base"} {
		if err := b.countBeside(ctx, t, encoding, texts); err != nil {
			return err
		}
	}
	if err := b.countHostile(ctx, t, texts["English"]); err != nil {
		return err
	}
	if err := b.countContext(ctx, t, texts); err != nil {
		return err
	}
	if err := b.ready(ctx, t); err != nil {
		return err
	}
	return t.print(b.out)
}

// countBeside adds the rows of one encoding.
func (b *bench) countBeside(ctx context.Context, t *table, encoding string, texts map[string]string) error {
	theirs, err := tiktoken.GetEncoding(encoding)
	if err != nil {
		return err
	}
	ours := timed(func(text string) (int, error) { return tokens.TextIn(encoding, text) })
	goSide := timed(func(text string) (int, error) { return len(theirs.EncodeOrdinary(text)), nil })
	npmSide, stop, err := b.startNPM(ctx, encoding)
	if err != nil {
		t.note("npm tiktoken is not measured: %v", err)
	}
	for _, kind := range []string{"English", "code", "JSON", "Chinese", "Japanese", "mixed"} {
		of := fmt.Sprintf("%s, %s, %.1f MB", encoding, kind, float64(len(texts[kind]))/1e6)
		wanted := atLeast(25)
		if kind == "Chinese" || kind == "Japanese" {
			wanted = atLeast(5)
		}
		sides := []countFunc{ours, goSide}
		if npmSide != nil {
			sides = append(sides, npmSide)
		}
		samples, err := b.countRounds(ctx, of, texts[kind], sides...)
		if err != nil {
			return err
		}
		t.ratio(of, named(speed, "CPU speed, beside tiktoken-go"), samples[0], samples[1], wanted)
		if npmSide != nil {
			t.ratio(of, named(speed, "CPU speed, beside npm tiktoken"), samples[0], samples[2], bound{})
		}
	}
	t.gap()
	if npmSide != nil {
		return stop()
	}
	return nil
}

func named(m measure, name string) measure {
	m.name = name
	return m
}

// countRounds counts text with all sides in turn for the rounds of the plan,
// after one that does not count. Counts that differ make the run fail.
func (b *bench) countRounds(ctx context.Context, of, text string, sides ...countFunc) ([][]sample, error) {
	samples := make([][]sample, len(sides))
	for round := range b.plan.rounds + 1 {
		first := 0
		for i, count := range sides {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			n, took, err := count(text)
			if err != nil {
				return nil, fmt.Errorf("counting %s: %w", of, err)
			}
			if i == 0 {
				first = n
			} else if n != first && b.wrong == nil {
				b.wrong = fmt.Errorf("%s: %d tokens, but side %d says %d", of, first, i, n)
			}
			if round > 0 {
				samples[i] = append(samples[i], sample{answered: len(text), clientCPU: took})
			}
		}
	}
	return samples, nil
}

// countHostile adds how much longer than English the slowest text takes.
func (b *bench) countHostile(ctx context.Context, t *table, english string) error {
	const encoding = "o200k_base"
	ours := timed(func(text string) (int, error) { return tokens.TextIn(encoding, text) })
	texts := hostileTexts(len(english))
	slowest, slowestName := []sample(nil), ""
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		samples, err := b.countRounds(ctx, name, texts[name], ours)
		if err != nil {
			return err
		}
		if slowest == nil || median(each(samples[0], countTime.of)) > median(each(slowest, countTime.of)) {
			slowest, slowestName = samples[0], name
		}
	}
	// Once more beside English, in turn.
	samples := make([][]sample, 2)
	for range b.plan.rounds {
		for i, text := range []string{texts[slowestName], english} {
			_, d, err := ours(text)
			if err != nil {
				return err
			}
			samples[i] = append(samples[i], sample{clientCPU: d})
		}
	}
	of := fmt.Sprintf("slowest of %d hostile texts: %s, %.1f MB", len(texts), slowestName, float64(len(english))/1e6)
	t.ratio(of, countTime, samples[0], samples[1], atMost(10))
	return nil
}

// countContext adds what a context of a million tokens costs, and allocations.
func (b *bench) countContext(ctx context.Context, t *table, texts map[string]string) error {
	const encoding = "o200k_base"
	text := texts["mixed"]
	n, err := tokens.TextIn(encoding, text)
	if err != nil {
		return err
	}
	samples, err := b.countRounds(ctx, "mixed", text, timed(func(text string) (int, error) { return tokens.TextIn(encoding, text) }))
	if err != nil {
		return err
	}
	each1M := median(each(samples[0], countTime.of)) / float64(n) * 1e6
	t.figure("mixed text", "CPU time of a million tokens", each1M, millis, bound{})
	allocations := testing.AllocsPerRun(20, func() { tokens.TextIn(encoding, texts["JSON"]) })
	t.figure("mixed text", "allocations per count", allocations, whole, atMost(0))

	first, again, tokensOf, err := b.conversation(texts)
	if err != nil {
		return err
	}
	of := fmt.Sprintf("chat of 1000 messages, %d tokens", tokensOf)
	t.figure(of, "CPU time, counted first", first, millis, bound{})
	t.figure(of, "CPU time, with one message more", again, millis, bound{})
	t.gap()
	return nil
}

// conversation counts a chat of 1,000 messages, and again with one more message
// at each turn. It returns the medians in seconds.
func (b *bench) conversation(texts map[string]string) (first, again float64, tokensOf int, err error) {
	message := func(i int) string {
		text := texts[[]string{"English", "JSON", "code"}[i%3]]
		at := i * 1511 % max(1, len(text)-4200)
		content, err := json.Marshal(fmt.Sprint(i, strings.ToValidUTF8(text[at:min(at+4000, len(text))], "")))
		if err != nil {
			panic(err) // a string has a form in JSON
		}
		return fmt.Sprintf(`{"role":"user","content":%s}`, content)
	}
	messages := make([]string, 1000)
	for i := range messages {
		messages[i] = message(i)
	}
	var c tokens.Counter
	var times []float64
	for turn := range b.plan.rounds + 1 {
		body := []byte(`{"messages":[` + strings.Join(messages, ",") + `]}`)
		took, err := cpuOf(func() error {
			e, err := c.Count(tokens.Request{Endpoint: tokens.ChatCompletions, Model: "gpt-4o", Body: body})
			if turn == 0 {
				tokensOf = e.Tokens
			}
			return err
		})
		if err != nil {
			return 0, 0, 0, err
		}
		if turn == 0 {
			first = took.Seconds()
		} else {
			times = append(times, took.Seconds())
		}
		messages = append(messages, message(len(messages)))
	}
	return first, median(times), tokensOf, nil
}

// ready adds how soon a fresh process can count, and what that takes of memory.
func (b *bench) ready(ctx context.Context, t *table) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	var times, cpu, sizes []float64
	for range b.plan.starts {
		out, err := exec.CommandContext(ctx, self, roleReady).Output()
		if err != nil {
			return fmt.Errorf("loading the encodings: %w", err)
		}
		var nanoseconds, ticks, size float64
		if _, err := fmt.Sscan(string(out), &nanoseconds, &ticks, &size); err != nil {
			return fmt.Errorf("loading the encodings: %q: %w", out, err)
		}
		times, cpu, sizes = append(times, nanoseconds/1e9), append(cpu, ticks/1e9), append(sizes, size)
	}
	of := fmt.Sprintf("%d loads of cl100k_base and o200k_base", b.plan.starts)
	t.figure(of, "ready, median", median(times), millis, atMost(0.05))
	t.figure(of, "CPU time on two threads, median", median(cpu), millis, bound{})
	t.figure(of, "resident, median", median(sizes), mebi, atMost(30<<20))
	return nil
}

// playReady is roleReady.
func playReady(out io.Writer) error {
	debug.FreeOSMemory()
	self := &process{cmd: &exec.Cmd{Process: &os.Process{Pid: os.Getpid()}}}
	before, err := self.memory("VmRSS")
	if err != nil {
		return err
	}
	var cpuBefore, cpuAfter unix.Timespec
	err1 := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &cpuBefore)
	began := time.Now()
	tokens.Warm()
	took := time.Since(began)
	err2 := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &cpuAfter)
	debug.FreeOSMemory()
	after, err := self.memory("VmRSS")
	if err := errors.Join(err, err1, err2); err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, took.Nanoseconds(), cpuAfter.Nano()-cpuBefore.Nano(), after-before)
	return err
}

// npmScript counts the files named on standard input, and answers with the
// nanoseconds of CPU time that took and the tokens.
const npmScript = `
import { get_encoding } from 'tiktoken';
import { readFileSync } from 'node:fs';
import { createInterface } from 'node:readline';
const encoding = get_encoding(process.argv[1]);
console.log('ready');
for await (const path of createInterface({ input: process.stdin })) {
  const text = readFileSync(path, 'utf8');
  const began = process.cpuUsage();
  const n = encoding.encode_ordinary(text).length;
  const { user, system } = process.cpuUsage(began);
  console.log((user + system) * 1000, n);
}`

// startNPM starts the npm package tiktoken of the folder b.npm.
func (b *bench) startNPM(ctx context.Context, encoding string) (countFunc, func() error, error) {
	if _, err := os.Stat(filepath.Join(b.npm, "node_modules", "tiktoken")); err != nil {
		return nil, nil, fmt.Errorf("no node_modules/tiktoken in %q (npm install tiktoken@1.0.22, and name the folder with -npm)", b.npm)
	}
	cmd := exec.CommandContext(ctx, "node", "--input-type=module", "-e", npmScript, encoding)
	cmd.Dir, cmd.Stderr = b.npm, os.Stderr
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2); err != nil {
		return nil, nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	stop := func() error { return errors.Join(in.Close(), cmd.Wait()) }
	lines := bufio.NewReader(out)
	if line, err := lines.ReadString('\n'); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("starting node: %q: %w", line, err), stop())
	}
	path := filepath.Join(b.dir, "count.txt")
	return func(text string) (n int, took time.Duration, err error) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return 0, 0, err
		}
		if _, err := fmt.Fprintln(in, path); err != nil {
			return 0, 0, err
		}
		var nanoseconds int64
		_, err = fmt.Fscan(lines, &nanoseconds, &n)
		return n, time.Duration(nanoseconds), err
	}, stop, nil
}
