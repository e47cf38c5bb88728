package sim

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"

	openai "github.com/sashabaranov/go-openai"
)

// sse is one event of a stream as a client reads it.
type sse struct{ name, data string }

// events splits a whole stream into its events and fails on anything that is
// not one.
func events(t *testing.T, stream string) []sse {
	t.Helper()
	var list []sse
	for frame := range strings.SplitSeq(strings.TrimSuffix(stream, "\n\n"), "\n\n") {
		var e sse
		head, data, named := strings.Cut(frame, "\ndata: ")
		if named {
			e.name = strings.TrimPrefix(head, "event: ")
		} else {
			data = strings.TrimPrefix(frame, "data: ")
		}
		if e.data = data; strings.Contains(data, "\n") || named != strings.HasPrefix(frame, "event: ") {
			t.Fatalf("not an event: %q", frame)
		}
		list = append(list, e)
	}
	return list
}

type chunk struct {
	ID      string
	Object  string
	Choices []struct {
		Index int
		Delta struct {
			Role      string
			Content   *string
			ToolCalls []struct {
				Index    *int
				ID, Type string
				Function struct{ Name, Arguments string }
			} `json:"tool_calls"`
		}
		Finish *string `json:"finish_reason"`
	}
	Usage json.RawMessage
}

func chunks(t *testing.T, body string) (list []chunk, ended bool) {
	t.Helper()
	status, header, stream := post(t, new(Model), "/v1/chat/completions", body)
	if status != 200 || header.Get("Content-Type") != "text/event-stream; charset=utf-8" || header.Get("X-Simulated") != "true" {
		t.Fatalf("%d %v %s", status, header, stream)
	}
	for _, e := range events(t, stream) {
		if e.name != "" || ended {
			t.Errorf("unexpected event %+v", e)
		}
		if ended = e.data == "[DONE]"; !ended {
			list = append(list, decode[chunk](t, e.data))
		}
	}
	return list, ended
}

func TestChatStream(t *testing.T) {
	const streamed = `,"stream":true,"stream_options":{"include_usage":true},"n":2`
	list, ended := chunks(t, ask("Say it", streamed))
	whole := chatOK(t, new(Model), ask("Say it", `,"n":2`))

	var text [2]string
	var finished [2]bool
	for i, c := range list {
		if c.ID != list[0].ID || c.Object != "chat.completion.chunk" {
			t.Fatalf("chunk %d = %+v", i, c)
		}
		if last := i == len(list)-1; last != (len(c.Choices) == 0) || last == (string(c.Usage) == "null") {
			t.Errorf("chunk %d of %d has %d choices and the usage %s", i, len(list), len(c.Choices), c.Usage)
		}
		for _, choice := range c.Choices {
			if role := choice.Delta.Role; (role == "assistant") != (i < 2) || finished[choice.Index] {
				t.Errorf("chunk %d = %+v", i, c)
			}
			if choice.Delta.Content != nil {
				text[choice.Index] += *choice.Delta.Content
			}
			if finished[choice.Index] = choice.Finish != nil; choice.Finish != nil && (*choice.Finish != "stop" || choice.Delta.Content != nil) {
				t.Errorf("the last chunk of a choice is %+v", choice)
			}
		}
	}
	if !ended || text[0] != whole.text() || text[1] != *whole.Choices[1].Message.Content || finished != [2]bool{true, true} {
		t.Errorf("ended %v, finished %v, text %q; a JSON answer says %q", ended, finished, text, whole.text())
	}
	type usage struct {
		Total int `json:"total_tokens"`
	}
	if u := decode[usage](t, string(list[len(list)-1].Usage)); u.Total != whole.Usage.Total {
		t.Errorf("usage %+v; a JSON answer says %+v", u, whole.Usage)
	}
}

func TestUsageChunkOnlyWhenAsked(t *testing.T) {
	for _, body := range []string{
		ask("Say it", `,"stream":true`),
		ask("Say it", `,"stream":true,"stream_options":{"include_usage":false}`),
		ask("Say it [[sim: no_usage]]", `,"stream":true,"stream_options":{"include_usage":true}`),
	} {
		list, ended := chunks(t, body)
		for _, c := range list {
			if c.Usage != nil || len(c.Choices) != 1 {
				t.Errorf("%s\nhas the chunk %+v", body, c)
			}
		}
		if !ended {
			t.Errorf("%s\nends without [DONE]", body)
		}
	}
}

