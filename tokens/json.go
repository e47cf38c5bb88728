package tokens

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"slices"
	"unicode/utf16"
	"unicode/utf8"
)

// maxDepth bounds the nesting of a request body.
const maxDepth = 128

// A node is one JSON value as it stands in a request body: its raw bytes
// without surrounding white space, or nil for a value that is absent.
//
// Bodies are read by exact member names. encoding/json would match names
// without regard to case, and so count another member than the one the
// upstream reads.
//
// Only parse checks the syntax; all methods rely on it having done so.
type node []byte

// parse checks that body is one JSON value (RFC 8259) and returns it.
func parse(body []byte) (node, error) {
	d, err := parseDocument(body)
	return d.root, err
}

// A document is a parsed body that knows where its long values end, so that
// going through its members and elements does not scan those again.
type document struct {
	root node
	long []span // in the order of their starts
}

// A span is a value from the byte start of a document's root up to end.
type span struct{ start, end int }

const (
	longValue = 256 // bytes from which a value is remembered
	longDepth = 8   // levels of nesting to which it is
)

func parseDocument(body []byte) (*document, error) {
	p := parser{b: body}
	p.space()
	p.b, p.i = body[p.i:], 0
	if err := p.value(0); err != nil {
		return &document{}, fmt.Errorf("%w at byte %d", err, len(body)-len(p.b)+p.i)
	}
	d := &document{root: node(p.b[:p.i]), long: p.long}
	p.space()
	if p.i < len(p.b) {
		return &document{}, fmt.Errorf("unexpected data after the JSON value at byte %d", len(body)-len(p.b)+p.i)
	}
	return d, nil
}

// valueEnd returns the index after the value that starts at n[i]. All nodes
// share the root's memory to its end, so the capacity of one tells where in the
// root it stands.
func (d *document) valueEnd(n []byte, i int) int {
	start := cap(d.root) - cap(n) + i
	k, ok := slices.BinarySearchFunc(d.long, start, func(s span, start int) int { return s.start - start })
	if !ok || &d.root[start] != &n[i] {
		return valueEnd(n, i)
	}
	return i + d.long[k].end - start
}

// members is as that of n, a node of d.
func (d *document) members(n node) iter.Seq2[[]byte, node] { return n.membersBy(d.valueEnd) }

// elements is as that of n, a node of d.
func (d *document) elements(n node) iter.Seq2[int, node] { return n.elementsBy(d.valueEnd) }

var (
	errSyntax = errors.New("invalid JSON")
	errDepth  = errors.New("JSON nested too deeply")
)

// A parser checks the syntax of b; i is where it stands.
type parser struct {
	b    []byte
	i    int
	long []span // as in a document
}

func (p *parser) space() { p.i = skipSpace(p.b, p.i) }

// peek returns the next byte, or 0 at the end.
func (p *parser) peek() byte {
	if p.i < len(p.b) {
		return p.b[p.i]
	}
	return 0
}

// accept consumes c if it comes next.
func (p *parser) accept(c byte) bool {
	if p.peek() != c || p.i == len(p.b) {
		return false
	}
	p.i++
	return true
}

func (p *parser) value(depth int) error {
	switch {
	case depth > maxDepth:
		return errDepth
	case depth > longDepth:
		return p.anyValue(depth)
	}
	k, start := len(p.long), p.i
	p.long = append(p.long, span{start: start})
	if err := p.anyValue(depth); err != nil {
		return err
	}
	if p.i-start < longValue {
		p.long = p.long[:k] // nor is anything in it long
	} else {
		p.long[k].end = p.i
	}
	return nil
}

func (p *parser) anyValue(depth int) error {
	switch p.peek() {
	case '{':
		return p.list(depth, '}', p.member)
	case '[':
		return p.list(depth, ']', p.value)
	case '"':
		return p.str()
	case 't':
		return p.word("true")
	case 'f':
		return p.word("false")
	case 'n':
		return p.word("null")
	default:
		return p.number()
	}
}

