package tokens

import (
	"encoding/base64"
	"encoding/binary"
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
		t.message(fmt.Sprintf("messages[%d]", i), m)
		t.est.Messages = append(t.est.Messages, t.est.Tokens-before)
	}
	t.chatTools(body, system)
	if body["web_search_options"].isObject() {
		t.unknown("web_search_options")
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
		t.unknown(path + ".audio")
	}
	rule, basis := "message", Exact
	calls := m.calls()
	switch {
	case len(calls) > 0:
		rule, basis = "tool-call", Rule
		n += t.toolCalls(calls)
	case m.role == "assistant" && t.model.harmony:
		n += 2 // the channel of a final answer
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
// parts, and charges its parts that are not text one by one.
func (t *tally) content(path string, content node) (text int) {
	if !content.isArray() {
		if !content.isString() && !content.isNull() {
			t.unknown(path)
		}
		return t.text(content)
	}
	for i, n := range t.doc.elements(content) {
		p := t.readPart(n)
		at := func() string { return fmt.Sprintf("%s[%d]", path, i) }
		switch p.kind {
		case "text", "input_text", "output_text", "summary_text", "reasoning_text":
			text += t.text(p.text)
		case "refusal":
			text += t.text(p.refusal)
		case "image_url": // of chat completions
			t.image(at(), p.image.get("url"), p.image.get("detail").str())
		case "input_image": // of the Responses API
			t.image(at(), p.image, p.detail.str())
		case "input_audio":
			t.audio(at(), p.audio)
		default:
			t.unknown(at())
		}
	}
	return text
}

// audio charges an audio part (data in base64, format): a token for each 100
// ms, and a few for its frame. The length is known of WAV files; others are
// taken for speech of the lowest usual bit rate, which overestimates them.
func (t *tally) audio(path string, audio node) {
	const frame, perSecond, lowestRate = 5, 10, 32_000 / 8
	data := audio.get("data")
	if !data.isString() {
		t.unknown(path)
		return
	}
	size := base64.StdEncoding.DecodedLen(len(data) - 2)
	header := make([]byte, 44)
	// What does not decode is no WAV file; n tells.
	n, _ := base64.StdEncoding.Decode(header[:42], data[1:min(len(data)-1, 57)])
	if n == 42 && string(header[:4]) == "RIFF" && string(header[8:12]) == "WAVE" {
		if rate := binary.LittleEndian.Uint32(header[28:]); rate > 0 {
			t.charge(path, "audio", Rule, frame+max(size-len(header), 0)*perSecond/int(rate))
			return
		}
	}
	t.charge(path, "audio-longest", Estimated, frame+size*perSecond/lowestRate)
}
