package cache

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
)

// Ids made by machines
//
// An agent's second call repeats the ids that the answer to its first made up.
// If the first is answered afresh, they differ, and the second call is the same
// work under another spelling. So an id is replaced, in the canonical form, by
// a number: the order of its first appearance there.
//
// Two requests that differ in anything but the choice of ids must not become
// equal by that. Therefore:
//
//   - Only an id that the request itself introduces is replaced: in chat the id
//     of a tool call, in the Responses API the id of an input item and the
//     call_id of a call. A result whose call is not in the request keeps its
//     id, which then names a call known upstream; so do all ids of a request
//     with a previous_response_id or a conversation.
//   - It is replaced where it introduces or refers (tool_call_id, the call_id of
//     a result), and where it is a string value inside the JSON of arguments.
//   - An id that is mentioned anywhere else keeps its spelling everywhere: its
//     longest run of ASCII letters and digits (the first of several) occurs as
//     such a run elsewhere in the canonical form. A run that follows a backslash
//     may begin with the letter of an escape, so it is also read without its
//     first character and, if that is u, without its first five. An
//     item_reference mentions its id.
//   - The number is written as \#n, which no JSON string holds.

// span is a string content in the canonical form that may be an id, or hold
// some.
type span struct {
	start, end int
	place      place // newID, oldID or arguments
	id         int   // what it is replaced by, from 1; 0 is nothing
}

// hasIDs says whether ids are to be renamed in the document.
func (d *Document) hasIDs() bool {
	if d.nodes[0].flags&ids == 0 {
		return false
	}
	found := false
	for m := range d.members() {
		switch string(d.name(m)) {
		case "messages", "input":
			found = found || d.nodes[m].flags&ids != 0
		case "previous_response_id", "conversation":
			if string(d.value(m)) != "null" {
				return false
			}
		}
	}
	return found
}

// note remembers the string content that buf holds from from on, if its place
// may hold an id.
func (f *form) note(from int, p place) {
	if f.renaming && (p == newID || p == oldID || p == arguments) {
		f.spans = append(f.spans, span{start: from, end: len(f.buf), place: p})
	}
}

// machineID is what is known of an id during renaming.
type machineID struct {
	number int
	run    string // the longest run of letters and digits in it
}

// rename decides which of the noted ids are replaced, and leaves in spans the
// places of those, in order, and no others.
func (f *form) rename() {
	if len(f.spans) == 0 {
		return
	}
	known := make(map[string]machineID)
	mentioned := make(map[string]bool) // run of a known id → found elsewhere
	for _, s := range f.spans {
		id := f.buf[s.start:s.end]
		run := longestRun(id)
		if _, ok := known[string(id)]; s.place == newID && !ok && len(run) > 0 {
			known[string(id)] = machineID{len(known) + 1, string(run)}
			mentioned[string(run)] = false
		}
	}
	if len(known) == 0 {
		f.spans = f.spans[:0]
		return
	}
	var found []span
	for _, s := range f.spans {
		if s.place == arguments {
			found = f.insideArguments(found, s, known)
		} else if id, ok := known[string(f.buf[s.start:s.end])]; ok {
			s.id = id.number
			found = append(found, s)
		}
	}
	findMentions(f.buf, found, mentioned)
	f.spans = slices.DeleteFunc(found, func(s span) bool {
		return mentioned[known[string(f.buf[s.start:s.end])].run]
	})
}

// insideArguments appends a span for each string value inside the JSON text of
// a, a string content in its canonical spelling, that is a known id.
func (f *form) insideArguments(found []span, a span, known map[string]machineID) []span {
	before := len(found)
	open := -1 // where the content of the inner string begins, or -1 between strings
	for i := a.start; ; {
		next := bytes.IndexByte(f.buf[i:a.end], '\\')
		if next < 0 {
			break
		}
		i += next
		n := escapedLen(f.buf[i:])
		switch {
		case f.buf[i+1] == '\\' && open >= 0: // an escape of the inner string
			n += escapedLen(f.buf[i+n : a.end])
		case f.buf[i+1] == '"' && open < 0:
			open = i + n
		case f.buf[i+1] == '"':
			id, ok := known[string(f.buf[open:i])]
			if ok && !isName(f.buf[i+n:a.end]) {
				found = append(found, span{start: open, end: i, id: id.number})
			}
			open = -1
		}
		i += n
	}
	if len(found) > before && !json.Valid(appendDecoded(nil, f.buf[a.start:a.end])) {
		found = found[:before]
	}
	return found
}

// escapedLen returns how many bytes spell the first character or byte of a
// canonical string content.
func escapedLen(content []byte) int {
	switch {
	case len(content) == 0:
		return 0
	case content[0] != '\\':
		return 1
	case content[1] == 'u':
		return 6
	}
	return 2
}

// isName says whether the inner string that ends before rest is the name of a
// member.
func isName(rest []byte) bool {
	for {
		switch n := escapedLen(rest); {
		case n == 1 && rest[0] == ' ', n == 2 && bytes.IndexByte([]byte("ntr"), rest[1]) >= 0:
			rest = rest[n:]
		default:
			return n == 1 && rest[0] == ':'
		}
	}
}

// alphanumeric says which bytes are ASCII letters or digits.
func alphanumeric(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z'
}

// longestRun returns the first of the longest runs of letters and digits.
func longestRun(id []byte) []byte {
	var longest []byte
	for run := range bytes.FieldsFuncSeq(id, func(r rune) bool { return r >= 0x80 || !alphanumeric(byte(r)) }) {
		if len(run) > len(longest) {
			longest = run
		}
	}
	return longest
}

// findMentions sets mentioned for the runs that occur in text outside of spans.
func findMentions(text []byte, spans []span, mentioned map[string]bool) {
	shortest := len(text)
	for run := range mentioned {
		shortest = min(shortest, len(run))
	}
	from := 0
	for _, s := range spans {
		findRuns(text[from:s.start], shortest, mentioned)
		from = s.end
	}
	findRuns(text[from:], shortest, mentioned)
}

// findRuns sets mentioned for the runs of at least shortest letters and digits
// in text that are its keys. It looks at every shortest-th byte first: no run
// is long enough that misses them all.
func findRuns(text []byte, shortest int, mentioned map[string]bool) {
	mention := func(run []byte) {
		if _, ok := mentioned[string(run)]; ok {
			mentioned[string(run)] = true
		}
	}
	for i := 0; i+shortest <= len(text); {
		j := i + shortest - 1
		for j >= i && alphanumeric(text[j]) {
			j--
		}
		if j >= i {
			i = j + 1
			continue
		}
		end := i + shortest
		for end < len(text) && alphanumeric(text[end]) {
			end++
		}
		run := text[i:end]
		mention(run)
		if i > 0 && text[i-1] == '\\' {
			mention(run[1:])
			if run[0] == 'u' && len(run) > 5 {
				mention(run[5:])
			}
		}
		i = end + 1
	}
}

// replace writes the part of the canonical form text from start to end, ids
// replaced. It returns the spans that are left.
func (f *form) replace(text []byte, start, end int, spans []span) []span {
	for len(spans) > 0 && spans[0].start < end {
		f.write(text[start:spans[0].start])
		f.buf = strconv.AppendInt(append(f.buf, `\#`...), int64(spans[0].id), 10)
		start, spans = spans[0].end, spans[1:]
	}
	f.write(text[start:end])
	return spans
}
