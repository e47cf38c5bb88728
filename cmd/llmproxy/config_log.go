package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"golang.org/x/term"
)

// newLogger logs to w as cfg says. With the format auto it writes text where w
// is a terminal, and JSON otherwise. Lines for a file or a pipe may wait a
// moment to be written together; flushLog writes those that do.
func newLogger(cfg LogConfig, w io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(cfg.Level)); err != nil {
		return nil, fmt.Errorf("reading log.level: %w", err)
	}
	options := &slog.HandlerOptions{Level: level}
	file, isFile := w.(*os.File)
	onTerminal := isFile && term.IsTerminal(int(file.Fd()))
	flush := func() {}
	if isFile && !onTerminal {
		lines := &lineBuffer{w: w}
		w, flush = lines, lines.Flush
	}
	var handler slog.Handler = slog.NewJSONHandler(w, options)
	if cfg.Format == "text" || cfg.Format == "auto" && onTerminal {
		handler = slog.NewTextHandler(w, options)
	}
	return slog.New(&promptHandler{handler, flush}), nil
}

// flushLog writes the lines of a logger of newLogger that still wait.
func flushLog(log *slog.Logger) {
	if h, ok := log.Handler().(*promptHandler); ok {
		h.flush()
	}
}

// promptHandler writes warnings and errors out at once.
type promptHandler struct {
	slog.Handler
	flush func()
}

func (h *promptHandler) Handle(ctx context.Context, r slog.Record) error {
	err := h.Handler.Handle(ctx, r)
	if r.Level >= slog.LevelWarn {
		h.flush()
	}
	return err
}

func (h *promptHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &promptHandler{h.Handler.WithAttrs(attrs), h.flush}
}

func (h *promptHandler) WithGroup(name string) slog.Handler {
	return &promptHandler{h.Handler.WithGroup(name), h.flush}
}

const (
	lineDelay = 100 * time.Millisecond
	maxLines  = 32 << 10 // bytes
)

// lineBuffer writes lines together: a system call for each line of a busy proxy
// costs more than making the line.
type lineBuffer struct {
	w io.Writer

	mu      sync.Mutex
	buf     []byte
	waiting bool // a flush is due
}

func (b *lineBuffer) Write(line []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.buf = append(b.buf, line...)
	switch {
	case len(b.buf) >= maxLines:
		return len(line), b.flush()
	case !b.waiting:
		b.waiting = true
		time.AfterFunc(lineDelay, b.Flush)
	}
	return len(line), nil
}

// Flush writes what waits. An error has nowhere to go: this is the log.
func (b *lineBuffer) Flush() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting = false
	b.flush() //nolint:errcheck
}

func (b *lineBuffer) flush() error {
	if len(b.buf) == 0 {
		return nil
	}
	_, err := b.w.Write(b.buf)
	b.buf = b.buf[:0]
	return err
}
