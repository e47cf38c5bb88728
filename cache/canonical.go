package cache

import (
	"bytes"
	"crypto/sha256"
	"hash"
	"sync"
)

// place says which part of a request a value is, where the canonical form
// treats that part in its own way. Everything else is elsewhere.
type place uint8

const (
	elsewhere place = iota
	body
	prose    // text of messages, which normalisers change: a string, or parts with text
	messages // of chat
	message
	input // of the Responses API: text or items
	item
	itemOutput    // an item that answers a call
	itemReference // an item that stands for one kept upstream
	toolCalls
	toolCall
	calledFunction
	arguments // a string that holds JSON, written by the model
	newID     // an id that names a thing in this request
	oldID     // an id that refers to it
	tools
	tool
	functions
	function
	responseFormat
	schema // a JSON Schema, or a part of one: the order of its members counts
)

// member returns the place of the value of an object's member.
func (p place) member(name []byte) place {
	switch p {
	case body:
		return bodyMember(name)
	case message:
		switch string(name) {
		case "content":
			return prose
		case "tool_call_id":
			return oldID
		case "tool_calls":
			return toolCalls
		}
	case item, itemOutput:
		switch string(name) {
		case "content", "output":
			return prose
		case "arguments":
			return arguments
		case "id":
			return newID
		case "call_id":
			if p == itemOutput {
				return oldID
			}
			return newID
		}
	case toolCall:
		switch string(name) {
		case "id":
			return newID
		case "function":
			return calledFunction
		}
	case calledFunction:
		if string(name) == "arguments" {
			return arguments
		}
	case prose:
		if string(name) == "text" {
			return prose
		}
	default:
		return p.toolMember(name)
	}
	return elsewhere
}

func bodyMember(name []byte) place {
	switch string(name) {
	case "messages":
		return messages
	case "input":
		return input
	case "instructions", "prompt":
		return prose
	case "tools":
		return tools
	case "functions":
		return functions
	case "response_format", "text":
		return responseFormat
	}
	return elsewhere
}

// toolMember is member for the parts of a request that say what may be called
// and what an answer has to look like.
func (p place) toolMember(name []byte) place {
	switch p {
	case schema:
		return schema
	case tool:
		switch string(name) {
		case "function":
			return function
		case "parameters":
			return schema
		}
	case function:
		if string(name) == "parameters" {
			return schema
		}
	case responseFormat:
		switch string(name) {
		case "json_schema", "format":
			return responseFormat
		case "schema":
			return schema
		}
	}
	return elsewhere
}

// element returns the place of an array's elements.
func (p place) element() place {
	switch p {
	case messages:
		return message
	case input:
		return item
	case toolCalls:
		return toolCall
	case tools:
		return tool
	case functions:
		return function
	case prose, schema:
		return p
	}
	return elsewhere
}

// form writes the canonical form of one document, either to hash as it goes or
// into buf as a whole.
type form struct {
	d         *Document
	options   Options
	renaming  bool  // ids are to be renamed, so they are noted in spans
	streaming bool  // buf goes to hash when it is full
	special   flags // what keeps a value from being written as it stands, if it is in a place of its own

	hash   hash.Hash
	hashed bool // something went to hash already
	sum    Key
	buf    []byte
	spare  []byte // the second buffer of a rewrite
	spans  []span
	list   string // the member whose elements are parts
	parts  []part // of the form in buf, if not streaming
}

// part is a member of the body, or an element of its list, in the canonical
// form.
type part struct {
	name       []byte // nil for an element
	start, end int
}

var forms = sync.Pool{New: func() any { return &form{hash: sha256.New()} }}

func newForm(d *Document, o Options) *form {
	f := forms.Get().(*form)
	f.d, f.options = d, o
	f.renaming = d.hasIDs()
	f.special = plain
	if f.renaming {
		f.special |= ids | texts
	}
	if len(o.Normalise) > 0 {
		f.special |= texts
	}
	return f
}

// release gives the form back for the next document, unless an unusual one has
// made it large.
func (f *form) release() {
	const most = 4 << 20
	if cap(f.buf) > most || cap(f.spare) > most || cap(f.spans)+cap(f.parts) > most/64 {
		return
	}
	clear(f.parts)
	f.d, f.options, f.list = nil, Options{}, ""
	f.buf, f.spans, f.parts = f.buf[:0], f.spans[:0], f.parts[:0]
	forms.Put(f)
}

