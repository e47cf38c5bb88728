package main

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestEveryCommandIsExplained walks the command tree, whoever adds to it.
func TestEveryCommandIsExplained(t *testing.T) {
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		name := cmd.CommandPath()
		if cmd.Short == "" || strings.HasSuffix(cmd.Short, ".") {
			t.Errorf("%s: Short is %q; want a phrase without a full stop", name, cmd.Short)
		}
		underCompletion := cmd.HasParent() && cmd.Parent().Name() == "completion" // these explain themselves at length
		if !strings.Contains(cmd.Example, "llmproxy ") && !underCompletion {
			t.Errorf("%s: its help has no example", name)
		}
		if cmd.Args == nil && cmd.Name() != "help" {
			t.Errorf("%s: does not check its arguments", name)
		}
		if cmd.HasSubCommands() && !cmd.Runnable() {
			t.Errorf("%s: lets unknown commands pass", name)
		}
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(newRootCmd(&app{}, io.Discard, io.Discard))
}

func TestRunExitCodes(t *testing.T) {
	tests := []struct {
		args string
		code int
		err  string // part of standard error
	}{
		{"", exitDone, ""},
		{"version", exitDone, ""},
		{"--version", exitDone, ""},
		{"help keys new", exitDone, ""},
		{"keys", exitDone, ""},
		{"completion bash", exitDone, ""},
		{"keys new ci", exitDone, ""},
		{"config check --config /dev/null", exitDone, ""},
		{"config check --config no-such-file.yaml", exitFailed, "reading the configuration: open no-such-file.yaml"},
		{"config check --listen nowhere", exitFailed, `--listen: listen: "nowhere" is no address`},
		{"confg", exitUsage, `unknown command "confg"; did you mean "config"?`},
		{"keys nwe", exitUsage, `unknown command "nwe"; did you mean "new"?`},
		{"completion basch", exitUsage, `unknown command "basch"; did you mean "bash"?`},
		{"help kyes", exitUsage, `unknown command "kyes"; did you mean "keys"?`},
		{"nonsense", exitUsage, `unknown command "nonsense"; the commands are `},
		{"version now", exitUsage, `llmproxy version takes no arguments, but got "now"`},
		{"config check --lisen x", exitUsage, "unknown flag: --lisen; did you mean --listen?"},
		{"config check --listen", exitUsage, "flag needs an argument: --listen"},
		{"config check --format xml", exitUsage, `--format "xml" is no format; use yaml or json`},
		{"keys new", exitUsage, "keys new takes one name, but got 0 arguments"},
		{"keys new a/b", exitUsage, `NAME "a/b" has a slash`},
		{"keys new ci --scopes all", exitUsage, `"all" is no scope; use llm, guard and admin`},
	}
	for _, test := range tests {
		t.Run(test.args, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			code := run(t.Context(), strings.Fields(test.args), nil, &stdout, &stderr)
			if code != test.code {
				t.Errorf("exit code %d, want %d", code, test.code)
			}
			if !strings.Contains(stderr.String(), test.err) {
				t.Errorf("standard error is %q, want %q in it", stderr.String(), test.err)
			}
			hint := strings.Contains(stderr.String(), "--help\" for usage and examples.")
			if hint != (test.code == exitUsage) {
				t.Errorf("standard error is %q; the hint to --help belongs to usage errors", stderr.String())
			}
			if failed := test.code != exitDone; failed != (stdout.Len() == 0) {
				t.Errorf("standard output is %q with exit code %d", stdout.String(), code)
			}
		})
	}
}

func TestNearest(t *testing.T) {
	candidates := []string{"database", "budget", "listen", "on"}
	for word, want := range map[string]string{
		"databse":                  "database",
		"Budget":                   "budget",
		"lisetn":                   "listen",
		"bugdet":                   "budget",
		"no":                       "on",
		"prices":                   "",
		"":                         "",
		strings.Repeat("x", 1<<20): "",
	} {
		if got, ok := nearest(word, candidates); got != want || ok != (want != "") {
			t.Errorf("nearest(%.20q) = %q, %v; want %q", word, got, ok, want)
		}
	}
}
