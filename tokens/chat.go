package tokens

import (
	"errors"
	"fmt"
)

// The frame of a message, in tokens: its start, the end of its header and its
// end. The role word is one more.
const (
	frame     = 3
	roleWord  = 1
	nameExtra = 1
)

// chat counts the body of a chat completion:
//
//	priming + Σ messages (3 + tok(role) + tok(content) [+ 1 + tok(name)])
//
// and the tools and response format, as tools.go says.
func (t *tally) chat(body node) error {
	messages := body.get("messages")
	if !messages.isArray() {
		return errors.New("reading request body: messages is not an array")
	}
	var system node
	for i, m := range messages.elements() {
		if !m.isObject() {
			return fmt.Errorf("reading request body: messages[%d] is not an object", i)
		}
		if system == nil && isSystem(m.get("role").str()) {
			system = m
		}
		before := t.est.Tokens
		t.message(fmt.Sprintf("messages[%d]", i), m)
		t.est.Messages = append(t.est.Messages, t.est.Tokens-before)
	}
	t.chatTools(body, system)
	if body.get("web_search_options").isObject() {
		t.unknown("web_search_options")
	}
	t.charge("messages", "priming", Exact, t.model.priming)
	return nil
}

func isSystem(role string) bool { return role == "system" || role == "developer" }

// message counts one chat message.
func (t *tally) message(path string, m node) {
	role := m.get("role").str()
	switch role {
	case "tool":
		t.toolResult(path, t.names[m.get("tool_call_id").str()], m.get("content"))
		return
	case "function":
		t.toolResult(path, m.get("name").str(), m.get("content"))
		return
	}
	n := frame + roleWord
	n += t.content(path+".content", m.get("content"))
	if name := m.get("name"); name.isString() {
		n += nameExtra + t.text(name)
	}
	if refusal := m.get("refusal"); refusal.isString() {
		n += t.text(refusal)
	}
	if audio := m.get("audio"); audio.isObject() {
		t.unknown(path + ".audio")
	}
	rule, basis := "message", Exact
	calls := functionCalls(m)
	switch {
	case len(calls) > 0:
		rule, basis = "tool-call", Rule
		n += t.toolCalls(calls)
	case role == "assistant" && t.model.harmony:
		n += 2 // the channel of a final answer
	}
	t.charge(path, rule, basis, n)
}

// content counts the text of a message's content, a string or an array of
// parts, and charges its parts that are not text one by one.
func (t *tally) content(path string, content node) (text int) {
	if content.isString() {
		return t.text(content)
	}
	if !content.isArray() {
		if !content.isNull() {
			t.unknown(path)
		}
		return 0
	}
	for i, p := range content.elements() {
		at := func() string { return fmt.Sprintf("%s[%d]", path, i) }
		switch p.get("type").str() {
		case "text", "input_text", "output_text", "summary_text", "reasoning_text":
			text += t.text(p.get("text"))
		case "refusal":
			text += t.text(p.get("refusal"))
		case "image_url":
			image := p.get("image_url")
			t.image(at(), image.get("url"), image.get("detail").str())
		case "input_image":
			t.image(at(), p.get("image_url"), p.get("detail").str())
		case "input_audio":
			t.audio(at(), p.get("input_audio"))
		default:
			t.unknown(at())
		}
	}
	return text
}

// audio charges an audio part by a constant: its length is not read.
func (t *tally) audio(path string, _ node) { t.unknown(path) }
