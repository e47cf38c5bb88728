package clients

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/ssestream"
	"github.com/openai/openai-go/v3/responses"
	"github.com/openai/openai-go/v3/shared"
)

const (
	model          = "gpt-4.1-mini"
	embeddingModel = "text-embedding-3-small"
)

// breaks are questions whose answers break off in every way that an upstream has.
var breaks = []string{
	"Talk until it breaks. [[sim: cut_after=6]]",
	"Talk until it breaks. [[sim: end_after=6]]",
	"Talk until it breaks. [[sim: error_after=6]]",
}

// openaiGoChecks are the checks of the official library for Go. Each calls as a step
// of its own, which the base URL names, and the server's side of it is checked when
// it has come to its end.
func openaiGoChecks() map[string]func(*testing.T, *server) {
	checks := map[string]func(*testing.T, *server){}
	for check, work := range map[string]func(*testing.T, openai.Client, *server){
		"chat":              func(t *testing.T, c openai.Client, _ *server) { askTwice(t, chatText(t, c)) },
		"chat stream":       func(t *testing.T, c openai.Client, _ *server) { askTwice(t, chatStreamText(t, c)) },
		"chat tools":        chatTools,
		"responses":         func(t *testing.T, c openai.Client, _ *server) { askTwice(t, responseText(t, c)) },
		"responses stream":  func(t *testing.T, c openai.Client, _ *server) { askTwice(t, responseStreamText(t, c)) },
		"responses tools":   responseTools,
		"embeddings":        embedTwice,
		"time-out":          timeOut,
		"refused chat":      refuseChat,
		"refused responses": refuseResponse,
		"broken chat":       breakChat,
		"broken responses":  breakResponse,
		"step by header":    stepByHeader,
	} {
		checks[check] = func(t *testing.T, s *server) {
			work(t, s.official("openai-go%20"+strings.ReplaceAll(check, " ", "%20")), s)
			s.saw(t, "openai-go", check)
		}
	}
	return checks
}

// official is the official library as a step calls it.
func (s *server) official(step string) openai.Client {
	return openai.NewClient(option.WithBaseURL(s.base(step)), option.WithAPIKey("sk-test"))
}

func chatParams(question string) openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{Model: model, Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage(question)}}
}

func responseParams(question string) responses.ResponseNewParams {
	return responses.ResponseNewParams{Model: model, Input: responses.ResponseNewParamsInputUnion{OfString: openai.String(question)}}
}

// askTwice asks the same question two times, as a retry does.
func askTwice(t *testing.T, ask func(question string) (string, error)) {
	t.Helper()
	var last string
	for run := range 2 {
		text, err := ask("What is new?")
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(text, "What is new?") || run == 1 && text != last {
			t.Errorf("run %d got %q after %q", run, text, last)
		}
		last = text
	}
}

func chatText(t *testing.T, c openai.Client) func(string) (string, error) {
	return func(question string) (string, error) {
		answer, err := c.Chat.Completions.New(t.Context(), chatParams(question))
		if err != nil {
			return "", err
		}
		if answer.Usage.TotalTokens == 0 {
			t.Error("no usage")
		}
		return answer.Choices[0].Message.Content, nil
	}
}

// gather reads a stream to its end; text takes the text out of a piece.
func gather[T any](stream *ssestream.Stream[T], text func(T) string) (whole string, pieces int, err error) {
	defer stream.Close() //nolint:errcheck // it has been read to its end
	for stream.Next() {
		whole += text(stream.Current())
		pieces++
	}
	return whole, pieces, stream.Err()
}

// chunkText fails on a chunk without a choice, which holds a usage that nobody asked
// for.
func chunkText(chunk openai.ChatCompletionChunk) string { return chunk.Choices[0].Delta.Content }

func eventText(event responses.ResponseStreamEventUnion) string {
	if event.Type == "response.output_text.delta" {
		return event.Delta
	}
	return ""
}

func chatStreamText(t *testing.T, c openai.Client) func(string) (string, error) {
	return func(question string) (string, error) {
		text, _, err := gather(c.Chat.Completions.NewStreaming(t.Context(), chatParams(question)), chunkText)
		return text, err
	}
}

func responseText(t *testing.T, c openai.Client) func(string) (string, error) {
	return func(question string) (string, error) {
		response, err := c.Responses.New(t.Context(), responseParams(question))
		if err != nil {
			return "", err
		}
		if response.Usage.TotalTokens == 0 {
			t.Error("no usage")
		}
		return response.OutputText(), nil
	}
}

func responseStreamText(t *testing.T, c openai.Client) func(string) (string, error) {
	return func(question string) (string, error) {
		text, _, err := gather(c.Responses.NewStreaming(t.Context(), responseParams(question)), eventText)
		return text, err
	}
}

// weatherQuestion is answered with two tool calls.
const weatherQuestion = `How is the weather? [[sim: tool=get_weather:{"city":"Paris"} tool=get_weather:{"city":"Lyon"}]]`

var citySchema = map[string]any{"type": "object", "properties": map[string]any{"city": map[string]any{"type": "string"}}}

// forecast is what the tool gives back.
func forecast(t *testing.T, arguments string) string {
	t.Helper()
	var args struct{ City string }
	if err := json.Unmarshal([]byte(arguments), &args); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("It has %d degrees in %s.", 15+len(args.City), args.City)
}

