package sim

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// post sends body to the model and returns the status, header and body.
func post(t *testing.T, m *Model, path, body string) (int, http.Header, string) {
	t.Helper()
	return do(t, m, "POST", path, body)
}

func do(t *testing.T, m *Model, method, path, body string) (int, http.Header, string) {
	t.Helper()
	rec := httptest.NewRecorder()
	m.ServeHTTP(rec, httptest.NewRequest(method, path, strings.NewReader(body)))
	return rec.Code, rec.Header(), rec.Body.String()
}

// decode decodes JSON into a T.
func decode[T any](t *testing.T, data string) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(data), &v); err != nil {
		t.Fatalf("%v in %s", err, data)
	}
	return v
}

// ask is a chat request with one user message and more members.
func ask(content, more string) string {
	quoted, err := json.Marshal(content)
	if err != nil {
		panic(err)
	}
	return fmt.Sprintf(`{"model":"gpt-4.1","messages":[{"role":"user","content":%s}]%s}`, quoted, more)
}

type chatAnswer struct {
	ID      string
	Object  string
	Created int64
	Model   string
	Choices []struct {
		Index   int
		Message struct {
			Role      string
			Content   *string
			ToolCalls []struct {
				ID       string
				Function struct{ Name, Arguments string }
			} `json:"tool_calls"`
		}
		FinishReason *string `json:"finish_reason"`
	}
	Usage *struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
		Total      int `json:"total_tokens"`
		Input      struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
		Output struct {
			Reasoning int `json:"reasoning_tokens"`
		} `json:"completion_tokens_details"`
	}
	Fingerprint string `json:"system_fingerprint"`
}

func chatOK(t *testing.T, m *Model, body string) chatAnswer {
	t.Helper()
	status, _, answer := post(t, m, "/v1/chat/completions", body)
	if status != 200 {
		t.Fatalf("status %d: %s", status, answer)
	}
	return decode[chatAnswer](t, answer)
}

func (a chatAnswer) text() string {
	if len(a.Choices) == 0 || a.Choices[0].Message.Content == nil {
		return ""
	}
	return *a.Choices[0].Message.Content
}

func (a chatAnswer) finish() string {
	if len(a.Choices) == 0 || a.Choices[0].FinishReason == nil {
		return "null"
	}
	return *a.Choices[0].FinishReason
}

func TestChatShape(t *testing.T) {
	status, header, answer := post(t, new(Model), "/v1/chat/completions",
		`{"model":"gpt-4.1","messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"Where is my order?"}]}`)
	if status != 200 || header.Get("Content-Type") != "application/json" || header.Get("X-Simulated") != "true" ||
		!strings.HasPrefix(header.Get("X-Request-Id"), "req_sim") || header.Get("Content-Length") != strconv.Itoa(len(answer)) {
		t.Errorf("status %d, header %v", status, header)
	}
	a := decode[chatAnswer](t, answer)
	if !strings.HasPrefix(a.ID, "chatcmpl-sim") || a.Object != "chat.completion" || a.Model != "gpt-4.1" || a.Fingerprint != "sim" ||
		a.Created < epoch || a.Created >= epoch+yearLong {
		t.Errorf("answer = %s", answer)
	}
	if !strings.HasPrefix(a.text(), "[simulated] You asked: “Where is my order?” ") || a.finish() != "stop" || a.Choices[0].Message.Role != "assistant" {
		t.Errorf("choice = %+v %q", a.Choices, a.text())
	}
	// 3, and for each message 3, one for its role and its words.
	if u := a.Usage; u.Prompt != 3+(3+1+2)+(3+1+4) || u.Completion != len(strings.Fields(a.text())) || u.Total != u.Prompt+u.Completion {
		t.Errorf("usage = %+v", u)
	}
	for _, member := range []string{`"logprobs":null`, `"refusal":null`, `"annotations":[]`, `"prompt_tokens_details":{"cached_tokens":0,"audio_tokens":0}`} {
		if !strings.Contains(answer, member) {
			t.Errorf("%s is missing in %s", member, answer)
		}
	}
}

