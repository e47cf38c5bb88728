package proxy

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A chatCompletion is one answer of the chat endpoint, or of the older completions
// endpoint. It keeps every member it does not know, and numbers and strings in
// their own spelling. The zero value is an answer of which nothing has come yet.
type chatCompletion struct {
	merger
	legacy   bool       // its choices hold a text in place of a message
	original []byte     // the JSON body, where it came as one
	top      jsonObject // all but the choices, for which it holds a place
	choices  []*choice
	at       map[int64]*choice
	fault    string // why this is no whole answer, whatever else came
}

// A choice is known by its index; message is what its deltas add up to.
type choice struct {
	index   int64
	members jsonObject // all but message and index, for which it holds a place
	message jsonValue
}

// errNoChunk says that something is no JSON object where a part of an answer was due.
var errNoChunk = errors.New("not a JSON object")

// A chunkError is an upstream's error that came where a part of an answer was due.
type chunkError struct {
	Body []byte // {"error":{…}}, as a client wants it: the upstream's own object
}

func (e *chunkError) Error() string {
	return "the upstream sent an error in its answer: " + jsonText(jsonGet(e.Body, "error", "message"))
}

// newChunkError makes an object of an upstream's error where it is none: clients
// read its message.
func newChunkError(failure []byte) *chunkError {
	if jsonKind(failure) == '{' {
		return &chunkError{fmt.Appendf(nil, `{"error":%s}`, failure)}
	}
	message := failure
	if jsonKind(message) != '"' { // a number, or a list that says nothing to anybody
		message = fmt.Appendf(nil, `"%s"`, failure)
		if !json.Valid(message) {
			message = []byte(`"The upstream sent an error without a message"`)
		}
	}
	return &chunkError{fmt.Appendf(nil, `{"error":{"message":%s,"type":"upstream_error","code":null,"param":null}}`, message)}
}

func (c *chatCompletion) parse(body []byte) error {
	c.original = body
	return c.add(body)
}

// errNoAnswer says that a stream ended in which no answer had begun: it would be
// taken for a success that says nothing.
var errNoAnswer = errors.New("it ended without an answer")

func (c *chatCompletion) event(data []byte) (last bool, err error) {
	if !isDone(data) {
		return false, c.add(data)
	}
	if len(c.choices) == 0 {
		return false, errNoAnswer
	}
	return true, nil
}

// closing: some upstreams leave [DONE] out, and then the finish reasons tell a
// whole answer from a cut one.
func (c *chatCompletion) closing() []byte {
	if !c.ended() {
		return nil
	}
	return []byte("data: " + doneMarker + "\n\n")
}

// add takes the data of one event, a chunk of JSON, and keeps parts of it. The
// error is a *chunkError, besides which the rest of the chunk is added all the same,
// or errNoChunk. A chunk that has a whole message in place of a delta, as some
// upstreams end their stream, replaces what the deltas gave.
func (c *chatCompletion) add(chunk []byte) error {
	chunk = bytes.TrimSpace(chunk)
	if !json.Valid(chunk) || jsonKind(chunk) != '{' {
		c.fail("not a JSON object")
		return errNoChunk
	}
	var failure []byte
	for name, value := range jsonMembers(chunk) {
		switch string(name) {
		case "obfuscation":
		case "choices":
			c.member(&c.top, name)
			c.addChoices(value)
		case "error":
			if !jsonEmpty(value) && string(value) != "false" {
				failure = value
			}
		case "object":
			if jsonText(value) == "error" && failure == nil {
				failure = chunk
			}
			c.set(name, value)
		default:
			c.set(name, value)
		}
	}
	if c.overflow {
		c.fail("too many parts")
	}
	if failure != nil {
		c.fail("error object")
		return newChunkError(failure)
	}
	return nil
}

func (c *chatCompletion) fail(fault string) {
	if c.fault == "" {
		c.fault = fault
	}
}

