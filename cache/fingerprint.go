package cache

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
	"strings"
)

// What a fingerprint holds at most, so that no body makes a large one. What goes
// beyond is mixed into the last hash.
const (
	maxFields   = 64
	maxMessages = 1024
	maxName     = 64 // bytes of a field's name
)

// Tree is the fingerprint of a request: short hashes that tell which parts of
// two requests differ, and nothing else about them. Two requests have the same
// key in the same context exactly if they have the same tree, but for the chance
// of one in 2^64 for each hash.
type Tree struct {
	Fields   []Field  // the body's members that count, in the order of their names, without List
	List     string   // the member whose elements Messages stands for: "messages", "input", or "" if neither is an array
	Messages []uint64 // hash of each element
}

// Field is one member of a body.
type Field struct {
	Name string // its first 64 bytes; "…" stands for all from the 64th member on
	Hash uint64 // of name and value
}

// Fingerprint returns the fingerprint of the request that d is the body of. A
// hash is the first 8 bytes, big-endian, of the SHA-256 of a part of the
// canonical form.
func (d *Document) Fingerprint(o Options) Tree {
	f := newForm(d, o)
	defer f.release()
	t := Tree{List: d.list(o)}
	f.split = body.member([]byte(t.List))
	f.whole()
	spans := f.spans
	for _, p := range f.parts {
		spans = f.replace(f.spare, p.start, p.end, spans)
		sum := f.digest()
		h := binary.BigEndian.Uint64(sum[:])
		if p.name == nil {
			t.addMessage(h)
		} else {
			t.addField(p.name, h)
		}
	}
	return t
}

// list returns the name of the array that holds the messages, "" if none does.
func (d *Document) list(o Options) string {
	for _, name := range [...]string{"messages", "input"} {
		if value, ok := d.Member(name); ok && value[0] == '[' && !slices.Contains(o.Exclude, name) {
			return name
		}
	}
	return ""
}

func (t *Tree) addMessage(h uint64) {
	if n := len(t.Messages); n == maxMessages {
		t.Messages[n-1] = mix(t.Messages[n-1], h)
		return
	}
	t.Messages = append(t.Messages, h)
}

func (t *Tree) addField(name []byte, h uint64) {
	if n := len(t.Fields); n == maxFields {
		t.Fields[n-1] = Field{"…", mix(t.Fields[n-1].Hash, h)}
		return
	}
	t.Fields = append(t.Fields, Field{string(bytes.ToValidUTF8(name[:min(len(name), maxName)], nil)), h})
}

func mix(a, b uint64) uint64 { return bits.RotateLeft64(a, 1) ^ b }

// Diff names what sets the bodies of a and b apart: members, and messages by
// their index, such as "temperature", "messages[3]", or "messages[4:7]" for what
// only one of the two has. It is empty if a and b are equal.
func (a Tree) Diff(b Tree) []string {
	var names []string
	i, j := 0, 0
	for i < len(a.Fields) || j < len(b.Fields) {
		switch order := compareFields(a.Fields[i:], b.Fields[j:]); {
		case order < 0:
			names = append(names, a.Fields[i].Name)
			i++
		case order > 0:
			names = append(names, b.Fields[j].Name)
			j++
		default:
			if a.Fields[i] != b.Fields[j] {
				names = append(names, a.Fields[i].Name)
			}
			i++
			j++
		}
	}
	for _, name := range a.diffMessages(b) {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// compareFields says which list's first name comes first; an empty list's comes
// last.
func compareFields(a, b []Field) int {
	switch {
	case len(a) == 0:
		return +1
	case len(b) == 0:
		return -1
	}
	return strings.Compare(a[0].Name, b[0].Name)
}

func (a Tree) diffMessages(b Tree) []string {
	if a.List != b.List {
		return slices.DeleteFunc([]string{a.List, b.List}, func(s string) bool { return s == "" })
	}
	var names []string
	both := min(len(a.Messages), len(b.Messages))
	for i := range both {
		if a.Messages[i] != b.Messages[i] {
			names = append(names, fmt.Sprintf("%s[%d]", a.List, i))
		}
	}
	switch all := max(len(a.Messages), len(b.Messages)); {
	case all == both+1:
		names = append(names, fmt.Sprintf("%s[%d]", a.List, both))
	case all > both:
		names = append(names, fmt.Sprintf("%s[%d:%d]", a.List, both, all))
	}
	return names
}

// treeVersion begins the binary form. It changes with the form, and with domain.
const treeVersion = 1

// AppendBinary appends the tree's binary form: the version; the number of fields
// and each one's name and hash; the name of the list; the number of messages and
// their hashes. Numbers and the lengths of names are uvarints, hashes 8 bytes,
// big-endian. The error is always nil.
func (t Tree) AppendBinary(dst []byte) ([]byte, error) {
	dst = binary.AppendUvarint(append(dst, treeVersion), uint64(len(t.Fields)))
	for _, f := range t.Fields {
		dst = append(binary.AppendUvarint(dst, uint64(len(f.Name))), f.Name...)
		dst = binary.BigEndian.AppendUint64(dst, f.Hash)
	}
	dst = append(binary.AppendUvarint(dst, uint64(len(t.List))), t.List...)
	dst = binary.AppendUvarint(dst, uint64(len(t.Messages)))
	for _, h := range t.Messages {
		dst = binary.BigEndian.AppendUint64(dst, h)
	}
	return dst, nil
}

// UnmarshalBinary reads the whole of what AppendBinary has appended to nothing.
func (t *Tree) UnmarshalBinary(data []byte) error {
	if len(data) == 0 || data[0] != treeVersion {
		return fmt.Errorf("reading a fingerprint: not of version %d", treeVersion)
	}
	r := treeReader{data: data[1:]}
	var read Tree
	for range r.count(9) {
		read.Fields = append(read.Fields, Field{r.text(), r.hash()})
	}
	read.List = r.text()
	for range r.count(8) {
		read.Messages = append(read.Messages, r.hash())
	}
	if r.short || len(r.data) > 0 {
		return fmt.Errorf("reading a fingerprint: %d bytes are not one", len(data))
	}
	*t = read
	return nil
}

// treeReader takes values off data, and zero values once it is too short.
type treeReader struct {
	data  []byte
	short bool
}

// count reads a number of things that take at least size bytes each.
func (r *treeReader) count(size int) int {
	n, used := binary.Uvarint(r.data)
	if used <= 0 || n > uint64(len(r.data)-used)/uint64(size) {
		r.short = true
		r.data = nil
		return 0
	}
	r.data = r.data[used:]
	return int(n)
}

func (r *treeReader) take(n int) []byte {
	if n > len(r.data) {
		r.short = true
		r.data = nil
		return make([]byte, n)
	}
	taken := r.data[:n]
	r.data = r.data[n:]
	return taken
}

func (r *treeReader) text() string { return string(r.take(r.count(1))) }

func (r *treeReader) hash() uint64 { return binary.BigEndian.Uint64(r.take(8)) }