// bufferSize is how much is collected before it is hashed. Longer runs are
// hashed where they stand in the body.
const bufferSize = 2048

func (f *form) write(p []byte) {
	if f.streaming && len(f.buf)+len(p) > bufferSize {
		f.flush()
		if len(p) > bufferSize/2 {
			f.hash.Write(p)
			return
		}
	}
	f.buf = append(f.buf, p...)
}

func (f *form) writeByte(c byte) { f.buf = append(f.buf, c) }

func (f *form) flush() {
	if !f.hashed {
		f.hash.Reset()
		f.hashed = true
	}
	f.hash.Write(f.buf)
	f.buf = f.buf[:0]
}

// digest returns the hash of all that was written, and begins anew.
func (f *form) digest() Key {
	if f.hashed {
		f.flush()
		f.hash.Sum(f.sum[:0])
	} else {
		f.sum = sha256.Sum256(f.buf)
	}
	f.buf, f.hashed = f.buf[:0], false
	return f.sum
}

// whole leaves the canonical form in spare, what is to be replaced there in
// spans, and buf empty and as streaming as before.
func (f *form) whole() {
	streaming := f.streaming
	f.streaming = false
	f.body()
	f.rename()
	f.buf, f.spare = f.spare[:0], f.buf
	f.streaming = streaming
}

// body writes the document: its members that are neither excluded nor null, in
// the order of their names.
func (f *form) body() {
	f.writeByte('{')
	first := true
	for m := f.d.nodes[0].head; m != 0; m = f.d.nodes[m].after {
		name := f.d.name(m)
		if !f.counts(m, name) {
			continue
		}
		if !first {
			f.writeByte(',')
		}
		first = false
		from := len(f.buf)
		f.member(m, body)
		if !f.streaming && string(name) != f.list {
			f.parts = append(f.parts, part{name, from, len(f.buf)})
		}
	}
	f.writeByte('}')
}

// counts says whether a member of the body is part of the canonical form.
func (f *form) counts(m uint32, name []byte) bool {
	for _, excluded := range f.options.Exclude {
		if string(name) == excluded {
			return false
		}
	}
	return string(f.d.value(m)) != "null"
}

// member writes a member of an object that is in place p.
func (f *form) member(m uint32, p place) {
	n := &f.d.nodes[m]
	if p != elsewhere {
		p = p.member(f.d.name(m))
	}
	switch {
	case n.flags&escaped != 0:
		f.buf = appendQuoted(f.buf, f.d.name(m))
		f.writeByte(':')
	case n.start == n.nameEnd+2 && f.asItStands(m, p):
		f.write(f.d.Raw[n.name-1 : n.end])
		return
	default:
		f.write(f.d.Raw[n.name-1 : n.nameEnd+1])
		f.writeByte(':')
	}
	f.node(m, p)
}

// node writes the value of node n, which is in place p. Most values are
// canonical as they stand.
func (f *form) node(n uint32, p place) {
	value := f.d.value(n)
	switch c := value[0]; {
	case f.asItStands(n, p):
		f.write(value)
	case c == '{':
		f.object(n, p)
	case c == '[':
		f.array(n, p)
	default:
		f.scalar(value, p)
	}
}

// asItStands tells whether the value of node n, which is in place p, is written
// whole: it is canonical, and its elements are not parts.
func (f *form) asItStands(n uint32, p place) bool {
	return f.d.nodes[n].flags&f.obstacles(p) == 0 && !f.splits(p)
}

// splits tells whether the elements of an array in place p are parts.
func (f *form) splits(p place) bool { return f.list != "" && (p == messages || p == input) }

// plain are the flags that keep a value from being written as it stands in any
// place but a schema.
const plain = untidy | unsorted

// obstacles returns the flags that keep a value in place p from being written
// as it stands.
func (f *form) obstacles(p place) flags {
	switch p {
	case elsewhere:
		return plain
	case schema:
		return untidy
	}
	return f.special
}

