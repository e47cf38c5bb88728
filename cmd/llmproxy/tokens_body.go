package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"llmproxy/cache"
	"llmproxy/tokens"
)

// tally is a count as it is printed.
type tally struct {
	tokens.Estimate
	model string // "" where none is named
	of    string // what was counted: "chat/completions", "text"
}

// countFile counts a request body or a text and prints the count.
func (a *app) countFile(cmd *cobra.Command, f tokensFlags, name string) (err error) {
	file, label, bytesOf, err := openInput(cmd, name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	r := bufio.NewReader(file)
	var t tally
	if f.text || f.encoding != "" || !beginsObject(r) {
		t, err = countText(cmd, f, r, bytesOf)
	} else {
		t, err = a.countBody(cmd, f, r)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", label, err)
	}
	if f.format == "json" {
		return printTallyJSON(cmd.OutOrStdout(), t)
	}
	return printTally(cmd.OutOrStdout(), t)
}

// beginsObject tells whether the first character that is not white space
// begins a JSON object.
func beginsObject(r *bufio.Reader) bool {
	head, _ := r.Peek(r.Size()) // an error will come again when it is read
	head = bytes.TrimLeft(bytes.TrimPrefix(head, []byte("\ufeff")), " \t\r\n")
	return len(head) > 0 && head[0] == '{'
}

// countText counts all of r as plain text.
func countText(cmd *cobra.Command, f tokensFlags, r io.Reader, bytesOf int64) (t tally, err error) {
	if f.endpoint != "" {
		return t, usagef("--endpoint is for request bodies, and this is counted as text; leave --endpoint out")
	}
	encoding, basis := f.textEncoding()
	p := newProgress(cmd)
	defer p.clear()
	n, _, err := tokens.ReadIn(encoding, &told{r: r, progress: p, whole: bytesOf})
	if errors.Is(err, tokens.ErrNoCut) {
		return t, fmt.Errorf("%w; break it into lines", err)
	}
	if err != nil {
		return t, err
	}
	part := tokens.Part{Path: "text", Tokens: n, Rule: "text", Basis: tokens.Exact}
	return tally{tokens.Estimate{Tokens: n, Basis: basis, Encoding: encoding, Parts: []tokens.Part{part}}, f.model, "text"}, nil
}

// told tells how far r is read.
type told struct {
	r        io.Reader
	progress *progress
	read     int64
	whole    int64
}

func (t *told) Read(p []byte) (n int, err error) {
	n, err = t.r.Read(p)
	t.read += int64(n)
	t.progress.tell(func() string { return portion(t.read, t.whole) + " counted" })
	return n, err
}

// countBody counts all of r as a request body.
func (a *app) countBody(cmd *cobra.Command, f tokensFlags, r io.Reader) (t tally, err error) {
	raw, err := io.ReadAll(io.LimitReader(r, maxBody+1))
	if err != nil {
		return t, err
	}
	if len(raw) > maxBody {
		return t, errors.New("is larger than 32 MiB, which no server takes as a request; count it as text with --text, or as a log of requests with --by step")
	}
	raw = bytes.TrimPrefix(raw, []byte("\ufeff"))
	l, err := readLogLine(raw)
	if wrong, ok := errors.AsType[*cache.SyntaxError](err); ok {
		line, column := position(raw, wrong.Offset)
		return t, fmt.Errorf("line %d, column %d: %s; or count the file as text with --text", line, column, wrong.Message)
	}
	if err != nil {
		return t, err
	}
	counter, err := a.inputCounter(cmd)
	if err != nil {
		return t, err
	}
	estimate, err := counter.request(&l, f)
	if err != nil {
		return t, err
	}
	return tally{estimate, l.model, string(l.endpoint)}, nil
}

// position is the line and the column, from 1 and in characters, of a byte.
func position(text []byte, offset int) (line, column int) {
	before := text[:min(offset, len(text))]
	begin := bytes.LastIndexByte(before, '\n') + 1
	return bytes.Count(before, []byte{'\n'}) + 1, len([]rune(string(before[begin:]))) + 1
}

func printTallyJSON(w io.Writer, t tally) error {
	type part struct {
		Path   string `json:"path"`
		Tokens int    `json:"tokens"`
		Rule   string `json:"rule"`
		Basis  string `json:"basis"`
	}
	parts := make([]part, len(t.Parts))
	for i, p := range t.Parts {
		parts[i] = part{p.Path, p.Tokens, p.Rule, t.basisOf(p).String()}
	}
	return printJSON(w, struct {
		Model    string `json:"model"`
		Encoding string `json:"encoding"`
		Total    int    `json:"total"`
		Basis    string `json:"basis"`
		Parts    []part `json:"parts"`
	}{t.model, t.Encoding, t.Tokens, t.Basis.String(), parts})
}

// printTally prints what was counted in a sentence, the parts, and what a
// reader must know about them.
func printTally(w io.Writer, t tally) error {
	model := "no model"
	if t.model != "" {
		model = shown(t.model, 60)
	}
	if _, err := fmt.Fprintf(w, "%s of %s for %s, by %s: %s.\n\n", counted(int64(t.Tokens), "input token", "input tokens"), t.of, model, t.Encoding, t.Basis); err != nil {
		return err
	}
	rows := make([][]string, 0, len(t.Parts)+1)
	for _, p := range t.Parts {
		rows = append(rows, []string{shown(p.Path, 48), thousands(int64(p.Tokens)), p.Rule, t.basisOf(p).String()})
	}
	rows = append(rows, []string{"TOTAL", thousands(int64(t.Tokens)), "", t.Basis.String()})
	if err := writeTable(w, []column{{head: "PATH"}, {"TOKENS", true}, {head: "RULE"}, {head: "BASIS"}}, rows); err != nil {
		return err
	}
	if notes := t.notes(); len(notes) > 0 {
		_, err := fmt.Fprintf(w, "\n%s\n", strings.Join(notes, "\n"))
		return err
	}
	return nil
}

// basisOf is how well a part is known: no better than the model's encoding.
func (t *tally) basisOf(p tokens.Part) tokens.Basis {
	switch {
	case t.Basis == tokens.FallbackEncoding:
		return tokens.FallbackEncoding
	case t.High != 0: // the same, corrected by a factor
		return max(p.Basis, tokens.Estimated)
	}
	return p.Basis
}

// notes say what the figures rest on, where it is no rule.
func (t *tally) notes() (notes []string) {
	switch {
	case t.High != 0:
		notes = append(notes, fmt.Sprintf("No rule is known for this model: its bills are expected between %s and %s tokens, by those of its latest calls.",
			thousands(int64(t.Low)), thousands(int64(t.High))))
	case t.Basis == tokens.FallbackEncoding && t.model == "":
		notes = append(notes, "No model is named, so the encoding is a guess; name the model by --model.")
	case t.Basis == tokens.FallbackEncoding:
		notes = append(notes, "No rule is known for this model and no bill of it yet: its encoding is a guess. A server learns a factor from its bills.")
	}
	why := map[string]string{
		"unknown-part":        "the request does not tell what it costs; charged a constant",
		"image-largest":       "its size is not known; charged as the largest image. A data: URL would have it counted",
		"audio-longest":       "its length is not known; charged as the longest audio of its size. WAV would have it counted",
		"reasoning-encrypted": "estimated from its encrypted length",
	}
	uncounted := t.Uncounted()
	for _, p := range t.Parts {
		if len(uncounted) > 0 && p.Path == uncounted[0] && p.Basis == tokens.Estimated {
			uncounted = uncounted[1:]
			reason, ok := why[p.Rule]
			if !ok {
				reason = "estimated"
			}
			notes = append(notes, fmt.Sprintf("%s could not be counted: %s.", shown(p.Path, 48), reason))
		}
	}
	return notes
}