// list checks an object or array that ends in end.
func (p *parser) list(depth int, end byte, item func(depth int) error) error {
	p.i++
	p.space()
	if p.accept(end) {
		return nil
	}
	for {
		p.space()
		if err := item(depth + 1); err != nil {
			return err
		}
		p.space()
		if p.accept(end) {
			return nil
		}
		if !p.accept(',') {
			return errSyntax
		}
	}
}

func (p *parser) member(depth int) error {
	if err := p.str(); err != nil {
		return err
	}
	p.space()
	if !p.accept(':') {
		return errSyntax
	}
	p.space()
	return p.value(depth)
}

func (p *parser) word(w string) error {
	if !bytes.HasPrefix(p.b[p.i:], []byte(w)) {
		return errSyntax
	}
	p.i += len(w)
	return nil
}

func (p *parser) number() error {
	p.accept('-')
	if !p.accept('0') && !p.digits() {
		return errSyntax
	}
	if p.accept('.') && !p.digits() {
		return errSyntax
	}
	if p.accept('e') || p.accept('E') {
		if !p.accept('+') {
			p.accept('-')
		}
		if !p.digits() {
			return errSyntax
		}
	}
	return nil
}

// digits consumes a run of digits and reports whether there was one.
func (p *parser) digits() bool {
	start := p.i
	for c := p.peek(); '0' <= c && c <= '9'; c = p.peek() {
		p.i++
	}
	return p.i > start
}

// hex4 reads the four hexadecimal digits at b[i:].
func hex4(b []byte, i int) (r rune, ok bool) {
	if i+4 > len(b) {
		return 0, false
	}
	for _, c := range b[i : i+4] {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c|0x20 && c|0x20 <= 'f':
			c = c | 0x20 - 'a' + 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\r' || b[i] == '\t') {
		i++
	}
	return i
}

// stringEnd returns the index after the string that starts at b[i].
func stringEnd(b []byte, i int) int {
	for i++; ; i++ {
		i += bytes.IndexByte(b[i:], '"')
		slashes := 0
		for b[i-1-slashes] == '\\' {
			slashes++
		}
		if slashes%2 == 0 {
			return i + 1
		}
	}
}

// valueEnd returns the index after the value that starts at b[i].
func valueEnd(b []byte, i int) int {
	for depth := 0; i < len(b); {
		switch b[i] {
		case '"':
			i = stringEnd(b, i)
		case '{', '[':
			depth++
			i++
			continue
		case '}', ']':
			depth--
			i++
		default:
			for i < len(b) && b[i] > ' ' && bytes.IndexByte([]byte(`,:]}"{[`), b[i]) < 0 {
				i++
			}
		}
		if depth == 0 {
			return i
		}
		for i < len(b) && (b[i] <= ' ' || b[i] == ',' || b[i] == ':') {
			i++
		}
	}
	return i
}

func (n node) isObject() bool { return len(n) > 0 && n[0] == '{' }
func (n node) isArray() bool  { return len(n) > 0 && n[0] == '[' }
func (n node) isString() bool { return len(n) > 0 && n[0] == '"' }
func (n node) isNumber() bool { return len(n) > 0 && (n[0] == '-' || '0' <= n[0] && n[0] <= '9') }

// isNull reports whether n is absent or null.
func (n node) isNull() bool { return len(n) == 0 || n[0] == 'n' }

// members yields the names and values of an object in their order, and
// nothing for any other value.
func (n node) members() iter.Seq2[[]byte, node] { return n.membersBy(valueEnd) }