func TestDeterminism(t *testing.T) {
	bodies := map[string]string{
		"/v1/chat/completions": ask("Hello there", `,"stream":true,"stream_options":{"include_usage":true},"n":2`),
		"/v1/completions":      `{"model":"m","prompt":"Hello there"}`,
		"/v1/responses":        `{"model":"m","input":"Hello there","stream":true}`,
		"/v1/embeddings":       `{"model":"m","input":"Hello there"}`,
	}
	for path, body := range bodies {
		_, _, first := post(t, new(Model), path, body)
		_, _, again := post(t, new(Model), path, body)
		_, _, other := post(t, new(Model), path, strings.Replace(body, "Hello", "hello", 1))
		if first != again || first == other {
			t.Errorf("%s: again the same: %v, another question the same: %v", path, first == again, first == other)
		}
	}
	// Frozen: every build must say this.
	a := chatOK(t, new(Model), ask("Hello there", ""))
	if a.ID != "chatcmpl-sim87ed011bc261f89da272e885" || a.Created != 1784765451 ||
		a.text() != "[simulated] You asked: “Hello there” In short, the attached list leaves out what was decided in 3 of 9 cases. In short, the last reply leaves out two open questions." {
		t.Errorf("id = %s %d %q", a.ID, a.Created, a.text())
	}
}

func TestTextDiffersByWhatWasSaid(t *testing.T) {
	const base = `{"model":"m","messages":[{"role":"user","content":"Who runs it?"},{"role":"assistant","content":"Ann"},{"role":"user","content":"How old?"}]}`
	seen := map[string]string{}
	for _, body := range []string{
		base,
		strings.Replace(base, "Ann", "Bob", 1),
		strings.Replace(base, `"model":"m"`, `"model":"m2"`, 1),
		strings.Replace(base, `{"model"`, `{"seed":1,"model"`, 1),
		strings.Replace(base, "How old?", "How old? [[sim: seed=2]]", 1),
	} {
		text := chatOK(t, new(Model), body).text()
		if earlier, ok := seen[text]; ok {
			t.Errorf("one text for\n%s\n%s", earlier, body)
		}
		seen[text] = body
	}
	a, b := chatOK(t, new(Model), base), chatOK(t, new(Model), strings.Replace(base, "{", `{"temperature":1,`, 1))
	if a.text() != b.text() || a.ID == b.ID {
		t.Errorf("a parameter must change the id only: %q %q, %s %s", a.text(), b.text(), a.ID, b.ID)
	}
}

