package clients

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// played is a request in the form that a client was seen to send.
type played struct {
	path   string // /v1/…, or /steps/…
	header map[string]string
	body   string
}

// reply is what the server answered.
type reply struct {
	status int
	header http.Header
	body   string
}

func (r reply) cache() string { return r.header.Get("X-LLMProxy-Cache") }

func (s *server) request(t *testing.T, p played) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+p.path, strings.NewReader(p.body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer sk-test")
	for name, value := range p.header {
		req.Header.Set(name, value)
	}
	return req
}

// post sends a request and reads the answer to its end, which must not be compressed:
// not every client undoes what it names in Accept-Encoding.
func (s *server) post(t *testing.T, p played) reply {
	t.Helper()
	resp, err := http.DefaultClient.Do(s.request(t, p))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if encoding := resp.Header.Get("Content-Encoding"); encoding != "" {
		t.Fatalf("the answer is compressed by %s", encoding)
	}
	return reply{resp.StatusCode, resp.Header, string(text)}
}

// mustBe checks how a call was answered.
func (r reply) mustBe(t *testing.T, cache string) reply {
	t.Helper()
	if r.status != http.StatusOK || r.cache() != cache {
		t.Fatalf("%d, a %s, want a %s: %s", r.status, r.cache(), cache, r.body)
	}
	return r
}

// checkRefused checks a refusal: its status, and that its message says why.
func (r reply) checkRefused(t *testing.T, status int) {
	t.Helper()
	var answer struct {
		Error struct{ Message, Code string }
	}
	if err := json.Unmarshal([]byte(r.body), &answer); err != nil {
		t.Fatalf("%v: %s", err, r.body)
	}
	if r.status != status || !strings.Contains(answer.Error.Message, "is over its budget") || r.header.Get("X-Should-Retry") != "false" {
		t.Errorf("%d %v %s, want %d", r.status, r.header, r.body, status)
	}
}

// n8nHeader is what n8n's own nodes send beside the credential's header.
func n8nHeader(context string) map[string]string {
	return map[string]string{
		"User-Agent": "n8n", "Accept": "application/json,text/html,application/xhtml+xml,application/xml,text/*;q=0.9, image/*;q=0.8, */*;q=0.7",
		"Accept-Encoding": "gzip, compress, deflate, br", "OpenAI-Organization": "", "X-LLMProxy-Context": context,
	}
}

func n8nChecks() map[string]func(*testing.T, *server) {
	return map[string]func(*testing.T, *server){
		"chat":           n8nChat,
		"chat tools":     n8nAgent,
		"responses":      n8nResponse,
		"embeddings":     n8nEmbeddings,
		"time-out":       n8nRetryOnFail,
		"refused chat":   n8nRefused,
		"step by header": n8nContext,
	}
}

// n8nChat runs a workflow two times, each as a run of its own. Members that change
// their places, and the empty organization, are the same request.
func n8nChat(t *testing.T, s *server) {
	const step = "n8n chat"
	first := s.post(t, played{"/v1/chat/completions", n8nHeader("step=" + step + "; run=8812"),
		`{"model":"gpt-4.1-mini","messages":[{"role":"user","content":"What is new?"}],"temperature":0.2}`}).mustBe(t, "miss")
	header := n8nHeader("step=" + step + "; run=8813")
	delete(header, "OpenAI-Organization")
	again := s.post(t, played{"/v1/chat/completions", header,
		`{"temperature": 0.20, "messages": [{"content": "What is new?", "role": "user"}], "model": "gpt-4.1-mini"}`}).mustBe(t, "hit")
	if again.body != first.body || again.header.Get("X-LLMProxy-Run") != "8813" {
		t.Errorf("the second run: %v %s", again.header, again.body)
	}
	s.saw(t, "n8n", "chat")
}