// membersBy is members, with valueEnd or what does the same.
func (n node) membersBy(valueEnd func([]byte, int) int) iter.Seq2[[]byte, node] {
	return func(yield func([]byte, node) bool) {
		if !n.isObject() {
			return
		}
		for i := skipSpace(n, 1); n[i] != '}'; {
			end := stringEnd(n, i)
			name := []byte(n[i+1 : end-1 : end-1])
			if bytes.IndexByte(name, '\\') >= 0 || !utf8.Valid(name) {
				name = n[i:end].appendStr(nil)
			}
			i = skipSpace(n, end)
			i = skipSpace(n, i+1)
			end = valueEnd(n, i)
			if !yield(name, n[i:end]) {
				return
			}
			if i = skipSpace(n, end); n[i] == ',' {
				i = skipSpace(n, i+1)
			}
		}
	}
}

// elements yields the elements of an array with their indices, and nothing
// for any other value.
func (n node) elements() iter.Seq2[int, node] { return n.elementsBy(valueEnd) }

// elementsBy is elements, with valueEnd or what does the same.
func (n node) elementsBy(valueEnd func([]byte, int) int) iter.Seq2[int, node] {
	return func(yield func(int, node) bool) {
		if !n.isArray() {
			return
		}
		i := skipSpace(n, 1)
		for k := 0; n[i] != ']'; k++ {
			end := valueEnd(n, i)
			if !yield(k, n[i:end]) {
				return
			}
			if i = skipSpace(n, end); n[i] == ',' {
				i = skipSpace(n, i+1)
			}
		}
	}
}

// get returns the member called name; of duplicates the last, as most
// readers do. It returns nil where there is none or n is no object.
func (n node) get(name string) node {
	var found node
	for k, v := range n.members() {
		if string(k) == name {
			found = v
		}
	}
	return found
}

// object returns the members of n, an object of d, by their names.
func (d *document) object(n node) map[string]node {
	m := map[string]node{}
	for name, v := range d.members(n) {
		m[string(name)] = v
	}
	return m
}

// str returns the value of a string, and "" for any other value.
func (n node) str() string {
	if !n.isString() {
		return ""
	}
	if bytes.IndexByte(n, '\\') < 0 && utf8.Valid(n) {
		return string(n[1 : len(n)-1])
	}
	return string(n.appendStr(nil))
}

// appendStr appends the value of a string to dst, and nothing for any other
// value. Lone surrogates and invalid UTF-8 become U+FFFD.
func (n node) appendStr(dst []byte) []byte {
	if !n.isString() {
		return dst
	}
	s := n[1 : len(n)-1]
	for len(s) > 0 {
		k := bytes.IndexByte(s, '\\')
		if k < 0 {
			k = len(s)
		}
		if dst = appendValid(dst, s[:k]); k == len(s) {
			break
		}
		s = s[k+1:]
		if s[0] == 'u' {
			var r rune
			r, s = unescapeRune(s)
			dst = utf8.AppendRune(dst, r)
			continue
		}
		dst = append(dst, unescapeByte(s[0]))
		s = s[1:]
	}
	return dst
}

// appendValid appends s to dst with every invalid byte as U+FFFD.
func appendValid(dst, s []byte) []byte {
	if utf8.Valid(s) {
		return append(dst, s...)
	}
	for len(s) > 0 {
		r, n := utf8.DecodeRune(s)
		dst = utf8.AppendRune(dst, r)
		s = s[n:]
	}
	return dst
}

func unescapeByte(c byte) byte {
	switch c {
	case 'b':
		return '\b'
	case 'f':
		return '\f'
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	}
	return c
}

// unescapeRune reads s, which starts with uXXXX, and the second half of a
// surrogate pair after it; it returns the rune and the rest of s.
func unescapeRune(s []byte) (rune, []byte) {
	r, _ := hex4(s, 1)
	s = s[5:]
	if utf16.IsSurrogate(r) && len(s) >= 6 && s[0] == '\\' && s[1] == 'u' {
		low, _ := hex4(s, 2)
		if pair := utf16.DecodeRune(r, low); pair != utf8.RuneError {
			return pair, s[6:]
		}
	}
	return r, s // AppendRune turns a lone surrogate into U+FFFD
}
