// Package clients drives the built command with real clients: Go libraries, curl,
// and the libraries for Node.js and Python, each in a script of its own. Clients
// that cannot run here are played by requests in the form that they were seen to
// send. The upstream is the simulated model inside the command, and a scripted one
// where a test must hold an answer back.
//
// docs/clients.md has a table of what works; go test -update writes it.
package clients

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"llmproxy/proxy/proxytest"
)

// patience bounds the waiting for what never comes. Nothing is measured by it.
const patience = 30 * time.Second

// simulated is the model that is answered inside the command.
const simulated = "sim"

// The models that are answered by scripts, each by one of its own.
const (
	slowModel    = "slow"
	haltingModel = "halting"
	pausingModel = "pausing"
)

// Steps that have a budget of poorLimit input tokens for ever.
const (
	poorStep     = "poor"
	poorCurlStep = "poor-curl"
	poorLimit    = 12
)

// server is a running llmproxy serve. Each test calls as a step of its own.
type server struct {
	bin, config string
	url         string                         // http://host:port
	scripts     map[string]*proxytest.Upstream // model → who answers it
	log         *output
	text        string    // that is embedded
	vector      []float64 // what the simulated model makes of it
}

// TestClients starts one server for all clients, and writes down what works.
func TestClients(t *testing.T) {
	s := startServer(t)
	results := &sheet{}
	t.Run("all", func(t *testing.T) { // ends when all of them do
		for _, c := range inGo() {
			for check, test := range c.checks {
				t.Run(c.name+"/"+check, func(t *testing.T) {
					t.Parallel()
					test(t, s)
					results.note(t, c.name, check)
				})
			}
		}
		for _, c := range scripted() {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				c.run(t, s, results)
			})
		}
	})
	results.compare(t)
}

// goClient is a client that the tests call from Go.
type goClient struct {
	name   string
	checks map[string]func(*testing.T, *server)
}

func inGo() []goClient {
	return []goClient{
		{"openai-go", openaiGoChecks()},
		{"go-openai", map[string]func(*testing.T, *server){
			"chat":                 testChat,
			"chat stream":          testStream,
			"chat tools":           testTools,
			"chat tools, streamed": testToolsOnAStream,
			"embeddings":           testEmbeddings,
			"time-out":             testTimeOut,
			"refused chat":         testBudget,
			"broken chat":          testBrokenStream,
			"models":               testModels,
			"step by header":       testStepByHeader,
		}},
		{"curl", map[string]func(*testing.T, *server){
			"chat":             testCurlHit,
			"chat stream":      testCurlStream,
			"responses":        testCurlResponse,
			"responses stream": testCurlResponseStream,
			"embeddings":       testCurlEmbeddings,
			"time-out":         testCurlTimeOut,
			"refused chat":     testCurlRefusal,
			"broken chat":      testCurlBroken,
			"step by header":   testCurlBaseURLs,
		}},
		{"n8n", n8nChecks()},
		{"Codex CLI", codexChecks()},
	}
}

