package cache

import (
	"iter"
	"slices"
)

// Document is a request body and where its members stand in it. It is safe for
// concurrent use.
type Document struct {
	Raw []byte // the body as it was read; not to be changed

	nodes []node            // the first is the body itself
	names map[uint32][]byte // offset of a member's name that holds escapes → the decoded name
	few   [12]node          // room for the nodes of a short body
}

// Member returns the value of the body's member with exactly this (decoded)
// name: a part of Raw, without white space around it.
func (d *Document) Member(name string) (value []byte, ok bool) {
	for m := range d.members() {
		if string(d.name(m)) == name {
			return d.value(m), true
		}
	}
	return nil, false
}

// An Edit sets a member of the body to a value, or removes it.
type Edit struct {
	Name  string // decoded
	Value []byte // JSON; nil removes the member
}

// Edit returns the body with members set or removed. A new value stands where
// the old one stood, a new member at the end; a member that goes takes along
// one comma and the white space that sets it apart. Every other byte stays as
// it was. Of two edits of one name the later counts. The result shares no
// memory with Raw, unless there is nothing to change: then it is Raw itself.
func (d *Document) Edit(edits ...Edit) []byte {
	effective := func(e Edit) bool { _, ok := d.Member(e.Name); return ok || e.Value != nil }
	if !slices.ContainsFunc(edits, effective) {
		return d.Raw
	}
	before := d.nodes[0].start + 1 // what stands from here to the next member's name sets it apart
	head := before
	if len(d.nodes) > 1 {
		head = d.nodes[1].name - 1
	}
	out := append(make([]byte, 0, len(d.Raw)+64), d.Raw[:head]...)
	written := 0
	for m := range d.members() {
		n, value := &d.nodes[m], d.value(m)
		if e := lastEdit(edits, string(d.name(m))); e != nil {
			value = e.Value
		}
		if value != nil {
			if written > 0 {
				out = append(out, d.Raw[before:n.name-1]...)
			}
			out = append(append(out, d.Raw[n.name-1:n.start]...), value...)
			written++
		}
		before = n.end
	}
	for i, e := range edits {
		_, old := d.Member(e.Name)
		if old || e.Value == nil || lastEdit(edits, e.Name) != &edits[i] {
			continue
		}
		if written > 0 {
			out = append(out, ',')
		}
		out = append(appendQuoted(out, []byte(e.Name)), ':')
		out = append(out, e.Value...)
		written++
	}
	return append(out, d.Raw[before:]...)
}

// lastEdit returns the last edit of name, or nil.
func lastEdit(edits []Edit, name string) *Edit {
	for i := len(edits) - 1; i >= 0; i-- {
		if edits[i].Name == name {
			return &edits[i]
		}
	}
	return nil
}

// members yields the members of the body, in the order of the text.
func (d *Document) members() iter.Seq[int] {
	return func(yield func(int) bool) {
		for m := 1; m < len(d.nodes); m = int(d.nodes[m].next) {
			if !yield(m) {
				return
			}
		}
	}
}

// name returns the decoded name of member m.
func (d *Document) name(m int) []byte {
	n := &d.nodes[m]
	if n.flags&escaped != 0 {
		return d.names[n.name]
	}
	return d.Raw[n.name:n.nameEnd]
}

// value returns the bytes of member m's value.
func (d *Document) value(m int) []byte {
	return d.Raw[d.nodes[m].start:d.nodes[m].end]
}
