package proxy

import (
	"cmp"
	"slices"
)

const (
	// maxDepth is how deep deltas are merged into each other; below it the last
	// value replaces the one before.
	maxDepth = 32
	// maxParts bounds the memory of an answer of any shape: the members and list
	// entries that are kept apart because something may still be merged into them.
	maxParts = 1 << 16

	manyNames = 16 // members from which an object is searched by a map
)

// A jsonValue is a JSON value under growth. It is the text it came as until
// something is merged into it, so an answer costs little more than its bytes. At
// most one field is set.
type jsonValue struct {
	raw    []byte // as it came
	text   []byte // a string that grew: the opening quote and what follows, escapes as they came
	object *jsonObject
	list   *jsonList
}

// A jsonObject keeps its members in order of first appearance.
type jsonObject struct {
	names  []string
	values []*jsonValue
	at     map[string]int // name → position; nil while there are few
}

// A jsonList is an array whose entries are merged by their index.
type jsonList struct {
	entries []jsonEntry
	at      map[int64]int // index → position in entries of the one that grows
	last    int64         // the largest order of an entry
}

// A jsonEntry is one object with an index, or a run of elements that nothing is
// merged into, joined by commas.
type jsonEntry struct {
	order int64      // its index as a rule
	value *jsonValue // nil for a run
	run   []byte
}

func newJSONList() *jsonList { return &jsonList{at: map[int64]int{}} }

func (v *jsonValue) kind() byte {
	switch {
	case v == nil:
		return 0
	case v.object != nil:
		return '{'
	case v.list != nil:
		return '['
	case v.text != nil:
		return '"'
	}
	return jsonKind(v.raw)
}

// bytes returns the value as JSON text, nil for no value.
func (v *jsonValue) bytes() []byte {
	switch {
	case v == nil:
		return nil
	case v.raw != nil:
		return v.raw
	}
	return v.appendTo(nil)
}

func (v *jsonValue) appendTo(b []byte) []byte {
	switch {
	case v.object != nil:
		return v.object.appendTo(b)
	case v.list != nil:
		return v.list.appendTo(b)
	case v.text != nil:
		return append(append(b, v.text...), '"')
	}
	return append(b, v.raw...)
}

func (o *jsonObject) appendTo(b []byte) []byte {
	b = append(b, '{')
	for i, name := range o.names {
		if i > 0 {
			b = append(b, ',')
		}
		b = o.values[i].appendTo(appendJSONName(b, name))
	}
	return append(b, '}')
}

// appendTo writes the entries in their order; where some have none, as they came.
func (l *jsonList) appendTo(b []byte) []byte {
	entries := l.entries
	if !slices.ContainsFunc(entries, func(e jsonEntry) bool { return e.value == nil }) {
		byOrder := func(x, y jsonEntry) int { return cmp.Compare(x.order, y.order) }
		entries = slices.SortedStableFunc(slices.Values(entries), byOrder)
	}
	b = append(b, '[')
	for i, e := range entries {
		if i > 0 {
			b = append(b, ',')
		}
		if e.value != nil {
			b = e.value.appendTo(b)
		} else {
			b = append(b, e.run...)
		}
	}
	return append(b, ']')
}

// get returns a member, nil where there is none.
func (o *jsonObject) get(name string) *jsonValue {
	if i := o.find([]byte(name)); i >= 0 {
		return o.values[i]
	}
	return nil
}

func (o *jsonObject) find(name []byte) int {
	if o.at != nil {
		if i, ok := o.at[string(name)]; ok {
			return i
		}
		return -1
	}
	return slices.IndexFunc(o.names, func(n string) bool { return n == string(name) })
}

// A merger merges deltas. The rules are those that clients apply: strings are
// concatenated, objects merged member by member, arrays appended, entries of arrays
// merged by their index, numbers and booleans replaced, and null changes nothing.
type merger struct {
	parts    int  // kept so far
	overflow bool // more than maxParts came; what was over is lost
}

func (m *merger) take() bool {
	m.overflow = m.overflow || m.parts >= maxParts
	m.parts++
	return !m.overflow
}

// member returns the member of an object, making it where it is missing.
func (m *merger) member(o *jsonObject, name []byte) *jsonValue {
	if i := o.find(name); i >= 0 {
		return o.values[i]
	}
	v := new(jsonValue)
	if !m.take() {
		return v
	}
	o.names = append(o.names, string(name))
	o.values = append(o.values, v)
	switch {
	case o.at != nil:
		o.at[o.names[len(o.names)-1]] = len(o.names) - 1
	case len(o.names) == manyNames:
		o.at = make(map[string]int, 2*manyNames)
		for i, n := range o.names {
			o.at[n] = i
		}
	}
	return v
}

// merge merges src, which is valid JSON, into dst, the member called name of an
// object. It keeps parts of src. Without concat strings replace each other instead:
// what stands around a delta is said anew, not continued.
func (m *merger) merge(dst *jsonValue, name, src []byte, concat bool, depth int) {
	have, come := dst.kind(), jsonKind(src)
	switch {
	case have == 0 || have == 'n':
		*dst = jsonValue{raw: src}
	case come == 'n':
	case have != come && string(name) == "content" && m.mergeParts(dst, src):
	case have != come || depth >= maxDepth:
		if !jsonEmpty(src) {
			*dst = jsonValue{raw: src}
		}
	case come == '"':
		mergeString(dst, src, concat, saidOnce(name))
	case come == '{':
		o := m.expand(dst)
		for name, value := range jsonMembers(src) {
			m.merge(m.member(o, name), name, value, concat, depth+1)
		}
	case come == '[':
		l := m.expandList(dst, concat, depth+1)
		m.mergeEntries(l, src, concat, depth+1)
	default:
		*dst = jsonValue{raw: src}
	}
}

