package proxy

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/sashabaranov/go-openai"
)

// unrolled returns the data of the events made of a body, joined by lines.
func unrolled(t *testing.T, body string, includeUsage bool) string {
	t.Helper()
	c, err := parseChat([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	events, err := c.unroll(includeUsage)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, raw := range events {
		data, ok := strings.CutPrefix(string(raw), "data: ")
		data, end := strings.CutSuffix(data, "\n\n")
		if !ok || !end || strings.ContainsAny(data, "\r\n") {
			t.Fatalf("%q is not one line of data", raw)
		}
		lines = append(lines, data)
	}
	return strings.Join(lines, "\n") + "\n"
}

func TestUnroll(t *testing.T) {
	const head = `{"object":"chat.completion.chunk","id":"c","created":1,"model":"m","service_tier":"default","system_fingerprint":"fp",`
	for _, test := range []struct{ name, body, want string }{
		{"text", "{\"id\":\"c\",\"object\":\"chat.completion\",\r\n \"created\":1,\"model\":\"m\",\"x\":{ \"y\": 1 },\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"Hi\",\n\"refusal\":null,\"annotations\":[]},\"logprobs\":null,\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":2},\"service_tier\":\"default\",\"system_fingerprint\":\"fp\"}",
			head + `"choices":[{"index":0,"delta":{"role":"assistant","content":"","refusal":null,"annotations":[]},"finish_reason":null}],"x":{"y":1}}
` + head + `"choices":[{"index":0,"delta":{"content":"Hi"},"logprobs":null,"finish_reason":null}]}
` + head + `"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}
` + head + `"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}
[DONE]
`},
		{"calls, reasoning, two choices", `{"choices":[{"index":1,"message":{"content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}},{"id":"b","index":7,"type":"custom","custom":{"name":"g","input":"x"}}]},"finish_reason":"tool_calls","stop_reason":5},{"index":0,"message":{"role":"assistant","content":"y","name":"n","reasoning":"r","n":1},"finish_reason":"stop"}]}`,
			`{"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}
{"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"reasoning":"r"},"finish_reason":null}]}
{"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"y"},"finish_reason":null}]}
{"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"name":"n"},"finish_reason":null}]}
{"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"n":1},"finish_reason":null}]}
{"object":"chat.completion.chunk","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}
{"object":"chat.completion.chunk","choices":[{"index":1,"delta":{"role":"assistant","content":null},"finish_reason":null}]}
{"object":"chat.completion.chunk","choices":[{"index":1,"delta":{"tool_calls":[{"index":0,"id":"a","type":"function","function":{"name":"f","arguments":""}}]},"finish_reason":null}]}
{"object":"chat.completion.chunk","choices":[{"index":1,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{}"}}]},"finish_reason":null}]}
{"object":"chat.completion.chunk","choices":[{"index":1,"delta":{"tool_calls":[{"index":1,"id":"b","type":"custom","custom":{"name":"g","input":"x"}}]},"finish_reason":null}]}
{"object":"chat.completion.chunk","choices":[{"index":1,"delta":{},"finish_reason":"tool_calls","stop_reason":5}]}
[DONE]
`},
		{"no text to carry the log probabilities", `{"choices":[{"index":0,"message":{"role":"assistant"},"logprobs":{"content":[]},"finish_reason":"stop"}]}`,
			`{"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"role":"assistant"},"logprobs":{"content":[]},"finish_reason":null}]}
{"object":"chat.completion.chunk","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}
[DONE]
`},
		{"no choices", `{"id":"c","choices":[],"x":1}`, `{"object":"chat.completion.chunk","id":"c","choices":[],"x":1}
[DONE]
`},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := unrolled(t, test.body, true); got != test.want {
				t.Errorf("\n got %s\nwant %s", got, test.want)
			}
		})
	}
}

// The usage stands in one chunk, directly before the end, for those who asked.
func TestUnrollUsage(t *testing.T) {
	const body = `{"usage":{"prompt_tokens":1,"completion_tokens":2},"choices":[{"index":0,"message":{"role":"assistant","content":"a"},"finish_reason":"stop"}]}`
	for _, include := range []bool{true, false} {
		lines := strings.Split(strings.TrimSpace(unrolled(t, body, include)), "\n")
		var at []int
		for i, line := range lines {
			if isUsageChunk([]byte(line)) {
				at = append(at, i)
			} else if strings.Contains(line, "usage") {
				t.Errorf("usage in %s", line)
			}
		}
		if want := []int{len(lines) - 2}; include && fmt.Sprint(at) != fmt.Sprint(want) || !include && at != nil {
			t.Errorf("asked %v: usage chunks at %v of %d", include, at, len(lines))
		}
	}
	for _, none := range []string{`{"choices":[]}`, `{"choices":[],"usage":null}`} {
		if got := unrolled(t, none, true); strings.Contains(got, "usage") {
			t.Errorf("usage made up: %s", got)
		}
	}
}