func (f *form) object(n uint32, p place) {
	if p == item {
		p = f.itemPlace(n)
	}
	f.writeByte('{')
	m, end := f.d.nodes[n].head, f.d.nodes[n].next
	if p == schema && m != 0 {
		m = n + 1
	}
	for first := true; m != 0; first = false {
		if !first {
			f.writeByte(',')
		}
		f.member(m, p)
		if p != schema {
			m = f.d.nodes[m].after
		} else if m = f.d.nodes[m].next; m == end {
			m = 0
		}
	}
	f.writeByte('}')
}

// itemPlace tells the kinds of input items apart.
func (f *form) itemPlace(n uint32) place {
	for m := f.d.nodes[n].head; m != 0; m = f.d.nodes[m].after {
		if string(f.d.name(m)) != "type" {
			continue
		}
		kind := appendDecoded(nil, f.d.value(m))
		switch {
		case string(kind) == `"item_reference"`:
			return itemReference
		case bytes.HasSuffix(kind, []byte(`_output"`)):
			return itemOutput
		}
	}
	return item
}

// array writes the array at node n. It finds the elements that have no node by
// reading.
func (f *form) array(n uint32, p place) {
	list := &f.d.nodes[n]
	split := f.splits(p)
	f.writeByte('[')
	m, i := n+1, skipSpace(f.d.Raw, int(list.start)+1)
	for first := true; f.d.Raw[i] != ']'; first = false {
		if !first {
			f.writeByte(',')
		}
		from := len(f.buf)
		if m < list.next && int(f.d.nodes[m].start) == i {
			f.node(m, p.element())
			i, m = int(f.d.nodes[m].end), f.d.nodes[m].next
		} else {
			end := skip(f.d.Raw, i)
			f.scalar(f.d.Raw[i:end], p.element())
			i = end
		}
		if split {
			f.parts = append(f.parts, part{start: from, end: len(f.buf)})
		}
		if i = skipSpace(f.d.Raw, i); f.d.Raw[i] == ',' {
			i = skipSpace(f.d.Raw, i+1)
		}
	}
	f.writeByte(']')
}

// scalar writes a string, number, true, false or null, or an object or array
// that is canonical as it stands.
func (f *form) scalar(value []byte, p place) {
	switch c := value[0]; {
	case c == '"':
		f.writeByte('"')
		from := len(f.buf)
		f.content(value[1:len(value)-1], p)
		f.note(from, p)
		f.writeByte('"')
	case c == '-' || '0' <= c && c <= '9':
		f.buf = appendNumber(f.buf, value)
	default:
		f.write(value)
	}
}

// content writes what stands between the quotes of a string.
func (f *form) content(content []byte, p place) {
	if len(f.options.Normalise) > 0 && (p == prose || p == input || p == item) {
		text := string(appendDecoded(nil, content))
		for _, n := range f.options.Normalise {
			text = n.Pattern.ReplaceAllString(text, n.Replace)
		}
		f.buf = appendEscaped(f.buf, []byte(text))
		return
	}
	for {
		i := bytes.IndexByte(content, '\\')
		if i < 0 {
			f.write(content)
			return
		}
		f.write(content[:i])
		var r rune
		r, content = unescape(content[i:])
		f.buf = appendRune(f.buf, r)
	}
}

func skipSpace(raw []byte, i int) int {
	for raw[i] == ' ' || raw[i] == '\n' || raw[i] == '\r' || raw[i] == '\t' {
		i++
	}
	return i
}

// skip returns the end of the value that begins at i in text that was scanned.
func skip(raw []byte, i int) int {
	for depth := 0; ; {
		switch raw[i] {
		case '{', '[':
			depth++
			i++
		case '}', ']':
			depth--
			i++
		case '"':
			i = skipString(raw, i)
		case ',', ':', ' ', '\n', '\r', '\t':
			i++
			continue
		default:
			i = skipWord(raw, i)
		}
		if depth == 0 {
			return i
		}
	}
}

// skipString returns the end of the string that begins at i.
func skipString(raw []byte, i int) int {
	for {
		i += 1 + bytes.IndexByte(raw[i+1:], '"')
		backslashes := i
		for raw[backslashes-1] == '\\' {
			backslashes--
		}
		if (i-backslashes)%2 == 0 {
			return i + 1
		}
	}
}

// skipWord returns the end of the number, true, false or null that begins at i.
func skipWord(raw []byte, i int) int {
	for raw[i] > ' ' && raw[i] != ',' && raw[i] != ']' && raw[i] != '}' {
		i++
	}
	return i
}
