// Package sim is a simulated model: an OpenAI-compatible upstream that lives
// in the program, for demonstrations, tests and benchmarks.
//
// It answers
//
//	POST /v1/chat/completions    JSON and stream, n, tool calls, usage
//	POST /v1/completions         JSON and stream, n, several prompts
//	POST /v1/responses           JSON and the typed event sequence
//	POST /v1/embeddings          float and base64, dimensions
//	GET  /v1/models, /v1/models/{id}
//
// and 404 elsewhere, every error in OpenAI's shape. It takes any model name.
//
// It is deterministic: the same body gets the same bytes, in every process. Id
// and time come from a hash of the body, so two bodies never get the same id;
// the text comes from the model, the seed and the conversation, so a stream
// and a JSON answer to the same question tell the same. It keeps no state but
// a counter, see [Model.Calls].
//
// It says in every answer that it is simulated: in the header "X-Simulated:
// true", in ids that contain "sim", in the system_fingerprint "sim" where the
// API has one, and in its text, which begins with "[simulated]" and repeats
// the first words of the question. Where response_format (or text.format) asks
// for JSON, the text is {"simulated":true,"answer":"…"}; it does not follow a
// schema: use say for that.
//
// # Directives
//
// The last user message (or the last prompt or input) may script the answer.
// Directives stand in double brackets, anywhere in the text, any number of
// them, separated by blanks:
//
//	Summarise this. [[sim: delay=2s words=200]]
//
// What happens and when:
//
//	delay=2s             wait before the first byte, errors included
//	chunk_delay=50ms     wait between two events of a stream
//	status=503           answer with this error status, 400 to 599
//	retry_after=2        with status: send Retry-After, in seconds
//	cut_after=3          cut the connection after 3 events of the stream
//	end_after=3          end the stream cleanly after 3 events, without [DONE]
//	error_after=3        send an error event after 3 events, then end cleanly
//
// A JSON answer has no events. There cut_after cuts the connection in the
// middle of the body, end_after ends the body there, and error_after answers
// 200 with an error object. A stream that has fewer events is complete.
//
// What is said:
//
//	words=200            the length of the text (default: 25 words and up to
//	                     the end of a sentence); 0 is an empty answer
//	say="Yes, indeed."   exactly this text, a JSON string
//	seed=7               another text for the same question
//	chunks=5             the number of pieces a stream sends the text in
//	                     (default: a word each) and each tool call's
//	                     arguments (default: 3)
//	tool=get_weather:{"city":"Paris"}
//	                     call a tool; several are parallel calls. With say,
//	                     the text comes first. Once the conversation goes on
//	                     with the tool's result, the answer is text.
//	finish=length        the finish reason, any word; none leaves it out. For
//	                     the Responses API length and content_filter make the
//	                     response incomplete, none leaves it in progress.
//
// What is reported:
//
//	no_usage             leave the usage out
//	cached=100           so many of the input tokens were cached
//	reasoning=64         so many output tokens of reasoning, on top of the text
//
// Embeddings have no text and no events to script: they take delay, status,
// retry_after, cut_after, end_after, error_after, no_usage and seed.
// Completions take all but tool and reasoning. Whatever else stands in the
// brackets is a 400 that says how to write it.
//
// # Tokens
//
// A text counts as [Model.CountText] says, one token a word by default. A
// conversation counts 3 tokens, and for each message 3, its role, its text,
// the names and arguments of its tool calls, its name and 1 more if it has
// one, and 85 for each part that is not text; tools count as their JSON. This
// is the rule that OpenAI's cookbook gives for chats, so with a tokenizer for
// CountText plain chats count as they do there. max_completion_tokens,
// max_tokens and max_output_tokens cut the text, with the finish reason length.
package sim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
)

// maxBody is the largest request body that a Model reads, in bytes.
const maxBody = 64 << 20

// Model is the simulated upstream, an http.Handler. Its zero value is ready to
// use. Its fields must not change once it serves; it is safe for concurrent
// use.
type Model struct {
	// CountText counts the tokens of a text. Nil counts words. A longer text
	// must not count less than its beginning.
	CountText func(text string) int

	// Names are the models that /v1/models lists. Nil lists "sim" alone.
	Names []string

	calls atomic.Int64
}

