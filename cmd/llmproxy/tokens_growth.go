package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"llmproxy/cache"
	"llmproxy/report"
	"llmproxy/tokens"
)

// request counts the request of a line, or says why it cannot be counted. The
// flags may override its model and its endpoint.
func (c *inputCounter) request(l *logLine, f tokensFlags) (e tokens.Estimate, err error) {
	if f.model != "" {
		l.model = f.model
	}
	if f.endpoint != "" {
		l.endpoint = tokens.Endpoint(f.endpoint)
	}
	if l.endpoint == "" {
		return e, errors.New("is no request body: it has no messages, input or prompt, nor an object with them as body or request; name what it is for by --endpoint")
	}
	if err := c.prepare(l.model); err != nil {
		return e, &fatalError{err}
	}
	e, err = c.Count(tokens.Request{Endpoint: l.endpoint, Model: l.model, Body: l.body.Raw})
	if err != nil {
		err = fmt.Errorf("%w; correct it to what %s takes, or name another endpoint by --endpoint", err, l.endpoint)
	}
	return e, err
}

// fatalError ends the reading of logs: it is of no line.
type fatalError struct{ error }

func (e *fatalError) Unwrap() error { return e.error }

// logReader reads logs of requests into a growth.
type logReader struct {
	flags    tokensFlags
	counter  *inputCounter
	growth   *report.Growth
	progress *progress
	warn     io.Writer

	lines, bad int
	backwards  int // lines that are older than the one before
	untimed    int // lines whose time cannot be read
	latest     time.Time
	read       int64 // bytes of the files before
	whole      int64 // bytes of all files, 0 where one has no size
}

// badLinesNamed is how many bad lines are named.
const badLinesNamed = 5

// readLogs prints the growth of the requests in logs.
func (a *app) readLogs(cmd *cobra.Command, f tokensFlags, names ...string) error {
	counter, err := a.inputCounter(cmd)
	if err != nil {
		return err
	}
	r := &logReader{flags: f, counter: counter, growth: report.NewGrowth(report.Dimension(f.by)),
		progress: newProgress(cmd), warn: cmd.ErrOrStderr()}
	if err := r.measure(names); err != nil {
		return err
	}
	for _, name := range names {
		if err := r.readFile(cmd, name); err != nil {
			r.progress.clear()
			return err
		}
	}
	r.progress.clear()
	switch {
	case r.lines == 0:
		return errors.New("the logs are empty; name files with one request a line")
	case r.bad == r.lines:
		return fmt.Errorf("%s; write one JSON object a line", pickLines(r.lines))
	}
	r.note()
	return r.growth.Write(cmd.OutOrStdout(), report.Format(f.format))
}

func pickLines(n int) string {
	if n == 1 {
		return "the one line cannot be read"
	}
	return fmt.Sprintf("none of the %s lines can be read", thousands(int64(n)))
}

// measure finds missing files before any is read, and sums up their sizes.
func (r *logReader) measure(names []string) error {
	known := true
	for _, name := range names {
		if name == "-" {
			known = false
			continue
		}
		info, err := os.Stat(name)
		switch {
		case err != nil:
			return err
		case info.IsDir():
			return fmt.Errorf("%s is a folder; name the files in it, such as %s/*.jsonl", name, name)
		}
		known = known && info.Mode().IsRegular()
		r.whole += info.Size()
	}
	if !known {
		r.whole = 0
	}
	return nil
}

func (r *logReader) readFile(cmd *cobra.Command, name string) (err error) {
	file, label, _, err := openInput(cmd, name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	lines := newLineReader(file)
	for {
		line, err := lines.next()
		switch {
		case err == io.EOF:
			r.read += lines.offset
			return nil
		case err == nil && len(line) == 0:
			continue
		case err == nil:
			err = r.readLine(line)
		case !errors.Is(err, errLongLine):
			return fmt.Errorf("%s: %w", label, err)
		}
		r.lines++
		if fatal, ok := errors.AsType[*fatalError](err); ok {
			return fatal.error
		}
		if err != nil {
			if r.bad++; r.bad <= badLinesNamed {
				r.progress.clear()
				fmt.Fprintf(r.warn, "%s:%d: %v\n", label, lines.number, err)
			}
		}
		r.progress.tell(func() string {
			return fmt.Sprintf("%s lines, %s", thousands(int64(r.lines)), portion(r.read+lines.offset, r.whole))
		})
	}
}

// readLine counts the request of a line in.
func (r *logReader) readLine(line []byte) error {
	l, err := readLogLine(line)
	if err != nil {
		return err
	}
	names, err := l.names()
	if err != nil {
		return err
	}
	estimate, err := r.counter.request(&l, r.flags)
	if err != nil {
		return err
	}
	switch {
	case l.timed && l.at.IsZero():
		r.untimed++
	case l.timed && l.at.Before(r.latest):
		r.backwards++
	case l.timed:
		r.latest = l.at
	}
	tree := l.body.Fingerprint(cache.Options{})
	r.growth.Add(report.Sent{Step: names.Step, Run: names.Run, Model: l.model,
		Tokens: estimate.Tokens, Hashes: tree.Messages, Each: estimate.Messages})
	return nil
}

// note tells what the figures leave out.
func (r *logReader) note() {
	add := func(format string, args ...any) {
		r.growth.Notes = append(r.growth.Notes, fmt.Sprintf(format, args...))
	}
	if r.bad > 0 {
		add("%s of %s could not be read and %s in no figure; the first are named on standard error.",
			counted(int64(r.bad), "line", "lines"), thousands(int64(r.lines)), map[bool]string{true: "is", false: "are"}[r.bad == 1])
	}
	if r.backwards > 0 {
		add("%s older than a line before; the figures follow the order of the lines.", counted(int64(r.backwards), "line is", "lines are"))
	}
	if r.untimed > 0 {
		add("The time of %s could not be read; write it as RFC 3339 or Unix time.", counted(int64(r.untimed), "line", "lines"))
	}
}
