package proxy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// unroll makes the whole typed sequence of a stream: clients put the answer
// together from it, and miss any event that is left out.
func (r *modelResponse) unroll(bool) ([][]byte, error) {
	if r.fault != "" {
		return nil, errors.New("making a stream of the answer: " + r.fault)
	}
	u := &responseUnroller{}
	begun := withMember(withMember(withMember(r.raw, "status", []byte(`"in_progress"`)), "output", []byte("[]")), "usage", []byte("null"))
	u.send("response.created", `"response":%s`, begun)
	u.send("response.in_progress", `"response":%s`, begun)
	index := 0
	for item := range jsonItems(jsonGet(r.raw, "output")) {
		u.item(index, item)
		index++
	}
	end := responseCompleted
	if jsonText(jsonGet(r.raw, "status")) == "incomplete" {
		end = responseIncomplete
	}
	u.send(end, `"response":%s`, r.raw)
	return u.events, u.err
}

// A responseUnroller writes the events of one response.
type responseUnroller struct {
	events [][]byte
	err    error
}

// send emits an event of that type with further members.
func (u *responseUnroller) send(kind, members string, args ...any) {
	payload := fmt.Appendf(nil, `{"type":"%s","sequence_number":%d,`, kind, len(u.events))
	payload = append(fmt.Appendf(payload, members, args...), '}')
	event := bytes.NewBufferString("event: " + kind + "\ndata: ")
	if err := json.Compact(event, payload); err != nil { // an event's data has no line end
		u.err = errors.Join(u.err, err)
	}
	event.WriteString("\n\n")
	u.events = append(u.events, event.Bytes())
}

// item emits the events of one output item: it is added empty, its parts follow
// in pieces, and it is done whole.
func (u *responseUnroller) item(index int, item []byte) {
	of := itemOf{u: u, at: fmt.Sprintf(`"item_id":%s,"output_index":%d`, orEmpty(jsonGet(item, "id")), index)}
	added := item
	if jsonKind(jsonGet(item, "status")) != 0 {
		added = withMember(item, "status", []byte(`"in_progress"`))
	}
	switch jsonText(jsonGet(item, "type")) {
	case "message":
		u.added(index, withMember(added, "content", []byte("[]")))
		of.parts(jsonGet(item, "content"))
	case "reasoning":
		added = withMember(added, "summary", []byte("[]"))
		if jsonKind(jsonGet(item, "content")) == '[' {
			added = withMember(added, "content", []byte("[]"))
		}
		u.added(index, added)
		of.summary(jsonGet(item, "summary"))
		of.parts(jsonGet(item, "content"))
	case "function_call":
		u.added(index, withMember(added, "arguments", []byte(`""`)))
		arguments := orEmpty(jsonGet(item, "arguments"))
		of.deltas("response.function_call_arguments.delta", "", arguments)
		u.send("response.function_call_arguments.done", `%s,"name":%s,"arguments":%s`, of.at, orEmpty(jsonGet(item, "name")), arguments)
	case "custom_tool_call":
		u.added(index, withMember(added, "input", []byte(`""`)))
		input := orEmpty(jsonGet(item, "input"))
		of.deltas("response.custom_tool_call_input.delta", "", input)
		u.send("response.custom_tool_call_input.done", `%s,"input":%s`, of.at, input)
	default:
		u.added(index, added)
	}
	u.send("response.output_item.done", `"output_index":%d,"item":%s`, index, item)
}

func (u *responseUnroller) added(index int, item []byte) {
	u.send("response.output_item.added", `"output_index":%d,"item":%s`, index, item)
}

// orEmpty is a string, "" for anything else.
func orEmpty(raw []byte) []byte {
	if jsonKind(raw) != '"' {
		return []byte(`""`)
	}
	return raw
}

// itemOf emits the events that stand inside of an item.
type itemOf struct {
	u  *responseUnroller
	at string // the members that say which item
}

// deltas emits a text in pieces; more are members, each with a comma before it.
func (of itemOf) deltas(kind, more string, text []byte) {
	for _, piece := range textPieces(text) {
		of.u.send(kind, `%s%s,"delta":%s`, of.at, more, piece)
	}
}

// parts emits the content of an item, each part with its kind of delta.
func (of itemOf) parts(content []byte) {
	index := 0
	for part := range jsonItems(content) {
		at := fmt.Sprintf(`,"content_index":%d`, index)
		index++
		var member, kind string
		switch jsonText(jsonGet(part, "type")) {
		case "output_text":
			member, kind = "text", "response.output_text"
		case "refusal":
			member, kind = "refusal", "response.refusal"
		case "reasoning_text":
			member, kind = "text", "response.reasoning_text"
		default:
			of.u.send("response.content_part.added", `%s%s,"part":%s`, of.at, at, part)
			of.u.send("response.content_part.done", `%s%s,"part":%s`, of.at, at, part)
			continue
		}
		text, empty, logprobs := orEmpty(jsonGet(part, member)), withMember(part, member, []byte(`""`)), ""
		if kind == "response.output_text" {
			empty, logprobs = withMember(empty, "annotations", []byte("[]")), `,"logprobs":[]`
		}
		of.u.send("response.content_part.added", `%s%s,"part":%s`, of.at, at, empty)
		of.deltas(kind+".delta", at+logprobs, text)
		of.annotations(at, jsonGet(part, "annotations"))
		of.u.send(kind+".done", `%s%s%s,"%s":%s`, of.at, at, logprobs, member, text)
		of.u.send("response.content_part.done", `%s%s,"part":%s`, of.at, at, part)
	}
}

func (of itemOf) annotations(at string, annotations []byte) {
	index := 0
	for annotation := range jsonItems(annotations) {
		of.u.send("response.output_text.annotation.added", `%s%s,"annotation_index":%d,"annotation":%s`, of.at, at, index, annotation)
		index++
	}
}

// summary emits the parts of a summary of reasoning.
func (of itemOf) summary(summary []byte) {
	index := 0
	for part := range jsonItems(summary) {
		at := fmt.Sprintf(`,"summary_index":%d`, index)
		index++
		text := orEmpty(jsonGet(part, "text"))
		of.u.send("response.reasoning_summary_part.added", `%s%s,"part":%s`, of.at, at, withMember(part, "text", []byte(`""`)))
		of.deltas("response.reasoning_summary_text.delta", at, text)
		of.u.send("response.reasoning_summary_text.done", `%s%s,"text":%s`, of.at, at, text)
		of.u.send("response.reasoning_summary_part.done", `%s%s,"part":%s`, of.at, at, part)
	}
}
