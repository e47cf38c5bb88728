package proxy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// A modelResponse is one answer of the Responses endpoint. Its stream ends with an
// event that holds the whole of it, so nothing has to be put together.
type modelResponse struct {
	raw     []byte           // the response object, nil while it has not come
	items   map[int64][]byte // finished output items of a stream, by their index
	written strings.Builder  // the texts of a stream's deltas
	fault   string           // why this is no whole answer
}

// The events that end a stream.
const (
	responseCompleted  = "response.completed"
	responseIncomplete = "response.incomplete"
	responseFailed     = "response.failed"
)

func (r *modelResponse) parse(body []byte) error {
	r.raw, r.fault = bytes.TrimSpace(body), ""
	err := checkAnswer(r.raw, "output")
	if err != nil {
		r.fault = faultOf(err)
	}
	return err
}

// checkAnswer tells what is wrong with an answer that has to be an object with a
// list of that name.
func checkAnswer(body []byte, list string) error {
	if !json.Valid(body) || jsonKind(body) != '{' {
		return errNoChunk
	}
	if failure := jsonGet(body, "error"); !jsonEmpty(failure) {
		return newChunkError(failure)
	}
	if jsonKind(jsonGet(body, list)) != '[' {
		return errors.New("no " + list)
	}
	return nil
}

// faultOf is why an answer with such an error is not stored.
func faultOf(err error) string {
	var failed *chunkError
	if errors.As(err, &failed) {
		return "error object"
	}
	return err.Error()
}

func (r *modelResponse) event(data []byte) (last bool, err error) {
	data = bytes.TrimSpace(data)
	if isDone(data) { // some compatible upstreams end with it, after what counts
		return false, nil
	}
	if !json.Valid(data) || jsonKind(data) != '{' {
		r.fault = "not a JSON object"
		return false, errNoChunk
	}
	var kind string
	var whole, index, item, delta, failure []byte
	for name, value := range jsonMembers(data) {
		switch string(name) {
		case "type":
			kind = jsonText(value)
		case "response":
			whole = value
		case "output_index":
			index = value
		case "item":
			item = value
		case "delta":
			delta = value
		case "error":
			failure = value
		}
	}
	switch kind {
	case responseCompleted, responseIncomplete, responseFailed:
		err := r.parse(r.whole(whole))
		return err == nil, err
	case "response.output_item.done":
		if at, ok := jsonInt(index); ok {
			if r.items == nil {
				r.items = map[int64][]byte{}
			}
			r.items[at] = item
		}
	default:
		if kind == "error" || !jsonEmpty(failure) {
			r.fault = "error object"
			if jsonKind(failure) != '{' {
				failure = flatError(data)
			}
			return false, newChunkError(failure)
		}
		if strings.HasSuffix(kind, ".delta") {
			r.written.WriteString(jsonText(delta))
		}
	}
	return false, nil
}

// flatError makes an error object of an error event that is one itself.
func flatError(event []byte) []byte {
	b := []byte(`{"type":"server_error"`)
	for name, value := range jsonMembers(event) {
		switch string(name) {
		case "code", "message", "param":
			b = append(appendJSONName(append(b, ','), string(name)), value...)
		}
	}
	return append(b, '}')
}

// whole puts the finished items into a response object that came without any, as
// some compatible upstreams end their streams.
func (r *modelResponse) whole(object []byte) []byte {
	if len(r.items) == 0 || !jsonEmpty(jsonGet(object, "output")) || jsonKind(object) != '{' {
		return object
	}
	output := []byte{'['}
	for i := range int64(len(r.items)) {
		if i > 0 {
			output = append(output, ',')
		}
		item, ok := r.items[i]
		if !ok { // one never ended
			return object
		}
		output = append(output, item...)
	}
	return withMember(object, "output", append(output, ']'))
}

// withMember returns the object with one member set.
func withMember(object []byte, name string, value []byte) []byte {
	b, found := []byte{'{'}, false
	for n, v := range jsonMembers(object) {
		if string(n) == name {
			v, found = value, true
		}
		b = append(append(appendJSONName(b, string(n)), v...), ',')
	}
	if !found {
		b = append(append(appendJSONName(b, name), value...), ',')
	}
	return append(bytes.TrimSuffix(b, []byte{','}), '}')
}

// closing: only the last event has the whole response.
func (r *modelResponse) closing() []byte { return nil }

// judge lets a completed response be stored that says something or calls
// something, with arguments that are JSON. Reasoning alone is no answer.
func (r *modelResponse) judge(storeRules) (reason string) {
	if r.fault != "" {
		return r.fault
	}
	if status := r.finish(); status != "completed" {
		return "status " + printable(status)
	}
	says := false
	for item := range jsonItems(jsonGet(r.raw, "output")) {
		switch jsonText(jsonGet(item, "type")) {
		case "reasoning":
		case "message":
			for part := range jsonItems(jsonGet(item, "content")) {
				says = says || !blank(jsonGet(part, "text")) || !blank(jsonGet(part, "refusal"))
			}
		case "function_call":
			if !validArguments(item) {
				return "tool arguments are not JSON"
			}
			says = true
		default: // a custom tool's call, a picture, a search, something newer
			says = true
		}
	}
	if !says {
		return "empty"
	}
	return ""
}

// finish is the response's status, or why it is not complete.
func (r *modelResponse) finish() string {
	if reason := jsonText(jsonGet(r.raw, "incomplete_details", "reason")); reason != "" {
		return reason
	}
	return jsonText(jsonGet(r.raw, "status"))
}

func (r *modelResponse) usage() (u usage, odd, ok bool) {
	return readUsage(jsonGet(r.raw, "usage"), "input", "output")
}

func (r *modelResponse) text() string {
	if r.raw == nil {
		return r.written.String()
	}
	var b strings.Builder
	for item := range jsonItems(jsonGet(r.raw, "output")) {
		writeText(&b, jsonGet(item, "content"))
		writeText(&b, jsonGet(item, "summary"))
		writeCall(&b, item)
	}
	return b.String()
}

func (r *modelResponse) body() ([]byte, error) {
	if r.raw == nil || r.fault != "" && r.fault != "error object" {
		return nil, fmt.Errorf("assembling the answer: %s", r.fault)
	}
	return r.raw, nil
}

// rewordFailure makes an error of a response that failed as well as of an event
// that says so without an error object: most clients take neither for a failure.
func rewordFailure(event, body []byte, sent int) []byte {
	if data, _ := eventData(event); jsonText(jsonGet(data, "type")) == responseFailed {
		return append(event, responseErrorEvent(body, sent+1)...)
	}
	return responseErrorEvent(body, sent)
}

// responseErrorEvent carries an error body in a stream of the Responses
// endpoint. Some clients look for the event's name and others for the member
// error, so it has both.
func responseErrorEvent(body []byte, sent int) []byte {
	object := jsonGet(body, "error")
	b := append([]byte("event: error\ndata: {\"error\":"), onOneLine(object)...)
	b = append(b, `,"type":"error"`...)
	for _, name := range []string{"code", "message", "param"} {
		value := jsonGet(object, name)
		if jsonKind(value) == 0 {
			value = []byte("null")
		}
		b = append(appendJSONName(append(b, ','), name), onOneLine(value)...)
	}
	return fmt.Appendf(b, ",\"sequence_number\":%d}\n\n", sent)
}
