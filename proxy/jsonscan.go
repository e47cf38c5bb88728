package proxy

import (
	"bytes"
	"encoding/json"
	"iter"
	"strconv"
	"unicode/utf8"
)

// What follows walks JSON text without decoding it, so that a value keeps its
// spelling: the digits of a number, half a surrogate pair, the order of members.
// Names are compared exactly. Text that is not valid JSON ends a walk early and
// does nothing worse.

// jsonMembers yields the members of an object: name (decoded) and value (as it
// stands, without the space around it). Anything but an object has none.
func jsonMembers(raw []byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(name, value []byte) bool) {
		if jsonKind(raw) != '{' {
			return
		}
		for i := jsonSpace(raw, 1); i < len(raw) && raw[i] == '"'; {
			end := jsonStringEnd(raw, i)
			name := raw[i:end]
			i = jsonSpace(raw, end)
			if i == len(raw) || raw[i] != ':' {
				return
			}
			i = jsonSpace(raw, i+1)
			end = jsonEnd(raw, i)
			if end == i || !yield(jsonName(name), raw[i:end:end]) {
				return
			}
			i = jsonSpace(raw, end)
			if i == len(raw) || raw[i] != ',' {
				return
			}
			i = jsonSpace(raw, i+1)
		}
	}
}

// jsonItems yields the elements of an array. Anything but an array has none.
func jsonItems(raw []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		if jsonKind(raw) != '[' {
			return
		}
		for i := jsonSpace(raw, 1); i < len(raw) && raw[i] != ']'; {
			end := jsonEnd(raw, i)
			if end == i || !yield(raw[i:end:end]) {
				return
			}
			i = jsonSpace(raw, end)
			if i == len(raw) || raw[i] != ',' {
				return
			}
			i = jsonSpace(raw, i+1)
		}
	}
}

// jsonGet returns the member at a path of names, nil where there is none. Of a
// name that stands twice the last one counts.
func jsonGet(raw []byte, path ...string) []byte {
	for _, want := range path {
		var found []byte
		for name, value := range jsonMembers(raw) {
			if string(name) == want {
				found = value
			}
		}
		raw = found
	}
	return raw
}

// jsonKind is the first byte of a value, which tells what it is: one of { [ " t f n,
// or of a number. It is 0 for no value.
func jsonKind(raw []byte) byte {
	if len(raw) == 0 {
		return 0
	}
	return raw[0]
}

// jsonEmpty reports whether a value says nothing: null, "", [], {} or none at all.
func jsonEmpty(raw []byte) bool {
	switch jsonKind(raw) {
	case 0, 'n':
		return true
	case '"':
		return len(raw) <= 2
	case '[', '{':
		return jsonSpace(raw, 1) >= len(raw)-1
	}
	return false
}

// jsonInt returns the value of an integer literal.
func jsonInt(raw []byte) (n int64, ok bool) {
	n, err := strconv.ParseInt(string(raw), 10, 64)
	return n, err == nil
}

// jsonText decodes a string; anything else is "".
func jsonText(raw []byte) string {
	if jsonKind(raw) != '"' || len(raw) < 2 {
		return ""
	}
	if inner := raw[1 : len(raw)-1]; bytes.IndexByte(inner, '\\') < 0 && utf8.Valid(inner) {
		return string(inner)
	}
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		return "" // raw was not valid JSON
	}
	return text
}

// jsonName decodes a member's name, quotes included, and copies only one with escapes.
func jsonName(raw []byte) []byte {
	if bytes.IndexByte(raw, '\\') >= 0 {
		return []byte(jsonText(raw))
	}
	return raw[1:max(1, len(raw)-1)]
}

// appendJSONName appends a member's name and its colon.
func appendJSONName(b []byte, name string) []byte {
	for i := range len(name) {
		if c := name[i]; c < ' ' || c == '"' || c == '\\' {
			quoted, err := json.Marshal(name)
			if err != nil { // no string fails
				panic(err)
			}
			return append(append(b, quoted...), ':')
		}
	}
	return append(append(append(b, '"'), name...), '"', ':')
}

func jsonSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return min(i, len(b))
}

// jsonEnd returns where the value that begins at i ends; i itself for no value.
func jsonEnd(b []byte, i int) int {
	if i == len(b) {
		return i
	}
	switch b[i] {
	case '"':
		return jsonStringEnd(b, i)
	case '{', '[':
		return jsonBracketEnd(b, i)
	}
	for ; i < len(b); i++ {
		switch b[i] {
		case ',', ']', '}', ':', ' ', '\n', '\t', '\r':
			return i
		}
	}
	return i
}

func jsonBracketEnd(b []byte, i int) int {
	for depth := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			i = jsonStringEnd(b, i) - 1
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}
	return len(b)
}

// jsonStringEnd finds the quote that no odd number of backslashes precedes.
func jsonStringEnd(b []byte, i int) int {
	first := i + 1
	for next := first; ; {
		n := bytes.IndexByte(b[next:], '"')
		if n < 0 {
			return len(b)
		}
		quote := next + n
		slashes := 0
		for quote-slashes > first && b[quote-slashes-1] == '\\' {
			slashes++
		}
		next = quote + 1
		if slashes%2 == 0 {
			return next
		}
	}
}
