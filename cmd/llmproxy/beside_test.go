package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

// running is a server with the simulated model, ended with the test, and the
// commands beside it.
type running struct {
	t      *testing.T
	base   string // http://host:port
	config string // its configuration file
}

func startServer(t *testing.T, config string) *running {
	t.Helper()
	folder := t.TempDir()
	r := &running{t: t, config: filepath.Join(folder, "config.yaml")}
	config += "\nlisten: 127.0.0.1:0\nupstreams: [{name: sim, base_url: \"builtin:sim\"}]\ndatabase: " + strconv.Quote(filepath.Join(folder, "llmproxy.db")) + "\n"
	if err := os.WriteFile(r.config, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	settings, err := parseSettings(r.config, []byte(config), nil, pflag.NewFlagSet("", pflag.ContinueOnError))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	s, err := open(ctx, settings, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		stop()
		t.Fatal(err)
	}
	r.base = "http://" + s.listener.Addr().String()
	ended := make(chan error, 1)
	go func() { ended <- s.run(ctx) }()
	t.Cleanup(func() {
		stop()
		http.DefaultClient.CloseIdleConnections()
		if err := <-ended; err != nil {
			t.Errorf("the server ended with %v", err)
		}
	})
	return r
}

// post sends a body to a path below the server and returns the whole answer.
func (r *running) post(path, body string, header ...string) (*http.Response, string) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodPost, r.base+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return resp, string(text)
}

// run runs a command with the server's configuration.
func (r *running) run(args ...string) (stdout, stderr string, code int) {
	r.t.Helper()
	var out, errs bytes.Buffer
	code = run(r.t.Context(), append(args, "--config", r.config), nil, &out, &errs)
	return out.String(), errs.String(), code
}

// ok is run for a command that must succeed.
func (r *running) ok(args ...string) string {
	r.t.Helper()
	stdout, stderr, code := r.run(args...)
	if code != exitDone {
		r.t.Fatalf("llmproxy %q exits with %d: %s", args, code, stderr)
	}
	return stdout
}

func question(text string) string {
	content, err := json.Marshal(text)
	if err != nil {
		panic(err)
	}
	return `{"model":"sim","messages":[{"role":"user","content":` + string(content) + `}]}`
}

func TestPurgeBesideARunningServer(t *testing.T) {
	r := startServer(t, "")
	ask := func(step string) (outcome string) {
		resp, _ := r.post("/steps/"+step+"/v1/chat/completions", question("What is new?"))
		return resp.Header.Get("X-LLMProxy-Cache")
	}
	for _, step := range []string{"news", "weather"} {
		if first, second := ask(step), ask(step); first != "miss" || second != "hit" {
			t.Fatalf("step %s: %s, then %s; want a miss, then a hit", step, first, second)
		}
	}
	if out := r.ok("cache", "purge", "--step", "news", "--yes"); !strings.HasPrefix(out, "Deleted 1 stored answer.") {
		t.Errorf("purge prints %q", out)
	}
	// The answer is in the server's memory as well.
	gone := false
	for deadline := time.Now().Add(10 * time.Second); !gone && time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		resp, _ := r.post("/steps/news/v1/chat/completions", question("What is new?"), "Cache-Control", "only-if-cached")
		gone = resp.StatusCode == http.StatusGatewayTimeout
	}
	if !gone {
		t.Fatal("the server still serves the purged answer")
	}
	if outcome := ask("weather"); outcome != "hit" {
		t.Errorf("the other step's answer: %s, want a hit", outcome)
	}
	if first, second := ask("news"), ask("news"); first != "miss" || second != "hit" {
		t.Errorf("after the purge: %s, then %s; want a miss, then a hit", first, second)
	}
}

func TestShowPrintsTheAnswerAsItWasSent(t *testing.T) {
	r := startServer(t, "")
	stream := strings.TrimSuffix(question("Tell me."), "}") + `,"stream":true,"stream_options":{"include_usage":true}}`
	whole, wholeText := r.post("/v1/chat/completions", question("Tell me more."))
	streamed, streamText := r.post("/v1/chat/completions", stream)
	for _, test := range []struct {
		resp *http.Response
		text string
	}{{whole, wholeText}, {streamed, streamText}} {
		key := test.resp.Header.Get("X-LLMProxy-Key")
		if raw := r.ok("cache", "show", key[:10], "--format", "raw"); raw != test.text {
			t.Errorf("raw is\n%q\nwant what the client got:\n%q", raw, test.text)
		}
		var shown struct {
			Key, Form, Step, Call string
			Input                 int64 `json:"input_tokens"`
			Answer                json.RawMessage
		}
		if err := json.Unmarshal([]byte(r.ok("cache", "show", strings.ToUpper(key))), &shown); err != nil {
			t.Fatal(err)
		}
		if shown.Key != key || shown.Step != "default" || shown.Call != test.resp.Header.Get("X-LLMProxy-Call") || shown.Input == 0 {
			t.Errorf("shown is %+v", shown)
		}
		switch shown.Form {
		case "json":
			var want bytes.Buffer
			if err := json.Compact(&want, []byte(test.text)); err != nil {
				t.Fatal(err)
			}
			var got bytes.Buffer
			if err := json.Compact(&got, shown.Answer); err != nil || got.String() != want.String() {
				t.Errorf("answer is %s, want %s (%v)", &got, &want, err)
			}
		case "sse":
			var chunks []any
			if err := json.Unmarshal(shown.Answer, &chunks); err != nil || len(chunks) != strings.Count(test.text, "data: ") || chunks[len(chunks)-1] != "[DONE]" {
				t.Errorf("%d chunks of %q (%v)", len(chunks), test.text, err)
			}
		default:
			t.Errorf("form is %q", shown.Form)
		}
	}
}

