package clients

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sashabaranov/go-openai"

	"llmproxy/proxy/proxytest"
)

// recorder counts the requests that a client makes and keeps the header of the
// last answer.
type recorder struct {
	mu       sync.Mutex
	requests int
	last     http.Header
}

func (r *recorder) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := http.DefaultTransport.RoundTrip(req)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests++
	if err == nil {
		r.last = resp.Header
	}
	return resp, err
}

func (r *recorder) header(name string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last.Get(name)
}

// client is go-openai as a step calls it: the step's name is in the base URL.
func (s *server) client(step string) (*openai.Client, *recorder) {
	config := openai.DefaultConfig("sk-test")
	config.BaseURL = s.base(step)
	r := &recorder{}
	config.HTTPClient = &http.Client{Transport: r}
	return openai.NewClientWithConfig(config), r
}

// ask is a request with one message of the user.
func ask(model, text string) openai.ChatCompletionRequest {
	return openai.ChatCompletionRequest{Model: model, Messages: []openai.ChatCompletionMessage{{Role: "user", Content: text}}}
}

func testChat(t *testing.T, s *server) {
	client, seen := s.client("chat")
	first, err := client.CreateChatCompletion(t.Context(), ask(simulated, "What is new?"))
	if err != nil {
		t.Fatal(err)
	}
	if how, step := seen.header("X-LLMProxy-Cache"), seen.header("X-LLMProxy-Step"); how != "miss" || step != "chat" {
		t.Errorf("the first call was a %s of the step %q", how, step)
	}
	if text := first.Choices[0].Message.Content; !strings.Contains(text, "What is new?") || first.Usage.TotalTokens == 0 {
		t.Errorf("%q, usage %+v", text, first.Usage)
	}
	other, seen := s.client("chat") // another execution of the automation
	again, err := other.CreateChatCompletion(t.Context(), ask(simulated, "What is new?"))
	if err != nil {
		t.Fatal(err)
	}
	if how := seen.header("X-LLMProxy-Cache"); how != "hit" || again.ID != first.ID ||
		again.Choices[0].Message.Content != first.Choices[0].Message.Content || again.Usage.TotalTokens != first.Usage.TotalTokens {
		t.Errorf("a %s: %+v", how, again)
	}
	elsewhere, seen := s.client("another%20step")
	if _, err := elsewhere.CreateChatCompletion(t.Context(), ask(simulated, "What is new?")); err != nil {
		t.Fatal(err)
	}
	if how, step := seen.header("X-LLMProxy-Cache"), seen.header("X-LLMProxy-Step"); how != "miss" || step != "another step" {
		t.Errorf("the same request of another step was a %s of the step %q", how, step)
	}
	s.reported(t, "chat", figures{Calls: 2, Upstream: 1, Hits: 1})
	s.reported(t, "another step", figures{Calls: 1, Upstream: 1})
}

// streamed is a stream as go-openai gave it.
type streamed struct {
	text   string
	calls  []openai.ToolCall
	finish openai.FinishReason
	usage  *openai.Usage
	chunks int
}

// collect reads a stream to its end. The error is nil only for a clean end.
func collect(ctx context.Context, client *openai.Client, req openai.ChatCompletionRequest) (whole streamed, err error) {
	stream, err := client.CreateChatCompletionStream(ctx, req)
	if err != nil {
		return whole, err
	}
	return read(stream)
}

func read(stream *openai.ChatCompletionStream) (whole streamed, err error) {
	defer stream.Close()
	for {
		chunk, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return whole, nil
		}
		if err != nil {
			return whole, err
		}
		whole.chunks++
		if chunk.Usage != nil {
			whole.usage = chunk.Usage
		}
		for _, choice := range chunk.Choices {
			whole.text += choice.Delta.Content
			if choice.FinishReason != "" {
				whole.finish = choice.FinishReason
			}
			for _, delta := range choice.Delta.ToolCalls {
				whole.add(delta)
			}
		}
	}
}