// Calls returns how many answers were asked for so far: POSTs to the four
// generating endpoints, failed ones included.
func (m *Model) Calls() int64 { return m.calls.Load() }

// ServeHTTP implements http.Handler. It ends a cut answer, and one whose
// client has gone, by panicking with http.ErrAbortHandler.
func (m *Model) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Simulated", "true")
	err := m.route(w, r)
	if err == nil {
		return
	}
	apiErr, ok := errors.AsType[*apiError](err)
	if !ok { // the connection is cut or lost: nobody hears an error
		panic(http.ErrAbortHandler)
	}
	if apiErr.retryAfter != "" {
		w.Header().Set("Retry-After", apiErr.retryAfter)
	}
	if err := writeJSON(w, apiErr.status, marshal(apiErr)); err != nil {
		panic(http.ErrAbortHandler)
	}
}

func (m *Model) route(w http.ResponseWriter, r *http.Request) error {
	method, generate := http.MethodPost, (func(*body) (*answer, error))(nil)
	switch r.URL.Path {
	case "/v1/chat/completions":
		generate = m.chat
	case "/v1/completions":
		generate = m.completion
	case "/v1/responses":
		generate = m.response
	case "/v1/embeddings":
		generate = m.embedding
	default:
		if r.URL.Path != "/v1/models" && !strings.HasPrefix(r.URL.Path, "/v1/models/") {
			return &apiError{status: 404, kind: invalidRequest, code: "unknown_url",
				message: fmt.Sprintf("[simulated] unknown URL %s %s; under /v1 there are chat/completions, completions, responses, embeddings and models",
					r.Method, r.URL.Path)}
		}
		method = http.MethodGet
	}
	if r.Method != method {
		w.Header().Set("Allow", method)
		return &apiError{status: 405, kind: invalidRequest, code: "method_not_allowed",
			message: fmt.Sprintf("[simulated] %s takes %s, not %s", r.URL.Path, method, r.Method)}
	}
	if generate == nil {
		return m.models(w, strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, "/v1/models"), "/"))
	}

	m.calls.Add(1)
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return &apiError{status: 413, kind: invalidRequest, code: "request_too_large",
			message: fmt.Sprintf("[simulated] the body is larger than %d bytes", tooLarge.Limit)}
	} else if err != nil {
		return fmt.Errorf("reading the request: %w", err)
	}
	b, err := parseBody(data)
	if err != nil {
		return err
	}
	w.Header().Set("X-Request-Id", "req_sim"+b.id)
	w.Header().Set("Openai-Version", "2020-10-01")
	a, err := generate(b)
	if err != nil {
		return err
	}
	return a.play(w, r)
}

// models writes the list of models, or the one called id.
func (m *Model) models(w http.ResponseWriter, id string) error {
	names := m.Names
	if names == nil {
		names = []string{"sim"}
	}
	list := []object{}
	for _, name := range names {
		entry := object{"id": name, "object": "model", "created": epoch, "owned_by": "sim"}
		if name == id {
			return writeJSON(w, 200, marshal(entry))
		}
		list = append(list, entry)
	}
	if id == "" {
		return writeJSON(w, 200, marshal(object{"object": "list", "data": list}))
	}
	return &apiError{status: 404, kind: invalidRequest, code: "model_not_found", param: "model",
		message: fmt.Sprintf("[simulated] the model %q is not listed; ask /v1/models for the names", id)}
}

// object is a JSON object. Its members are written in the order of their names.
type object map[string]any

// marshal encodes v as OpenAI does, without escapes for HTML. It panics on a
// value that JSON cannot hold, which would be a mistake in this package.
func marshal(v any) []byte {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(fmt.Sprintf("sim: encoding an answer: %v", err))
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n"))
}

func writeJSON(w http.ResponseWriter, status int, data []byte) error {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	w.WriteHeader(status)
	_, err := w.Write(data)
	return err
}
