package sim

import (
	"encoding/json"
	"fmt"
	"maps"
)

// response answers /v1/responses. Nothing is kept: previous_response_id only
// makes the text another one, and no response can be asked for afterwards.
func (m *Model) response(b *body) (*answer, error) {
	o, err := b.options("max_output_tokens")
	if err != nil {
		return nil, err
	}
	var text struct {
		Format textFormat `json:"format"`
	}
	if err := b.get("text", &text); err != nil {
		return nil, err
	}
	o.json = text.Format.json()
	if o.n != 1 {
		return nil, badRequest("n", "the Responses API has no n")
	}
	turns, err := b.turns()
	if err != nil {
		return nil, err
	}
	p, err := m.converse(b, turns)
	if err != nil {
		return nil, err
	}
	reply := m.reply(p, o, 0)
	final := b.responseObject(o, reply)
	if !p.plan.noUsage {
		final["usage"] = object{
			"input_tokens": p.tokens, "input_tokens_details": object{"cached_tokens": min(p.plan.cached, p.tokens)},
			"output_tokens": reply.tokens, "output_tokens_details": object{"reasoning_tokens": p.plan.reasoning},
			"total_tokens": p.tokens + reply.tokens,
		}
	}
	if !o.stream {
		return &answer{plan: p.plan, object: final}, nil
	}
	return &answer{plan: p.plan, broken: responseError, events: func(yield func(event) bool) {
		(&responseStream{final: final, reply: reply, chunks: p.plan.chunks, yield: yield}).play()
	}}, nil
}

// turns reads the input, a text or a list of items, after the instructions.
func (b *body) turns() ([]turn, error) {
	var turns []turn
	var instructions string
	if err := b.get("instructions", &instructions); err != nil {
		return nil, err
	}
	if instructions != "" {
		turns = append(turns, turn{Role: "system", Content: content{text: instructions}})
	}
	var raw json.RawMessage
	if err := b.require("input", &raw); err != nil {
		return nil, err
	}
	if raw[0] == '"' {
		var text content
		if err := b.get("input", &text); err != nil {
			return nil, err
		}
		return append(turns, turn{Role: "user", Content: text}), nil
	}
	var items []turn
	if err := b.get("input", &items); err != nil {
		return nil, err
	}
	if len(items) == 0 {
		return nil, badRequest("input", "input is empty")
	}
	return append(turns, items...), nil
}

// responseObject is the finished response, without its usage.
func (b *body) responseObject(o options, r reply) object {
	status, details := "completed", any(nil)
	switch r.finish {
	case "length":
		status, details = "incomplete", object{"reason": "max_output_tokens"}
	case "content_filter":
		status, details = "incomplete", object{"reason": "content_filter"}
	case "":
		status = "in_progress"
	}
	output := []object{}
	if r.text != "" || len(r.tools) == 0 {
		output = append(output, object{"id": "msg_sim" + b.id, "type": "message", "status": itemStatus(status),
			"role": "assistant", "content": []object{outputText(r.text)}})
	}
	for k, call := range r.tools {
		output = append(output, object{"id": fmt.Sprintf("fc_sim%s%d", b.id, k), "type": "function_call", "status": "completed",
			"call_id": callID(b.id, 0, k), "name": call.name, "arguments": call.arguments})
	}
	return object{
		"id": "resp_sim" + b.id, "object": "response", "created_at": b.created, "model": o.model,
		"status": status, "incomplete_details": details, "error": nil, "output": output,
		"background": false, "service_tier": "default", "truncation": "disabled",
		"instructions": b.or("instructions", nil), "max_output_tokens": b.or("max_output_tokens", nil),
		"metadata": b.or("metadata", object{}), "parallel_tool_calls": b.or("parallel_tool_calls", true),
		"previous_response_id": b.or("previous_response_id", nil), "reasoning": b.or("reasoning", object{"effort": nil, "summary": nil}),
		"store": b.or("store", true), "temperature": b.or("temperature", 1.0), "top_p": b.or("top_p", 1.0),
		"text": b.or("text", object{"format": object{"type": "text"}}), "tool_choice": b.or("tool_choice", "auto"),
		"tools": b.or("tools", []any{}), "user": b.or("user", nil),
	}
}

// itemStatus is the status of a message in a response of the given status.
func itemStatus(response string) string {
	if response == "incomplete" {
		return "incomplete"
	}
	return "completed"
}

func outputText(text string) object {
	return object{"type": "output_text", "text": text, "annotations": []any{}, "logprobs": []any{}}
}

// responseStream sends a finished response as the sequence of typed events
// that would have led to it.
type responseStream struct {
	final  object
	reply  reply
	chunks int
	yield  func(event) bool
	sent   int
	gone   bool // yield has returned false
}

// send yields one event with the given members and its type and number.
func (s *responseStream) send(kind string, members object) {
	if s.gone {
		return
	}
	members["type"], members["sequence_number"] = kind, s.sent
	s.sent++
	s.gone = !s.yield(event{kind, marshal(members)})
}

func (s *responseStream) play() {
	started := s.final.with(object{"status": "in_progress", "output": []any{}, "incomplete_details": nil, "usage": nil})
	s.send("response.created", object{"response": started})
	s.send("response.in_progress", object{"response": started})
	for i, item := range s.final["output"].([]object) {
		if item["type"] == "message" {
			s.message(i, item)
		} else {
			s.call(i, item)
		}
	}
	if status := s.final["status"]; status != "in_progress" {
		s.send(fmt.Sprintf("response.%s", status), object{"response": s.final})
	}
}

func (s *responseStream) message(index int, item object) {
	of := object{"item_id": item["id"], "output_index": index, "content_index": 0}
	s.send("response.output_item.added", object{"output_index": index, "item": item.with(object{"status": "in_progress", "content": []any{}})})
	s.send("response.content_part.added", of.with(object{"part": outputText("")}))
	for _, piece := range split(s.reply.text, s.chunks) {
		s.send("response.output_text.delta", of.with(object{"delta": piece, "logprobs": []any{}}))
	}
	s.send("response.output_text.done", of.with(object{"text": s.reply.text, "logprobs": []any{}}))
	s.send("response.content_part.done", of.with(object{"part": outputText(s.reply.text)}))
	s.send("response.output_item.done", object{"output_index": index, "item": item})
}

func (s *responseStream) call(index int, item object) {
	of := object{"item_id": item["id"], "output_index": index}
	arguments := item["arguments"].(string)
	s.send("response.output_item.added", object{"output_index": index, "item": item.with(object{"status": "in_progress", "arguments": ""})})
	for _, piece := range split(arguments, argumentPieces(s.chunks)) {
		s.send("response.function_call_arguments.delta", of.with(object{"delta": piece}))
	}
	s.send("response.function_call_arguments.done", of.with(object{"arguments": arguments, "name": item["name"]}))
	s.send("response.output_item.done", object{"output_index": index, "item": item})
}

// with returns a copy of o with the members of other, which win.
func (o object) with(other object) object {
	c := maps.Clone(o)
	maps.Copy(c, other)
	return c
}

// responseError is the error event of the Responses API, as OpenAI sends it.
func responseError(sent int) event {
	e := midStream()
	return event{"error", marshal(object{"type": "error", "code": e.code, "message": e.message, "param": nil, "sequence_number": sent})}
}
