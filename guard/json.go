package guard

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// maxDepth bounds the nesting of JSON that is taken.
const maxDepth = 64

// value is a parsed JSON text that lost nothing: member names are unique,
// strings are decoded, numbers keep their spelling.
type value struct {
	kind    kind
	text    string   // of a string, decoded; of a number, as written
	items   []value  // of an array
	members []member // of an object, as written
	raw     []byte   // the text it was read from
	tidy    bool     // of a string: raw is its canonical form
}

type member struct {
	name  string
	value value
}

type kind uint8

const (
	kindNull kind = iota
	kindBool
	kindNumber
	kindString
	kindArray
	kindObject
)

var kindNames = [...]string{"null", "a boolean", "a number", "a string", "an array", "an object"}

func (k kind) String() string { return kindNames[k] }

func (v *value) isTrue() bool { return v.kind == kindBool && v.raw[0] == 't' }

// member finds a member of an object by its exact name.
func (v *value) member(name string) (*value, bool) {
	if v.kind != kindObject {
		return nil, false
	}
	for i := range v.members {
		if v.members[i].name == name {
			return &v.members[i].value, true
		}
	}
	return nil, false
}

// empty tells whether the value says nothing: null, "", [] or {}.
func (v *value) empty() bool {
	switch v.kind {
	case kindNull:
		return true
	case kindString:
		return v.text == ""
	case kindArray:
		return len(v.items) == 0
	case kindObject:
		return len(v.members) == 0
	}
	return false
}

// compact is the value's JSON without white space between its tokens.
func (v *value) compact() []byte {
	var b bytes.Buffer
	if err := json.Compact(&b, v.raw); err != nil {
		panic(err) // it was parsed
	}
	return b.Bytes()
}

// parseJSON reads one JSON value that fills the text. Its error is an
// [*InputError]: other programs would read such a text in different ways.
func parseJSON(text []byte) (value, error) {
	p := parser{text: text}
	p.space()
	v, err := p.value(0)
	if err != nil {
		return value{}, err
	}
	if p.space(); p.at < len(text) {
		return value{}, p.fail("there is more after the end of the value")
	}
	return v, nil
}

type parser struct {
	text []byte
	at   int
}

func (p *parser) fail(format string, args ...any) error {
	return &InputError{Code: "invalid_request", Message: fmt.Sprintf("The JSON is not valid at byte %d: ", p.at) + fmt.Sprintf(format, args...)}
}

func (p *parser) space() {
	for p.at < len(p.text) {
		if c := p.text[p.at]; c != ' ' && c != '\t' && c != '\r' && c != '\n' {
			return
		}
		p.at++
	}
}

func (p *parser) peek() byte {
	if p.at < len(p.text) {
		return p.text[p.at]
	}
	return 0
}

func (p *parser) value(depth int) (v value, err error) {
	if depth > maxDepth {
		return v, p.fail("it is nested deeper than %d levels", maxDepth)
	}
	start := p.at
	switch c := p.peek(); {
	case c == '{':
		v.kind = kindObject
		v.members, err = p.object(depth)
	case c == '[':
		v.kind = kindArray
		v.items, err = p.array(depth)
	case c == '"':
		v.kind = kindString
		v.text, v.tidy, err = p.str()
	case c == '-' || c >= '0' && c <= '9':
		v.kind = kindNumber
		v.text, err = p.number()
	default:
		v.kind, err = p.literal()
	}
	v.raw = p.text[start:p.at]
	return v, err
}

func (p *parser) literal() (kind, error) {
	for _, word := range [...]string{"null", "true", "false"} {
		if bytes.HasPrefix(p.text[p.at:], []byte(word)) {
			p.at += len(word)
			if word == "null" {
				return kindNull, nil
			}
			return kindBool, nil
		}
	}
	if p.at >= len(p.text) {
		return 0, p.fail("it ends where a value should begin")
	}
	return 0, p.fail("%q begins no value", p.text[p.at])
}

// separated reads what stands between an opening bracket and its closing one.
func (p *parser) separated(closing byte, element func() error) error {
	p.at++
	if p.space(); p.peek() == closing {
		p.at++
		return nil
	}
	for {
		p.space()
		if err := element(); err != nil {
			return err
		}
		p.space()
		switch p.peek() {
		case ',':
			p.at++
		case closing:
			p.at++
			return nil
		default:
			return p.fail("a comma or %q is missing", closing)
		}
	}
}