func TestDirectives(t *testing.T) {
	const echo = "[simulated] You asked: “Say it” "
	for _, tt := range []struct {
		name, prompt, more string
		check              func(chatAnswer) bool
	}{
		{"words", "Say it [[sim: words=200]]", "", func(a chatAnswer) bool {
			return strings.HasPrefix(a.text(), echo) && len(strings.Fields(a.text())) == 200 && a.Usage.Completion == 200
		}},
		{"one word", "Say it [[sim: words=1]]", "", func(a chatAnswer) bool { return a.text() == "[simulated]." }},
		{"empty", "Say it [[sim: words=0]]", "", func(a chatAnswer) bool {
			return a.text() == "" && a.Choices[0].Message.Content != nil && a.finish() == "stop" && a.Usage.Completion == 0
		}},
		{"say", `[[sim: say="two ]] \"lines\"\n"]]`, "", func(a chatAnswer) bool { return a.text() == "two ]] \"lines\"\n" }},
		{"in several brackets", "[[sim:words=5]]Say [[sim: finish=content_filter]] it", "", func(a chatAnswer) bool {
			return len(strings.Fields(a.text())) == 5 && a.finish() == "content_filter"
		}},
		{"on several lines", "Say it\n[[sim:\n  words=7\n  no_usage\n]]\n", "", func(a chatAnswer) bool {
			return len(strings.Fields(a.text())) == 7 && a.Usage == nil
		}},
		{"finish none", "Say it [[sim: finish=none]]", "", func(a chatAnswer) bool { return a.finish() == "null" }},
		{"details", "Say it [[sim: words=10 cached=2 reasoning=64]]", "", func(a chatAnswer) bool {
			return a.Usage.Input.Cached == 2 && a.Usage.Output.Reasoning == 64 && a.Usage.Completion == 74
		}},
		{"n", "Say it [[sim: words=30]]", `,"n":3`, func(a chatAnswer) bool {
			return len(a.Choices) == 3 && a.Choices[2].Index == 2 && *a.Choices[1].Message.Content != a.text() && a.Usage.Completion == 90
		}},
		{"max_tokens", "Say it [[sim: words=30]]", `,"max_tokens":12`, func(a chatAnswer) bool {
			return len(strings.Fields(a.text())) == 12 && a.finish() == "length" && a.Usage.Completion == 12
		}},
		{"max_completion_tokens first", "Say it", `,"max_tokens":12,"max_completion_tokens":6`, func(a chatAnswer) bool { return a.Usage.Completion == 6 }},
		{"limit not reached", "Say it [[sim: words=30]]", `,"max_tokens":30`, func(a chatAnswer) bool {
			return len(strings.Fields(a.text())) == 30 && a.finish() == "stop"
		}},
		{"json", "Say it [[sim: words=6]]", `,"response_format":{"type":"json_object"}`, func(a chatAnswer) bool {
			return strings.HasPrefix(a.text(), `{"answer":"[simulated] You asked: “Say it” `) && json.Valid([]byte(a.text()))
		}},
		{"a tool", `[[sim: tool=get_weather:{"city":"[[Paris]]"}]]`, "", func(a chatAnswer) bool {
			calls := a.Choices[0].Message.ToolCalls
			return a.finish() == "tool_calls" && a.Choices[0].Message.Content == nil && len(calls) == 1 && strings.HasPrefix(calls[0].ID, "call_sim") &&
				calls[0].Function.Name == "get_weather" && calls[0].Function.Arguments == `{"city":"[[Paris]]"}`
		}},
		{"parallel tools after a text", `[[sim: tool=now tool=add:{"a": 1, "b": 2} say="ok"]]`, "", func(a chatAnswer) bool {
			calls := a.Choices[0].Message.ToolCalls
			return a.text() == "ok" && len(calls) == 2 && calls[0].Function.Arguments == "{}" &&
				calls[1].Function.Arguments == `{"a": 1, "b": 2}` && calls[0].ID != calls[1].ID
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if a := chatOK(t, new(Model), ask(tt.prompt, tt.more)); !tt.check(a) {
				t.Errorf("finish %s, usage %+v, text %q, answer %+v", a.finish(), a.Usage, a.text(), a)
			}
		})
	}
}

// What the error message advises must be true.
func TestHowTo(t *testing.T) {
	_, list, _ := strings.Cut(howTo, "out of ")
	p, _, err := parsePlan(opening + list + closing)
	if err != nil || len(p.given) != len(strings.Fields(list)) {
		t.Errorf("%v in %q: %v", p, list, err)
	}
}

func TestToolResultEndsTheLoop(t *testing.T) {
	a := chatOK(t, new(Model), `{"model":"m","messages":[
		{"role":"user","content":"[[sim: tool=get_weather:{\"city\":\"Paris\"} words=20]]"},
		{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"get_weather","arguments":"{}"}}]},
		{"role":"tool","tool_call_id":"c","content":"18 degrees [[sim: this is no directive]]"}]}`)
	if a.finish() != "stop" || !strings.HasPrefix(a.text(), "[simulated] The tool said: “18 degrees ") || len(strings.Fields(a.text())) != 20 {
		t.Errorf("finish %s, text %q", a.finish(), a.text())
	}
}