// n8nAgent plays an agent that writes the id of a call into its arguments. Its first
// turn is not asked again in the second run, but comes from elsewhere with other ids.
func n8nAgent(t *testing.T, s *server) {
	turn := func(run, messages string) reply {
		header := map[string]string{"User-Agent": "langchainjs-openai/1.0.0 (node)", "OpenAI-Platform": "org-sample",
			"X-LLMProxy-Context": "step=n8n chat tools; run=" + run}
		return s.post(t, played{"/v1/chat/completions", header, `{"model":"gpt-4.1-mini","messages":[` + messages + `],"tools":[{"type":"function","function":` +
			`{"name":"search","parameters":{"type":"object","properties":{"input":{"type":"string"}},"$schema":"http://json-schema.org/draft-07/schema#"}}}]}`})
	}
	const question = `{"role":"user","content":"Where is the order? [[sim: tool=search:{\"input\":\"x\"}]]"}`
	second := func(id string) string {
		return question + `,{"role":"assistant","content":"","tool_calls":[{"id":"` + id + `","type":"function","function":` +
			`{"name":"search","arguments":"{\"input\":\"x\",\"id\":\"` + id + `\"}"}}]},{"role":"tool","tool_call_id":"` + id + `","content":"It has left."}`
	}
	var first struct {
		Choices []struct {
			Message struct {
				ToolCalls []struct{ ID string } `json:"tool_calls"`
			}
		}
	}
	if err := json.Unmarshal([]byte(turn("1", question).mustBe(t, "miss").body), &first); err != nil {
		t.Fatal(err)
	}
	answer := turn("1", second(first.Choices[0].Message.ToolCalls[0].ID)).mustBe(t, "miss").body
	turn("2", question).mustBe(t, "hit")
	if again := turn("2", second("call_9XoQ2vJw7KmZb4TtR1sL0pQe")).mustBe(t, "hit").body; again != answer {
		t.Errorf("the second run got %s", again)
	}
	s.saw(t, "n8n", "chat tools")
}

func n8nResponse(t *testing.T, s *server) {
	for _, cache := range []string{"miss", "hit"} {
		s.post(t, played{"/v1/responses", n8nHeader("step=n8n responses"),
			`{"model":"gpt-4.1-mini","input":[{"role":"user","content":[{"type":"input_text","text":"What is new?"}]}],"store":true,"background":false}`}).mustBe(t, cache)
	}
	s.saw(t, "n8n", "responses")
}

func n8nEmbeddings(t *testing.T, s *server) {
	for _, cache := range []string{"miss", "hit"} {
		s.post(t, played{"/v1/embeddings", n8nHeader("step=n8n embeddings"),
			`{"model":"text-embedding-3-small","input":["one","two"],"encoding_format":"base64"}`}).mustBe(t, cache)
	}
	s.saw(t, "n8n", "embeddings")
}

// n8nRetryOnFail plays a node that gives up waiting and sends the same again.
func n8nRetryOnFail(t *testing.T, s *server) {
	p := played{"/v1/chat/completions", n8nHeader("step=n8n time-out; run=1"), body(model, "Take your time. [[sim: delay=3s]]")}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := http.DefaultClient.Do(s.request(t, p).WithContext(ctx)); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("the first attempt got %v", err)
	}
	again := s.post(t, p)
	if cache := again.cache(); cache != "collapsed" && cache != "hit" || !strings.Contains(again.body, "Take your time.") {
		t.Errorf("the retry was a %s: %s", cache, again.body)
	}
	s.saw(t, "n8n", "time-out")
}

func n8nRefused(t *testing.T, s *server) {
	s.post(t, played{"/v1/chat/completions", n8nHeader("step=n8n refused chat"), body(model, "one")}).checkRefused(t, http.StatusPaymentRequired)
	s.saw(t, "n8n", "refused chat")
}

// n8nContext names step and run by the one header that a credential has room for.
func n8nContext(t *testing.T, s *server) {
	r := s.post(t, played{"/v1/chat/completions", n8nHeader("step=n8n step by header; run=8812"), body(model, "Hello")}).mustBe(t, "miss")
	if step, run := r.header.Get("X-LLMProxy-Step"), r.header.Get("X-LLMProxy-Run"); step != "n8n step by header" || run != "8812" {
		t.Errorf("the step %q, the run %q", step, run)
	}
	s.saw(t, "n8n", "step by header")
}

