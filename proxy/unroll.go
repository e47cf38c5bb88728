package proxy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"unicode/utf8"
)

// pieceSize is how much text one chunk carries, in bytes of JSON: an event stays far
// below the 64 KiB at which line readers of some clients give up.
const pieceSize = 1 << 10

// unroll makes the events of a stream out of an answer, ready to be sent: for each
// choice a chunk with the role, text in pieces, whatever else the message holds, and
// a chunk with the finish reason; then the usage where it is asked for, and [DONE].
// Adding the events to a completion gives the same answer again, less a usage that
// was not asked for.
func (c *chatCompletion) unroll(includeUsage bool) ([][]byte, error) {
	if c.fault != "" {
		return nil, errors.New("making a stream of the answer: " + c.fault)
	}
	u := newUnroller(c)
	for _, ch := range c.sorted() {
		u.choice(ch)
	}
	if len(c.choices) == 0 {
		u.chunk(nil, nil)
	}
	if reported := c.top.get("usage").bytes(); includeUsage && jsonKind(reported) == '{' {
		u.chunk(nil, append([]byte(`,"usage":`), reported...))
	}
	if u.err != nil {
		return nil, fmt.Errorf("making a stream of the answer: %w", u.err)
	}
	return append(u.events, []byte("data: "+doneMarker+"\n\n")), nil
}

// An unroller writes the chunks of one answer.
type unroller struct {
	legacy bool   // choices hold a text in place of a message
	head   []byte // the members that each chunk begins with
	once   []byte // the members that stand in the first chunk only
	events [][]byte
	err    error
}

func newUnroller(c *chatCompletion) *unroller {
	u := &unroller{legacy: c.legacy, head: []byte(`{"object":"chat.completion.chunk",`)}
	if c.legacy {
		u.head = append(append([]byte{'{'}, c.object()...), ',')
	}
	for i, name := range c.top.names {
		switch value := c.top.values[i].raw; name {
		case "object", "choices", "usage":
		case "id", "created", "model", "service_tier", "system_fingerprint":
			u.head = append(append(appendJSONName(u.head, name), value...), ',')
		default:
			u.once = append(appendJSONName(append(u.once, ','), name), value...)
		}
	}
	return u
}

// chunk emits one event: choice is the only choice or nil, more are members, each
// with a comma before it.
func (u *unroller) chunk(choice, more []byte) {
	payload := append(bytes.Clone(u.head), `"choices":[`...)
	payload = append(append(payload, choice...), ']')
	payload = append(append(append(payload, more...), u.once...), '}')
	u.once = nil
	event := bytes.NewBufferString("data: ")
	if err := json.Compact(event, payload); err != nil { // an event's data has no line end
		u.err = err
	}
	event.WriteString("\n\n")
	u.events = append(u.events, event.Bytes())
}

// choice emits the chunks of one choice. Log probabilities go with the first piece;
// what else stands beside the message goes with the finish reason.
func (u *unroller) choice(ch *choice) {
	head := strconv.AppendInt([]byte(`{"index":`), ch.index, 10)
	logprobs, finish := []byte(nil), bytes.Clone(head)
	if u.legacy {
		finish = append(finish, `,"text":""`...)
	} else {
		finish = append(finish, `,"delta":{}`...)
	}
	for i, name := range ch.members.names {
		switch value := ch.members.values[i].bytes(); name {
		case "index", "message":
		case "text":
			if !u.legacy {
				finish = append(appendJSONName(append(finish, ','), name), value...)
			}
		case "logprobs":
			logprobs = append(appendJSONName([]byte{','}, name), value...)
		default:
			finish = append(appendJSONName(append(finish, ','), name), value...)
		}
	}
	deltas, first := ch.deltas(), 1
	member := `,"delta":`
	if u.legacy {
		deltas, first, member = textPieces(ch.members.get("text").bytes()), 0, `,"text":`
	}
	for i, delta := range deltas {
		b := append(append(bytes.Clone(head), member...), delta...)
		if i == first || len(deltas) == 1 {
			b = append(b, logprobs...)
		}
		u.chunk(append(b, `,"finish_reason":null}`...), nil)
	}
	u.chunk(append(finish, '}'), nil)
}

// textPieces cuts a string into strings that add up to it.
func textPieces(text []byte) [][]byte {
	if jsonEmpty(text) || jsonKind(text) != '"' {
		return [][]byte{[]byte(`""`)}
	}
	var cut [][]byte
	for piece := range pieces(text) {
		cut = append(cut, fmt.Appendf(nil, `"%s"`, piece))
	}
	return cut
}