// checkForecast checks the answer of the last turn, which repeats the last result.
func checkForecast(t *testing.T, text string, last *string) {
	t.Helper()
	if !strings.Contains(text, "It has 19 degrees in Lyon.") || *last != "" && text != *last {
		t.Errorf("the answer is %q after %q", text, *last)
	}
	*last = text
}

func chatTools(t *testing.T, c openai.Client, _ *server) {
	var last string
	for range 2 {
		params := chatParams(weatherQuestion)
		params.Tools = []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(
			shared.FunctionDefinitionParam{Name: "get_weather", Parameters: citySchema})}
		first, err := c.Chat.Completions.New(t.Context(), params)
		if err != nil {
			t.Fatal(err)
		}
		message := first.Choices[0].Message
		params.Messages = append(params.Messages, message.ToParam())
		for _, call := range message.ToolCalls {
			params.Messages = append(params.Messages, openai.ToolMessage(forecast(t, call.Function.Arguments), call.ID))
		}
		second, err := c.Chat.Completions.New(t.Context(), params)
		if err != nil {
			t.Fatal(err)
		}
		checkForecast(t, second.Choices[0].Message.Content, &last)
	}
}

func responseTools(t *testing.T, c openai.Client, _ *server) {
	var last string
	for range 2 {
		items := responses.ResponseInputParam{responses.ResponseInputItemParamOfMessage(weatherQuestion, responses.EasyInputMessageRoleUser)}
		params := responses.ResponseNewParams{Model: model, Tools: []responses.ToolUnionParam{responses.ToolParamOfFunction("get_weather", citySchema, true)}}
		params.Input.OfInputItemList = items
		first, err := c.Responses.New(t.Context(), params)
		if err != nil {
			t.Fatal(err)
		}
		for _, item := range first.Output {
			call := item.AsFunctionCall()
			param := call.ToParam()
			items = append(items, responses.ResponseInputItemUnionParam{OfFunctionCall: &param},
				toolOutput(call.CallID, forecast(t, call.Arguments)))
		}
		params.Input.OfInputItemList = items
		second, err := c.Responses.New(t.Context(), params)
		if err != nil {
			t.Fatal(err)
		}
		checkForecast(t, second.OutputText(), &last)
	}
}

func toolOutput(id, text string) responses.ResponseInputItemUnionParam {
	item := responses.ResponseInputItemParamOfFunctionCallOutput(text)
	item.OfFunctionCallOutput.CallID = openai.String(id)
	return item
}

func embedTwice(t *testing.T, c openai.Client, s *server) {
	for range 2 {
		got, err := c.Embeddings.New(t.Context(), openai.EmbeddingNewParams{
			Model: embeddingModel, Input: openai.EmbeddingNewParamsInputUnion{OfString: openai.String(s.text)}})
		if err != nil {
			t.Fatal(err)
		}
		sameVector(t, got.Data[0].Embedding, s.vector)
	}
}

func sameVector[T float32 | float64](t *testing.T, got []T, want []float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("a vector of %d, want %d", len(got), len(want))
	}
	for i := range got {
		if math.Abs(float64(got[i])-want[i]) > 1e-6 {
			t.Fatalf("number %d is %v, want %v", i, got[i], want[i])
		}
	}
}

// timeOut has an attempt time out, which the library does not repeat by itself.
func timeOut(t *testing.T, c openai.Client, _ *server) {
	const hasty = time.Second // the answer takes three
	for range 10 {
		answer, err := c.Chat.Completions.New(t.Context(), chatParams("Take your time. [[sim: delay=3s]]"), option.WithRequestTimeout(hasty))
		if err == nil {
			if text := answer.Choices[0].Message.Content; !strings.Contains(text, "Take your time.") {
				t.Errorf("the answer is %q", text)
			}
			return
		}
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
	}
	t.Error("no attempt got the answer")
}

// checkRefusal checks what the library makes of a refusal.
func checkRefusal(t *testing.T, err error) {
	t.Helper()
	refusal, ok := errors.AsType[*openai.Error](err)
	if !ok || refusal.StatusCode != http.StatusPaymentRequired || !strings.Contains(refusal.Message, "is over its budget") {
		t.Errorf("the library raised %v", err)
	}
}

func refuseChat(t *testing.T, c openai.Client, _ *server) {
	_, err := chatText(t, c)("one")
	checkRefusal(t, err)
}

func refuseResponse(t *testing.T, c openai.Client, _ *server) {
	_, err := responseStreamText(t, c)("one")
	checkRefusal(t, err)
}

func breakChat(t *testing.T, c openai.Client, _ *server) {
	for _, question := range breaks {
		if _, pieces, err := gather(c.Chat.Completions.NewStreaming(t.Context(), chatParams(question)), chunkText); err == nil || pieces == 0 {
			t.Errorf("%s: %d pieces, %v", question, pieces, err)
		}
	}
}

func breakResponse(t *testing.T, c openai.Client, _ *server) {
	for _, question := range breaks {
		if _, pieces, err := gather(c.Responses.NewStreaming(t.Context(), responseParams(question)), eventText); err == nil || pieces == 0 {
			t.Errorf("%s: %d pieces, %v", question, pieces, err)
		}
	}
}

func stepByHeader(t *testing.T, _ openai.Client, s *server) {
	c := openai.NewClient(option.WithBaseURL(s.url+"/v1"), option.WithAPIKey("sk-test"), option.WithHeader("X-LLMProxy-Step", "openai-go step by header"))
	if _, err := chatText(t, c)("Hello"); err != nil {
		t.Error(err)
	}
}