// add puts a piece of a tool call to the others of its index.
func (s *streamed) add(delta openai.ToolCall) {
	if *delta.Index == len(s.calls) {
		s.calls = append(s.calls, openai.ToolCall{ID: delta.ID, Type: delta.Type})
	}
	call := &s.calls[*delta.Index]
	call.Function.Name += delta.Function.Name
	call.Function.Arguments += delta.Function.Arguments
}

func testStream(t *testing.T, s *server) {
	client, seen := s.client("stream")
	req := ask(simulated, "Tell me more. [[sim: chunks=7]]")
	first, err := collect(t.Context(), client, req)
	if err != nil {
		t.Fatal(err)
	}
	if first.finish != "stop" || !strings.Contains(first.text, "Tell me more.") || first.usage != nil || first.chunks < 7 {
		t.Errorf("%+v", first)
	}
	again, err := collect(t.Context(), client, req)
	if err != nil {
		t.Fatal(err)
	}
	if how := seen.header("X-LLMProxy-Cache"); how != "hit" || again.text != first.text || again.chunks != first.chunks {
		t.Errorf("a %s: %+v", how, again)
	}
	req.StreamOptions = &openai.StreamOptions{IncludeUsage: true}
	counted, err := collect(t.Context(), client, req)
	if err != nil {
		t.Fatal(err)
	}
	if counted.text != first.text || counted.usage == nil || counted.usage.TotalTokens == 0 {
		t.Errorf("with usage: %+v", counted)
	}
	req.Stream, req.StreamOptions = false, nil
	whole, err := client.CreateChatCompletion(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if how := seen.header("X-LLMProxy-Cache"); how != "hit" || whole.Choices[0].Message.Content != first.text || whole.Usage.TotalTokens != counted.usage.TotalTokens {
		t.Errorf("as JSON a %s: %+v", how, whole)
	}
	s.reported(t, "stream", figures{Calls: 4, Upstream: 1, Hits: 3})
}

// weather is a request that the simulated model answers with two tool calls.
func weather() openai.ChatCompletionRequest {
	req := ask(simulated, `How is the weather? [[sim: tool=get_weather:{"city":"Paris"} tool=get_weather:{"city":"Lyon"}]]`)
	req.Tools = []openai.Tool{{Type: openai.ToolTypeFunction, Function: &openai.FunctionDefinition{
		Name: "get_weather", Description: "The weather of a city",
		Parameters: map[string]any{"type": "object", "properties": map[string]any{"city": map[string]any{"type": "string"}}},
	}}}
	return req
}

// results is the second turn: the tool calls of the first and what they gave.
func results(req openai.ChatCompletionRequest, calls []openai.ToolCall) openai.ChatCompletionRequest {
	req.Messages = append(slices.Clone(req.Messages), openai.ChatCompletionMessage{Role: "assistant", ToolCalls: calls})
	for i, call := range calls {
		req.Messages = append(req.Messages, openai.ChatCompletionMessage{
			Role: "tool", ToolCallID: call.ID, Content: fmt.Sprintf("It has %d degrees.", 20+i)})
	}
	return req
}

func checkCalls(t *testing.T, calls []openai.ToolCall) {
	t.Helper()
	if len(calls) != 2 {
		t.Fatalf("%d tool calls: %+v", len(calls), calls)
	}
	for i, city := range []string{"Paris", "Lyon"} {
		if f := calls[i].Function; f.Name != "get_weather" || f.Arguments != `{"city":"`+city+`"}` || calls[i].ID == "" {
			t.Errorf("tool call %d: %+v", i, calls[i])
		}
	}
}

func testTools(t *testing.T, s *server) {
	var last string
	for run := range 2 { // the second run is a retry of the whole execution
		client, seen := s.client("tools")
		first, err := client.CreateChatCompletion(t.Context(), weather())
		if err != nil {
			t.Fatal(err)
		}
		calls := first.Choices[0].Message.ToolCalls
		checkCalls(t, calls)
		second, err := client.CreateChatCompletion(t.Context(), results(weather(), calls))
		if err != nil {
			t.Fatal(err)
		}
		text := second.Choices[0].Message.Content
		if how := seen.header("X-LLMProxy-Cache"); how != []string{"miss", "hit"}[run] || !strings.Contains(text, "It has 21 degrees.") {
			t.Errorf("run %d: the second turn was a %s: %q", run, how, text)
		}
		if run == 1 && text != last {
			t.Errorf("the retry got %q", text)
		}
		last = text
		renamed := slices.Clone(calls) // as an agent does that names its calls itself
		for i := range renamed {
			renamed[i].ID = fmt.Sprintf("call_%d9XoQ2vJw7KmZb4TtR%d", run, i)
		}
		if _, err := client.CreateChatCompletion(t.Context(), results(weather(), renamed)); err != nil {
			t.Fatal(err)
		}
		if how := seen.header("X-LLMProxy-Cache"); how != "hit" {
			t.Errorf("run %d: with other ids the second turn was a %s", run, how)
		}
	}
	s.reported(t, "tools", figures{Calls: 6, Upstream: 2, Hits: 4})
}

func testToolsOnAStream(t *testing.T, s *server) {
	var last string
	for run := range 2 {
		client, seen := s.client("streamed-tools")
		first, err := collect(t.Context(), client, weather())
		if err != nil {
			t.Fatal(err)
		}
		checkCalls(t, first.calls)
		if first.finish != "tool_calls" {
			t.Errorf("finish reason %q", first.finish)
		}
		second, err := collect(t.Context(), client, results(weather(), first.calls))
		if err != nil {
			t.Fatal(err)
		}
		if how := seen.header("X-LLMProxy-Cache"); how != []string{"miss", "hit"}[run] || !strings.Contains(second.text, "It has 21 degrees.") {
			t.Errorf("run %d: the second turn was a %s: %q", run, how, second.text)
		}
		if run == 1 && second.text != last {
			t.Errorf("the retry got %q", second.text)
		}
		last = second.text
	}
	s.reported(t, "streamed-tools", figures{Calls: 4, Upstream: 2, Hits: 2})
}

// testTimeOut has a client give up on a call that runs on, and send it again.
func testTimeOut(t *testing.T, s *server) {
	config := openai.DefaultConfig("sk-test")
	config.BaseURL = s.base("time-out")
	config.HTTPClient = &http.Client{Timeout: 500 * time.Millisecond}
	hasty := openai.NewClientWithConfig(config)
	gate := proxytest.NewGate()
	s.scripts[slowModel].Reply(proxytest.JSON(200, proxytest.Completion("worth waiting for")).Hold(gate))
	_, err := hasty.CreateChatCompletion(t.Context(), ask(slowModel, "Take your time"))
	if timeout, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](err); !ok || !timeout.Timeout() {
		t.Fatalf("the hasty client got %v", err)
	}
	proxytest.Wait(t, gate.Reached(), "the upstream call")

	patient, seen := s.client("time-out")
	retry, err := patient.CreateChatCompletionStream(t.Context(), ask(slowModel, "Take your time"))
	if err != nil {
		t.Fatal(err)
	}
	if how := seen.header("X-LLMProxy-Cache"); how != "collapsed" {
		t.Errorf("the retry was a %s", how)
	}
	gate.Open()
	text, err := read(retry)
	if err != nil || text.text != "worth waiting for" {
		t.Errorf("the retry got %+v, %v", text, err)
	}
	late, err := patient.CreateChatCompletion(t.Context(), ask(slowModel, "Take your time"))
	if err != nil || late.Choices[0].Message.Content != "worth waiting for" || seen.header("X-LLMProxy-Cache") != "hit" {
		t.Errorf("a later retry, a %s, got %+v, %v", seen.header("X-LLMProxy-Cache"), late, err)
	}
	if n := s.scripts[slowModel].Count(); n != 1 {
		t.Errorf("%d upstream calls", n)
	}
	s.reported(t, "time-out", figures{Calls: 3, Upstream: 1, Collapsed: 1, Hits: 1})
}

