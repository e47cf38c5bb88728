package clients

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// required is set where every client must be there, as in continuous integration:
// one that is missing fails the test instead of being skipped.
const required = "LLMPROXY_CLIENTS_REQUIRED"

// script is a client that a script calls. It prints one JSON line a check.
type script struct {
	name     string
	language language
	pkg      string   // that is installed for it
	args     []string // the script and its arguments
	checks   []string // that it must print, each once
}

// language is what runs scripts: where they and their packages are.
type language struct {
	dir, program, packages string
	version                func(dir, pkg string) (pinned, installed string, err error)
}

var (
	node   = language{"node", "node", "node/node_modules", nodeVersion}
	python = language{"python", "python/.venv/bin/python", "python/.venv", pythonVersion}
)

// every is what a client can be asked for; some lack a part of it.
var every = []string{
	"chat", "chat stream", "chat tools", "responses", "responses stream", "responses tools", "embeddings",
	"time-out", "call in progress", "left stream", "refused chat", "refused responses", "broken chat", "broken responses", "step by header",
}

func scripted() []script {
	without := func(lacks ...string) []string {
		return slices.DeleteFunc(slices.Clone(every), func(check string) bool { return slices.Contains(lacks, check) })
	}
	const busy = "call in progress"
	return []script{
		{"openai-node", node, "openai", []string{"openai.mjs", "openai"}, every},
		{"openai-node 4", node, "openai4", []string{"openai.mjs", "openai4"}, every},
		{"openai-python", python, "openai", []string{"openai_python.py"}, without(busy)},
		{"Vercel AI SDK", node, "ai", []string{"ai-sdk.mjs"}, every},
		{"LangChain JS", node, "@langchain/openai", []string{"langchain.mjs"}, every},
		{"LangChain Python", python, "langchain-openai", []string{"langchain_python.py"}, without(busy)},
		{"OpenAI Agents SDK", node, "@openai/agents", []string{"agents.mjs"}, without(busy, "embeddings")},
		{"LlamaIndex TS", node, "@llamaindex/openai", []string{"llamaindex.mjs"}, without(busy)},
	}
}

// seen is what the server must have seen of a check: what a client asks again is
// paid once, and a final refusal is not repeated.
func seen(check string) figures {
	switch {
	case strings.HasSuffix(check, "tools"):
		return figures{Calls: 4, Upstream: 2, Hits: 2} // two turns, run twice
	case strings.HasPrefix(check, "refused"):
		return figures{Calls: 1, Refused: 1}
	case strings.HasPrefix(check, "broken"):
		return figures{Calls: 3, Upstream: 3, Failed: 3} // in three ways
	case check == "step by header":
		return figures{Calls: 1, Upstream: 1}
	}
	return figures{Calls: 2, Upstream: 1, Hits: 1}
}

// saw checks the server's side of a check. How often a client comes before an answer
// is there depends on the machine.
func (s *server) saw(t *testing.T, client, check string) {
	t.Helper()
	step := client + " " + check
	atLeast := map[string]int{"time-out": 2, "call in progress": 3, "left stream": 3}[check]
	if atLeast == 0 {
		s.reported(t, step, seen(check))
		return
	}
	s.reportedAs(t, step, func(got figures) bool {
		return got.Upstream == 1 && got.Calls >= atLeast && got.Calls == 1+got.Hits+got.Collapsed
	}, fmt.Sprintf("at least %d calls, one of them upstream, all others joined", atLeast))
}

// refusedSteps are the steps that may not spend a token.
func refusedSteps() (steps []string) {
	names := []string{"openai-go", "n8n", "Codex CLI"}
	for _, c := range scripted() {
		names = append(names, c.name)
	}
	for _, name := range names {
		steps = append(steps, name+" refused chat", name+" refused responses")
	}
	return steps
}