func (p *parser) array(depth int) (items []value, err error) {
	err = p.separated(']', func() error {
		item, err := p.value(depth + 1)
		items = append(items, item)
		return err
	})
	return items, err
}

func (p *parser) object(depth int) (members []member, err error) {
	var seen map[string]bool // only where looking through members would take long
	err = p.separated('}', func() error {
		if p.peek() != '"' {
			return p.fail("a member's name in double quotes is missing")
		}
		name, _, err := p.str()
		if err != nil {
			return err
		}
		if seen[name] || seen == nil && slices.ContainsFunc(members, func(m member) bool { return m.name == name }) {
			return &InputError{Code: "duplicate_member", Param: name, Message: fmt.Sprintf("The member %q stands twice in one object; send it once", name)}
		}
		if seen != nil {
			seen[name] = true
		} else if len(members) == 16 {
			seen = map[string]bool{name: true}
			for _, m := range members {
				seen[m.name] = true
			}
		}
		if p.space(); p.peek() != ':' {
			return p.fail("a colon is missing after the member's name %q", name)
		}
		p.at++
		p.space()
		v, err := p.value(depth + 1)
		members = append(members, member{name, v})
		return err
	})
	return members, err
}

func (p *parser) number() (string, error) {
	start := p.at
	digits := func() bool {
		from := p.at
		for c := p.peek(); c >= '0' && c <= '9'; c = p.peek() {
			p.at++
		}
		return p.at > from
	}
	if p.peek() == '-' {
		p.at++
	}
	if p.peek() == '0' {
		p.at++
	} else if !digits() {
		return "", p.fail("a digit is missing")
	}
	if p.peek() == '.' {
		if p.at++; !digits() {
			return "", p.fail("a digit is missing after the point")
		}
	}
	if c := p.peek(); c == 'e' || c == 'E' {
		p.at++
		if c := p.peek(); c == '+' || c == '-' {
			p.at++
		}
		if !digits() {
			return "", p.fail("a digit is missing in the exponent")
		}
	}
	return string(p.text[start:p.at]), nil
}

// str reads a string. tidy says that it is spelled in the canonical form.
func (p *parser) str() (_ string, tidy bool, err error) {
	p.at++
	start := p.at
	var decoded strings.Builder // what stands before start, where something was escaped
	tidy = true
	for p.at < len(p.text) {
		c := p.text[p.at]
		switch {
		case plain[c]:
			text, at := p.text, p.at+1
			for at < len(text) && plain[text[at]] {
				at++
			}
			p.at = at
		case c == '"':
			rest := p.text[start:p.at]
			p.at++
			if decoded.Len() == 0 {
				return string(rest), tidy, nil
			}
			decoded.Write(rest)
			return decoded.String(), tidy, nil
		case c == '\\':
			if decoded.Cap() == 0 {
				decoded.Grow(p.rest(start))
			}
			decoded.Write(p.text[start:p.at])
			if p.at+1 < len(p.text) && shortEscape[p.text[p.at+1]] != 0 {
				decoded.WriteByte(shortEscape[p.text[p.at+1]])
				p.at += 2
			} else {
				tidy = false
				r, err := p.escape()
				if err != nil {
					return "", false, err
				}
				decoded.WriteRune(r)
			}
			start = p.at
		case c < ' ':
			return "", false, p.fail("a control character stands unescaped in a string")
		default:
			r, size := utf8.DecodeRune(p.text[p.at:])
			if r == utf8.RuneError && size < 2 {
				return "", false, p.fail("it is not UTF-8")
			}
			p.at += size
		}
	}
	return "", false, p.fail("a string does not end")
}

