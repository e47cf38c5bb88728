// Package upstreams drives the built command in front of a real compatible server:
// LiteLLM's proxy, which passes the calls on to the simulated model of a second
// process of the command. LiteLLM answers in its own words: it reads what the model
// says and writes it anew.
package upstreams

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	litellm = ".venv/bin/litellm"
	// required is set where LiteLLM must be there: then its absence is a failure.
	required = "LLMPROXY_UPSTREAMS_REQUIRED"
	// patience bounds the waiting for what never comes; LiteLLM starts slowly.
	patience = 3 * time.Minute
)

func TestLiteLLM(t *testing.T) {
	program, err := filepath.Abs(litellm)
	if err == nil {
		_, err = os.Stat(program)
	}
	if err != nil {
		if os.Getenv(required) != "" {
			t.Fatal(err)
		}
		t.Skipf("SKIPPED: LiteLLM is not installed (%v); do so by: make upstreams", err)
	}
	dir := t.TempDir()
	bin := filepath.Join(dir, "llmproxy")
	if out, err := exec.Command("go", "build", "-o", bin, "llmproxy/cmd/llmproxy").CombinedOutput(); err != nil {
		t.Fatalf("building the command: %v\n%s", err, out)
	}
	model := serve(t, bin, dir, "model", `{name: sim, base_url: "builtin:sim"}`)
	key := "sk-" + rand.Text() + rand.Text() // LiteLLM refuses weak ones
	gateway := startLiteLLM(t, program, dir, model, key)
	s := &server{url: serve(t, bin, dir, "proxy", fmt.Sprintf(`{name: litellm, base_url: %q, api_key: %s}`, gateway+"/v1", key))}

	for name, test := range map[string]struct{ path, body, says string }{
		"chat":       {"chat/completions", `"messages":[{"role":"user","content":"%s [[sim: words=12]]"}]`, "[simulated]"},
		"tools":      {"chat/completions", `"tools":[{"type":"function","function":{"name":"weather","parameters":{"type":"object","properties":{"city":{"type":"string"}}}}}],"messages":[{"role":"user","content":"%s [[sim: tool=weather:{\"city\":\"Paris\"} tool=weather:{\"city\":\"Oslo\"}]]"}]`, `weather{"city":"Paris"}weather{"city":"Oslo"}`},
		"reasoning":  {"chat/completions", `"messages":[{"role":"user","content":"%s [[sim: reasoning=32 cached=2]]"}]`, "[simulated]"},
		"responses":  {"responses", `"input":"%s [[sim: words=12]]"`, "[simulated]"},
		"embeddings": {"embeddings", `"input":"%s"`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			forms := []string{"json", "stream"}
			if test.path == "embeddings" {
				forms = forms[:1]
			}
			for _, first := range forms { // recorded in one form, given in both
				body := func(form string) string {
					return fmt.Sprintf(`{"model":"sim","stream":%v,`+test.body+`}`, form == "stream", "In "+first)
				}
				if first == "json" && len(forms) == 1 {
					body = func(string) string { return fmt.Sprintf(`{"model":"sim",`+test.body+`}`, "In "+first) }
				}
				paid := s.post(t, test.path, body(first))
				s.want(t, paid, 200, "miss")
				text := says(t, paid, first)
				if !strings.HasPrefix(text, test.says) {
					t.Errorf("in %s it says %q, want %q…: %s", first, text, test.says, paid.body)
				}
				for _, form := range forms {
					again := s.post(t, test.path, body(form))
					s.want(t, again, 200, "hit")
					if form == first && again.body != paid.body {
						t.Errorf("again in %s\n got %s\nwant %s", form, again.body, paid.body)
					}
					if got := says(t, again, form); got != text {
						t.Errorf("recorded in %s, given in %s it says %q, want %q", first, form, got, text)
					}
				}
			}
		})
	}
	t.Run("errors", func(t *testing.T) {
		for status, directive := range map[int]string{400: "status=400", 401: "status=401", 429: "status=429"} {
			body := fmt.Sprintf(`{"model":"sim","messages":[{"role":"user","content":"[[sim: %s]]"}]}`, directive)
			for range 2 { // an error is not kept
				r := s.post(t, "chat/completions", body)
				s.want(t, r, status, "miss")
				var answer struct{ Error struct{ Message string } }
				if err := json.Unmarshal([]byte(r.body), &answer); err != nil || answer.Error.Message == "" {
					t.Errorf("%v: %s", err, r.body)
				}
			}
		}
	})
	t.Run("a failing stream", func(t *testing.T) {
		body := `{"model":"sim","stream":true,"messages":[{"role":"user","content":"[[sim: error_after=3]]"}]}`
		for range 2 {
			r := s.post(t, "chat/completions", body)
			s.want(t, r, 200, "miss")
			events := strings.Split(strings.TrimSpace(r.body), "\n\n")
			last := events[len(events)-1]
			if !strings.HasPrefix(strings.ReplaceAll(last, " ", ""), `data:{"error":{`) {
				t.Errorf("the last event is %s", last)
			}
		}
	})
}

