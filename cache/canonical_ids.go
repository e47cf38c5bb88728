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
// work in another spelling. So in the canonical form an id is replaced by a
// number: its place in the order in which the ids are introduced there, from 1.
//
// Two requests that differ in anything but the choice of ids must not become
// equal by that. Therefore:
//
//   - Only an id that the request itself introduces is replaced: in chat the id
//     of a tool call (messages[].tool_calls[].id), in the Responses API the id of
//     an input item and the call_id of an item, unless its type ends in _output.
//     A result whose call is not in the request keeps its id, which names a call
//     known upstream. So does an item that stands for one kept upstream: an
//     item_reference, and any that is no _output and has no members but type,
//     id, call_id, status and empty ones (null, "", [] or {}). And so do all ids
//     of a body with a previous_response_id or a conversation.
//   - It is replaced where it is introduced, where a tool_call_id or the call_id
//     of an _output refers to it, and where it is a string value, spelled
//     exactly so, in the JSON text of a call's arguments.
//   - An id that is mentioned anywhere else keeps its spelling everywhere. It is
//     mentioned if its longest run of ASCII letters and digits (the first of
//     several; there has to be one) is such a run elsewhere in the canonical
//     form. There a run that follows a backslash may begin with the letter of an
//     escape, so it is also read without its first character and, if that is u,
//     without its first five.
//   - The content of the string becomes \#n, which is no escape of JSON, so that
//     no text can be mistaken for it.

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

// knownIDs are the ids that a request introduces.
type knownIDs struct {
	number    map[string]int  // id → its place in the order of appearance, from 1
	mentioned map[string]bool // longest run of an id → it occurs outside of spans
}

// rename decides which of the noted ids are replaced, and leaves in spans the
// places of those, in order, and no others.
func (f *form) rename() {
	known := f.introduced()
	if len(known.number) == 0 {
		f.spans = f.spans[:0]
		return
	}
	found := make([]span, 0, len(f.spans))
	for _, s := range f.spans {
		if s.place == arguments {
			found = f.insideArguments(found, s, known)
		} else if s.id = known.number[string(f.buf[s.start:s.end])]; s.id > 0 {
			found = append(found, s)
		}
	}
	known.findMentions(f.buf, found)
	f.spans = append(f.spans[:0], slices.DeleteFunc(found, func(s span) bool {
		return known.mentioned[string(longestRun(f.buf[s.start:s.end]))]
	})...)
}

// introduced collects the ids that the noted spans introduce.
func (f *form) introduced() knownIDs {
	ids, count := f.spare[:0], 0
	for _, s := range f.spans {
		if s.place == newID {
			ids = append(ids, f.buf[s.start:s.end]...)
			count++
		}
	}
	f.spare = ids
	rest := string(ids) // the keys of both maps are parts of it
	known := knownIDs{make(map[string]int, count), make(map[string]bool, count)}
	for _, s := range f.spans {
		if s.place != newID {
			continue
		}
		id := rest[:s.end-s.start]
		rest = rest[len(id):]
		if run := longestRun(id); run != "" && known.number[id] == 0 {
			known.number[id] = len(known.number) + 1
			known.mentioned[run] = false
		}
	}
	return known
}

// insideArguments appends a span for each string value inside the JSON text of
// a, a string content in its canonical spelling, that is a known id.
func (f *form) insideArguments(found []span, a span, known knownIDs) []span {
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
			id := known.number[string(f.buf[open:i])]
			if id > 0 && !isName(f.buf[i+n:a.end]) {
				found = append(found, span{start: open, end: i, id: id})
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

// alphanumeric says whether c is an ASCII letter or digit.
func alphanumeric(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z'
}

// longestRun returns the first of the longest runs of letters and digits.
func longestRun[T string | []byte](id T) T {
	longest, from := id[:0], 0
	for i := 0; i <= len(id); i++ {
		if i < len(id) && alphanumeric(id[i]) {
			continue
		}
		if i-from > len(longest) {
			longest = id[from:i]
		}
		from = i + 1
	}
	return longest
}

// findMentions sets mentioned for the runs that occur in text outside of spans.
func (k knownIDs) findMentions(text []byte, spans []span) {
	shortest := len(text)
	for run := range k.mentioned {
		shortest = min(shortest, len(run))
	}
	from := 0
	for _, s := range spans {
		k.findRuns(text[from:s.start], shortest)
		from = s.end
	}
	k.findRuns(text[from:], shortest)
}

// findRuns sets mentioned for its keys among the runs of at least shortest
// letters and digits in text. It looks at every shortest-th byte first: no run
// is long enough that misses them all.
func (k knownIDs) findRuns(text []byte, shortest int) {
	for i := 0; i+shortest <= len(text); {
		last := i + shortest - 1
		for last >= i && alphanumeric(text[last]) {
			last--
		}
		if last >= i { // it is none, and what stands before it is too short
			i = last + 1
			continue
		}
		end := i + shortest
		for end < len(text) && alphanumeric(text[end]) {
			end++
		}
		run := text[i:end]
		k.mention(run)
		if i > 0 && text[i-1] == '\\' {
			k.mention(run[1:])
			if run[0] == 'u' && len(run) > 5 {
				k.mention(run[5:])
			}
		}
		i = end + 1
	}
}

func (k knownIDs) mention(run []byte) {
	if _, ok := k.mentioned[string(run)]; ok {
		k.mentioned[string(run)] = true
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