// set sets a member that stands beside the choices. Who answers, and when, is said
// once; some upstreams say it empty at first. Of the rest the last word counts.
func (c *chatCompletion) set(name, value []byte) {
	v := c.member(&c.top, name)
	switch string(name) {
	case "id", "object", "created", "model":
		if !jsonEmpty(v.raw) && string(v.raw) != "0" {
			return
		}
	}
	if v.raw == nil || !jsonEmpty(value) {
		v.raw = value
	}
}

func (c *chatCompletion) addChoices(raw []byte) {
	switch jsonKind(raw) {
	case '[':
	case 'n':
		return
	default:
		c.fail("choices are not a list")
		return
	}
	position := int64(-1)
	for item := range jsonItems(raw) {
		position++
		if jsonKind(item) != '{' {
			c.fail("a choice is not an object")
			continue
		}
		index, ok := jsonInt(jsonGet(item, "index"))
		if !ok {
			index = position
		}
		ch, known := c.at[index]
		if known && c.original != nil {
			c.fail("two choices have one index")
			continue
		}
		if !known {
			if !c.take() {
				return
			}
			ch = &choice{index: index}
			if c.at == nil {
				c.at = map[int64]*choice{}
			}
			c.at[index] = ch
			c.choices = append(c.choices, ch)
		}
		if !c.addChoice(ch, item) {
			c.fail("a message is not an object")
		}
	}
}

// addChoice adds what one chunk says about a choice; false where its message is not
// an object.
func (c *chatCompletion) addChoice(ch *choice, item []byte) bool {
	var delta, message []byte
	for name, value := range jsonMembers(item) {
		switch string(name) {
		case "delta":
			delta = value
			c.member(&ch.members, []byte("message"))
		case "message":
			message = value
			c.member(&ch.members, name)
		case "index":
			c.member(&ch.members, name)
		case "obfuscation":
		default:
			// What stands around a message is said anew in each chunk; a text is
			// continued, and its log probabilities with it.
			c.merge(c.member(&ch.members, name), name, value, c.legacy && string(name) != "finish_reason", 1)
		}
	}
	switch {
	case jsonKind(delta) == '{':
		c.addDelta(&ch.message, delta)
	case jsonKind(delta) != 0 && jsonKind(delta) != 'n':
		return false
	case jsonKind(message) == '{':
		ch.message = jsonValue{raw: message}
	default:
		return jsonKind(message) == 0 || jsonKind(message) == 'n'
	}
	return true
}

func (c *chatCompletion) addDelta(message *jsonValue, delta []byte) {
	o := c.expand(message)
	for name, value := range jsonMembers(delta) {
		switch string(name) {
		case "obfuscation":
		case "tool_calls":
			c.mergeCalls(c.member(o, name), value)
		default:
			c.merge(c.member(o, name), name, value, true, 1)
		}
	}
}

// sorted returns the choices by index.
func (c *chatCompletion) sorted() []*choice {
	byIndex := func(x, y *choice) int { return cmp.Compare(x.index, y.index) }
	return slices.SortedFunc(slices.Values(c.choices), byIndex)
}

// ended reports whether every choice that began has its finish reason. A stream
// that closes before that was cut, with a [DONE] or without.
func (c *chatCompletion) ended() bool {
	return len(c.choices) > 0 && !slices.ContainsFunc(c.choices, func(ch *choice) bool { return ch.finish() == "" })
}

// finish returns the finish reason of the first choice, "" while there is none.
func (c *chatCompletion) finish() string {
	if len(c.choices) == 0 {
		return ""
	}
	return c.sorted()[0].finish()
}

func (ch *choice) finish() string {
	return jsonText(ch.members.get("finish_reason").bytes())
}

// field returns a member of the message, nil where there is none.
func (ch *choice) field(name string) []byte {
	if ch.message.object != nil {
		return ch.message.object.get(name).bytes()
	}
	return jsonGet(ch.message.raw, name)
}