func codexChecks() map[string]func(*testing.T, *server) {
	return map[string]func(*testing.T, *server){
		"responses stream":  codexSessions,
		"responses tools":   codexTools,
		"refused responses": codexRefused,
	}
}

// codex plays a turn of a session: all ids are random, the rest is equal. more are
// items after the user's.
func codex(step, session, text, more string) played {
	id := func(n string) string { return session + "-4c1d-8a52-" + n }
	input := `[{"type":"message","id":"` + id("1") + `","role":"developer","content":[{"type":"input_text","text":"You are in /work."}]},` +
		`{"type":"message","id":"` + id("2") + `","role":"user","content":[{"type":"input_text","text":"` + text + `"}]}` + more + `]`
	return played{"/steps/" + strings.ReplaceAll(step, " ", "%20") + "/v1/responses", map[string]string{
		"Originator": "codex_exec", "User-Agent": "codex_exec/0.99.0", "Accept": "text/event-stream", "Accept-Encoding": "zstd,gzip",
		"Session-Id": session, "Thread-Id": session, "X-Client-Request-Id": id("3"), "X-Codex-Turn-Metadata": `{"turn_id":"` + id("4") + `"}`,
	}, `{"model":"gpt-5-codex","instructions":"Be brief.","input":` + input + `,"tools":[{"type":"function","name":"shell","strict":false,` +
		`"parameters":{"type":"object","properties":{"command":{"type":"array","items":{"type":"string"}}}}}],"tool_choice":"auto",` +
		`"parallel_tool_calls":false,"reasoning":{"effort":"low"},"store":false,"stream":true,"include":["reasoning.encrypted_content"],` +
		`"prompt_cache_key":"` + session + `","client_metadata":{"turn":"` + id("5") + `"}}`}
}

const session1, session2 = "019ae0c2-93d1", "019ae0c7-0b5e"

func codexSessions(t *testing.T, s *server) {
	const step = "Codex CLI responses stream"
	first := s.post(t, codex(step, session1, "What is new?", "")).mustBe(t, "miss")
	again := s.post(t, codex(step, session2, "What is new?", "")).mustBe(t, "hit")
	if again.body != first.body || !strings.Contains(first.body, "\nevent: response.completed\n") {
		t.Errorf("the second session got %s\nafter %s", again.body, first.body)
	}
	s.saw(t, "Codex CLI", "responses stream")
}

// codexTools plays a turn with a tool's result, which carries ids of the answer
// before it.
func codexTools(t *testing.T, s *server) {
	const step = "Codex CLI responses tools"
	const question = `List it. [[sim: tool=shell:{\"command\":[\"ls\"]}]]`
	var last string
	for i, session := range []string{session1, session2} {
		cache := []string{"miss", "hit"}[i]
		s.post(t, codex(step, session, question, "")).mustBe(t, cache)
		call := "call_" + session
		second := s.post(t, codex(step, session, question, `,{"type":"function_call","id":"fc_`+session+`","call_id":"`+call+`","name":"shell","arguments":"{\"command\":[\"ls\"]}"},`+
			`{"type":"function_call_output","call_id":"`+call+`","output":"README.md"}`)).mustBe(t, cache)
		if !strings.Contains(second.body, "README.md") || i == 1 && second.body != last {
			t.Errorf("the session %d got %s", i, second.body)
		}
		last = second.body
	}
	s.saw(t, "Codex CLI", "responses tools")
}

// codexRefused checks the status that this client does not repeat; it repeats a 402.
func codexRefused(t *testing.T, s *server) {
	s.post(t, codex("Codex CLI refused responses", session1, "one", "")).checkRefused(t, http.StatusBadRequest)
	s.saw(t, "Codex CLI", "refused responses")
}
