package cache

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"sync"
	"unicode/utf8"
)

// maxDepth is how many objects and arrays may stand inside one another, the
// outermost included.
const maxDepth = 128

// A SyntaxError says where a body stops being one JSON object in valid UTF-8,
// and what its sender has to change.
type SyntaxError struct {
	Offset  int    // of the first wrong byte, counted from 0
	Message string // what is wrong there, and the remedy
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("invalid JSON at byte %d: %s", e.Offset, e.Message)
}

// A DuplicateError says that an object names the same member twice. Readers
// disagree on which of the two counts, so neither can be budgeted or cached.
type DuplicateError struct {
	Name string // the member's decoded name
	Path string // the object that holds it, such as "messages[3].content[0]"; "" is the body itself
}

func (e *DuplicateError) Error() string {
	where := "the body"
	if e.Path != "" {
		where = clip(e.Path)
	}
	return fmt.Sprintf("duplicate member %q in %s: send each name once", clip(e.Name), where)
}

// clip keeps error messages short when names are not.
func clip(s string) string {
	const most = 120
	if len(s) <= most {
		return s
	}
	return string(bytes.ToValidUTF8([]byte(s[:most]), nil)) + "…"
}

// flags say what was seen inside a value, so that a later walk may skip it.
type flags uint8

const (
	untidy   flags = 1 << iota // white space, or a spelling that may not be the canonical one
	unsorted                   // an object whose members are not in the order of their names
	ids                        // a member that may hold an id made by a machine
	texts                      // a member that may hold text of a message
	escaped                    // a string with escapes; of a node, its name
)

// marks gives the flags that a member's name puts on its value and on all that
// enclose it.
func marks(name []byte) flags {
	switch string(name) {
	case "id", "call_id", "tool_call_id":
		return ids
	case "content", "text", "output", "arguments", "input", "instructions", "prompt":
		return texts
	}
	return 0
}

// node is an object's member, or an object or array inside an array. The nodes
// of a document stand in the order of its text, each before those inside it.
// Other array elements have no node, and no node stands inside a value without
// flags, which is written as it is.
type node struct {
	name, nameEnd uint32 // between the quotes, in Document.Raw; 0 for an array's element
	start, end    uint32 // the value in Raw, without white space around it
	next          uint32 // index of the first node after those inside this one
	after         uint32 // of the member whose name comes next in order, or 0
	head          uint32 // of an object: the member whose name comes first, or 0
	flags         flags
}

// scanner reads one body into its document.
type scanner struct {
	*Document
	many *[]node // from nodeLists, once the nodes have outgrown Document.few
}

// nodeLists holds long lists of nodes for reuse, of type *[]node.
var nodeLists = sync.Pool{New: func() any { return new([]node) }}

// Scan reads a request body, one JSON object, once and strictly, and notes
// where its members stand. It accepts nothing that encoding/json would refuse;
// beyond that it refuses, with a *SyntaxError, bytes that are not UTF-8,
// escaped surrogates without their other half (upstreams refuse both) and more
// than 128 levels, and with a *DuplicateError a name that stands twice in one
// object. It takes time in proportion to the length of raw (times its logarithm
// in objects with very many members). The document keeps raw, which must not be
// changed as long as the document is in use.
func Scan(raw []byte) (*Document, error) {
	if len(raw) > math.MaxInt32 {
		return nil, &SyntaxError{math.MaxInt32, "the body is larger than 2 GiB: send less"}
	}
	d := &Document{Raw: raw}
	d.nodes = d.few[:0]
	s := scanner{Document: d}
	err := s.document()
	s.release()
	if err != nil {
		return nil, err
	}
	return d, nil
}

// add appends a node.
func (s *scanner) add() {
	if len(s.nodes) == cap(s.nodes) {
		s.grow()
	}
	s.nodes = append(s.nodes, node{})
}

// grow makes room for more nodes.
func (s *scanner) grow() {
	if s.many == nil {
		s.many = nodeLists.Get().(*[]node)
		s.nodes = append((*s.many)[:0], s.nodes...)
	}
	s.nodes = slices.Grow(s.nodes, max(len(s.nodes), 64))
}

// release gives the long list back, unless an unusual body has made it very
// long.
func (s *scanner) release() {
	if s.many == nil {
		return
	}
	*s.many = s.nodes
	s.nodes = slices.Clone(s.nodes)
	if cap(*s.many) <= 1<<16 {
		nodeLists.Put(s.many)
	}
}

