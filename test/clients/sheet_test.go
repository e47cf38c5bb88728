package clients

import (
	"flag"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

var update = flag.Bool("update", false, "write what works into "+page)

const page = "../../docs/clients.md"

// The table stands between these lines of the page.
const opening, closing = "<!-- written by go test ./test/clients -update -->\n", "<!-- end -->\n"

// sheet collects which checks of which clients have passed.
type sheet struct {
	mu       sync.Mutex
	passed   map[string][]string // client → checks
	versions map[string]string   // client → its version, where a script tells it
}

// note writes down that a check has come to its end, unless it failed or was
// skipped.
func (s *sheet) note(t *testing.T, client, check string) {
	if t.Failed() || t.Skipped() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.passed == nil {
		s.passed = map[string][]string{}
	}
	s.passed[client] = append(s.passed[client], check)
}

func (s *sheet) version(client, version string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.versions == nil {
		s.versions = map[string]string{}
	}
	s.versions[client] = version
}

// columns of the table: the heading and the checks that it stands for, each with
// what the cell says of it.
var columns = []struct {
	heading string
	checks  [][2]string
}{
	{"chat completions", [][2]string{{"chat", "JSON"}, {"chat stream", "stream"}, {"chat tools", "tools"}}},
	{"responses", [][2]string{{"responses", "JSON"}, {"responses stream", "stream"}, {"responses tools", "tools"}}},
	{"embeddings", [][2]string{{"embeddings", "yes"}}},
	{"retry after a time-out joins", [][2]string{{"time-out", "yes"}}},
	{"comes back to a running call", [][2]string{{"left stream", "left stream"}, {"call in progress", "503"}}},
	{"a refusal is not repeated", [][2]string{{"refused chat", "chat"}, {"refused responses", "responses"}}},
	{"a broken stream raises", [][2]string{{"broken chat", "chat"}, {"broken responses", "responses"}}},
	{"step by a header", [][2]string{{"step by header", "yes"}}},
}

// row is the table's line about a client.
func (s *sheet) row(client, version string) string {
	cells := []string{client, version}
	for _, column := range columns {
		var works []string
		for _, check := range column.checks {
			if slices.Contains(s.passed[client], check[0]) {
				works = append(works, check[1])
			}
		}
		cells = append(cells, strings.Join(works, ", "))
	}
	return "| " + strings.Join(cells, " | ") + " |\n"
}

// compare checks the page against what has passed, or writes it. A client that was
// skipped keeps its line.
func (s *sheet) compare(t *testing.T) {
	if part := flag.Lookup("test.run").Value.String(); t.Failed() || strings.Contains(part, "/") {
		t.Logf("%s is not compared: not all was run, or not all has passed", page)
		return
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(text), opening)
	old, after, closed := strings.Cut(rest, closing)
	if !found || !closed {
		t.Fatalf("%s has no place for the table", page)
	}
	if want := before + opening + s.table(t, old) + closing + after; want == string(text) {
		return
	} else if !*update {
		t.Errorf("%s is not what the tests found, which go test ./test/clients -update writes:\n%s", page, s.table(t, old))
	} else if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
		t.Error(err)
	}
}

func (s *sheet) table(t *testing.T, old string) string {
	t.Helper()
	head, rule := "| client | version |", "|---|---|"
	for _, column := range columns {
		head += " " + column.heading + " |"
		rule += "---|"
	}
	table := "\n" + head + "\n" + rule + "\n"
	for _, c := range scripted() {
		if version, ran := s.versions[c.name]; ran {
			table += s.row(c.name, version)
		} else {
			table += lineOf(old, c.name)
		}
	}
	for _, c := range inGo() {
		switch version := goVersion(t, c.name); {
		case len(s.passed[c.name]) > 0:
			table += s.row(c.name, version)
		default:
			table += lineOf(old, c.name)
		}
	}
	return table + "\n"
}

// lineOf is the line about a client in an earlier table.
func lineOf(table, client string) string {
	return regexp.MustCompile(`(?m)^\| ` + regexp.QuoteMeta(client) + ` \|.*\n`).FindString(table)
}

// goVersion is what the page says of the version of a client that is not scripted.
func goVersion(t *testing.T, client string) string {
	t.Helper()
	module := map[string]string{"openai-go": "github.com/openai/openai-go/v3", "go-openai": "github.com/sashabaranov/go-openai"}[client]
	switch {
	case module != "":
		out, err := exec.Command("go", "list", "-m", "-f", "{{.Version}}", module).Output()
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimPrefix(strings.TrimSpace(string(out)), "v")
	case client == "curl":
		return "any"
	case client == "n8n":
		return "2.41, played"
	}
	return "of 2026, played"
}