func TestToolCallStream(t *testing.T) {
	list, _ := chunks(t, ask(`[[sim: tool=f:{"city":"Paris"} tool=g:{"é":"ü"} chunks=4]]`, `,"stream":true`))
	var ids, names, arguments [2]string
	pieces := 0
	for _, c := range list {
		for _, call := range c.Choices[0].Delta.ToolCalls {
			ids[*call.Index] += call.ID
			names[*call.Index] += call.Function.Name
			arguments[*call.Index] += call.Function.Arguments
			pieces++
		}
	}
	if names != [2]string{"f", "g"} || arguments != [2]string{`{"city":"Paris"}`, `{"é":"ü"}`} || pieces != 10 || ids[0] == ids[1] {
		t.Errorf("ids %v, names %v, arguments %v in %d pieces", ids, names, arguments, pieces)
	}
	if finish := list[len(list)-1].Choices[0].Finish; finish == nil || *finish != "tool_calls" {
		t.Errorf("the last chunk is %+v", list[len(list)-1])
	}
	if content := list[0].Choices[0].Delta.Content; content != nil { // a stream adds up to the message of a JSON answer
		t.Errorf("the content is %q, want null", *content)
	}
}

func TestChunks(t *testing.T) {
	for _, tt := range []struct {
		directives string
		want       []string
	}{
		{`say="one  two three "`, []string{"", "one", " ", " two", " three", " "}},
		{`say="aéü日本" chunks=2`, []string{"", "aé", "ü日本"}},
		{`say="aé" chunks=9`, []string{"", "a", "é"}},
		{`words=0 chunks=3`, []string{""}},
	} {
		list, _ := chunks(t, ask("[[sim: "+tt.directives+"]]", `,"stream":true`))
		var got []string
		for _, c := range list {
			if content := c.Choices[0].Delta.Content; content != nil {
				got = append(got, *content)
			}
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, want %q", tt.directives, got, tt.want)
		}
	}
}

// The faults of a stream, over a real connection and without one.
func TestFaultsOfStreams(t *testing.T) {
	srv := httptest.NewServer(new(Model))
	defer srv.Close()
	for name, client := range map[string]*http.Client{"socket": srv.Client(), "in process": {Transport: Transport(new(Model))}} {
		for _, tt := range []struct {
			directive, path string
			events          int
			cut             bool
			last            string
		}{
			{"cut_after=0", "chat/completions", 0, true, ""},
			{"cut_after=3", "chat/completions", 3, true, `"delta":{"content":" 2"}`},
			{"end_after=3", "chat/completions", 3, false, `"delta":{"content":" 2"}`},
			{"error_after=2", "chat/completions", 3, false, `{"error":{"code":"server_error"`},
			{"finish=none", "chat/completions", 6, false, `[DONE]`},
			{"cut_after=6", "chat/completions", 6, false, `[DONE]`},
			{"cut_after=1", "completions", 1, true, `"text":"1"`},
			{"error_after=1", "completions", 2, false, `{"error":{"code":"server_error"`},
			{"cut_after=5", "responses", 5, true, `"type":"response.output_text.delta"`},
			{"error_after=5", "responses", 6, false, `"sequence_number":5,"type":"error"`},
			{"finish=none", "responses", 10, false, `"type":"response.output_item.done"`},
			{"finish=length", "responses", 11, false, `"status":"incomplete"`},
			{"finish=content_filter", "responses", 11, false, `"incomplete_details":{"reason":"content_filter"}`},
		} {
			t.Run(fmt.Sprint(name, " ", tt.path, " ", tt.directive), func(t *testing.T) {
				prompt := fmt.Sprintf(`[[sim: say=\"1 2 3\" %s]]`, tt.directive)
				body := fmt.Sprintf(`{"model":"m","stream":true,"input":"%[1]s","prompt":"%[1]s","messages":[{"role":"user","content":"%[1]s"}]}`, prompt)
				resp, err := client.Post(srv.URL+"/v1/"+tt.path, "application/json", strings.NewReader(body))
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				stream, err := io.ReadAll(resp.Body)
				if cut := errors.Is(err, io.ErrUnexpectedEOF); cut != tt.cut || err != nil && !cut || resp.StatusCode != 200 {
					t.Errorf("status %d, error %v, want cut %v", resp.StatusCode, err, tt.cut)
				}
				if n := strings.Count(string(stream), "data: "); n != tt.events {
					t.Fatalf("%d events, want %d: %s", n, tt.events, stream)
				}
				if tt.events > 0 {
					if list := events(t, string(stream)); !strings.Contains(list[len(list)-1].data, tt.last) {
						t.Errorf("the last event is %+v, want %s", list[len(list)-1], tt.last)
					}
				}
			})
		}
	}
}