// shortEscape holds what the escapes stand for that the canonical form has.
var shortEscape = [256]byte{'"': '"', '\\': '\\', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// rest is how long the string is at most that begins at start: to the first
// quote, at or after p.at, that no backslash stands before.
func (p *parser) rest(start int) int {
	at := p.at
	for {
		n := bytes.IndexByte(p.text[at:], '"')
		if n < 0 {
			return len(p.text) - start
		}
		if at += n + 1; at < 2 || p.text[at-2] != '\\' {
			return at - start
		}
	}
}

// plain has the bytes that stand for themselves in a JSON string, in ASCII.
var plain = func() (table [256]bool) {
	for c := ' '; c < utf8.RuneSelf; c++ {
		table[c] = c != '"' && c != '\\'
	}
	return table
}()

func (p *parser) escape() (rune, error) {
	p.at++
	c := p.peek()
	if i := strings.IndexByte(`"\/bfnrt`, c); i >= 0 && c != 0 {
		p.at++
		return rune("\"\\/\b\f\n\r\t"[i]), nil
	}
	if c != 'u' {
		return 0, p.fail("an escape in a string is not one of JSON's")
	}
	r, err := p.hex4()
	if err != nil || !utf16.IsSurrogate(r) {
		return r, err
	}
	if bytes.HasPrefix(p.text[p.at:], []byte(`\u`)) {
		p.at++
		low, err := p.hex4()
		if err != nil {
			return 0, err
		}
		if pair := utf16.DecodeRune(r, low); pair != utf8.RuneError {
			return pair, nil
		}
	}
	return 0, p.fail("half a surrogate pair is no character")
}

// hex4 reads the u of an escape and its four digits.
func (p *parser) hex4() (r rune, err error) {
	p.at++
	for range 4 {
		digit := strings.IndexByte("0123456789abcdef", p.peek()|0x20)
		if c := p.peek(); digit < 0 || c < '0' {
			return 0, p.fail("an escape needs four hexadecimal digits")
		}
		r = r<<4 | rune(digit)
		p.at++
	}
	return r, nil
}

// appendCanonical appends v in the form of RFC 8785: members in the order of
// their UTF-16 code units, one spelling of each string and number. Its error is
// an [*InputError] that says where in v the number stands.
func appendCanonical(b []byte, v *value) ([]byte, error) {
	b, unsafe := v.appendTo(b)
	if unsafe != nil {
		return nil, unsafe.input()
	}
	return b, nil
}

func (v *value) appendTo(b []byte) (_ []byte, unsafe *unsafeNumber) {
	switch v.kind {
	case kindNumber:
		return appendNumber(b, v.text)
	case kindString:
		if v.tidy {
			return append(b, v.raw...), nil
		}
		return appendString(b, v.text), nil
	case kindArray:
		b = append(b, '[')
		for i := range v.items {
			if i > 0 {
				b = append(b, ',')
			}
			if b, unsafe = v.items[i].appendTo(b); unsafe != nil {
				return nil, unsafe.within(strconv.Itoa(i))
			}
		}
		return append(b, ']'), nil
	case kindObject:
		b = append(b, '{')
		for i, m := range inOrder(v.members) {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(appendString(b, m.name), ':')
			if b, unsafe = m.value.appendTo(b); unsafe != nil {
				return nil, unsafe.within(m.name)
			}
		}
		return append(b, '}'), nil
	}
	return append(b, v.raw...), nil
}

func inOrder(members []member) []member {
	byName := func(a, b member) int { return compareUTF16(a.name, b.name) }
	if slices.IsSortedFunc(members, byName) {
		return members
	}
	return slices.SortedFunc(slices.Values(members), byName)
}

// compareUTF16 orders as JavaScript does. Only characters beyond U+FFFF, which
// UTF-16 spells with surrogates below U+E000, order differently in UTF-8.
func compareUTF16(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	if n == len(a) || n == len(b) {
		return len(a) - len(b)
	}
	if a[n] < utf8.RuneSelf && b[n] < utf8.RuneSelf {
		return int(a[n]) - int(b[n])
	}
	for n > 0 && !utf8.RuneStart(a[n]) {
		n-- // to the first byte of the characters that differ
	}
	x, _ := utf8.DecodeRuneInString(a[n:])
	y, _ := utf8.DecodeRuneInString(b[n:])
	return slices.Compare(utf16.Encode([]rune{x}), utf16.Encode([]rune{y}))
}

func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	start := 0
	for i := range len(s) {
		c := s[i]
		if plain[c] || c >= utf8.RuneSelf {
			continue
		}
		b = append(b, s[start:i]...)
		start = i + 1
		if short := strings.IndexByte("\"\\\b\f\n\r\t", c); short >= 0 {
			b = append(b, '\\', `"\bfnrt`[short])
		} else {
			b = fmt.Appendf(b, `\u%04x`, c)
		}
	}
	return append(append(b, s[start:]...), '"')
}
