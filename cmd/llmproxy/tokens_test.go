package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"llmproxy/cache"
	"llmproxy/ledger"
	"llmproxy/store"
	"llmproxy/store/storetest"
	"llmproxy/tokens"
)

// billsFile is a database with bills of a vendor's model that has no rule, of
// one and a half times what was counted, and of gpt-4o, off by a constant.
func billsFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "llmproxy.db")
	s := storetest.Open(t, path, store.Options{})
	var ids ledger.IDs
	var calls []*ledger.Call
	add := func(model string, counted, correction, billed int64, flags int) {
		calls = append(calls, &ledger.Call{ID: ids.Next(time.Now().Add(-time.Hour), 1), Tenant: "acme", Step: "draft-reply", Model: model,
			Endpoint: ledger.Chat, Outcome: ledger.Miss, Status: 200, Flags: flags, Basis: 3,
			Input: counted + correction, Correction: correction, Usage: &ledger.Usage{Input: billed, Output: 5}})
	}
	for i := range int64(25) {
		tenths := int64(15)
		if i < 3 || i >= 22 { // more than one of twenty on each side
			tenths += (i - 12) / 10
		}
		add("claude-sonnet-4-5", 1000+10*i, 500, (100+i)*tenths, 0)
		add("claude-sonnet-4-5", 1000, 0, 9000, ledger.WithImages)
		add("gpt-4o", 700+i, 0, 707+i, ledger.WithTools)
	}
	if err := s.Update(t.Context(), func(tx *store.Tx) error { return ledger.Write(tx, calls) }); err != nil {
		t.Fatal(err)
	}
	return path
}

// llmproxy runs the command and returns its standard output; it must succeed.
func llmproxy(t *testing.T, args ...string) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), args, nil, &stdout, &stderr); code != exitDone || stderr.Len() > 0 {
		t.Fatalf("%v: exit code %d, %s", args, code, stderr.String())
	}
	return stdout.String()
}

func wantParts(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("no %q in\n%s", part, text)
		}
	}
}

func TestDriftCommand(t *testing.T) {
	database := billsFile(t)
	wantParts(t, llmproxy(t, "tokens", "drift", "--database", database),
		"75 calls were billed ", "gpt-4o             chat/completions  tools", "+7 (100%)",
		"No rule is known for claude-sonnet-4-5: its counts are multiplied by 1.500, learned from its latest 25 bills; nine of ten lie between 1.400 and 1.600.")
	wantParts(t, llmproxy(t, "tokens", "drift", "--database", database, "--format", "csv", "--limit", "1", "--step", "draft-reply"),
		"model,endpoint,shape,basis,calls,", "claude-sonnet-4-5,chat/completions,images,")
	wantParts(t, llmproxy(t, "tokens", "drift", "--database", database, "--format", "markdown"), "| MODEL |", "| +7 (100%) |")
	var got struct {
		Rows    []map[string]any
		Factors []struct {
			Model string
			Ratio float64
		}
	}
	if err := json.Unmarshal([]byte(llmproxy(t, "tokens", "drift", "--database", database, "--format", "json")), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Rows) != 3 || len(got.Factors) != 1 || got.Factors[0].Ratio != 1.5 {
		t.Errorf("%+v", got)
	}
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), []string{"tokens", "drift", "--database", database, "--step", "draft-repyl"}, nil, &stdout, &stderr); code != exitFailed ||
		!strings.Contains(stderr.String(), `did you mean "draft-reply"?`) {
		t.Errorf("exit code %d, %s", code, stderr.String())
	}
}