func (s *scanner) document() error {
	i, _ := s.space(0)
	switch {
	case i == len(s.Raw):
		return &SyntaxError{i, "the body is empty: send a JSON object"}
	case bytes.HasPrefix(s.Raw, []byte("\ufeff")):
		return &SyntaxError{0, "the body begins with a byte order mark: send it without"}
	case s.Raw[i] != '{':
		return &SyntaxError{i, "the body is not a JSON object: it has to begin with {"}
	}
	s.add()
	end, seen, err := s.object(i, 0, 1)
	if err != nil {
		return err
	}
	s.close(0, i, end, seen|untidy)
	if i, _ = s.space(end); i < len(s.Raw) {
		return &SyntaxError{i, "something follows the JSON object: send one object and nothing else"}
	}
	return nil
}

// at returns the byte at i, or 0 at the end of the body.
func (s *scanner) at(i int) byte {
	if i < len(s.Raw) {
		return s.Raw[i]
	}
	return 0
}

// space returns the index of the first byte at or after i that is not white
// space, and untidy if there was any.
func (s *scanner) space(i int) (int, flags) {
	if i < len(s.Raw) && s.Raw[i] > ' ' {
		return i, 0
	}
	from := i
	for i < len(s.Raw) && (s.Raw[i] == ' ' || s.Raw[i] == '\n' || s.Raw[i] == '\r' || s.Raw[i] == '\t') {
		i++
	}
	if i > from {
		return i, untidy
	}
	return i, 0
}

// value reads the value that begins at i. Of an object or array, m is the node
// and depth the number of those around it.
func (s *scanner) value(i, m, depth int) (end int, seen flags, err error) {
	switch c := s.at(i); {
	case c == '"':
		i, seen, err = s.text(i + 1)
		return i, seen &^ escaped, err
	case c == '{' || c == '[':
		if depth == maxDepth {
			return i, 0, &SyntaxError{i, fmt.Sprintf("more than %d objects and arrays inside one another: send a flatter body", maxDepth)}
		}
		if c == '{' {
			return s.object(i, m, depth+1)
		}
		return s.array(i, depth+1)
	case c == '-' || '0' <= c && c <= '9':
		return s.number(i)
	}
	for _, word := range [...]string{"true", "false", "null"} {
		if bytes.HasPrefix(s.Raw[i:], []byte(word)) {
			return i + len(word), 0, nil
		}
	}
	return i, 0, s.unexpected(i, "a value")
}

// fewMembers is how many members of an object are put in order one by one as
// they come. More are sorted when all are there.
const fewMembers = 16

// object reads the object that begins at i, whose node is o, and appends a node
// for each member and those inside it.
func (s *scanner) object(i, o, depth int) (end int, seen flags, err error) {
	var greatest []byte // of the names so far; tail is its node
	var f flags
	tail, count := o, 0
	i, seen = s.space(i + 1)
	for more := s.at(i) != '}'; more; count++ {
		m := len(s.nodes)
		var name []byte
		if name, i, f, err = s.member(i, depth); err != nil {
			return i, 0, err
		}
		seen |= f
		switch {
		case count == 0:
			s.nodes[o].head = uint32(m)
			greatest, tail = name, m
		case compare(greatest, name) < 0:
			s.nodes[tail].after = uint32(m)
			greatest, tail = name, m
		case count < fewMembers:
			seen |= unsorted
			if err = s.insert(o, m); err != nil {
				return i, 0, err
			}
		default:
			seen |= unsorted
		}
		if i, f, more, err = s.next(i, '}'); err != nil {
			return i, 0, err
		}
		seen |= f
	}
	if count > fewMembers && seen&unsorted != 0 {
		err = s.sort(o)
	}
	return i + 1, seen, err
}

// next reads from the end of a member or element to the next, if there is more,
// or to the bracket that closes them.
func (s *scanner) next(i int, closing byte) (end int, seen flags, more bool, err error) {
	i, seen = s.space(i)
	switch s.at(i) {
	case ',':
		i, f := s.space(i + 1)
		return i, seen | f, true, nil
	case closing:
		return i, seen, false, nil
	}
	return i, 0, false, s.unexpected(i, "a comma or "+string(closing))
}

// insert links the member m of the object at node o where its name belongs,
// which is not at the end.
func (s *scanner) insert(o, m int) error {
	before, at := 0, int(s.nodes[o].head)
	for {
		switch order := compare(s.name(at), s.name(m)); {
		case order == 0:
			return &DuplicateError{Name: string(s.name(m))}
		case order > 0 && before == 0:
			s.nodes[o].head, s.nodes[m].after = uint32(m), uint32(at)
			return nil
		case order > 0:
			s.nodes[before].after, s.nodes[m].after = uint32(m), uint32(at)
			return nil
		}
		before, at = at, int(s.nodes[at].after)
	}
}