// run runs the script and checks each of its lines, and what the server saw.
func (c script) run(t *testing.T, s *server, results *sheet) {
	version := c.installed(t)
	program := c.language.program
	if strings.Contains(program, "/") {
		program = absolute(t, program)
	}
	vector, err := json.Marshal([]any{s.text, s.vector})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, c.args...)
	cmd.Dir = c.language.dir
	cmd.Env = append(os.Environ(), "LLMPROXY_URL="+s.url, "LLMPROXY_CLIENT="+c.name, "LLMPROXY_VECTOR="+string(vector),
		"NO_COLOR=1", "PYTHONDONTWRITEBYTECODE=1", "LANGSMITH_TRACING=false")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Errorf("%s ended with %v\n%s", c.args, err, stderr.Bytes())
	}
	lines := c.lines(t, out)
	for _, check := range c.checks {
		t.Run(check, func(t *testing.T) {
			line, printed := lines[check]
			if !printed || !line.OK {
				t.Fatalf("printed %v: %v\n%s", printed, line.Detail, stderr.Bytes())
			}
			s.saw(t, c.name, check)
			results.note(t, c.name, check)
		})
		delete(lines, check)
	}
	for check, line := range lines {
		t.Errorf("a check that nobody asked for: %s %+v", check, line)
	}
	results.version(c.name, version)
}

// line is what a script prints of a check.
type line struct {
	Check  string
	OK     bool
	Detail any
}

func (c script) lines(t *testing.T, out []byte) map[string]line {
	t.Helper()
	lines := map[string]line{}
	for text := range bytes.Lines(out) {
		var l line
		if err := json.Unmarshal(text, &l); err != nil || l.Check == "" {
			t.Errorf("%s printed %q: %v", c.args, text, err)
			continue
		}
		if _, twice := lines[l.Check]; twice {
			t.Errorf("%s printed %q twice", c.args, l.Check)
		}
		lines[l.Check] = l
	}
	return lines
}

// installed returns the version of the client, which is the one that is pinned. It
// skips the test where the client is missing.
func (c script) installed(t *testing.T) (version string) {
	t.Helper()
	missing := t.Skipf
	if os.Getenv(required) != "" {
		missing = t.Fatalf
	}
	if _, err := exec.LookPath(c.language.program); err != nil {
		missing("SKIPPED: %s IS NOT INSTALLED (%v): make clients", c.name, err)
	}
	pinned, have, err := c.language.version(c.language.dir, c.pkg)
	if err != nil {
		missing("SKIPPED: %s IS NOT INSTALLED (%v): make clients", c.name, err)
	}
	if pinned != have {
		missing("SKIPPED: %s IS INSTALLED AS %s, WANT %s: make clients", c.name, have, pinned)
	}
	return have
}

func absolute(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func nodeVersion(dir, pkg string) (pinned, installed string, err error) {
	var project struct{ Dependencies map[string]string }
	var own struct{ Version string }
	if err = readJSON(filepath.Join(dir, "package.json"), &project); err == nil {
		err = readJSON(filepath.Join(dir, "node_modules", pkg, "package.json"), &own)
	}
	pinned = project.Dependencies[pkg]
	return pinned[strings.LastIndex(pinned, "@")+1:], own.Version, err // an alias is npm:name@version
}

func readJSON(path string, v any) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, v)
}

func pythonVersion(dir, pkg string) (pinned, installed string, err error) {
	text, err := os.ReadFile(filepath.Join(dir, "requirements.txt"))
	if err != nil {
		return "", "", err
	}
	match := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(pkg) + `==(\S+)$`).FindSubmatch(text)
	if match == nil {
		return "", "", fmt.Errorf("%s is not pinned", pkg)
	}
	name := strings.ReplaceAll(pkg, "-", "_")
	found, err := filepath.Glob(filepath.Join(dir, ".venv/lib/python3*/site-packages", name+"-*.dist-info"))
	if err == nil && len(found) != 1 {
		err = fmt.Errorf("%d versions of %s are installed", len(found), pkg)
	}
	if err != nil {
		return "", "", err
	}
	installed = strings.TrimSuffix(strings.TrimPrefix(filepath.Base(found[0]), name+"-"), ".dist-info")
	return string(match[1]), installed, nil
}