func TestErrors(t *testing.T) {
	for _, tt := range []struct {
		name, method, path, body string
		status                   int
		message                  string
	}{
		{"unknown path", "POST", "/v1/images", "{}", 404, "unknown URL"},
		{"another root", "GET", "/", "", 404, "unknown URL"},
		{"method", "GET", "/v1/chat/completions", "", 405, "takes POST"},
		{"unknown model", "GET", "/v1/models/x", "", 404, "not listed"},
		{"no JSON", "POST", "/v1/chat/completions", "{", 400, "not a JSON object"},
		{"not an object", "POST", "/v1/chat/completions", "[]", 400, "not a JSON object"},
		{"null", "POST", "/v1/chat/completions", "null", 400, "null"},
		{"no model", "POST", "/v1/chat/completions", `{"MODEL":"m","messages":[]}`, 400, "model is missing"},
		{"no messages", "POST", "/v1/chat/completions", `{"model":"m","messages":[]}`, 400, "messages is empty"},
		{"wrong type", "POST", "/v1/chat/completions", `{"model":"m","messages":"hi"}`, 400, "member messages"},
		{"n", "POST", "/v1/chat/completions", ask("hi", `,"n":0`), 400, "from 1 to 128"},
		{"too much text", "POST", "/v1/chat/completions", ask("[[sim: words=100000]]", `,"n":3`), 400, "words"},
		{"limit", "POST", "/v1/chat/completions", ask("hi", `,"max_tokens":0`), 400, "max_tokens"},
		{"no input", "POST", "/v1/responses", `{"model":"m"}`, 400, "input is missing"},
		{"empty input", "POST", "/v1/responses", `{"model":"m","input":[]}`, 400, "input is empty"},
		{"embedding of nothing", "POST", "/v1/embeddings", `{"model":"m","input":[]}`, 400, "neither"},
		{"embedding of null", "POST", "/v1/embeddings", `{"model":"m","input":[null]}`, 400, "input[0]"},
		{"embedding format", "POST", "/v1/embeddings", `{"model":"m","input":"x","encoding_format":"hex"}`, 400, "base64"},
		{"tool in a completion", "POST", "/v1/completions", `{"model":"m","prompt":"[[sim: tool=f]]"}`, 400, "tool means nothing"},
		{"words of an embedding", "POST", "/v1/embeddings", `{"model":"m","input":"[[sim: words=2]]"}`, 400, "words means nothing"},

		{"misspelt", "POST", "/v1/chat/completions", ask("[[sim: dealy=2s]]", ""), 400, `"dealy" is not a directive`},
		{"flag with a value", "POST", "/v1/chat/completions", ask("[[sim: no_usage=1]]", ""), 400, "takes no value"},
		{"no value", "POST", "/v1/chat/completions", ask("[[sim: finish]]", ""), 400, "value is missing"},
		{"negative", "POST", "/v1/chat/completions", ask("[[sim: words=-1]]", ""), 400, "from 0 to"},
		{"no unit", "POST", "/v1/chat/completions", ask("[[sim: delay=2]]", ""), 400, "not a duration"},
		{"no error status", "POST", "/v1/chat/completions", ask("[[sim: status=200]]", ""), 400, "from 400 to 599"},
		{"retry_after alone", "POST", "/v1/chat/completions", ask("[[sim: retry_after=2]]", ""), 400, "without status"},
		{"not closed", "POST", "/v1/chat/completions", ask("[[sim: words=2", ""), 400, "closing ]] is missing"},
		{"commas", "POST", "/v1/chat/completions", ask("[[sim: words=2, chunks=3]]", ""), 400, "words=2,"},
		{"say without quotes", "POST", "/v1/chat/completions", ask("[[sim: say=hello]]", ""), 400, "not JSON"},
		{"say null", "POST", "/v1/chat/completions", ask("[[sim: say=null]]", ""), 400, "not a string"},
		{"broken arguments", "POST", "/v1/chat/completions", ask(`[[sim: tool=f:{"a":}]]`, ""), 400, "not JSON"},
		{"arguments no object", "POST", "/v1/chat/completions", ask(`[[sim: tool=f:3]]`, ""), 400, "not name or name:"},
		{"glued", "POST", "/v1/chat/completions", ask(`[[sim: tool=f:{}words]]`, ""), 400, "words"},

		{"status", "POST", "/v1/chat/completions", ask("[[sim: status=503]]", `,"stream":true`), 503, "asks for status 503"},
		{"status of embeddings", "POST", "/v1/embeddings", `{"model":"m","input":["a","[[sim: status=500]]"]}`, 500, "asks for status 500"},
		{"error in a JSON answer", "POST", "/v1/chat/completions", ask("[[sim: error_after=0]]", ""), 200, "mid-answer"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			status, header, answer := do(t, new(Model), tt.method, tt.path, tt.body)
			e := decode[struct {
				Error struct {
					Message, Type string
					Code, Param   *string
				}
			}](t, answer).Error
			if status != tt.status || !strings.Contains(e.Message, tt.message) || e.Type == "" || header.Get("X-Simulated") != "true" {
				t.Errorf("%d %s; want %d %q", status, answer, tt.status, tt.message)
			}
			if strings.Contains(tt.body, "[[sim:") && status == 400 && tt.name != "too much text" &&
				!strings.Contains(e.Message, "[[sim: delay=2s") && !strings.Contains(e.Message, "leave it out") {
				t.Errorf("%q does not say how to write it", e.Message)
			}
		})
	}
}

