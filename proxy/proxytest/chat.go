package proxytest

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Done is the event that ends a stream of chat chunks.
const Done = "data: [DONE]\n\n"

// Data is an event without a name.
func Data(data string) string { return "data: " + data + "\n\n" }

// Event is an event with a name.
func Event(name, data string) string { return "event: " + name + "\ndata: " + data + "\n\n" }

// Comment is a comment, as servers send to keep a connection alive.
func Comment(text string) string { return ": " + text + "\n\n" }

// ErrorEvent is an error in mid-stream, in OpenAI's shape.
func ErrorEvent(message string) string { return Data(errorObject(message)) }

func errorObject(message string) string {
	return encode(object{"error": object{"message": message, "type": "server_error", "param": nil, "code": nil}})
}

// Option changes what [Completion] and [Chunks] say.
type Option func(*chat)

type chat struct {
	id, model, finish string
	usage             object // nil: none
	tools             []tool
}

type tool struct{ id, name, arguments string }

// ID sets the id, by default chatcmpl-1.
func ID(id string) Option { return func(c *chat) { c.id = id } }

// Model sets the model, by default gpt-4.1.
func Model(name string) Option { return func(c *chat) { c.model = name } }

// Finish sets the finish reason, by default stop, or tool_calls where there is
// one. Empty leaves it out: null, and on a stream no chunk for it.
func Finish(reason string) Option { return func(c *chat) { c.finish = reason } }

// Usage sets the tokens, by default 11 of input and 7 of output.
func Usage(input, output int) Option {
	return func(c *chat) {
		c.usage = object{"prompt_tokens": input, "completion_tokens": output, "total_tokens": input + output}
	}
}

// NoUsage leaves the usage out.
func NoUsage() Option { return func(c *chat) { c.usage = nil } }

// ToolCall adds a tool call. Give Finish after it for another finish reason.
func ToolCall(id, name, arguments string) Option {
	return func(c *chat) {
		c.tools = append(c.tools, tool{id, name, arguments})
		c.finish = "tool_calls"
	}
}

func newChat(opts []Option) *chat {
	c := &chat{id: "chatcmpl-1", model: "gpt-4.1", finish: "stop"}
	Usage(11, 7)(c)
	for _, opt := range opts {
		opt(c)
	}
	return c
}

// created is when every answer says it was made: 2026-01-01T00:00:00Z.
const created = 1767225600

// Completion is the body of a chat completion with one choice.
func Completion(content string, opts ...Option) string {
	c := newChat(opts)
	message := object{"role": "assistant", "content": content}
	var calls []object
	for _, t := range c.tools {
		calls = append(calls, object{"id": t.id, "type": "function", "function": object{"name": t.name, "arguments": t.arguments}})
	}
	if calls != nil {
		message["tool_calls"] = calls
	}
	body := object{"id": c.id, "object": "chat.completion", "created": created, "model": c.model,
		"choices": []object{{"index": 0, "message": message, "finish_reason": c.finishReason(), "logprobs": nil}}}
	if c.usage != nil {
		body["usage"] = c.usage
	}
	return encode(body)
}

// Chunks are the events of a streamed chat completion with one choice: the
// role, the content in at most so many pieces, each tool call with its
// arguments in two, the finish reason, the usage, [Done].
func Chunks(content string, pieces int, opts ...Option) []string {
	c := newChat(opts)
	var frames []string
	add := func(delta object, finish any) {
		frames = append(frames, c.chunk([]object{{"index": 0, "delta": delta, "finish_reason": finish}}, nil))
	}
	add(object{"role": "assistant", "content": ""}, nil)
	for _, piece := range cut(content, pieces) {
		add(object{"content": piece}, nil)
	}
	for i, t := range c.tools {
		add(object{"tool_calls": []object{{"index": i, "id": t.id, "type": "function", "function": object{"name": t.name, "arguments": ""}}}}, nil)
		for _, piece := range cut(t.arguments, 2) {
			add(object{"tool_calls": []object{{"index": i, "function": object{"arguments": piece}}}}, nil)
		}
	}
	if c.finish != "" {
		add(object{}, c.finish)
	}
	if c.usage != nil {
		frames = append(frames, c.chunk([]object{}, c.usage))
	}
	return append(frames, Done)
}

func (c *chat) chunk(choices []object, usage object) string {
	body := object{"id": c.id, "object": "chat.completion.chunk", "created": created, "model": c.model, "choices": choices}
	if usage != nil {
		body["usage"] = usage
	}
	return Data(encode(body))
}

func (c *chat) finishReason() any {
	if c.finish == "" {
		return nil
	}
	return c.finish
}

// cut cuts text into at most n pieces, at least one, of about the same length, at rune
// boundaries.
func cut(text string, n int) []string {
	var pieces []string
	for n = max(n, 1); text != ""; n-- {
		end := (len(text) + n - 1) / n
		for end < len(text) && !utf8.RuneStart(text[end]) {
			end++
		}
		pieces, text = append(pieces, text[:end]), text[end:]
	}
	return pieces
}

// object is a JSON object.
type object map[string]any

func encode(v any) string {
	var buf strings.Builder
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(fmt.Sprintf("proxytest: encoding an answer: %v", err))
	}
	return strings.TrimSuffix(buf.String(), "\n")
}