func TestLearnedFactorsAreUsedAndShown(t *testing.T) {
	database := billsFile(t)
	body := filepath.Join(t.TempDir(), "body.json")
	text := `{"model":"claude-sonnet-4-5","messages":[{"role":"user","content":"` + strings.Repeat("word ", 300) + `"}]}`
	if err := os.WriteFile(body, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	raw, err := tokens.Count(tokens.Request{Endpoint: tokens.ChatCompletions, Model: "claude-sonnet-4-5", Body: []byte(text)})
	if err != nil {
		t.Fatal(err)
	}
	total := thousands(int64((raw.Tokens*3 + 1) / 2))
	wantParts(t, llmproxy(t, "tokens", body, "--database", database),
		total+" input tokens of chat/completions for claude-sonnet-4-5, by o200k_base: estimate.",
		"learned-factor 1.500 (1.400-1.600, 25 calls)",
		fmt.Sprintf("its bills are expected between %d and %d tokens", int(math.Round(1.4*float64(raw.Tokens))), int(math.Round(1.6*float64(raw.Tokens)))))
	wantParts(t, llmproxy(t, "tokens", "--by", "step", body, "--database", database), "1 request sent "+total+" input tokens")
	if text := llmproxy(t, "tokens", body, "--database", database, "--model", "gpt-4o"); strings.Contains(text, "factor") {
		t.Errorf("a factor for a model with a rule:\n%s", text)
	}
	// No database has learned nothing; one that was asked for has to be there.
	empty := filepath.Join(t.TempDir(), "none.db")
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), []string{"tokens", body}, []string{"LLMPROXY_DATABASE=" + empty}, &stdout, &stderr); code != exitDone {
		t.Errorf("without a database: exit code %d, %s", code, stderr.String())
	}
	for _, args := range [][]string{{"tokens", body}, {"tokens", "--by", "step", body}} {
		stderr.Reset()
		if code := run(t.Context(), append(args, "--database", empty), nil, &stdout, &stderr); code != exitFailed || !strings.Contains(stderr.String(), "none.db") {
			t.Errorf("%v: exit code %d, %s", args, code, stderr.String())
		}
	}
}

func TestTokensCommandMistakes(t *testing.T) {
	for args, want := range map[string]string{
		"a.json b.json":                  "tokens takes one file, but got 2; name a dimension by --by",
		"--by stepp a.json":              `--by "stepp" does not exist; did you mean "step"?`,
		"--endpoint chat a.json":         `--endpoint "chat" does not exist; use chat/completions, `,
		"--format xml a.json":            `--format "xml" does not exist`,
		"--format csv a.json":            "--format csv is for --by; use table or json",
		"--encoding latin1 a.json":       `--encoding: unknown encoding "latin1"; use o200k_base, `,
		"--lines --text a.json":          "--lines prints plain counts of plain texts",
		"--lines --format json a.json":   "--lines prints plain counts of plain texts",
		"--by step --text a.json":        "--by reads requests and --text reads none",
		"--by step --encoding r50k_base": "--encoding is for texts",
		"drift now":                      `drift takes no arguments, but got "now"`,
		"drift --limit -2":               "--limit -2 is negative",
		"drift --since tomorrow":         "is no time",
	} {
		var stdout, stderr bytes.Buffer
		code := run(t.Context(), append([]string{"tokens"}, strings.Fields(args)...), nil, &stdout, &stderr)
		if code != exitUsage || !strings.Contains(stderr.String(), want) || stdout.Len() > 0 {
			t.Errorf("%s: exit code %d, %q, want %q", args, code, stderr.String(), want)
		}
	}
}

func TestEndpointsAreGuessed(t *testing.T) {
	for body, want := range map[string]tokens.Endpoint{
		`{"messages":[]}`:                                tokens.ChatCompletions,
		`{"messages":[],"input":"x"}`:                    tokens.ChatCompletions,
		`{"messages":null,"prompt":"x"}`:                 tokens.Completions,
		`{"input":"x"}`:                                  tokens.Responses,
		`{"input":[{"role":"user","content":"x"}]}`:      tokens.Responses,
		`{"input":[ ]}`:                                  tokens.Responses,
		`{"instructions":"x"}`:                           tokens.Responses,
		`{"previous_response_id":"resp_1"}`:              tokens.Responses,
		`{"input":["x","y"]}`:                            tokens.Embeddings,
		`{"input":[ [1,2],[3]]}`:                         tokens.Embeddings,
		`{"input":"x","model":"nomic-embed-text"}`:       tokens.Embeddings,
		`{"input":"x","encoding_format":"float"}`:        tokens.Embeddings,
		`{"input":"x","dimensions":256}`:                 tokens.Embeddings,
		`{"prompt":["x"]}`:                               tokens.Completions,
		`{"model":"gpt-4o"}`:                             "",
		`{"url":"/v1/completions","body":{"input":"x"}}`: tokens.Completions,
		`{"url":"https://x.openai.azure.com/openai/deployments/d/chat/completions?api-version=1","body":{"prompt":"x"}}`: tokens.ChatCompletions,
		`{"path":"/v1/files","body":{"prompt":"x"}}`:                               tokens.Completions,
		`{"request":"POST /v1/embeddings","body":"{\"prompt\":\"x\"}"}`:            tokens.Completions,
		`{"request":{"request":{"body":{"request":{"body":{"prompt":"x"}}}}}}`:     "", // too deep
		`{"request":{"url":"/v1/responses","body":"{\"prompt\":{\"id\":\"1\"}}"}}`: tokens.Responses,
	} {
		l, err := readLogLine([]byte(body))
		if err != nil || l.endpoint != want {
			t.Errorf("%s: %q %v, want %q", body, l.endpoint, err, want)
		}
	}
}

