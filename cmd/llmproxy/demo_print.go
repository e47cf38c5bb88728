package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/term"
)

// demoWidth is the most columns the demonstration prints.
const demoWidth = 100

// theSameAgain is how a shell repeats its last command.
const theSameAgain = "!!    # the same again"

func (d *demo) say(lines ...string) { fmt.Fprintln(d.out, strings.Join(lines, "\n")) }

// types shows a command as it would be typed.
func (d *demo) types(command string) {
	for i, line := range strings.Split(command, "\n") {
		prompt := "  $ "
		if i > 0 {
			prompt = ""
		}
		d.say(prompt + d.paint.bold(line))
	}
}

// shows shows what came back: an answer's beginning, a refusal's whole message.
func (d *demo) shows(g got) {
	parts := []string{fmt.Sprintf("%d", g.status), "X-LLMProxy-Cache: " + d.paint.outcome(g.outcome)}
	if g.budget != "" && g.budget != "ok" {
		parts = append(parts, "X-LLMProxy-Budget: "+g.budget)
	}
	if g.in > 0 {
		parts = append(parts, fmt.Sprintf("%d tokens in, %d out", g.in, g.out))
	}
	if g.events > 0 {
		parts = append(parts, fmt.Sprintf("a stream of %d events", g.events))
	}
	parts = append(parts, d.paint.dim(milliseconds(g.took)))
	d.say("  " + d.paint.dim("←") + " " + strings.Join(parts, "  "))
	if g.code != "" {
		for _, line := range wrap(g.text, demoWidth-4) {
			d.say("    " + line)
		}
		return
	}
	d.say("    " + d.paint.dim(g.id) + " " + shown(g.text, demoWidth-5-len(g.id)))
}

// means says in one line what it is good for, if every check holds.
func (d *demo) means(line string, checks ...error) error {
	if err := errors.Join(checks...); err != nil {
		return err
	}
	d.say("  " + d.paint.dim("=") + " " + line)
	return nil
}

// milliseconds writes a time so that a hit is not nothing.
func milliseconds(t time.Duration) string {
	if t < 10*time.Millisecond {
		return fmt.Sprintf("%.1f ms", t.Seconds()*1e3)
	}
	return fmt.Sprintf("%.0f ms", t.Seconds()*1e3)
}

// wrap breaks a text that is longer than so many characters between its words.
func wrap(text string, most int) (lines []string) {
	if utf8.RuneCountInString(text) <= most {
		return []string{text}
	}
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && utf8.RuneCountInString(line+" "+word) > most {
			lines, line = append(lines, line), ""
		}
		line = strings.TrimPrefix(line+" "+word, " ")
	}
	return append(lines, line)
}

// paint makes text stand out on a terminal.
type paint struct{ on bool }

func (p paint) bold(text string) string { return p.code("1", text) }
func (p paint) dim(text string) string  { return p.code("2", text) }

// outcome colours what became of a call: green cost nothing, yellow was paid
// for, red was refused.
func (p paint) outcome(outcome string) string {
	switch outcome {
	case "hit", "collapsed":
		return p.code("32", outcome)
	case "refused":
		return p.code("31", outcome)
	}
	return p.code("33", outcome)
}

func (p paint) code(code, text string) string {
	if !p.on {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// colourful tells whether w shows colours and the user wants them
// (https://no-color.org).
func colourful(w io.Writer, env map[string]string) bool {
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd())) && env["NO_COLOR"] == "" && env["TERM"] != "dumb"
}
