// Package clients drives the built command with real clients: the go-openai
// library and curl. The upstream is the simulated model inside the command, and
// a scripted one where a test must hold an answer back.
package clients

import (
	"encoding/json"
	"fmt"
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
}

// TestClients starts one server for all clients.
func TestClients(t *testing.T) {
	s := startServer(t)
	for name, test := range map[string]func(*testing.T, *server){
		"go-openai/chat":              testChat,
		"go-openai/stream":            testStream,
		"go-openai/tools":             testTools,
		"go-openai/tools on a stream": testToolsOnAStream,
		"go-openai/time-out":          testTimeOut,
		"go-openai/budget":            testBudget,
		"go-openai/broken stream":     testBrokenStream,
		"go-openai/models":            testModels,
		"curl/stream":                 testCurlStream,
		"curl/hit":                    testCurlHit,
		"curl/refusal":                testCurlRefusal,
		"curl/time-out":               testCurlTimeOut,
		"curl/broken stream":          testCurlBroken,
		"curl/forms of the base URL":  testCurlBaseURLs,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, s)
		})
	}
}

func startServer(t *testing.T) *server {
	t.Helper()
	dir := t.TempDir()
	s := &server{bin: filepath.Join(dir, "llmproxy"), config: filepath.Join(dir, "config.yaml"),
		scripts: map[string]*proxytest.Upstream{}, log: &output{}}
	if out, err := exec.Command("go", "build", "-o", s.bin, "llmproxy/cmd/llmproxy").CombinedOutput(); err != nil {
		t.Fatalf("building the command: %v\n%s", err, out)
	}
	text := fmt.Sprintf("listen: 127.0.0.1:0\ndatabase: %s\nsteps:\n", filepath.Join(dir, "clients.db"))
	for _, step := range []string{poorStep, poorCurlStep} {
		text += fmt.Sprintf("  - {name: %s, budget: [{input_tokens: %d, per: total}]}\n", step, poorLimit)
	}
	text += "upstreams:\n  - {name: sim, base_url: \"builtin:sim\", models: [sim]}\n"
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
	return s
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
	var got figures
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		out, err := exec.Command(s.bin, "report", "--config", s.config, "--step", step, "--format", "json").Output()
		var answer struct{ Total figures }
		if err == nil {
			err = json.Unmarshal(out, &answer)
		}
		if got = answer.Total; err == nil && got == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the report on %s tells %+v (%v), want %+v", step, got, err, want)
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