// serve starts the command with one upstream and returns its base URL.
func serve(t *testing.T, bin, dir, name, upstream string) string {
	t.Helper()
	config := filepath.Join(dir, name+".yaml")
	text := fmt.Sprintf("listen: 127.0.0.1:0\ndatabase: %s\nupstreams: [%s]\n", filepath.Join(dir, name+".db"), upstream)
	if name == "proxy" { // what LiteLLM says is to be seen, not tried again
		text = strings.Replace(text, "}]", ", retries: {max: 0}}]", 1)
	}
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	log := start(t, name, exec.Command(bin, "serve", "--config", config))
	var url string
	eventually(t, name+" listens", log, func() bool {
		_, after, found := strings.Cut(log.String(), `"url":"`)
		url, _, _ = strings.Cut(after, "/v1")
		return found
	})
	return url
}

// startLiteLLM starts LiteLLM's proxy before a base URL. It reaches for nothing
// beyond it.
func startLiteLLM(t *testing.T, program, dir, model, key string) string {
	t.Helper()
	config := filepath.Join(dir, "litellm.yaml")
	text := fmt.Sprintf("model_list:\n  - model_name: sim\n    litellm_params: {model: openai/sim, api_base: %q, api_key: sk-none}\nlitellm_settings: {telemetry: false, num_retries: 0}\nrouter_settings: {num_retries: 0, disable_cooldowns: true}\n", model+"/v1")
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(listener.Addr().String())
	listener.Close() // LiteLLM takes it over
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "--config", config, "--host", "127.0.0.1", "--port", port, "--num_workers", "1")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LITELLM_LOCAL_MODEL_COST_MAP=True", "LITELLM_TELEMETRY=False", "LITELLM_MASTER_KEY="+key, "NO_PROXY=*", "HOME="+dir)
	log := start(t, "LiteLLM", cmd)
	url := "http://127.0.0.1:" + port
	eventually(t, "LiteLLM is ready", log, func() bool {
		r, err := http.Get(url + "/health/liveliness")
		if err == nil {
			r.Body.Close()
		}
		return err == nil && r.StatusCode == http.StatusOK
	})
	return url
}

// start starts a process that ends with the test.
func start(t *testing.T, name string, cmd *exec.Cmd) *output {
	t.Helper()
	log := &output{}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	log.ended = make(chan struct{})
	go func() {
		cmd.Wait() //nolint:errcheck // how LiteLLM ends is its own affair
		close(log.ended)
	}()
	t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM) //nolint:errcheck // it may have ended already
		select {
		case <-log.ended:
		case <-time.After(30 * time.Second):
			t.Errorf("%s does not end", name)
			cmd.Process.Kill() //nolint:errcheck // it may have ended just now
			<-log.ended
		}
		if t.Failed() {
			t.Logf("%s says: %s", name, log)
		}
	})
	return log
}

type server struct{ url string }

type response struct {
	status      int
	cache, body string
}

func (s *server) post(t *testing.T, path, body string) response {
	t.Helper()
	r, err := http.Post(s.url+"/v1/"+path, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	answer, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response{r.StatusCode, r.Header.Get("X-LLMProxy-Cache"), string(answer)}
}

func (s *server) want(t *testing.T, r response, status int, cache string) {
	t.Helper()
	if r.status != status || r.cache != cache {
		t.Fatalf("%d %s, want %d %s: %s", r.status, r.cache, status, cache, r.body)
	}
}

// says is what a client makes of an answer: its texts and calls, or its numbers.
func says(t *testing.T, r response, form string) string {
	t.Helper()
	var text strings.Builder
	for line := range strings.Lines(r.body) {
		data := []byte(line)
		if form == "stream" {
			var found bool
			if data, found = bytes.CutPrefix(data, []byte("data:")); !found || strings.TrimSpace(string(data)) == "[DONE]" {
				continue
			}
		}
		text.WriteString(read(t, data))
	}
	return text.String()
}

// read reads a chunk, or a whole answer, of any endpoint. Of the events of a
// response only deltas tell something new.
func read(t *testing.T, data []byte) string {
	t.Helper()
	type message struct {
		Content   string
		ToolCalls []struct {
			Function struct{ Name, Arguments string }
		} `json:"tool_calls"`
	}
	var chunk struct {
		Type    string
		Delta   any
		Choices []struct{ Delta, Message message }
		Output  []struct{ Content []struct{ Text string } }
		Data    []struct{ Embedding []float64 }
	}
	if err := json.Unmarshal(data, &chunk); err != nil {
		t.Fatalf("%v: %s", err, data)
	}
	var text strings.Builder
	if chunk.Type == "response.output_text.delta" {
		fmt.Fprint(&text, chunk.Delta)
	}
	for _, c := range chunk.Choices {
		for _, m := range []message{c.Delta, c.Message} {
			text.WriteString(m.Content)
			for _, call := range m.ToolCalls {
				text.WriteString(call.Function.Name + call.Function.Arguments)
			}
		}
	}
	for _, item := range chunk.Output {
		for _, part := range item.Content {
			text.WriteString(part.Text)
		}
	}
	for _, d := range chunk.Data {
		fmt.Fprint(&text, d.Embedding)
	}
	return text.String()
}

func eventually(t *testing.T, what string, log *output, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(100 * time.Millisecond) {
		select {
		case <-log.ended:
			t.Fatalf("the process ended before this: %s", what)
		default:
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for this: %s", what)
		}
	}
}

// output collects what a process writes.
type output struct {
	ended chan struct{} // closed when it has

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
