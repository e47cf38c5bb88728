package cache

import (
	"bytes"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// maxZeros is how many zeros a canonical number may be padded with before it is
// written with an exponent.
const maxZeros = 20

// appendNumber appends the canonical spelling of a JSON number. Its value is
// digits × 10^exponent, where digits has no zero at either end and is never
// rounded. It is spelled without an exponent if that takes at most maxZeros
// zeros after the digits or between the point and the digits, and otherwise as
// digits, e, exponent. Zero is 0, without a sign. A number whose exponent has
// more than 18 digits is kept as it stands.
func appendNumber(dst, number []byte) []byte {
	mantissa, exponent := number, []byte(nil)
	if e := bytes.IndexAny(number, "eE"); e >= 0 {
		mantissa, exponent = number[:e], number[e+1:]
	}
	mantissa, negative := bytes.CutPrefix(mantissa, []byte("-"))
	whole, fraction, _ := bytes.Cut(mantissa, []byte("."))

	base := len(dst)
	if negative {
		dst = append(dst, '-')
	}
	from := len(dst)
	dst = append(append(dst, whole...), fraction...)
	significant := bytes.TrimLeft(dst[from:], "0")
	if len(significant) == 0 {
		return append(dst[:base], '0')
	}
	exp, ok := parseExponent(exponent)
	if !ok {
		return append(dst[:base], number...)
	}
	trimmed := bytes.TrimRight(significant, "0")
	exp += int64(len(significant) - len(trimmed) - len(fraction))
	return appendScaled(append(dst[:from], trimmed...), from, exp)
}

// parseExponent reads what follows the e of a number, nothing being 0.
func parseExponent(exponent []byte) (exp int64, ok bool) {
	digits, negative := bytes.CutPrefix(exponent, []byte("-"))
	digits = bytes.TrimLeft(digits, "+0")
	if len(digits) > 18 {
		return 0, false
	}
	for _, c := range digits {
		exp = exp*10 + int64(c-'0')
	}
	if negative {
		exp = -exp
	}
	return exp, true
}

// appendScaled turns the digits in dst[from:] into the spelling of digits ×
// 10^exp.
func appendScaled(dst []byte, from int, exp int64) []byte {
	count := int64(len(dst) - from)
	switch {
	case exp >= 0 && exp <= maxZeros:
		return append(dst, "00000000000000000000"[:exp]...)
	case exp < 0 && -exp < count:
		dst = append(dst, 0)
		point := len(dst) - 1 + int(exp)
		copy(dst[point+1:], dst[point:])
		dst[point] = '.'
		return dst
	case exp < 0 && -exp-count <= maxZeros:
		lead := "0.00000000000000000000"[:2-exp-count]
		dst = append(dst, lead...)
		copy(dst[from+len(lead):], dst[from:])
		copy(dst[from:], lead)
		return dst
	}
	return strconv.AppendInt(append(dst, 'e'), exp, 10)
}

// unescape returns the character that the escape at the start of s stands for
// and the rest of s. A string that was scanned has no other kind of escape.
func unescape(s []byte) (r rune, rest []byte) {
	switch s[1] {
	case 'b':
		r = '\b'
	case 'f':
		r = '\f'
	case 'n':
		r = '\n'
	case 'r':
		r = '\r'
	case 't':
		r = '\t'
	case 'u':
		r = hex4(s, 2)
		if utf16.IsSurrogate(r) {
			return utf16.DecodeRune(r, hex4(s, 8)), s[12:]
		}
		return r, s[6:]
	default:
		r = rune(s[1])
	}
	return r, s[2:]
}

// appendDecoded appends the text that the content of a JSON string stands for.
func appendDecoded(dst, content []byte) []byte {
	for {
		i := bytes.IndexByte(content, '\\')
		if i < 0 {
			return append(dst, content...)
		}
		dst = append(dst, content[:i]...)
		var r rune
		r, content = unescape(content[i:])
		dst = utf8.AppendRune(dst, r)
	}
}

// appendRune appends the canonical spelling of a character in a string: itself,
// except for the quote, the backslash and the control characters below U+0020,
// which are escaped by their letter (b f n r t) or else as \u00xx in lower-case
// hexadecimal.
func appendRune(dst []byte, r rune) []byte {
	switch r {
	case '"', '\\':
		return append(dst, '\\', byte(r))
	case '\b':
		return append(dst, `\b`...)
	case '\f':
		return append(dst, `\f`...)
	case '\n':
		return append(dst, `\n`...)
	case '\r':
		return append(dst, `\r`...)
	case '\t':
		return append(dst, `\t`...)
	}
	if r < ' ' {
		const hex = "0123456789abcdef"
		return append(dst, '\\', 'u', '0', '0', hex[r>>4], hex[r&15])
	}
	return utf8.AppendRune(dst, r)
}

// appendEscaped appends the canonical content of a JSON string that stands for
// text.
func appendEscaped(dst, text []byte) []byte {
	for {
		i := 0
		for i < len(text) && text[i] >= ' ' && text[i] != '"' && text[i] != '\\' {
			i++
		}
		dst = append(dst, text[:i]...)
		if i == len(text) {
			return dst
		}
		dst = appendRune(dst, rune(text[i]))
		text = text[i+1:]
	}
}

// appendQuoted appends text as a JSON string in its canonical spelling.
func appendQuoted(dst, text []byte) []byte {
	return append(appendEscaped(append(dst, '"'), text), '"')
}