// deltas takes the message apart. The first delta holds the role and what is empty;
// reasoning comes before the text, as it does in a stream.
func (ch *choice) deltas() [][]byte {
	role := ch.field("role")
	if jsonEmpty(role) {
		role = []byte(`"assistant"`)
	}
	first := append([]byte(`{"role":`), role...)
	var thoughts, rest [][]byte
	for name, value := range jsonMembers(ch.message.bytes()) {
		switch {
		case string(name) == "role":
		case jsonEmpty(value):
			first = append(appendJSONName(append(first, ','), string(name)), value...)
		case string(name) == "tool_calls" && areObjects(value):
			rest = append(rest, callDeltas(value)...)
		case strings.HasPrefix(string(name), "reasoning"):
			thoughts = append(thoughts, memberDeltas(name, value)...)
		default:
			if string(name) == "content" && jsonKind(value) == '"' {
				first = append(first, `,"content":""`...)
			}
			rest = append(rest, memberDeltas(name, value)...)
		}
	}
	deltas := append([][]byte{append(first, '}')}, thoughts...)
	return append(deltas, rest...)
}

// memberDeltas returns the deltas that add up to one member: text in pieces, all
// else at once.
func memberDeltas(name, value []byte) [][]byte {
	head := appendJSONName([]byte{'{'}, string(name))
	if jsonKind(value) != '"' || saidOnce(name) {
		return [][]byte{append(append(head, value...), '}')}
	}
	var deltas [][]byte
	for piece := range pieces(value) {
		deltas = append(deltas, fmt.Appendf(nil, `%s"%s"}`, head, piece))
	}
	return deltas
}

// callDeltas returns the deltas of tool calls: each call with its index and whatever
// it holds, but for its arguments, which follow in pieces.
func callDeltas(calls []byte) [][]byte {
	var deltas [][]byte
	index := -1
	for call := range jsonItems(calls) {
		index++
		first := fmt.Appendf(nil, `{"tool_calls":[{"index":%d`, index)
		var arguments [][]byte
		for name, value := range jsonMembers(call) {
			switch string(name) {
			case "index":
				continue
			case "function":
				value, arguments = cutArguments(index, value)
			}
			first = append(appendJSONName(append(first, ','), string(name)), value...)
		}
		deltas = append(append(deltas, append(first, "}]}"...)), arguments...)
	}
	return deltas
}

// cutArguments returns a function without the text of its arguments, and the deltas
// that add it.
func cutArguments(index int, function []byte) (head []byte, deltas [][]byte) {
	for name, value := range jsonMembers(function) {
		head = appendJSONName(append(head, ','), string(name))
		if string(name) != "arguments" || jsonKind(value) != '"' {
			head = append(head, value...)
			continue
		}
		head = append(head, `""`...)
		deltas = nil
		for piece := range pieces(value) {
			deltas = append(deltas, fmt.Appendf(nil, `{"tool_calls":[{"index":%d,"function":{"arguments":"%s"}}]}`, index, piece))
		}
	}
	if head == nil { // not an object, or an empty one
		return function, nil
	}
	head[0] = '{'
	return append(head, '}'), deltas
}

func areObjects(list []byte) bool {
	if jsonKind(list) != '[' {
		return false
	}
	for item := range jsonItems(list) {
		if jsonKind(item) != '{' {
			return false
		}
	}
	return true
}

// pieces cuts what stands between the quotes of a string into pieces of pieceSize
// bytes or little more. It never cuts a character: neither its UTF-8, nor an escape,
// nor a pair of surrogate escapes.
func pieces(quoted []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		rest := quoted[1 : len(quoted)-1]
		for len(rest) > 0 {
			end := 0
			for end < min(pieceSize, len(rest)) {
				end += characterSize(rest[end:])
			}
			if !yield(rest[:end]) {
				return
			}
			rest = rest[end:]
		}
	}
}

// characterSize returns how many bytes of a string's JSON its first character takes.
func characterSize(s []byte) int {
	if s[0] != '\\' {
		_, size := utf8.DecodeRune(s)
		return size
	}
	if len(s) < 6 || s[1] != 'u' {
		return min(2, len(s))
	}
	if len(s) >= 12 && isSurrogate(s, 'd', '8', 'b') && isSurrogate(s[6:], 'd', 'c', 'f') {
		return 12
	}
	return 6
}

// isSurrogate reports whether s begins with the escape of a surrogate whose second
// digit is in a range.
func isSurrogate(s []byte, first, low, high byte) bool {
	digit := s[3] | 0x20
	return s[0] == '\\' && s[1] == 'u' && s[2]|0x20 == first && digit >= low && digit <= high
}
