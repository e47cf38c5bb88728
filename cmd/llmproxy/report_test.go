package main

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"llmproxy/ledger"
	"llmproxy/store"
	"llmproxy/store/storetest"
)

// ledgerFile is a database with a paid call and a hit of one step, an hour old,
// and a paid call of another step, ten days old. The server still has it open.
func ledgerFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "llmproxy.db")
	s := storetest.Open(t, path, store.Options{})
	cost := int64(5000)
	hour, days := time.Now().Add(-time.Hour), time.Now().Add(-10*24*time.Hour)
	calls := []*ledger.Call{
		{ID: ledger.FirstID(hour), Tenant: "acme", Step: "draft-reply", Model: "gpt-4.1", Key64: 1, Outcome: ledger.Miss,
			Input: 1200, Usage: &ledger.Usage{Input: 1200, Output: 300}, Cost: &cost, Total: time.Second},
		{ID: ledger.FirstID(hour) + 1, Tenant: "acme", Step: "draft-reply", Model: "gpt-4.1", Key64: 1, Outcome: ledger.Hit,
			Input: 1200, AvoidedInput: 1200, AvoidedOutput: 300, AvoidedCost: 5000},
		{ID: ledger.FirstID(days), Tenant: "acme", Step: "triage", Model: "gpt-4.1", Key64: 2, Outcome: ledger.Miss,
			Input: 70, Usage: &ledger.Usage{Input: 70, Output: 1}, Cost: &cost},
	}
	if err := s.Update(t.Context(), func(tx *store.Tx) error { return ledger.Write(tx, calls) }); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestReportCommand(t *testing.T) {
	database := ledgerFile(t)
	tests := []struct {
		args   string
		stdout []string // parts
		not    string   // no part
	}{
		{"", []string{"2 calls, 1 sent upstream; 1 retry served from the store saved 1,200 input tokens", "By step,", "draft-reply", "(UTC)"}, "triage"},
		{"--since all", []string{"3 calls", "triage"}, ""},
		{"--since 30d --until 7d", []string{"1 call, ", "triage"}, "draft-reply"},
		{"--step triage --since 30d", []string{"1 call, ", "step triage"}, "draft-reply"},
		{"--tenant acme --by model", []string{"gpt-4.1", "tenant acme"}, ""},
		{"--by day --timezone Asia/Kolkata", []string{"By day,", "(Asia/Kolkata)"}, ""},
		{"--by key --since all --limit 1", []string{"0000000000000001", "1 more row is not shown"}, "0000000000000002"},
		{"--format csv", []string{"name,calls,upstream_calls,", "draft-reply,2,1,1,"}, "TOTAL"},
		{"--format markdown", []string{"| STEP |", "| draft-reply |"}, ""},
		{"--since 2020-01-01 --until 2020-02-01", []string{"No call ended in this time."}, "STEP"},
	}
	for _, test := range tests {
		var stdout, stderr bytes.Buffer
		args := append([]string{"report", "--database", database}, strings.Fields(test.args)...)
		if code := run(t.Context(), args, nil, &stdout, &stderr); code != exitDone || stderr.Len() > 0 {
			t.Errorf("%q: exit code %d, %s", test.args, code, stderr.String())
		}
		for _, part := range test.stdout {
			if !strings.Contains(stdout.String(), part) {
				t.Errorf("%q: no %q in\n%s", test.args, part, stdout.String())
			}
		}
		if test.not != "" && strings.Contains(stdout.String(), test.not) {
			t.Errorf("%q: %q in\n%s", test.args, test.not, stdout.String())
		}
	}
}

func TestReportCommandWritesJSON(t *testing.T) {
	var stdout, stderr bytes.Buffer
	args := []string{"report", "--database", ledgerFile(t), "--format", "json"}
	if code := run(t.Context(), args, nil, &stdout, &stderr); code != exitDone {
		t.Fatalf("exit code %d, %s", code, stderr.String())
	}
	var got struct {
		Total struct {
			Cost    int64 `json:"cost_micro_usd"`
			Avoided int64 `json:"avoided_input_tokens"`
		}
	}
	if err := json.Unmarshal(stdout.Bytes(), &got); err != nil || got.Total.Cost != 5000 || got.Total.Avoided != 1200 {
		t.Errorf("%v, %+v", err, got)
	}
}

