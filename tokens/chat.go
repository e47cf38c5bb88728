package tokens

import (
	"errors"
	"fmt"
)

// The frame of a message, in tokens: its start, the end of its header and its
// end. The role word is one more. Source: the vendor's cookbook, "How to count
// tokens with tiktoken"; without exception in bills.
const (
	frame     = 3
	roleWord  = 1
	nameExtra = 1
)

// channelExtra is what naming its channel adds to a plain assistant message of
// the history, with models that have channels. Source: bills.
const channelExtra = 2

// chat counts the body of a chat completion:
//
//	priming + Σ messages (3 + tok(role) + tok(content) [+ 1 + tok(name)])
//
// and the tools and response format, as tools.go says.
func (t *tally) chat(body map[string]node) error {
	messages := body["messages"]
	if !messages.isArray() {
		return errors.New("reading request body: messages is not an array")
	}
	var system node
	for i, n := range t.doc.elements(messages) {
		if !n.isObject() {
			return fmt.Errorf("reading request body: messages[%d] is not an object", i)
		}
		m := t.readMessage(n)
		if system == nil && m.isSystem() {
			system = m.content
		}
		before := t.est.Tokens
		t.message(t.at("messages", i), m)
		t.est.Messages = append(t.est.Messages, t.est.Tokens-before)
	}
	tools := chatFunctions(body)
	if len(tools) > 0 {
		t.charge("tools", "tools", Rule, t.chatTools(tools, system))
		t.chatChoice(body)
	}
	if format := body["response_format"]; format.get("type").str() == "json_schema" {
		t.charge("response_format", "json-schema", Rule, t.chatFormat(format.get("json_schema"), len(tools) > 0, system != nil))
	}
	if body["web_search_options"].isObject() {
		t.estimate("web_search_options", "tools-web-search", 0) // what is found is not billed here
	}
	t.charge("messages", "priming", Exact, t.model.priming)
	return nil
}

// A message is what counting reads of a chat message.
type message struct {
	role                    string
	content, name, refusal  node
	audio                   node
	toolCalls, functionCall node
	toolCallID              node // of a result: the call it answers
}

func (t *tally) readMessage(n node) (m message) {
	for name, v := range t.doc.members(n) {
		switch string(name) {
		case "role":
			m.role = v.str()
		case "content":
			m.content = v
		case "name":
			m.name = v
		case "refusal":
			m.refusal = v
		case "audio":
			m.audio = v
		case "tool_calls":
			m.toolCalls = v
		case "function_call":
			m.functionCall = v
		case "tool_call_id":
			m.toolCallID = v
		}
	}
	return m
}

func (m *message) isSystem() bool { return m.role == "system" || m.role == "developer" }

// message counts one chat message.
func (t *tally) message(path string, m message) {
	switch m.role {
	case "tool":
		t.toolResult(path, t.names[m.toolCallID.str()], m.content)
		return
	case "function":
		t.toolResult(path, m.name.str(), m.content)
		return
	}
	n := frame + roleWord + t.content(path+".content", m.content) + t.text(m.refusal)
	if m.name.isString() {
		n += nameExtra + t.text(m.name)
	}
	if m.audio.isObject() {
		t.estimate(path+".audio", "audio-kept", t.charges.Audio) // by the upstream
	}
	rule, basis := "message", Exact
	calls := m.calls()
	switch {
	case len(calls) > 0:
		rule, basis = "tool-call", Rule
		n += t.toolCalls(calls)
	case m.role == "assistant" && t.model.harmony:
		n += channelExtra
	}
	t.charge(path, rule, basis, n)
}

// A part is what counting reads of an element of a message's content.
type part struct {
	kind          string
	text, refusal node
	image, detail node
	audio         node
}

func (t *tally) readPart(n node) (p part) {
	for name, v := range t.doc.members(n) {
		switch string(name) {
		case "type":
			p.kind = v.str()
		case "text":
			p.text = v
		case "refusal":
			p.refusal = v
		case "image_url":
			p.image = v
		case "detail":
			p.detail = v
		case "input_audio":
			p.audio = v
		}
	}
	return p
}

// content counts the text of a message's content, a string or an array of
// parts, and charges its parts that are not text one by one. Texts side by
// side are one text.
func (t *tally) content(path string, content node) (text int) {
	if !content.isArray() {
		if !content.isString() && !content.isNull() {
			t.unknown(path)
		}
		return t.text(content)
	}
	var run []node // texts side by side
	for i, n := range t.doc.elements(content) {
		p := t.readPart(n)
		switch p.kind {
		case "text", "input_text", "output_text", "summary_text", "reasoning_text":
			run = append(run, p.text)
			continue
		case "refusal":
			run = append(run, p.refusal)
			continue
		}
		text += t.texts(run)
		run = run[:0]
		t.media(t.at(path, i), p)
	}
	return text + t.texts(run)
}

// media charges a part that is not text.
func (t *tally) media(path string, p part) {
	switch p.kind {
	case "image_url": // of chat completions
		t.image(path, p.image.get("url"), p.image.get("detail").str())
	case "input_image": // of the Responses API
		t.image(path, p.image, p.detail.str())
	case "input_audio":
		t.audio(path, p.audio)
	case "file", "input_file":
		t.estimate(path, "file", t.charges.File)
	default:
		t.unknown(path)
	}
}