func TestTimesOfLogs(t *testing.T) {
	at := time.Date(2026, 12, 1, 8, 0, 5, 0, time.UTC)
	for value, want := range map[string]time.Time{
		`"2026-12-01T09:00:05+01:00"`: at, `"2026-12-01 08:00:05"`: at, `"2026-12-01 08:00:05Z"`: at,
		fmt.Sprint(at.Unix()): at, fmt.Sprint(at.UnixMilli()): at, fmt.Sprintf("%d.5", at.Unix()): at.Add(500 * time.Millisecond),
		`"noon"`: {}, `-1`: {}, `true`: {}, `""`: {},
	} {
		if got := timeOf([]byte(value)); !got.Equal(want) {
			t.Errorf("%s: %v, want %v", value, got, want)
		}
	}
}

func TestStepsOfLogsAreNamedByTheFirstThatTells(t *testing.T) {
	const inner = `"body":{"prompt":"x","metadata":{"step":"plain","run":"r-plain"}}`
	const own = `"body":{"prompt":"x","metadata":{"step":"plain","run":"r-plain","llmproxy_step":"own","llmproxy_run":"r-own"}}`
	for line, want := range map[string][2]string{
		`{"step":"line","run":7,"headers":{"X-LLMProxy-Step":"header"},` + own + `}`:                              {"line", "7"},
		`{"headers":{"x-llmproxy-step":"header","X-LLMProxy-Context":"run=c"},"url":"/steps/p/v1/x",` + own + `}`: {"header", "c"},
		`{"url":"/steps/a%20b/runs/c/v1/completions",` + own + `}`:                                                {"a b", "c"},
		`{` + own + `}`:                           {"own", "r-own"},
		`{` + inner + `}`:                         {"plain", "r-plain"},
		`{"step":"default",` + inner + `}`:        {"default", "r-plain"},
		`{"run":"r",` + inner + `}`:               {"plain", "r"},
		`{"body":{"prompt":"x"}}`:                 {"default", ""},
		`{"body":{"prompt":"x","metadata":null}}`: {"default", ""},
	} {
		l, err := readLogLine([]byte(line))
		if err != nil {
			t.Fatal(err)
		}
		if n, err := l.names(); err != nil || n.Step != want[0] || n.Run != want[1] {
			t.Errorf("%s: %+v %v, want %v", line, n, err, want)
		}
	}
}

func TestLongLinesAreLeftOut(t *testing.T) {
	long := strings.Repeat("x", maxBody)
	lines := newLineReader(io.MultiReader(strings.NewReader("\ufefffirst\r\n"+long), strings.NewReader("\n"+long+"y\n\nlast")))
	for _, want := range []string{"first", long, "", "", "last"} {
		line, err := lines.next()
		if tooLong := lines.number == 3; tooLong != errors.Is(err, errLongLine) || string(line) != want {
			t.Errorf("line %d: %d bytes %v, want %d", lines.number, len(line), err, len(want))
		}
	}
	if _, err := lines.next(); err != io.EOF {
		t.Errorf("at the end: %v", err)
	}
}

func TestPositions(t *testing.T) {
	text := []byte("{\n \"naïve\": }")
	_, err := cache.Scan(text)
	wrong, ok := errors.AsType[*cache.SyntaxError](err)
	if !ok {
		t.Fatal(err)
	}
	if line, column := position(text, wrong.Offset); line != 2 || column != 11 {
		t.Errorf("line %d, column %d, want 2 and 11", line, column)
	}
}

func TestProgressIsToldNowAndThen(t *testing.T) {
	var b bytes.Buffer
	p := progress{w: &b}
	for i := range 3 {
		p.tell(func() string { return fmt.Sprint("line ", i) })
	}
	p.clear()
	p.clear()
	if got := b.String(); got != "\r\x1b[Kline 0\r\x1b[K" {
		t.Errorf("%q", got)
	}
	(&progress{}).tell(func() string { t.Error("told without a terminal"); return "" })
	if portion(1<<20, 0) != "1.0 MiB" || portion(1<<20, 1<<21) != "1.0 MiB of 2.0 MiB" {
		t.Error(portion(1<<20, 1<<21))
	}
}
