package main

import (
	"io"
	"os"
	"slices"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"llmproxy/report"
	"llmproxy/tokens"
)

// tokensFlags are the flags of llmproxy tokens, as typed.
type tokensFlags struct {
	by, endpoint, model, encoding, format string
	text, lines                           bool
}

// maxBody bounds a request body and a line of a log, as limits.request_body
// does in a server by default.
const maxBody = 32 << 20

func newTokensCmd(a *app) *cobra.Command {
	var f tokensFlags
	cmd := &cobra.Command{
		Use:   "tokens [FILE|-]...",
		Short: "Count the input tokens of a request, a text or a log, and show what they are of",
		Long: `Tokens counts what a request body costs in input tokens, as the server counts it
before a call, and shows each part with the rule that counted it and how well
that is known. The endpoint is guessed from the members of the body. A file that
does not begin as a JSON object is counted as text. FILE may be - for standard
input. Nothing is sent anywhere, and no server has to run.

Models whose vendors publish no tokenizer are counted by a near one, times a
factor that the server has learned from their bills, where the database knows any.

With --by, the files are logs of requests, one JSON object a line: a request body
as it was sent, or an object that holds one (or its text) as "body" or "request",
such as a line of an OpenAI batch. Beside it may stand "step", "run", "time",
"url" and "headers"; without them the step and the run are named as the server
names them, also by "metadata" in the body. The table shows, per step, model or
run, how large the input of the calls was in their order, how much of it the same
run had sent before (RE-SENT), and by how many tokens a call is larger than the
run's previous one (GROWTH). Lines that cannot be read are counted and the first
of them named.

With --lines each line is a JSON string, and its count is printed on a line.`,
		Example: `  llmproxy tokens body.json
  llmproxy tokens body.json --model gpt-4.1-mini --format json
  llmproxy tokens --text prompt.md --model gpt-4o
  llmproxy tokens --by step logs/*.jsonl
  llmproxy tokens --lines --encoding o200k_base < strings.jsonl
  llmproxy tokens drift --since 30d`,
		Args: func(cmd *cobra.Command, args []string) error { return f.check(cmd, args) },
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case f.lines:
				return countLines(cmd, f, input(args)[0])
			case f.by != "":
				return a.readLogs(cmd, f, input(args)...)
			}
			return a.countFile(cmd, f, input(args)[0])
		},
	}
	addConfigFlags(cmd, "database")
	flags := cmd.Flags()
	flags.StringVar(&f.by, "by", "", "read logs of requests and show them by this `dimension`: "+choices(report.Growths()))
	flags.StringVar(&f.endpoint, "endpoint", "", "the `endpoint` that bodies are for: "+choices(endpoints())+" (default guessed)")
	flags.StringVar(&f.model, "model", "", "count for this `model`, whatever the body names")
	flags.StringVar(&f.encoding, "encoding", "", "the `encoding` of texts, such as o200k_base (default the model's)")
	flags.BoolVar(&f.text, "text", false, "the file is text, even if it looks like a request body")
	flags.BoolVar(&f.lines, "lines", false, "each line is a JSON string; print one count a line")
	flags.StringVar(&f.format, "format", "table", "output `format`: "+choices(report.Formats())+" (csv and markdown with --by)")
	cmd.AddCommand(newTokensDriftCmd(a))
	return cmd
}

func endpoints() []tokens.Endpoint {
	return []tokens.Endpoint{tokens.ChatCompletions, tokens.Responses, tokens.Completions, tokens.Embeddings}
}

// check refuses flags that do not go together and words that do not exist.
func (f *tokensFlags) check(cmd *cobra.Command, args []string) error {
	switch {
	case f.by != "" && !slices.Contains(report.Growths(), report.Dimension(f.by)):
		return unknownChoice("--by", f.by, report.Growths())
	case f.endpoint != "" && !slices.Contains(endpoints(), tokens.Endpoint(f.endpoint)):
		return unknownChoice("--endpoint", f.endpoint, endpoints())
	case !slices.Contains(report.Formats(), report.Format(f.format)):
		return unknownChoice("--format", f.format, report.Formats())
	case f.lines && (f.by != "" || f.text || f.endpoint != "" || cmd.Flags().Changed("format")):
		return usagef("--lines prints plain counts of plain texts; leave --by, --text, --endpoint and --format out")
	case f.by != "" && f.text:
		return usagef("--by reads requests and --text reads none; leave one of them out")
	case f.by != "" && f.encoding != "":
		return usagef("--encoding is for texts; requests are counted in their model's, or in that of --model")
	case f.by == "" && len(args) > 1:
		return usagef("%s takes one file, but got %d; name a dimension by --by to read many files of requests", cmd.CommandPath(), len(args))
	case f.by == "" && f.format != "table" && f.format != "json":
		return usagef("--format %s is for --by; use table or json", f.format)
	case len(args) == 0 && isTerminal(cmd.InOrStdin()):
		return usagef("%s needs a file, or - and a text on standard input", cmd.CommandPath())
	}
	if f.encoding != "" {
		if _, err := tokens.TextIn(f.encoding, ""); err != nil {
			return usagef("--encoding: %w; use o200k_base, o200k_harmony, cl100k_base, p50k_base or r50k_base", err)
		}
	}
	return nil
}

// textEncoding is the encoding of texts, and how well it is known: it is a
// guess where neither it nor a known model was named.
func (f *tokensFlags) textEncoding() (string, tokens.Basis) {
	if f.encoding != "" {
		return f.encoding, tokens.Exact
	}
	encoding, basis := encodingOf(f.model)
	if basis != tokens.FallbackEncoding {
		basis = tokens.Exact // of texts; the model's frames are another matter
	}
	return encoding, basis
}

// input are the files to read: standard input where none is named.
func input(args []string) []string {
	if len(args) == 0 {
		return []string{"-"}
	}
	return args
}

func isTerminal(stream any) bool {
	file, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// openInput opens a file, or standard input for -. label is its name in messages,
// size its bytes where they are known.
func openInput(cmd *cobra.Command, name string) (r io.ReadCloser, label string, size int64, err error) {
	if name == "-" {
		return io.NopCloser(cmd.InOrStdin()), "standard input", 0, nil
	}
	file, err := os.Open(name)
	if err != nil {
		return nil, name, 0, err
	}
	if info, err := file.Stat(); err == nil && info.Mode().IsRegular() {
		size = info.Size()
	}
	return file, name, size, nil
}

// encodingOf is the encoding of a model's texts, and how well it is known.
func encodingOf(model string) (string, tokens.Basis) {
	e, err := tokens.Count(tokens.Request{Endpoint: tokens.Completions, Model: model, Body: []byte(`{"prompt":""}`)})
	if err != nil {
		panic(err) // the body is a constant
	}
	return e.Encoding, e.Basis
}