func testBudget(t *testing.T, s *server) {
	client, seen := s.client(poorStep)
	if _, err := client.CreateChatCompletion(t.Context(), ask(simulated, "one")); err != nil {
		t.Fatal(err)
	}
	used := seen.header("X-LLMProxy-Input-Tokens")
	refused := func(form string, err error) {
		t.Helper()
		api, ok := errors.AsType[*openai.APIError](err)
		if !ok {
			t.Fatalf("%s: the client raised %v", form, err)
		}
		if api.HTTPStatusCode != http.StatusPaymentRequired || api.Code != "budget_exceeded" || api.Type != "budget_error" {
			t.Errorf("%s: %d %v %s", form, api.HTTPStatusCode, api.Code, api.Type)
		}
		for _, want := range []string{`Step "poor"`, used + " of " + fmt.Sprint(poorLimit) + " input tokens", "budget_exceeded"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: the client shows %q, which lacks %q", form, err, want)
			}
		}
	}
	_, err := client.CreateChatCompletion(t.Context(), ask(simulated, "two"))
	refused("JSON", err)
	_, err = collect(t.Context(), client, ask(simulated, "three"))
	refused("stream", err)
	if seen.requests != 3 {
		t.Errorf("the client sent %d requests, want one a call", seen.requests)
	}
	if _, err := client.CreateChatCompletion(t.Context(), ask(simulated, "one")); err != nil || seen.header("X-LLMProxy-Cache") != "hit" {
		t.Errorf("what is stored, over budget: %v", err)
	}
	s.reported(t, poorStep, figures{Calls: 4, Upstream: 1, Hits: 1, Refused: 2})
}