func TestReportCommandMistakes(t *testing.T) {
	database := ledgerFile(t)
	tests := []struct {
		args string
		code int
		err  string
	}{
		{"--by stp", exitUsage, `--by "stp" does not exist; did you mean "step"?`},
		{"--by colour", exitUsage, `--by "colour" does not exist; use step, model, run, work, day, hour, key or outcome`},
		{"--format xml", exitUsage, `--format "xml" does not exist; use table, json, csv or markdown`},
		{"--since yesterday", exitUsage, `--since "yesterday" is no time; write a span back from now such as 24h or 7d`},
		{"--until 2026-13-01", exitUsage, `--until "2026-13-01" is no time`},
		{"--since 1h --until 2h", exitUsage, "the range is empty: --since is "},
		{"--since 2999-01-01", exitUsage, "the range is empty"},
		{"--limit -2", exitUsage, "--limit -2 is negative"},
		{"--timezone Mars/Olympus", exitFailed, `"Mars/Olympus" is no time zone`},
		{"--step draft-rply", exitFailed, `no call has the step "draft-rply"; did you mean "draft-reply"?`},
		{"--step x", exitFailed, `no call has the step "x"; the ledger knows draft-reply, triage`},
		{"--database no-such-file.db", exitFailed, "no-such-file.db"},
		{"step draft-reply", exitUsage, `takes no arguments, but got "step"`},
	}
	for _, test := range tests {
		var stdout, stderr bytes.Buffer
		args := append([]string{"report", "--database", database}, strings.Fields(test.args)...)
		code := run(t.Context(), args, nil, &stdout, &stderr)
		if code != test.code || !strings.Contains(stderr.String(), test.err) || stdout.Len() > 0 {
			t.Errorf("%q: exit code %d, want %d; standard error %q, want %q; standard output %q", test.args, code, test.code, stderr.String(), test.err, stdout.String())
		}
	}
}

func TestReportCommandBeforeTheFirstCall(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new.db")
	storetest.Open(t, path, store.Options{})
	for listen, want := range map[string]string{
		"127.0.0.1:8484": "curl http://127.0.0.1:8484/steps/my-step/v1/chat/completions",
		":9000":          "curl http://127.0.0.1:9000/",
	} {
		var out bytes.Buffer
		if err := firstSteps(&out, listen); err != nil || !strings.Contains(out.String(), want) {
			t.Errorf("%s: %v, %s", listen, err, out.String())
		}
	}
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), []string{"report", "--database", path}, nil, &stdout, &stderr); code != exitDone || !strings.Contains(stdout.String(), "There are no calls yet.") || !strings.Contains(stdout.String(), "curl http://127.0.0.1:8484/") {
		t.Errorf("exit code %d: %s%s", code, stdout.String(), stderr.String())
	}
	stdout.Reset()
	if code := run(t.Context(), []string{"report", "--database", path, "--format", "json"}, nil, &stdout, &stderr); code != exitDone || !json.Valid(stdout.Bytes()) {
		t.Errorf("exit code %d: %s%s", code, stdout.String(), stderr.String())
	}
}

func TestReportTimes(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 10, 26, 12, 0, 0, 0, time.UTC)
	for text, want := range map[string]string{
		"24h":                       "2026-10-25T12:00:00Z",
		"1d12h":                     "2026-10-25T00:00:00Z",
		"2026-10-25":                "2026-10-24T22:00:00Z",
		"2026-10-26":                "2026-10-25T23:00:00Z",
		"2026-10-25T02:30:00+01:00": "2026-10-25T01:30:00Z",
		"2026-10-25T02:30:00.5Z":    "2026-10-25T02:30:00Z",
	} {
		got, err := parseTime("--since", text, now, berlin)
		if err != nil || got.UTC().Format(time.RFC3339) != want {
			t.Errorf("%s: %v %v, want %s", text, got.UTC(), err, want)
		}
	}
	for _, text := range []string{"", "-1h", "7", "now", "2026-02-30", "2026-10-25T02:30:00"} {
		if got, err := parseTime("--since", text, now, berlin); err == nil {
			t.Errorf("%q is read as %v", text, got)
		}
	}
}