func startServer(t *testing.T) *server {
	t.Helper()
	dir := t.TempDir()
	s := &server{bin: filepath.Join(dir, "llmproxy"), config: filepath.Join(dir, "config.yaml"),
		scripts: map[string]*proxytest.Upstream{}, log: &output{}}
	lookAtSources(t)
	if out, err := exec.Command("go", "build", "-o", s.bin, "llmproxy/cmd/llmproxy").CombinedOutput(); err != nil {
		t.Fatalf("building the command: %v\n%s", err, out)
	}
	text := fmt.Sprintf("listen: 127.0.0.1:0\ndatabase: %s\nsteps:\n", filepath.Join(dir, "clients.db"))
	for _, step := range []string{poorStep, poorCurlStep} {
		text += fmt.Sprintf("  - {name: %s, budget: [{input_tokens: %d, per: total}]}\n", step, poorLimit)
	}
	for _, step := range refusedSteps() {
		text += fmt.Sprintf("  - {name: %q, budget: [{input_tokens: 0, per: total}]}\n", step)
	}
	for _, c := range scripted() { // a call that finds another one running is told to come again
		text += fmt.Sprintf("  - {name: %q, wait: 500ms}\n", c.name+" call in progress")
	}
	text += "upstreams:\n  - {name: sim, base_url: \"builtin:sim\", models: [sim, \"gpt-*\", \"text-embedding-*\"]}\n"
	for _, model := range []string{slowModel, haltingModel, pausingModel} {
		s.scripts[model] = proxytest.New(t)
		text += fmt.Sprintf("  - {name: %s, base_url: %q, models: [%s]}\n", model, s.scripts[model].URL, model)
	}
	if err := os.WriteFile(s.config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(s.bin, "serve", "--config", s.config)
	cmd.Dir, cmd.Stderr = dir, s.log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // after all parallel tests
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("the server ended with %v", err)
		}
		if t.Failed() {
			t.Log(s.log)
		}
	})
	eventually(t, "the server listens", func() bool {
		_, after, found := strings.Cut(s.log.String(), `"url":"`)
		s.url, _, _ = strings.Cut(after, "/v1")
		return found
	})
	s.embed(t)
	return s
}

// embed asks for the vector that every client must get, in the plainest form.
func (s *server) embed(t *testing.T) {
	t.Helper()
	const text = "A text to embed"
	r := s.post(t, played{"/v1/embeddings", nil, `{"model":"` + embeddingModel + `","input":"` + text + `"}`}).mustBe(t, "miss")
	var answer struct {
		Data []struct{ Embedding []float64 }
	}
	if err := json.Unmarshal([]byte(r.body), &answer); err != nil || len(answer.Data) != 1 {
		t.Fatalf("%v: %s", err, r.body)
	}
	s.text, s.vector = text, answer.Data[0].Embedding
}

// base is the base URL that names a step.
func (s *server) base(step string) string { return s.url + "/steps/" + step + "/v1" }

// figures are what the report tells of a step.
type figures struct {
	Calls     int `json:"calls"`
	Upstream  int `json:"upstream_calls"`
	Hits      int `json:"hits"`
	Collapsed int `json:"collapsed"`
	Refused   int `json:"refused"`
	Failed    int `json:"failed"`
}

// reported checks what the command's own report tells of a step, as soon as the
// rows of its calls are written.
func (s *server) reported(t *testing.T, step string, want figures) {
	t.Helper()
	s.reportedAs(t, step, func(got figures) bool { return got == want }, fmt.Sprintf("%+v", want))
}

// reportedAs waits until what the report tells of a step is as it should be, which
// want says in words.
func (s *server) reportedAs(t *testing.T, step string, holds func(figures) bool, want string) {
	t.Helper()
	var got figures
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		out, err := exec.Command(s.bin, "report", "--config", s.config, "--step", step, "--format", "json").Output()
		var answer struct{ Total figures }
		if err == nil {
			err = json.Unmarshal(out, &answer)
		}
		if got = answer.Total; err == nil && holds(got) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the report on %s tells %+v (%v), want %s", step, got, err, want)
		}
	}
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for this: %s", what)
		}
	}
}

// output collects what a process writes.
type output struct {
	mu  sync.Mutex
	buf strings.Builder
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// lookAtSources makes the result depend on the sources of the command, which the
// test builds but does not import: go test keeps results until a file changes that
// the test has looked at.
func lookAtSources(t *testing.T) {
	t.Helper()
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && (d.Name() == "node_modules" || strings.HasPrefix(d.Name(), ".") && d.Name() != "..") {
			return fs.SkipDir
		}
		if err == nil && !d.IsDir() {
			_, err = os.Stat(path)
		}
		if errors.Is(err, fs.ErrNotExist) { // an editor's file
			return nil
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