// body returns the JSON form: the original where there is one, else what the chunks
// add up to, members in the order in which they came.
func (c *chatCompletion) body() ([]byte, error) {
	if c.original != nil {
		return c.original, nil
	}
	if c.fault != "" {
		return nil, errors.New("assembling the answer: " + c.fault)
	}
	b := []byte{'{'}
	if c.top.get("object") == nil {
		b = append(append(b, c.object()...), ',')
	}
	for i, name := range c.top.names {
		switch value := c.top.values[i].raw; name {
		case "choices":
			b = append(b, `"choices":[`...)
			for _, ch := range c.sorted() {
				b = append(ch.appendTo(b), ',')
			}
			b = append(bytes.TrimSuffix(b, []byte{','}), ']')
		case "object":
			b = append(b, c.object()...)
		case "usage":
			if jsonKind(value) == 'n' { // a JSON body never says so
				continue
			}
			fallthrough
		default:
			b = append(appendJSONName(b, name), value...)
		}
		b = append(b, ',')
	}
	return append(bytes.TrimSuffix(b, []byte{','}), '}'), nil
}

// object is the member that says what the answer is.
func (c *chatCompletion) object() string {
	if c.legacy {
		return `"object":"text_completion"`
	}
	return `"object":"chat.completion"`
}

func (ch *choice) appendTo(b []byte) []byte {
	b = append(b, `{"index":`...)
	b = strconv.AppendInt(b, ch.index, 10)
	for i, name := range ch.members.names {
		switch name {
		case "index":
		case "message":
			b = append(b, `,"message":`...)
			b = ch.appendMessage(b)
		default:
			b = ch.members.values[i].appendTo(appendJSONName(append(b, ','), name))
		}
	}
	return append(b, '}')
}

// appendMessage appends the message, which is the assistant's where nothing says so.
func (ch *choice) appendMessage(b []byte) []byte {
	if ch.field("role") != nil {
		return ch.message.appendTo(b)
	}
	b = append(b, `{"role":"assistant"`...)
	if rest := ch.message.bytes(); !jsonEmpty(rest) {
		return append(append(b, ','), rest[1:]...)
	}
	return append(b, '}')
}

// text returns all that the model wrote, to estimate what it cost where the
// upstream does not say: content, refusals, reasoning, tool calls, transcripts.
func (c *chatCompletion) text() string {
	var b strings.Builder
	for _, ch := range c.sorted() {
		writeText(&b, ch.members.get("text").bytes())
		writeText(&b, ch.field("content"))
		writeText(&b, ch.field("refusal"))
		// Some upstreams send the reasoning twice, under both names.
		if reasoning := ch.field("reasoning_content"); !jsonEmpty(reasoning) {
			writeText(&b, reasoning)
		} else {
			writeText(&b, ch.field("reasoning"))
		}
		writeText(&b, jsonGet(ch.field("audio"), "transcript"))
		writeCall(&b, ch.field("function_call"))
		for call := range jsonItems(ch.field("tool_calls")) {
			writeCall(&b, jsonGet(call, "function"))
			writeCall(&b, jsonGet(call, "custom"))
		}
	}
	return b.String()
}

func writeCall(b *strings.Builder, call []byte) {
	for _, name := range []string{"name", "arguments", "input"} {
		writeText(b, jsonGet(call, name))
	}
}

// writeText writes a string, or the text of a list of content parts.
func writeText(b *strings.Builder, raw []byte) {
	b.WriteString(jsonText(raw))
	for part := range jsonItems(raw) {
		b.WriteString(jsonText(jsonGet(part, "text")))
		b.WriteString(jsonText(jsonGet(part, "refusal")))
		for thought := range jsonItems(jsonGet(part, "thinking")) {
			b.WriteString(jsonText(jsonGet(thought, "text")))
		}
	}
}