// sort links the members of the object at node o, whose nodes end the list, in
// the order of their names.
func (s *scanner) sort(o int) error {
	var order []int
	for m := o + 1; m < len(s.nodes); m = int(s.nodes[m].next) {
		order = append(order, m)
	}
	slices.SortFunc(order, func(a, b int) int { return compare(s.name(a), s.name(b)) })
	s.nodes[o].head = uint32(order[0])
	for i, m := range order[1:] {
		if bytes.Equal(s.name(order[i]), s.name(m)) {
			return &DuplicateError{Name: string(s.name(m))}
		}
		s.nodes[order[i]].after = uint32(m)
	}
	s.nodes[order[len(order)-1]].after = 0
	return nil
}

// member reads a member of an object from i to the end of its value, and
// appends its node and those inside it.
func (s *scanner) member(i, depth int) (name []byte, end int, seen flags, err error) {
	if s.at(i) != '"' {
		return nil, i, 0, s.unexpected(i, "a member name in double quotes")
	}
	from := i + 1
	i, f, err := s.text(from)
	if err != nil {
		return nil, i, 0, err
	}
	name = s.Raw[from : i-1]
	m := len(s.nodes)
	s.add()
	n := &s.nodes[m]
	n.name, n.nameEnd, n.flags = uint32(from), uint32(i-1), f&escaped
	if f != 0 {
		f = untidy
		name = appendDecoded(nil, name)
		if s.names == nil {
			s.names = make(map[uint32][]byte)
		}
		s.names[n.name] = name
	}
	seen = f
	if i+1 < len(s.Raw) && s.Raw[i] == ':' && s.Raw[i+1] > ' ' {
		i++
	} else if i, f, err = s.colon(i); err != nil {
		return nil, i, 0, err
	}
	seen |= f
	if end, f, err = s.value(i, m, depth); err != nil {
		return nil, end, 0, inside(err, string(name))
	}
	f |= marks(name)
	s.close(m, i, end, f)
	return name, end, seen | f, nil
}

// colon reads the colon behind a name and white space around it.
func (s *scanner) colon(i int) (end int, seen flags, err error) {
	i, f := s.space(i)
	if s.at(i) != ':' {
		return i, 0, s.unexpected(i, "a colon")
	}
	i, seen = s.space(i + 1)
	return i, seen | f, nil
}

// close completes the node m of a value, and forgets the nodes inside it if
// nobody will ask for them.
func (s *scanner) close(m, start, end int, f flags) {
	if f == 0 {
		s.nodes = s.nodes[:m+1]
	}
	n := &s.nodes[m]
	n.start, n.end, n.next = uint32(start), uint32(end), uint32(len(s.nodes))
	n.flags |= f
}

// array reads the array that begins at i, and appends a node for each object or
// array in it that has flags.
func (s *scanner) array(i, depth int) (end int, seen flags, err error) {
	i, seen = s.space(i + 1)
	more := s.at(i) != ']'
	for index := 0; more; index++ {
		var f flags
		m, start := len(s.nodes), i
		container := s.at(i) == '{' || s.at(i) == '['
		if container {
			s.add()
		}
		if i, f, err = s.value(i, m, depth); err != nil {
			return i, 0, inside(err, index)
		}
		if container && f != 0 {
			s.close(m, start, i, f)
		} else {
			s.nodes = s.nodes[:m]
		}
		seen |= f
		if i, f, more, err = s.next(i, ']'); err != nil {
			return i, 0, err
		}
		seen |= f
	}
	return i + 1, seen, nil
}

// compare is bytes.Compare, quick with names that begin differently.
func compare(a, b []byte) int {
	if len(a) > 0 && len(b) > 0 && a[0] != b[0] {
		return int(a[0]) - int(b[0])
	}
	return bytes.Compare(a, b)
}

// inside puts a member's name or an element's index before the path of a
// *DuplicateError on its way out of the objects and arrays.
func inside(err error, step any) error {
	e, ok := err.(*DuplicateError)
	if !ok {
		return err
	}
	path := fmt.Sprintf("[%v]", step)
	if name, ok := step.(string); ok {
		path = clip(name)
	}
	if e.Path != "" && e.Path[0] != '[' {
		path += "."
	}
	e.Path = path + e.Path
	return e
}

// unexpected says that something else than want stands at i.
func (s *scanner) unexpected(i int, want string) error {
	if i == len(s.Raw) {
		return &SyntaxError{i, "the body ends where " + want + " is expected: send all of it"}
	}
	r, _ := utf8.DecodeRune(s.Raw[i:])
	return &SyntaxError{i, fmt.Sprintf("%q where %s is expected: correct the JSON", r, want)}
}