// testBrokenStream has the upstream fail in mid-stream, in every way it can.
func testBrokenStream(t *testing.T, s *server) {
	for _, way := range []string{"cut_after=4", "end_after=4", "error_after=4"} {
		client, _ := s.client("broken")
		req := ask(simulated, "Talk until it breaks. [[sim: "+way+"]]")
		for range 2 { // nothing of it is stored, and a retry joins nothing that has failed
			whole, err := collect(t.Context(), client, req)
			if err == nil || whole.chunks == 0 {
				t.Errorf("%s on a stream: %d chunks, then %v", way, whole.chunks, err)
			}
		}
		whole, err := client.CreateChatCompletion(t.Context(), req)
		if way == "error_after=4" { // 200 with an error object, which go-openai takes for an answer
			if err != nil || len(whole.Choices) > 0 {
				t.Errorf("%s on JSON: %+v, %v", way, whole, err)
			}
		} else if api, ok := errors.AsType[*openai.APIError](err); !ok || api.HTTPStatusCode != http.StatusBadGateway || api.Message == "" {
			t.Errorf("%s on JSON raised %v", way, err)
		}
	}
	s.reported(t, "broken", figures{Calls: 9, Upstream: 9, Failed: 9})
}

func testModels(t *testing.T, s *server) {
	client, _ := s.client("models")
	list, err := client.ListModels(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Models) != 1 || list.Models[0].ID != simulated {
		t.Errorf("%+v", list.Models)
	}
}

func testEmbeddings(t *testing.T, s *server) {
	client, _ := s.client("go-openai-embeddings")
	for range 2 {
		got, err := client.CreateEmbeddings(t.Context(), openai.EmbeddingRequest{Model: embeddingModel, Input: s.text})
		if err != nil {
			t.Fatal(err)
		}
		sameVector(t, got.Data[0].Embedding, s.vector)
	}
	s.reported(t, "go-openai-embeddings", figures{Calls: 2, Upstream: 1, Hits: 1})
}

// naming is a transport that names the step by a header, the only way that the
// library has beside the base URL.
type naming struct{ step string }

func (n naming) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Set("X-LLMProxy-Step", n.step)
	return http.DefaultTransport.RoundTrip(req)
}

func testStepByHeader(t *testing.T, s *server) {
	config := openai.DefaultConfig("sk-test")
	config.BaseURL = s.url + "/v1"
	config.HTTPClient = &http.Client{Transport: naming{"go-openai-header"}}
	if _, err := openai.NewClientWithConfig(config).CreateChatCompletion(t.Context(), ask(simulated, "Hello")); err != nil {
		t.Fatal(err)
	}
	s.reported(t, "go-openai-header", figures{Calls: 1, Upstream: 1})
}