func TestResponseStream(t *testing.T) {
	status, _, stream := post(t, new(Model), "/v1/responses",
		`{"model":"m","stream":true,"instructions":"Be brief.","input":[{"role":"user","content":[{"type":"input_text","text":"[[sim: say=\"one two\" tool=f:{\"a\":1} reasoning=5]]"}]}]}`)
	if status != 200 {
		t.Fatalf("%d %s", status, stream)
	}
	var kinds []string
	var last string
	for i, e := range events(t, stream) {
		head := decode[struct {
			Type   string
			Number int `json:"sequence_number"`
		}](t, e.data)
		if head.Type != e.name || head.Number != i {
			t.Errorf("event %d is %s with %+v", i, e.name, head)
		}
		kinds, last = append(kinds, strings.TrimPrefix(e.name, "response.")), e.data
	}
	if want := strings.Fields(`created in_progress
		output_item.added content_part.added output_text.delta output_text.delta output_text.done content_part.done output_item.done
		output_item.added function_call_arguments.delta function_call_arguments.delta function_call_arguments.delta function_call_arguments.done output_item.done
		completed`); !slices.Equal(kinds, want) {
		t.Errorf("events %v", kinds)
	}
	final := decode[struct{ Response map[string]any }](t, last).Response
	_, _, answer := post(t, new(Model), "/v1/responses",
		`{"model":"m","instructions":"Be brief.","input":[{"role":"user","content":[{"type":"input_text","text":"[[sim: say=\"one two\" tool=f:{\"a\":1} reasoning=5]]"}]}]}`)
	whole := decode[map[string]any](t, answer)
	for _, member := range []string{"status", "usage", "instructions", "error", "tools", "model", "object"} {
		if want, ok := whole[member]; !ok || !reflect.DeepEqual(final[member], want) {
			t.Errorf("%s is %v in the stream, %v in the JSON answer", member, final[member], want)
		}
	}
	usage := whole["usage"].(map[string]any)
	if usage["output_tokens"] != 2.0+1+1+5 || usage["total_tokens"] != usage["input_tokens"].(float64)+9 {
		t.Errorf("usage = %v", usage)
	}
}

func TestResponseLoop(t *testing.T) {
	_, _, answer := post(t, new(Model), "/v1/responses", `{"model":"m","input":[
		{"role":"user","content":"[[sim: tool=f]]"},
		{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},
		{"type":"function_call_output","call_id":"c","output":"18 degrees"}]}`)
	if !strings.Contains(answer, "[simulated] The tool said: “18 degrees”") || strings.Contains(answer, `"function_call"`) {
		t.Errorf("answer = %s", answer)
	}
}

// A client that leaves in mid-stream ends the handler.
func TestEarlyClose(t *testing.T) {
	ended := make(chan bool, 1)
	model := new(Model)
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() { ended <- true }()
		model.ServeHTTP(w, r)
	})
	srv := httptest.NewServer(handler)
	defer srv.Close()
	for _, client := range []*http.Client{srv.Client(), {Transport: Transport(handler)}} {
		resp, err := client.Post(srv.URL+"/v1/chat/completions", "application/json",
			strings.NewReader(ask("[[sim: chunk_delay=1h]]", `,"stream":true`)))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(resp.Body, make([]byte, 6)); err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		<-ended
	}
}