func TestPieces(t *testing.T) {
	units := []string{"a", "é", "€", "😀", `\n`, `\\`, `\"`, `\u00e9`, `\uD83D\uDE00`, `\ud83d\ude00`}
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var b strings.Builder
		for range rnd.IntN(2000) {
			b.WriteString(units[rnd.IntN(len(units))])
		}
		var joined strings.Builder
		for piece := range pieces([]byte(`"` + b.String() + `"`)) {
			quoted := `"` + string(piece) + `"`
			var text string
			if err := json.Unmarshal([]byte(quoted), &text); err != nil {
				t.Fatalf("%s: %v", quoted, err)
			}
			if strings.Contains(text, "\ufffd") || !utf8.ValidString(text) {
				t.Fatalf("a character is cut: %s", quoted)
			}
			if len(piece) == 0 || len(piece) >= pieceSize+12 {
				t.Fatalf("a piece of %d bytes", len(piece))
			}
			joined.Write(piece)
		}
		if joined.String() != b.String() {
			t.Fatalf("got %s, want %s", joined.String(), b.String())
		}
	}
	for _, odd := range []string{"\xff\xe2\x82", `\ud83d`, `\ude00\ud83d`, `\ud83dabcdef`, strings.Repeat(`\ud83d`, 1000)} {
		var joined strings.Builder
		for piece := range pieces([]byte(`"` + odd + `"`)) {
			joined.Write(piece)
		}
		if joined.String() != odd {
			t.Errorf("got %q, want %q", joined.String(), odd)
		}
	}
}

// TestUnrollAnyBody makes random bodies, with members that nobody knows, and takes
// them through a stream.
func TestUnrollAnyBody(t *testing.T) {
	for seed := range uint64(200) {
		g := generator{rand.New(rand.NewPCG(seed, 7))}
		body, err := json.MarshalIndent(g.body(), "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		if checkUnrolled(t, body); t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

type generator struct{ *rand.Rand }

func (g generator) body() map[string]any {
	body := map[string]any{"object": "chat.completion", "id": "c", "created": g.IntN(9), "choices": g.choices()}
	g.fill(body, "model", "service_tier", "x", "y")
	if g.IntN(2) == 0 {
		body["usage"] = map[string]any{"prompt_tokens": g.IntN(9), "completion_tokens": g.IntN(9), "x": g.value(2)}
	}
	return body
}

func (g generator) choices() []any {
	var choices []any
	for i := range 1 + g.IntN(3) {
		message := map[string]any{"role": "assistant", "content": g.value(1)}
		g.fill(message, "content", "refusal", "reasoning", "reasoning_content", "name", "annotations", "audio", "x", "index")
		if g.IntN(2) == 0 {
			message["content"] = strings.Repeat(g.text(), g.IntN(400))
		}
		if g.IntN(2) == 0 {
			message["tool_calls"] = g.calls()
		}
		choice := map[string]any{"index": i, "message": message, "finish_reason": g.value(0)}
		g.fill(choice, "logprobs", "stop_reason", "x")
		choices = append(choices, choice)
	}
	return choices
}

func (g generator) calls() []any {
	calls := []any{}
	for range g.IntN(4) {
		call := map[string]any{"function": map[string]any{"name": g.text(), "arguments": strings.Repeat(g.text(), g.IntN(400))}}
		g.fill(call, "id", "type", "custom", "x", "function")
		calls = append(calls, call)
	}
	return calls
}

// fill sets some of the members to anything.
func (g generator) fill(object map[string]any, names ...string) {
	for _, name := range names {
		if g.IntN(3) == 0 {
			object[name] = g.value(3)
		}
	}
}

func (g generator) value(depth int) any {
	switch n := g.IntN(8); {
	case n == 0:
		return nil
	case n == 1:
		return g.IntN(2) == 0
	case n == 2:
		return json.Number([]string{"0", "-0", "1.50", "1e9", "9007199254740993"}[g.IntN(5)])
	case n == 3 && depth > 0:
		list := []any{}
		for range g.IntN(4) {
			list = append(list, g.value(depth-1))
		}
		return list
	case n == 4 && depth > 0:
		object := map[string]any{}
		g.fill(object, "index", "id", "type", "text", "a\"b", "content")
		return object
	}
	return g.text()
}

func (g generator) text() string {
	return []string{"", "a", "wörd ", "\"\\\n\t\u2028", "😀", "{\"a\":1}", "<b>&"}[g.IntN(7)]
}

// TestUnrolledForClient has a client of the wild read a stream that was made of a
// JSON body, to its end.
func TestUnrolledForClient(t *testing.T) {
	text := strings.Repeat("Grüße, 世界! \"quoted\"\n", 500)
	content, err := json.Marshal(text)
	if err != nil {
		t.Fatal(err)
	}
	c, err := parseChat(fmt.Appendf(nil, `{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":%s,"tool_calls":[{"id":"i","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}]},"finish_reason":"tool_calls"}],"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}}`, content))
	if err != nil {
		t.Fatal(err)
	}
	events, err := c.unroll(true)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for _, raw := range events {
			w.Write(raw)
		}
	}))
	defer server.Close()
	config := openai.DefaultConfig("key")
	config.BaseURL = server.URL
	stream, err := openai.NewClientWithConfig(config).CreateChatCompletionStream(context.Background(), openai.ChatCompletionRequest{Model: "m"})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	var got, arguments strings.Builder
	var usage *openai.Usage
	var finish openai.FinishReason
	for n := 0; ; n++ {
		chunk, err := stream.Recv()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 && chunk.Choices[0].Delta.Role != "assistant" {
			t.Errorf("the first chunk has the role %q", chunk.Choices[0].Delta.Role)
		}
		if chunk.Usage != nil {
			usage = chunk.Usage
		}
		for _, choice := range chunk.Choices {
			got.WriteString(choice.Delta.Content)
			for _, call := range choice.Delta.ToolCalls {
				if call.Index == nil || *call.Index != 0 {
					t.Errorf("a call without its index: %v", call)
				}
				arguments.WriteString(call.Function.Arguments)
			}
			finish = choice.FinishReason
		}
	}
	if got.String() != text || arguments.String() != `{"a":1}` || finish != "tool_calls" || usage == nil || usage.TotalTokens != 7 {
		t.Errorf("read %d bytes of text of %d, arguments %s, finish %s, usage %v", got.Len(), len(text), arguments.String(), finish, usage)
	}
}
