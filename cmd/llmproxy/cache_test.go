package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"llmproxy/cache"
)

func TestAgree(t *testing.T) {
	for typed, want := range map[string]bool{"y\n": true, "Yes\n": true, " YES ": true, "n\n": false, "\n": false, "": false, "yea\n": false} {
		var stdout, stderr bytes.Buffer
		cmd := &cobra.Command{}
		cmd.SetIn(strings.NewReader(typed))
		cmd.SetOut(&stdout)
		cmd.SetErr(&stderr)
		got, err := agree(cmd, "Delete it?")
		if got != want || err != nil {
			t.Errorf("agree on %q is %v, %v", typed, got, err)
		}
		if stderr.String() != "Delete it? [y/N] " || (stdout.String() == "Nothing was deleted.\n") == want {
			t.Errorf("on %q it prints %q and asks %q", typed, &stdout, &stderr)
		}
	}
}

func TestPrintInventory(t *testing.T) {
	now := time.Now().Truncate(time.Millisecond)
	ms := func(ago time.Duration) int64 { return now.Add(-ago).UnixMilli() }
	inv := cache.Inventory{Count: 1200, StoredBytes: 5 << 20, Answers: []cache.Summary{
		{Key: cache.Key{0xab, 0xcd}, Step: "a step with a name that is long", Model: "gpt-4.1", CreatedAt: ms(90 * time.Minute), ExpiresAt: ms(-72 * time.Hour),
			ServedAt: ms(5 * time.Minute), Input: 11, Usage: &cache.Usage{Input: 12_345, Output: 6}, StoredBytes: 130 << 10},
		{Step: "x", Model: "evil\x1b[2J", CreatedAt: ms(50 * time.Hour), ExpiresAt: ms(time.Second), ServedAt: ms(50 * time.Hour), Input: 7, StoredBytes: 1500},
	}}
	var b strings.Builder
	if err := printInventory(&b, inv, now); err != nil {
		t.Fatal(err)
	}
	const want = `
KEY           STEP                  MODEL        AGE     LEFT  SERVED      IN  OUT     SIZE
abcd00000000  a step with a name …  gpt-4.1       1h       3d      5m  12,345    6  130 KiB
000000000000  x                     evil\x1b[2J   2d  expired      2d      ~7    ?  1.5 KiB

1,200 answers, 5.0 MiB as stored. 1,198 more with --limit 0.
`
	if got := "\n" + b.String(); got != want {
		t.Errorf("got%s\nwant%s", got, want)
	}
}

func TestMistakesOnTheCommandLine(t *testing.T) {
	for args, want := range map[string]string{
		"cache lst":                         `unknown command "lst"; did you mean "list"?`,
		"cache list --format xml":           `--format "xml" does not exist; use table or json`,
		"cache list --limit -3":             "--limit -3 is negative",
		"cache show":                        "takes a key or the beginning of one, but got 0 arguments",
		"cache show nothex":                 "a key is made of hexadecimal digits",
		"cache show ab --format table":      `--format "table" does not exist; use json or raw`,
		"cache purge":                       "exactly one of",
		"cache purge --all=false":           "exactly one of",
		"cache purge --expired --key ab":    "exactly one of",
		"budget extra":                      "takes no arguments",
		"budget --format jsno":              `did you mean "json"?`,
		"key":                               "takes 1 file with a request body, but got 0",
		"key a b":                           "takes 1 file with a request body, but got 2",
		"key diff a":                        "takes 2 files with request bodies, but got 1",
		"key diff - -":                      "standard input can be read once only",
		"key a --format yaml":               `--format "yaml" does not exist; use text or json`,
		"demo now":                          "takes no arguments",
		"cache purge --config x --key zz12": "a key is made of hexadecimal digits",
	} {
		var stdout, stderr bytes.Buffer
		code := run(t.Context(), strings.Fields(args), nil, &stdout, &stderr)
		if code != exitUsage || !strings.Contains(stderr.String(), want) || stdout.Len() > 0 {
			t.Errorf("%s: exit code %d, %q; want %d and %q", args, code, &stderr, exitUsage, want)
		}
	}
}
