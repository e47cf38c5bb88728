package main

import (
	"fmt"
	"io"
	"log/slog"
	"os"

	"golang.org/x/term"
)

// newLogger logs to w as cfg says. With the format auto it writes text where w
// is a terminal, and JSON otherwise.
func newLogger(cfg LogConfig, w io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(cfg.Level)); err != nil {
		return nil, fmt.Errorf("reading log.level: %w", err)
	}
	options := &slog.HandlerOptions{Level: level}
	file, isFile := w.(*os.File)
	if cfg.Format == "text" || cfg.Format == "auto" && isFile && term.IsTerminal(int(file.Fd())) {
		return slog.New(slog.NewTextHandler(w, options)), nil
	}
	return slog.New(slog.NewJSONHandler(w, options)), nil
}
