package clients

import (
	"bufio"
	"io"
	"os/exec"
	"strings"
	"testing"

	"llmproxy/proxy/proxytest"
)

// curl is a curl command that posts a body to a URL, quietly but for errors.
func curl(t *testing.T, url, body string, more ...string) *exec.Cmd {
	t.Helper()
	path, err := exec.LookPath("curl")
	if err != nil {
		t.Skip("SKIPPED: THERE IS NO curl; apt-get install curl")
	}
	args := append([]string{"-sS", "-H", "Content-Type: application/json", "-d", body}, more...)
	return exec.CommandContext(t.Context(), path, append(args, url)...)
}

// run runs a command and returns its standard output and its exit code.
func run(t *testing.T, cmd *exec.Cmd) (stdout string, code int) {
	t.Helper()
	out, err := cmd.Output()
	if exit, failed := err.(*exec.ExitError); failed {
		return string(out), exit.ExitCode()
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(out), 0
}

func body(model, text string, more ...string) string {
	return `{"model":"` + model + `","messages":[{"role":"user","content":"` + text + `"}]` + strings.Join(more, "") + `}`
}

// watched is a curl that runs, and what it shows.
type watched struct {
	cmd *exec.Cmd
	out *bufio.Reader
}

func watch(t *testing.T, cmd *exec.Cmd) *watched {
	t.Helper()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return &watched{cmd, bufio.NewReader(stdout)}
}

// shows waits until curl shows this text, and nothing before it.
func (w *watched) shows(t *testing.T, want string) {
	t.Helper()
	got := make([]byte, len(want))
	if n, err := io.ReadFull(w.out, got); err != nil || string(got) != want {
		t.Fatalf("curl shows %q, %v, want %q", got[:n], err, want)
	}
}

// ends waits for curl's end and checks what it shows until then.
func (w *watched) ends(t *testing.T, want string) {
	t.Helper()
	rest, err := io.ReadAll(w.out)
	if err != nil || string(rest) != want {
		t.Errorf("curl ends with %q, %v, want %q", rest, err, want)
	}
	if err := w.cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// testCurlStream reads chunk by chunk: the upstream sends the rest only when
// curl has shown the beginning.
func testCurlStream(t *testing.T, s *server) {
	gate := proxytest.NewGate()
	frames := proxytest.Chunks("one two three", 3)
	s.scripts[haltingModel].Reply(proxytest.Stream(frames...).HoldAfter(2, gate))
	w := watch(t, curl(t, s.base("curl-stream")+"/chat/completions", body(haltingModel, "Count", `,"stream":true`), "-N"))
	w.shows(t, frames[0]+frames[1])
	gate.Open()
	w.ends(t, shown(frames[2:]))
	s.reported(t, "curl-stream", figures{Calls: 1, Upstream: 1})
}

// shown is what a client sees of a stream that did not ask for its usage.
func shown(frames []string) (text string) {
	for _, frame := range frames {
		if !strings.Contains(frame, `"usage"`) {
			text += frame
		}
	}
	return text
}

// testCurlTimeOut has curl give up in mid-stream. The retry reads the running
// call from its first byte on.
func testCurlTimeOut(t *testing.T, s *server) {
	gate := proxytest.NewGate()
	frames := proxytest.Chunks("one two three", 3)
	s.scripts[pausingModel].Reply(proxytest.Stream(frames...).HoldAfter(2, gate))
	url, request := s.base("curl-time-out")+"/chat/completions", body(pausingModel, "Count", `,"stream":true`)
	const timedOut = 28 // of curl's exit codes
	if out, code := run(t, curl(t, url, request, "-N", "--max-time", "0.5")); code != timedOut {
		t.Errorf("curl ended with %d and %q", code, out)
	}
	proxytest.Wait(t, gate.Reached(), "the middle of the upstream's stream")
	w := watch(t, curl(t, url, request, "-N"))
	w.shows(t, frames[0]+frames[1])
	gate.Open()
	w.ends(t, shown(frames[2:]))
	if n := s.scripts[pausingModel].Count(); n != 1 {
		t.Errorf("%d upstream calls", n)
	}
	s.reported(t, "curl-time-out", figures{Calls: 2, Upstream: 1, Collapsed: 1})
}

func testCurlHit(t *testing.T, s *server) {
	var last string
	for _, want := range []string{"miss", "hit"} {
		out, code := run(t, curl(t, s.url+"/v1/chat/completions", body(simulated, "Hello"), "-D", "-", "-H", "X-LLMProxy-Step: curl-hit"))
		header, answer, _ := strings.Cut(out, "\r\n\r\n")
		if code != 0 || !strings.HasPrefix(header, "HTTP/1.1 200 OK\r\n") {
			t.Fatalf("curl ended with %d and %q", code, out)
		}
		fields := map[string]string{}
		for line := range strings.SplitSeq(header, "\r\n") {
			name, value, _ := strings.Cut(line, ": ")
			fields[strings.ToLower(name)] = value
		}
		if fields["x-llmproxy-cache"] != want || fields["x-llmproxy-step"] != "curl-hit" || len(fields["x-llmproxy-key"]) != 64 ||
			fields["x-llmproxy-input-tokens"] == "" || fields["content-type"] != "application/json" {
			t.Errorf("a %s: %v", want, fields)
		}
		if want == "hit" && (!strings.HasPrefix(fields["cache-status"], "llmproxy; hit; ttl=") || fields["x-llmproxy-age"] == "" || answer != last) {
			t.Errorf("the hit: %v %s", fields, answer)
		}
		last = answer
	}
	s.reported(t, "curl-hit", figures{Calls: 2, Upstream: 1, Hits: 1})
}

// testCurlRefusal has curl retry what may be retried: a refusal may not.
func testCurlRefusal(t *testing.T, s *server) {
	url := s.base(poorCurlStep) + "/chat/completions"
	if out, code := run(t, curl(t, url, body(simulated, "one"), "-f")); code != 0 {
		t.Fatalf("curl ended with %d and %q", code, out)
	}
	out, code := run(t, curl(t, url, body(simulated, "two"), "--fail-with-body", "--retry", "3", "--retry-delay", "1"))
	const refused = 22 // of curl's exit codes: an HTTP error
	if code != refused || !strings.HasPrefix(out, `{"error":{`) || !strings.Contains(out, `Step \"poor-curl\" is over its budget`) {
		t.Errorf("curl ended with %d and %q", code, out)
	}
	s.reported(t, poorCurlStep, figures{Calls: 2, Upstream: 1, Refused: 1})
}

func testCurlBroken(t *testing.T, s *server) {
	request := body(simulated, "Break [[sim: cut_after=3]]", `,"stream":true`)
	out, code := run(t, curl(t, s.base("curl-broken")+"/chat/completions", request, "-N"))
	events := strings.SplitAfter(out, "\n\n")
	if code != 0 || len(events) != 5 || !strings.HasPrefix(events[3], `data: {"error":{`) || strings.Contains(out, "[DONE]") {
		t.Errorf("curl ended with %d and %q", code, out)
	}
	s.reported(t, "curl-broken", figures{Calls: 1, Upstream: 1, Failed: 1})
}

func testCurlBaseURLs(t *testing.T, s *server) {
	want := "miss"
	for _, path := range []string{"/v1/chat/completions", "//v1//chat/completions", "/v1/v1/chat/completions", "/chat/completions", "/v1/chat/completions/"} {
		out, code := run(t, curl(t, s.url+path, body(simulated, "Hello"), "--path-as-is", "-o", "/dev/null",
			"-H", "X-LLMProxy-Context: step=curl-urls; run=7", "-w", "%{http_code} %{header_json}"))
		if status, header, _ := strings.Cut(out, " "); code != 0 || status != "200" || !strings.Contains(header, `"x-llmproxy-cache":["`+want+`"]`) {
			t.Errorf("%s: curl ended with %d and %s, want a %s", path, code, out, want)
		}
		want = "hit"
	}
	s.reported(t, "curl-urls", figures{Calls: 5, Upstream: 1, Hits: 4})
}

// twiceByCurl posts a body two times, checks that the second answer is the first one
// again, and returns it.
func twiceByCurl(t *testing.T, s *server, step, path, request string) (answer string) {
	t.Helper()
	for range 2 {
		out, code := run(t, curl(t, s.base(step)+path, request, "-f"))
		if code != 0 || answer != "" && out != answer {
			t.Fatalf("curl ended with %d and %q after %q", code, out, answer)
		}
		answer = out
	}
	s.reported(t, step, figures{Calls: 2, Upstream: 1, Hits: 1})
	return answer
}

func testCurlResponse(t *testing.T, s *server) {
	answer := twiceByCurl(t, s, "curl-response", "/responses", `{"model":"sim","input":"What is new?"}`)
	if !strings.Contains(answer, "What is new?") || !strings.Contains(answer, `"status":"completed"`) {
		t.Errorf("curl shows %s", answer)
	}
}

func testCurlResponseStream(t *testing.T, s *server) {
	answer := twiceByCurl(t, s, "curl-response-stream", "/responses", `{"model":"sim","input":"What is new?","stream":true}`)
	if !strings.HasPrefix(answer, "event: response.created\n") || !strings.Contains(answer, "\nevent: response.completed\n") {
		t.Errorf("curl shows %s", answer)
	}
}

func testCurlEmbeddings(t *testing.T, s *server) {
	answer := twiceByCurl(t, s, "curl-embeddings", "/embeddings", `{"model":"sim","input":"`+s.text+`"}`)
	if !strings.Contains(answer, `"embedding":[`) {
		t.Errorf("curl shows %s", answer)
	}
}
