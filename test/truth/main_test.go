package main

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func write(t *testing.T, lines ...string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "recorded.jsonl")
	if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestReport(t *testing.T) {
	const request = `"request":{"model":"gpt-4o","messages":[{"role":"user","content":"hi"}]}`
	file := write(t,
		`{"source":"x/tests/right#0","endpoint":"chat/completions","host":"openai","model":"gpt-4o-2024","recorded_prompt_tokens":8,`+request+`}`,
		`{"source":"x/tests/wrong#0","endpoint":"chat/completions","host":"openai","model":"gpt-4o-2024","recorded_prompt_tokens":10,`+request+`}`,
		`{"source":"x/tests/far#0","endpoint":"embeddings","host":"azure","model":"text-embedding-3-small","recorded_prompt_tokens":400,"request":{"model":"mine","input":["a","b"]}}`,
		`{"source":"x/test_openai_responses/test_openai_previous_response_id.yaml#0","endpoint":"responses","model":"gpt-5","recorded_prompt_tokens":10,"request":{"input":"hi"}}`,
		`{"source":"x/tests/state#0","endpoint":"responses","model":"gpt-5","recorded_prompt_tokens":10,"request":{"model":"gpt-5","input":"hi","previous_response_id":"r"}}`)
	recordings, err := read(file)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := run(&b, recordings); err != nil {
		t.Fatal(err)
	}
	got := strings.Join(strings.Fields(b.String()), " ")
	for _, want := range []string{
		"recordings 4 1 25.0 % 1 25.0 % 2 50.0 %",        // the edited one left out
		"all 3 1 33.3 % 1 33.3 % 2 66.7 %",               // of these, computable
		"embeddings 1 0 0.0 % 0 0.0 % 0 0.0 %",           // counted as the model of the answer
		"responses estimate 1 0 0.0 % 0 0.0 % 0 0.0 %",   // not among the computable
		"8 10 -2 exact gpt-4o-2024 text only tests/wron", // a miss
		"2 400 -398 exact text-embedding-3-small",
		"test_openai_previous_response_id.yaml#0 (billed 10, counted 7): a mock's usage",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in:\n%s", want, b.String())
		}
	}
	if strings.Contains(got, "tests/right") {
		t.Errorf("a recording that is exact is listed:\n%s", b.String())
	}
}

func TestReadRefuses(t *testing.T) {
	if _, err := read(filepath.Join(t.TempDir(), "none.jsonl")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if _, err := read(write(t)); err == nil {
		t.Error("an empty file: no error")
	}
	if _, err := read(write(t, `{"source":"x"}`, `{`)); err == nil || !strings.Contains(err.Error(), ":2:") {
		t.Errorf("no JSON in line 2: %v", err)
	}
	recordings, err := read(write(t, `{"source":"x","endpoint":"chat/completions","model":"gpt-4o","request":{}}`))
	if err != nil {
		t.Fatal(err)
	}
	if err := run(new(strings.Builder), recordings); err == nil {
		t.Error("a request that cannot be counted: no error")
	}
}

func TestFeatures(t *testing.T) {
	for body, want := range map[string]string{
		`{"messages":[{"role":"user","content":"hi"}]}`: "text only",
		`{"input":"hi"}`: "text only",
		`{"messages":[{"role":"assistant","tool_calls":[{},{}]}],"functions":[{"name":"f"}]}`:                                                                                      "tools, parallel calls",
		`{"messages":[{"role":"assistant","function_call":{}},{"role":"tool"}],"response_format":{"type":"json_schema"}}`:                                                          "one call a turn, structured output",
		`{"input":[{"type":"function_call"},{"type":"function_call"},{"type":"function_call_output"}]}`:                                                                            "one call a turn, parallel calls",
		`{"input":[{"type":"reasoning"},{"type":"function_call"},{"type":"function_call_output","output":[{"type":"input_image"}]},{"type":"mcp_call"}],"tools":[{"type":"mcp"}]}`: "one call a turn, images, reasoning items, hosted tools, other items",
		`{"messages":[{"content":[{"type":"input_audio"},{"type":"file"}]}],"web_search_options":{}}`:                                                                              "audio, files, hosted tools",
		`{"input":"hi","previous_response_id":"r","text":{"format":{"type":"json_schema"}}}`:                                                                                       "structured output, server state",
	} {
		got, err := featuresOf(json.RawMessage(body))
		if err != nil || !slices.Equal(got, strings.Split(want, ", ")) {
			t.Errorf("%s: %q, %v; want %q", body, got, err, want)
		}
	}
}