func TestRateLimit(t *testing.T) {
	status, header, answer := post(t, new(Model), "/v1/chat/completions", ask("[[sim: status=429 retry_after=2]]", ""))
	if status != 429 || header.Get("Retry-After") != "2" || !strings.Contains(answer, `"code":"rate_limit_exceeded"`) {
		t.Errorf("%d %v %s", status, header, answer)
	}
}

func TestCountText(t *testing.T) {
	m := &Model{CountText: func(s string) int { return len(s) }}
	a := chatOK(t, m, ask("Say it [[sim: words=30]]", `,"max_tokens":20`))
	if a.Usage.Prompt != 3+3+len("user")+len("Say it [[sim: words=30]]") || a.text() != "[simulated] You" || a.finish() != "length" {
		t.Errorf("usage %+v, text %q", a.Usage, a.text())
	}
}

func TestInputTokens(t *testing.T) {
	a := chatOK(t, new(Model), `{"model":"m","tools":[{"type":"function"}],"messages":[
		{"role":"user","name":"ann","content":[{"type":"text","text":"one two"},{"type":"image_url","image_url":{"url":"data:,"}}]},
		{"role":"assistant","content":null,"tool_calls":[{"id":"c","function":{"name":"f","arguments":"{} {}"}}]},
		{"role":"tool","tool_call_id":"c","content":"three"}]}`)
	if want := 3 + (3 + 1 + 2 + 85 + 2) + (3 + 1 + 1 + 2) + (3 + 1 + 1) + 1; a.Usage.Prompt != want {
		t.Errorf("prompt_tokens = %d, want %d", a.Usage.Prompt, want)
	}
}

func TestCompletions(t *testing.T) {
	type completion struct {
		Object  string
		Choices []struct {
			Text   string
			Index  int
			Finish string `json:"finish_reason"`
		}
		Usage struct {
			Prompt int `json:"prompt_tokens"`
		}
	}
	_, _, answer := post(t, new(Model), "/v1/completions", `{"model":"m","prompt":["one two",[5,6,7]],"n":2,"max_tokens":9}`)
	a := decode[completion](t, answer)
	if a.Object != "text_completion" || len(a.Choices) != 4 || a.Choices[3].Index != 3 || a.Choices[0].Finish != "length" ||
		len(strings.Fields(a.Choices[0].Text)) != 9 || a.Usage.Prompt != 5 {
		t.Errorf("answer = %s", answer)
	}
	if _, _, answer := post(t, new(Model), "/v1/completions", `{"model":"m","prompt":[5,6,7]}`); decode[completion](t, answer).Usage.Prompt != 3 {
		t.Errorf("answer = %s", answer)
	}
}

func TestEmbeddings(t *testing.T) {
	type embeddings struct {
		Data []struct {
			Index     int
			Embedding json.RawMessage
		}
		Usage *struct {
			Total int `json:"total_tokens"`
		}
	}
	_, _, answer := post(t, new(Model), "/v1/embeddings", `{"model":"m","input":["one","two words","one"],"dimensions":8}`)
	a := decode[embeddings](t, answer)
	if len(a.Data) != 3 || a.Data[2].Index != 2 || a.Usage.Total != 4 ||
		string(a.Data[0].Embedding) != string(a.Data[2].Embedding) || string(a.Data[0].Embedding) == string(a.Data[1].Embedding) {
		t.Fatalf("answer = %s", answer)
	}
	v := decode[[]float64](t, string(a.Data[0].Embedding))
	norm := 0.0
	for _, x := range v {
		norm += x * x
	}
	if len(v) != 8 || norm < 0.999 || norm > 1.001 {
		t.Errorf("vector %v has the length² %v", v, norm)
	}
	_, _, answer = post(t, new(Model), "/v1/embeddings", `{"model":"m","input":"x [[sim: no_usage]]"}`)
	if a := decode[embeddings](t, answer); a.Usage != nil || len(decode[[]float64](t, string(a.Data[0].Embedding))) != 1536 {
		t.Errorf("answer = %.300s", answer)
	}
}