// The client library that most Go programs use, with a socket and without.
func TestGoOpenAI(t *testing.T) {
	srv := httptest.NewServer(new(Model))
	defer srv.Close()
	config := openai.DefaultConfig("key")
	config.BaseURL = srv.URL + "/v1"
	socket := openai.NewClientWithConfig(config)
	config.HTTPClient = &http.Client{Transport: Transport(new(Model))}
	config.BaseURL = "http://sim.test/v1"
	for name, client := range map[string]*openai.Client{"socket": socket, "in process": openai.NewClientWithConfig(config)} {
		t.Run(name, func(t *testing.T) {
			t.Run("chat", func(t *testing.T) { testGoChat(t, client) })
			t.Run("chat stream", func(t *testing.T) { testGoChatStream(t, client) })
			t.Run("responses", func(t *testing.T) { testGoResponses(t, client) })
			t.Run("embeddings", func(t *testing.T) { testGoEmbeddings(t, client) })
			t.Run("errors", func(t *testing.T) { testGoErrors(t, client) })
		})
	}
}

func goRequest(content string) openai.ChatCompletionRequest {
	return openai.ChatCompletionRequest{Model: "gpt-4.1", Messages: []openai.ChatCompletionMessage{{Role: "user", Content: content}}}
}

func testGoChat(t *testing.T, client *openai.Client) {
	resp, err := client.CreateChatCompletion(t.Context(), goRequest(`[[sim: tool=f:{"a":1} say="one two"]]`))
	if err != nil {
		t.Fatal(err)
	}
	choice := resp.Choices[0]
	if choice.Message.Content != "one two" || choice.FinishReason != "tool_calls" || resp.Usage.CompletionTokens != 4 || resp.SystemFingerprint != "sim" ||
		len(choice.Message.ToolCalls) != 1 || choice.Message.ToolCalls[0].Function.Arguments != `{"a":1}` || resp.Usage.PromptTokensDetails == nil {
		t.Errorf("response = %+v", resp)
	}
}

func testGoChatStream(t *testing.T, client *openai.Client) {
	req := goRequest("Say it [[sim: words=12]]")
	req.StreamOptions = &openai.StreamOptions{IncludeUsage: true}
	stream, err := client.CreateChatCompletionStream(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	var text string
	var usage *openai.Usage
	for {
		part, err := stream.Recv()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if usage = part.Usage; len(part.Choices) > 0 {
			text += part.Choices[0].Delta.Content
		}
	}
	if len(strings.Fields(text)) != 12 || usage == nil || usage.CompletionTokens != 12 {
		t.Errorf("text %q, usage %+v", text, usage)
	}
}

func testGoResponses(t *testing.T, client *openai.Client) {
	req := openai.CreateResponseRequest{Model: "gpt-4.1", Input: "Say it [[sim: words=12]]"}
	resp, err := client.CreateResponse(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := client.CreateResponseStream(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	var text string
	var last openai.ResponseStreamEvent
	for {
		event, err := stream.Recv()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if last = event; event.Type == "response.output_text.delta" {
			text += event.Delta
		}
	}
	if want := resp.GetOutputText(); len(strings.Fields(text)) != 12 || text != want || last.Response == nil || last.Response.GetOutputText() != want {
		t.Errorf("deltas %q, JSON answer %q, last event %+v", text, want, last)
	}
}

func testGoEmbeddings(t *testing.T, client *openai.Client) {
	var vectors [2][]float32
	for i, format := range []openai.EmbeddingEncodingFormat{openai.EmbeddingEncodingFormatFloat, openai.EmbeddingEncodingFormatBase64} {
		resp, err := client.CreateEmbeddings(t.Context(), openai.EmbeddingRequest{
			Input: []string{"one", "two"}, Model: openai.SmallEmbedding3, EncodingFormat: format, Dimensions: 16})
		if err != nil {
			t.Fatal(err)
		}
		vectors[i] = resp.Data[1].Embedding
	}
	if len(vectors[0]) != 16 || !slices.Equal(vectors[0], vectors[1]) {
		t.Errorf("float %v, base64 %v", vectors[0], vectors[1])
	}
}

func testGoErrors(t *testing.T, client *openai.Client) {
	_, err := client.CreateChatCompletion(t.Context(), goRequest("[[sim: status=429]]"))
	apiErr, ok := errors.AsType[*openai.APIError](err)
	if !ok || apiErr.HTTPStatusCode != 429 || apiErr.Code != "rate_limit_exceeded" {
		t.Errorf("err = %v", err)
	}
	stream, err := client.CreateChatCompletionStream(t.Context(), goRequest("[[sim: error_after=1]]"))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err == nil || !strings.Contains(err.Error(), "mid-answer") {
		t.Errorf("after the error event: %v", err)
	}
}
