package cache

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"
)

// each is a word of bytes 1; multiplied by a byte it is a word of that byte.
const each = 0x0101010101010101

// special sets the high bit of each byte of a word that is a quote, a
// backslash, a control character or not ASCII, and may set that of a byte after
// one that is. Other bits mean nothing.
//
// The exclusive or with 2 swaps the quote (0x22) with the space (0x20), so that
// quotes and control characters are what is below 0x21; that with the backslash
// leaves 0 for a backslash. What is not ASCII is found by one or the other.
func special(b []byte) uint64 {
	x := binary.LittleEndian.Uint64(b)
	return ((x ^ 2*each) - 0x21*each) | ((x ^ '\\'*each) - each)
}

// highBits gathers the high bits of a word's bytes, the first byte's lowest.
func highBits(word uint64) uint32 {
	return uint32((word >> 7 & each) * 0x0102040810204080 >> 56)
}

// simpleEscape holds what may follow a backslash in the canonical spelling,
// apart from u.
var simpleEscape = [256]bool{'"': true, '\\': true, 'b': true, 'f': true, 'n': true, 'r': true, 't': true}

// text reads a string from i, the byte after its opening quote, past its
// closing quote. It is escaped if it holds escapes, and untidy if one of them may
// not be the canonical spelling.
func (s *scanner) text(i int) (end int, seen flags, err error) {
	raw := s.Raw
	if i <= len(raw)-8 { // most names end here
		j := i + bits.TrailingZeros64(special(raw[i:i+8])&(0x80*each))/8
		if j < i+8 && raw[j] == '"' {
			return j + 1, 0, nil
		}
	}
blocks:
	for i <= len(raw)-32 {
		q := raw[i : i+32]
		w0, w1, w2, w3 := special(q), special(q[8:]), special(q[16:]), special(q[24:])
		if (w0|w1|w2|w3)&(0x80*each) == 0 {
			i += 32
			continue
		}
		found := highBits(w0) | highBits(w1)<<8 | highBits(w2)<<16 | highBits(w3)<<24
		for found != 0 {
			j := bits.TrailingZeros32(found) % 32
			if q[j] == '\\' && j < 31 && simpleEscape[q[j+1]] {
				seen |= escaped
				found &^= 3 << j
				continue
			}
			if q[j] == '"' {
				return i + j + 1, seen, nil
			}
			n, f, err := s.character(i + j)
			if err != nil {
				return i, 0, err
			}
			seen |= f
			if j += n; j >= 32 {
				i += j
				continue blocks
			}
			found = found >> j << j
		}
		i += 32
	}
	for i < len(raw) && raw[i] != '"' {
		if c := raw[i]; c >= ' ' && c != '\\' && c < utf8.RuneSelf {
			i++
			continue
		}
		n, f, err := s.character(i)
		if err != nil {
			return i, 0, err
		}
		i += n
		seen |= f
	}
	if i >= len(raw) {
		return i, 0, &SyntaxError{len(raw), "the body ends inside a string: send all of it"}
	}
	return i + 1, seen, nil
}

// character checks the character of a string at i, which is no quote, and
// returns how many bytes spell it; of one that is not ASCII also those that
// follow it and are not ASCII either.
func (s *scanner) character(i int) (n int, seen flags, err error) {
	raw := s.Raw
	switch c := raw[i]; {
	case c == '\\':
		return escape(raw, i)
	case c < ' ':
		return 0, 0, &SyntaxError{i, fmt.Sprintf("a bare control character in a string: write \\u%04x", c)}
	case c < utf8.RuneSelf:
		return 1, 0, nil
	}
	for i+n < len(raw) && raw[i+n] >= utf8.RuneSelf {
		r, size := utf8.DecodeRune(raw[i+n:])
		if r == utf8.RuneError && size == 1 {
			return 0, 0, &SyntaxError{i + n, "bytes that are not UTF-8: encode the body as UTF-8"}
		}
		n += size
	}
	return n, 0, nil
}

// escape checks the escape sequence that begins with the backslash at i and
// returns its length; of a surrogate pair that of both halves.
func escape(raw []byte, i int) (n int, seen flags, err error) {
	if i+1 == len(raw) {
		return 0, 0, &SyntaxError{i + 1, "the body ends inside a string: send all of it"}
	}
	switch raw[i+1] {
	case '"', '\\', 'b', 'f', 'n', 'r', 't':
		return 2, escaped, nil
	case '/':
		return 2, escaped | untidy, nil
	case 'u':
		r := hex4(raw, i+2)
		switch {
		case r < 0:
			return 0, 0, &SyntaxError{i, "\\u without four hexadecimal digits: correct the escape"}
		case !utf16.IsSurrogate(r):
			return 6, escaped | untidy, nil
		case i+7 < len(raw) && raw[i+6] == '\\' && raw[i+7] == 'u' &&
			utf16.DecodeRune(r, hex4(raw, i+8)) != utf8.RuneError:
			return 12, escaped | untidy, nil
		}
		return 0, 0, &SyntaxError{i, fmt.Sprintf("\\u%04x is half of a character: cut texts between characters, not inside a surrogate pair", r)}
	}
	return 0, 0, &SyntaxError{i, "an unknown escape in a string: double the backslash"}
}

// hex4 reads four hexadecimal digits at i, or returns -1.
func hex4(raw []byte, i int) rune {
	if len(raw)-i < 4 {
		return -1
	}
	var r rune
	for _, c := range raw[i : i+4] {
		switch {
		case '0' <= c && c <= '9':
			r = r<<4 | rune(c-'0')
		case 'a' <= c|0x20 && c|0x20 <= 'f':
			r = r<<4 | rune(c|0x20-'a'+10)
		default:
			return -1
		}
	}
	return r
}

// number reads the number that begins at i. It is untidy if its spelling may
// not be the canonical one.
func (s *scanner) number(i int) (end int, seen flags, err error) {
	raw, from := s.Raw, i
	if raw[i] == '-' {
		i++
	}
	whole := digits(raw, i)
	if whole == i || raw[i] == '0' && whole > i+1 {
		return i, 0, &SyntaxError{i, "a number without digits or with a leading zero: correct the number"}
	}
	i = whole
	if i < len(raw) && raw[i] == '.' {
		if i = digits(raw, i+1); i == whole+1 {
			return i, 0, &SyntaxError{i, "a number without digits after its point: correct the number"}
		}
		if raw[i-1] == '0' {
			seen = untidy
		}
	} else if raw[from] == '-' && raw[from+1] == '0' {
		seen = untidy
	}
	if i < len(raw) && raw[i]|0x20 == 'e' {
		i++
		if i < len(raw) && (raw[i] == '+' || raw[i] == '-') {
			i++
		}
		exponent := i
		if i = digits(raw, i); i == exponent {
			return i, 0, &SyntaxError{i, "a number without digits in its exponent: correct the number"}
		}
		seen = untidy
	}
	if i-from > maxZeros {
		seen = untidy
	}
	return i, seen, nil
}

// digits returns the index of the first byte at or after i that is no decimal
// digit.
func digits(raw []byte, i int) int {
	for i < len(raw) && '0' <= raw[i] && raw[i] <= '9' {
		i++
	}
	return i
}