func TestModels(t *testing.T) {
	m := &Model{Names: []string{"gpt-4.1", "org/model"}}
	for path, want := range map[string]string{
		"/v1/models":           `{"data":[{"created":1767225600,"id":"gpt-4.1","object":"model","owned_by":"sim"},{"created":1767225600,"id":"org/model","object":"model","owned_by":"sim"}],"object":"list"}`,
		"/v1/models/org/model": `{"created":1767225600,"id":"org/model","object":"model","owned_by":"sim"}`,
	} {
		if _, _, answer := do(t, m, "GET", path, ""); answer != want {
			t.Errorf("%s = %s", path, answer)
		}
	}
	if _, _, answer := do(t, new(Model), "GET", "/v1/models", ""); !strings.Contains(answer, `"id":"sim"`) {
		t.Errorf("without names: %s", answer)
	}
	if m.Calls() != 0 {
		t.Errorf("listing models made %d calls", m.Calls())
	}
}

func TestCalls(t *testing.T) {
	m := new(Model)
	post(t, m, "/v1/chat/completions", ask("hi", ""))
	post(t, m, "/v1/responses", "{")
	post(t, m, "/v1/unknown", "{}")
	if m.Calls() != 2 {
		t.Errorf("calls = %d, want 2", m.Calls())
	}
}

// Over a real connection: what is cut must look cut, what ends must look ended.
func TestFaultsOfJSONAnswers(t *testing.T) {
	srv := httptest.NewServer(new(Model))
	defer srv.Close()
	_, _, whole := post(t, new(Model), "/v1/chat/completions", ask("hi", ""))
	for _, client := range []*http.Client{srv.Client(), {Transport: Transport(new(Model))}} {
		for directive, cut := range map[string]bool{"cut_after=0": true, "end_after=0": false} {
			resp, err := client.Post(srv.URL+"/v1/chat/completions", "application/json", strings.NewReader(ask("hi [[sim: "+directive+"]]", "")))
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if (err == io.ErrUnexpectedEOF) != cut || (err != nil) != cut || len(body) == 0 || json.Valid(body) || len(body) > len(whole) {
				t.Errorf("%s: %v %s", directive, err, body)
			}
		}
	}
}

func TestDelays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := &http.Client{Transport: Transport(new(Model))}
		start := time.Now()
		resp, err := client.Post("http://sim.test/v1/chat/completions", "application/json",
			strings.NewReader(ask(`[[sim: delay=40m chunk_delay=10s chunks=4 say="four pieces here."]]`, `,"stream":true`)))
		if err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(start); waited != 40*time.Minute {
			t.Errorf("the header came after %v, want 40m", waited)
		}
		body, err := io.ReadAll(resp.Body)
		// The role, four pieces, the finish and [DONE]: six gaps.
		if waited := time.Since(start); err != nil || waited != 41*time.Minute {
			t.Errorf("the end came after %v, want 41m; %v %s", waited, err, body)
		}
	})
}

func TestClientLeaves(t *testing.T) {
	for _, directives := range []string{"delay=30m", "chunk_delay=30m"} {
		synctest.Test(t, func(t *testing.T) {
			client := &http.Client{Transport: Transport(new(Model)), Timeout: time.Minute}
			start := time.Now()
			resp, err := client.Post("http://sim.test/v1/chat/completions", "application/json",
				strings.NewReader(ask("[[sim: "+directives+"]]", `,"stream":true`)))
			if err == nil {
				_, err = io.ReadAll(resp.Body)
			}
			if err == nil || time.Since(start) != time.Minute {
				t.Errorf("%s: %v after %v, want a time-out after 1m", directives, err, time.Since(start))
			}
		})
	}
}