// saidOnce names the strings that are no text. Some upstreams repeat them with
// each delta; the first that is not empty counts.
func saidOnce(name []byte) bool {
	switch string(name) {
	case "id", "type", "name", "role", "object", "model", "format":
		return true
	}
	return false
}

func mergeString(dst *jsonValue, src []byte, concat, once bool) {
	empty := dst.text == nil && len(dst.raw) <= 2
	switch {
	case len(src) <= 2 || once && !empty:
	case empty || !concat:
		*dst = jsonValue{raw: src}
	default:
		if dst.text == nil {
			dst.text, dst.raw = slices.Clone(dst.raw[:len(dst.raw)-1]), nil
		}
		dst.text = append(dst.text, src[1:len(src)-1]...)
	}
}

// mergeParts joins a content that is text in one delta and a list of parts in
// another, as reasoning models of some vendors send it: the text becomes a part.
func (m *merger) mergeParts(dst *jsonValue, src []byte) bool {
	part := func(text []byte) []byte {
		return append(append([]byte(`{"type":"text","text":`), text...), '}')
	}
	switch {
	case jsonEmpty(src):
	case dst.kind() == '[' && jsonKind(src) == '"':
		m.mergeEntry(m.expandList(dst, true, 1), part(src), true, 1)
	case dst.kind() == '"' && jsonKind(src) == '[':
		l := newJSONList()
		if text := dst.bytes(); !jsonEmpty(text) {
			m.mergeEntry(l, part(text), true, 1)
		}
		*dst = jsonValue{list: l}
		m.mergeEntries(l, src, true, 1)
	default:
		return false
	}
	return true
}

// expand takes an object apart, so that its members can grow.
func (m *merger) expand(v *jsonValue) *jsonObject {
	if v.object == nil {
		o := new(jsonObject)
		for name, value := range jsonMembers(v.raw) {
			*m.member(o, name) = jsonValue{raw: value}
		}
		*v = jsonValue{object: o}
	}
	return v.object
}

// expandList takes an array apart, so that its entries can grow.
func (m *merger) expandList(v *jsonValue, concat bool, depth int) *jsonList {
	if v.list == nil {
		l := newJSONList()
		m.mergeEntries(l, v.raw, concat, depth)
		*v = jsonValue{list: l}
	}
	return v.list
}

func (m *merger) mergeEntries(l *jsonList, src []byte, concat bool, depth int) {
	for item := range jsonItems(src) {
		m.mergeEntry(l, item, concat, depth)
	}
}

func (m *merger) mergeEntry(l *jsonList, src []byte, concat bool, depth int) {
	index, ok := jsonInt(jsonGet(src, "index"))
	if !ok {
		m.addRun(l, src)
	} else if at, ok := l.at[index]; ok {
		m.merge(l.entries[at].value, nil, src, concat, depth)
	} else {
		m.addEntry(l, index, &jsonValue{raw: src})
	}
}

// addEntry adds the entry that grows under an index from now on. Where the index is
// taken, the new entry comes last.
func (m *merger) addEntry(l *jsonList, index int64, v *jsonValue) {
	if !m.take() {
		return
	}
	order := index
	if _, taken := l.at[index]; taken {
		order = l.last + 1
	}
	l.last = max(l.last, order)
	l.at[index] = len(l.entries)
	l.entries = append(l.entries, jsonEntry{order: order, value: v})
}

func (m *merger) addRun(l *jsonList, src []byte) {
	if last := len(l.entries) - 1; last >= 0 && l.entries[last].value == nil {
		l.entries[last].run = append(append(l.entries[last].run, ','), src...)
	} else if m.take() {
		l.entries = append(l.entries, jsonEntry{run: slices.Clone(src)})
	}
}

// mergeCalls merges the tool calls of a delta into those of the message, which
// come out in order of their index and without it. A call without an index is known
// by its position. Some upstreams give each of several calls the index 0: an id that
// differs, with a name, begins another call.
func (m *merger) mergeCalls(dst *jsonValue, src []byte) {
	kind := dst.kind()
	switch {
	case jsonKind(src) != '[' || kind == 0 && jsonEmpty(src):
		m.merge(dst, nil, src, true, 1)
		return
	case jsonEmpty(src):
		return
	case dst.list == nil: // a message that came whole, or none of use
		before := dst.raw
		*dst = jsonValue{list: newJSONList()}
		m.addCalls(dst.list, before)
	}
	m.addCalls(dst.list, src)
}

func (m *merger) addCalls(l *jsonList, src []byte) {
	position := int64(-1)
	for item := range jsonItems(src) {
		position++
		if jsonKind(item) != '{' {
			m.addRun(l, item)
			continue
		}
		index, ok := jsonInt(jsonGet(item, "index"))
		if !ok {
			index = position
		}
		call := new(jsonObject)
		if at, ok := l.at[index]; ok && !beginsCall(l.entries[at].value.object, item) {
			call = l.entries[at].value.object
		} else {
			m.addEntry(l, index, &jsonValue{object: call})
		}
		for name, value := range jsonMembers(item) {
			if string(name) != "index" {
				m.merge(m.member(call, name), name, value, true, 2)
			}
		}
	}
}

func beginsCall(call *jsonObject, item []byte) bool {
	known, id := call.get("id").bytes(), jsonGet(item, "id")
	if jsonEmpty(known) || jsonEmpty(id) || string(known) == string(id) {
		return false
	}
	return !jsonEmpty(jsonGet(item, "function", "name")) || !jsonEmpty(jsonGet(item, "custom", "name"))
}
