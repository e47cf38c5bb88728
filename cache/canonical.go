package cache

import (
	"bytes"
	"crypto/sha256"
	"hash"
	"sync"
)

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
	parts  []part // of the form in buf, if not streaming
	split  place  // of the member whose elements are parts: messages, input or elsewhere
}

// part is a member of the body, or an element of the member that is split, in
// the canonical form.
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
	f.d, f.options, f.streaming, f.split = nil, Options{}, false, elsewhere
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

// whole leaves the canonical form in spare and what is to be replaced there in
// spans. What is written from then on goes to hash.
func (f *form) whole() {
	f.body()
	f.rename()
	f.buf, f.spare = f.spare[:0], f.buf
	f.streaming = true
}

// body writes the document: its members that are neither excluded nor null, in
// the order of their names.
func (f *form) body() {
	f.writeByte('{')
	first := true
	for m := int(f.d.nodes[0].head); m != 0; m = int(f.d.nodes[m].after) {
		name := f.d.name(m)
		if !f.counts(m, name) {
			continue
		}
		if !first {
			f.writeByte(',')
		}
		first = false
		if f.split != elsewhere && f.split == body.member(name) {
			f.buf = append(appendQuoted(f.buf, name), ':')
			f.array(m, f.split)
			continue
		}
		from := len(f.buf)
		f.member(m, body)
		if !f.streaming {
			f.parts = append(f.parts, part{name, from, len(f.buf)})
		}
	}
	f.writeByte('}')
}

// counts says whether a member of the body is part of the canonical form.
func (f *form) counts(m int, name []byte) bool {
	for _, excluded := range f.options.Exclude {
		if string(name) == excluded {
			return false
		}
	}
	return string(f.d.value(m)) != "null"
}

// member writes a member of an object that is in place p.
func (f *form) member(m int, p place) {
	n := &f.d.nodes[m]
	if p != elsewhere {
		p = p.member(f.d.name(m))
	}
	switch {
	case n.flags&escaped != 0:
		f.buf = appendQuoted(f.buf, f.d.name(m))
		f.writeByte(':')
	case n.start == n.nameEnd+2 && n.flags&f.obstacles(p) == 0:
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
func (f *form) node(n int, p place) {
	value := f.d.value(n)
	switch c := value[0]; {
	case f.d.nodes[n].flags&f.obstacles(p) == 0:
		f.write(value)
	case c == '{':
		f.object(n, p)
	case c == '[':
		f.array(n, p)
	default:
		f.scalar(value, p)
	}
}

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

func (f *form) object(n int, p place) {
	if p == item {
		p = f.itemPlace(n)
	}
	f.writeByte('{')
	m, end := int(f.d.nodes[n].head), int(f.d.nodes[n].next)
	if p == schema && m != 0 {
		m = n + 1
	}
	for first := true; m != 0; first = false {
		if !first {
			f.writeByte(',')
		}
		f.member(m, p)
		if p != schema {
			m = int(f.d.nodes[m].after)
		} else if m = int(f.d.nodes[m].next); m == end {
			m = 0
		}
	}
	f.writeByte('}')
}

// itemPlace tells the kinds of input items apart. One that holds nothing beside
// its ids stands for an item kept upstream, as an item_reference does.
func (f *form) itemPlace(n int) place {
	p := itemReference
	for m := int(f.d.nodes[n].head); m != 0; m = int(f.d.nodes[m].after) {
		value := f.d.value(m)
		switch string(f.d.name(m)) {
		case "id", "call_id", "status":
		case "type":
			kind := appendDecoded(nil, value)
			if string(kind) == `"item_reference"` {
				return itemReference
			}
			if bytes.HasSuffix(kind, []byte(`_output"`)) {
				p = itemOutput
			}
		default:
			if p == itemReference && !isEmpty(value) {
				p = item
			}
		}
	}
	return p
}

// isEmpty says whether a value is null or an empty string, array or object.
func isEmpty(value []byte) bool {
	switch value[0] {
	case '"':
		return len(value) == 2
	case '[', '{':
		return skipSpace(value, 1) == len(value)-1
	}
	return string(value) == "null"
}

// array writes the array at node n. It finds the elements that have no node by
// reading.
func (f *form) array(n int, p place) {
	list := &f.d.nodes[n]
	split := f.split != elsewhere && f.split == p
	f.writeByte('[')
	m, i := n+1, skipSpace(f.d.Raw, int(list.start)+1)
	for first := true; f.d.Raw[i] != ']'; first = false {
		if !first {
			f.writeByte(',')
		}
		from := len(f.buf)
		if m < int(list.next) && int(f.d.nodes[m].start) == i {
			f.node(m, p.element())
			i, m = int(f.d.nodes[m].end), int(f.d.nodes[m].next)
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
