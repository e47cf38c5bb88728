package crash

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"llmproxy/proxy/proxytest"
)

// TestSignals sends the command the signals that end it.
func TestSignals(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "llmproxy")
	if out, err := exec.Command("go", "build", "-o", bin, "llmproxy/cmd/llmproxy").CombinedOutput(); err != nil {
		t.Fatalf("building the command: %v\n%s", err, out)
	}
	t.Run("drained", func(t *testing.T) { drained(t, bin) })
	t.Run("past the drain", func(t *testing.T) { pastTheDrain(t, bin) })
	t.Run("twice", func(t *testing.T) { twice(t, bin) })
}

// command is a running llmproxy serve.
type command struct {
	*process
	db       *database
	upstream *proxytest.Upstream
	bin      string
	config   string
}

// serveCommand starts the command before an upstream whose first answer waits
// at a gate.
func serveCommand(t *testing.T, bin, drain string, replies ...proxytest.Reply) *command {
	t.Helper()
	c := &command{upstream: proxytest.New(t), bin: bin, config: filepath.Join(t.TempDir(), "config.yaml")}
	c.upstream.Reply(replies...)
	path := newPath(t)
	text := fmt.Sprintf(`listen: %s
database: %s
shutdown: {drain: %s}
upstreams: [{name: test, base_url: "%s", models: ["*"]}]
steps:
  - name: hard
    budget: [{input_tokens: 1000000, per: total}, {tokens: 1000000, per: total}, {calls: 1000, per: total}]
`, freeAddress(t), path, drain, c.upstream.URL)
	if err := os.WriteFile(c.config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c.run(t)
	c.db = look(t, path)
	return c
}

// freeAddress is an address at which nobody listened a moment ago.
func freeAddress(t *testing.T) string {
	t.Helper()
	base := proxytest.RefusedURL(t)
	return strings.TrimSuffix(strings.TrimPrefix(base, "http://"), "/v1")
}

// run starts the command, again if need be, and waits until it serves.
func (c *command) run(t *testing.T) {
	t.Helper()
	cmd := exec.Command(c.bin, "serve", "--config", c.config)
	cmd.Dir = filepath.Dir(c.config)
	c.process = &process{t: t, name: "llmproxy serve", cmd: cmd}
	c.launch()
	eventually(t, "the server listens", func() bool {
		_, after, found := strings.Cut(c.log.String(), `"url":"`)
		c.url, _, _ = strings.Cut(after, "/v1")
		return found
	})
}

func (c *command) logged(t *testing.T, words string) {
	t.Helper()
	eventually(t, "the log says "+words, func() bool { return strings.Contains(c.log.String(), words) })
}

func drained(t *testing.T, bin string) {
	t.Parallel()
	gate := proxytest.NewGate()
	c := serveCommand(t, bin, "5m", proxytest.JSON(200, proxytest.Completion("drained")).Hold(gate))
	attended := c.begin(chat("work"), inStep(hardStep)...)
	proxytest.Wait(t, gate.Reached(), "the upstream call")
	collapsed, err := c.send(t.Context(), chat("work", stream), inStep(hardStep)...)
	if err != nil {
		t.Fatal(err)
	}
	c.signal(syscall.SIGTERM)
	c.logged(t, "shutting down")
	gate.Open()
	first := attended.wait(t)
	if !first.whole() || !strings.Contains(first.body, "drained") {
		t.Errorf("the running call got %d %s", first.status, first.body)
	}
	if r, err := read(collapsed); err != nil || !r.whole() {
		t.Errorf("the call beside it got %d %s, %v", r.status, r.body, err)
	}
	c.wait()
	if !c.cmd.ProcessState.Success() {
		t.Errorf("the server ended with %v", c.cmd.ProcessState)
	}
	if rows := c.db.outcomes(); rows["miss"] != 1 || rows["hit"]+rows["collapsed"] != 1 || len(rows) != 2 {
		t.Errorf("rows %v", rows)
	}
	if n := c.db.number(`SELECT count(*) FROM instance`); n != 0 {
		t.Error("the instance did not leave")
	}
	c.db.balanced()
	c.run(t)
	if r := c.ask(chat("work"), inStep(hardStep)...); r.cache() != "hit" || r.body != first.body {
		t.Errorf("after the restart: %d %s %s", r.status, r.cache(), r.body)
	}
}

func pastTheDrain(t *testing.T, bin string) {
	t.Parallel()
	gate := proxytest.NewGate()
	c := serveCommand(t, bin, "200ms", proxytest.JSON(200, proxytest.Completion("too late")).Hold(gate), proxytest.JSON(200, proxytest.Completion("after")))
	call := c.begin(chat("work"), inStep(hardStep)...)
	proxytest.Wait(t, gate.Reached(), "the upstream call")
	c.signal(syscall.SIGTERM)
	r := call.wait(t)
	if r.status != 503 || !strings.Contains(r.body, "shutting_down") || r.header.Get("X-Should-Retry") != "true" {
		t.Errorf("the running call got %d %s", r.status, r.body)
	}
	c.wait()
	if !c.cmd.ProcessState.Success() {
		t.Errorf("the server ended with %v", c.cmd.ProcessState)
	}
	if rows := c.db.outcomes(); rows["lost"] != 1 || len(rows) != 1 {
		t.Errorf("rows %v", rows)
	}
	if n := c.db.number(`SELECT count(*) FROM call WHERE up_input = input AND input > 0 AND up_output = 0`); n != 1 {
		t.Error("the lost call is not charged with its input")
	}
	c.db.balanced()
	c.run(t)
	if r := c.ask(chat("work"), inStep(hardStep)...); r.cache() != "miss" || !strings.Contains(r.body, "after") {
		t.Errorf("the retry got %d %s %s", r.status, r.cache(), r.body)
	}
	c.db.balanced()
}

func twice(t *testing.T, bin string) {
	t.Parallel()
	gate := proxytest.NewGate()
	c := serveCommand(t, bin, "1h", proxytest.JSON(200, proxytest.Completion("too late")).Hold(gate), proxytest.JSON(200, proxytest.Completion("after")))
	call := c.begin(chat("work"), inStep(hardStep)...)
	proxytest.Wait(t, gate.Reached(), "the upstream call")
	c.signal(syscall.SIGTERM)
	c.logged(t, "shutting down")
	c.signal(syscall.SIGTERM)
	c.wait() // for less than the drain
	if <-call.done; call.err == nil {
		t.Errorf("the running call got %d %s", call.status, call.body)
	}
	if rows := c.db.outcomes(); rows["open"] != 1 {
		t.Errorf("rows before the restart %v", rows)
	}
	c.run(t)
	if rows := c.db.outcomes(); rows["lost"] != 1 || len(rows) != 1 {
		t.Errorf("rows after the restart %v", rows)
	}
	c.db.balanced()
	if r := c.ask(chat("work"), inStep(hardStep)...); r.cache() != "miss" || !strings.Contains(r.body, "after") {
		t.Errorf("the retry got %d %s %s", r.status, r.cache(), r.body)
	}
	c.db.balanced()
}
