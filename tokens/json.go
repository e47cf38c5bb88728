package tokens

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math/bits"
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
	p := parser{b: body}
	p.space()
	start := p.i
	if err := p.value(0); err != nil {
		return nil, fmt.Errorf("%w at byte %d", err, p.i)
	}
	end := p.i
	p.space()
	if p.i < len(body) {
		return nil, fmt.Errorf("unexpected data after the JSON value at byte %d", p.i)
	}
	return node(body[start:end]), nil
}

var (
	errSyntax = errors.New("invalid JSON")
	errDepth  = errors.New("JSON nested too deeply")
)

// A parser checks the syntax of b; i is where it stands.
type parser struct {
	b []byte
	i int
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
	if depth > maxDepth {
		return errDepth
	}
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

func (p *parser) str() error {
	if !p.accept('"') {
		return errSyntax
	}
	for {
		p.i += plainRun(p.b[p.i:])
		switch c := p.peek(); {
		case c == '"':
			p.i++
			return nil
		case c != '\\':
			return errSyntax // a control character, or the end
		}
		if err := p.escape(); err != nil {
			return err
		}
	}
}

// plainRun returns how many bytes at the start of b can stand in a string as
// they are: none of them is a control character, a quote or a backslash. It
// looks at eight at a time: the top bit of a byte of special is set if that byte
// of w is below 0x20, or zero after a quote or a backslash was taken from it by
// xor. Borrows may set bits above the lowest one set, which alone counts.
func plainRun(b []byte) int {
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	i := 0
	for ; i+8 <= len(b); i += 8 {
		w := binary.LittleEndian.Uint64(b[i:])
		quote, slash := w^ones*'"', w^ones*'\\'
		special := ((w - ones*' ') | (quote - ones) | (slash - ones)) & tops &^ w
		if special != 0 {
			return i + bits.TrailingZeros64(special)/8
		}
	}
	for i < len(b) && b[i] >= ' ' && b[i] != '"' && b[i] != '\\' {
		i++
	}
	return i
}

func (p *parser) escape() error {
	p.i++
	switch p.peek() {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		p.i++
		return nil
	case 'u':
		if _, ok := hex4(p.b, p.i+1); ok {
			p.i += 5
			return nil
		}
	}
	return errSyntax
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
func (n node) members() iter.Seq2[[]byte, node] {
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
			if !yield(name, n[i:end:end]) {
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
func (n node) elements() iter.Seq2[int, node] {
	return func(yield func(int, node) bool) {
		if !n.isArray() {
			return
		}
		i := skipSpace(n, 1)
		for k := 0; n[i] != ']'; k++ {
			end := valueEnd(n, i)
			if !yield(k, n[i:end:end]) {
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

// object returns the members of an object by their names.
func (n node) object() map[string]node {
	m := map[string]node{}
	for name, v := range n.members() {
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