func TestKeyIsTheServersKey(t *testing.T) {
	r := startServer(t, `
steps:
  - {name: mail, aliases: [n8n-7], normalize: [{pattern: "[0-9]+", replace: "<n>"}]}
  - {name: open, cache: {scope: shared}}
`)
	named := strings.TrimSuffix(question("Hi."), "}") + `,"metadata":{"llmproxy_step":"open","other":"x"}}`
	for _, test := range []struct {
		path, body string
		header     []string
		flags      []string
	}{
		{"/v1/chat/completions", question("Hi."), nil, nil},
		{"/steps/mail/v1/chat/completions", question("Order 12"), nil, []string{"--step", "mail"}},
		{"/steps/n8n-7/v1/chat/completions", question("Order 13"), nil, []string{"--step", "n8n-7"}},
		{"/v1/chat/completions", named, nil, nil},
		{"/v1/responses", `{"model":"sim","input":"Hi."}`, nil, nil},
		{"/v1/completions", `{"model":"sim","prompt":"Hi."}`, nil, nil},
		{"/v1/embeddings", `{"model":"sim-embed","input":["Hi."]}`, nil, nil},
		{"/v1/chat/completions", question("Hi."), []string{"X-LLMProxy-Sample", "2"}, []string{"--sample", "2"}},
	} {
		file := filepath.Join(t.TempDir(), "body.json")
		if err := os.WriteFile(file, []byte(test.body), 0o600); err != nil {
			t.Fatal(err)
		}
		resp, _ := r.post(test.path, test.body, test.header...)
		got := strings.TrimSpace(r.ok(append([]string{"key", file}, test.flags...)...))
		if want := resp.Header.Get("X-LLMProxy-Key"); got != want {
			t.Errorf("%s %s: key %s, the server's is %s", test.path, test.body, got, want)
		}
	}

	// A second tenant makes the answer ambiguous.
	r.post("/v1/chat/completions", question("Hi."), "Authorization", "Bearer sk-other")
	file := filepath.Join(t.TempDir(), "body.json")
	if err := os.WriteFile(file, []byte(question("Hi.")), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, stderr, code := r.run("key", file); code != exitFailed || !strings.Contains(stderr, "add --tenant with one of t_") {
		t.Errorf("with two tenants: exit code %d, %s", code, stderr)
	}
}

func TestBudgetBesideARunningServer(t *testing.T) {
	r := startServer(t, `
timezone: Europe/Berlin
steps:
  - name: draft
    aliases: [d1]
    budget:
      - {input_tokens: 1000, per: call}
      - {calls: 4, per: total, flag_at: 2}
      - {calls: 1, per: month, action: flag}
  - name: "*"
    budget: [{calls: 10, per: total}]
budget: [{tokens: 100000, per: day}]
`)
	table := func(args ...string) string { // without the padding between columns
		return regexp.MustCompile(" +").ReplaceAllString(r.ok(append([]string{"budget"}, args...)...), " ")
	}
	before := table("--step", "draft")
	for _, line := range []string{"draft 4 calls in total 0 0% never\n", "(all steps) 100,000 tokens per day 0 0% 00:00 CE"} {
		if !strings.Contains(before, line) {
			t.Errorf("before any call there is no line %q in\n%s", line, before)
		}
	}
	for i := range 3 {
		if resp, text := r.post("/steps/draft/v1/chat/completions", question("Number "+strconv.Itoa(i))); resp.StatusCode != http.StatusOK {
			t.Fatal(text)
		}
	}
	r.post("/steps/other/v1/chat/completions", question("Hi."))

	after := table("--step", "d1")
	for _, line := range []string{
		"draft 1,000 input tokens per call – – each call\n",
		"draft 4 calls in total 3 ██████ 75% near never\n",
		"draft 1 call per month, flags 3 ████████ 300% over ",
		"(all steps) 100,000 tokens per day 160 ▏ <1% ",
	} {
		if !strings.Contains(after, line) {
			t.Errorf("there is no line %q in\n%s", line, after)
		}
	}
	if strings.Contains(after, "other") || strings.Contains(after, "RESERVED") {
		t.Errorf("another step, or reservations where nothing runs, in\n%s", after)
	}
	var status budgetJSON
	if err := json.Unmarshal([]byte(r.ok("budget", "--format", "json")), &status); err != nil {
		t.Fatal(err)
	}
	if len(status.Rules) != 5 || status.Timezone != "Europe/Berlin" {
		t.Fatalf("status is %+v", status)
	}
	total, defaults, all := status.Rules[1], status.Rules[3], status.Rules[4]
	if total.Step != "draft" || total.Used != 3 || total.Reserved != 0 || total.Limit != 4 || *total.FlagAt != 2 || total.Resets != nil {
		t.Errorf("the rule in total: %+v", total)
	}
	if defaults.Step != "other" || defaults.Used != 1 || defaults.Action != "reject" || defaults.Tenant == "" {
		t.Errorf("the default rule: %+v", defaults)
	}
	if all.Step != "" || all.Used == 0 || all.Resets == nil || !strings.Contains(*all.Resets, "T00:00:00+0") {
		t.Errorf("the rule over all steps: %+v", all)
	}
}
