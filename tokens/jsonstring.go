package tokens

import (
	"encoding/binary"
	"math/bits"
)

// Strings are most of a body, and full of escapes where they hold code or
// JSON, so their syntax is checked 64 bytes at a time: the quotes and the
// backslashes of a block as bits of two words. The end of a body, where no
// block is left, is read byte by byte.

// Masks of eight bytes.
const (
	ones  = 0x0101010101010101
	tops  = ones * 0x80
	lows  = ones * 0x7F
	below = ones * (0x80 - ' ') // added to the lower bits of a byte, sets its top unless it was below a space
)

func (p *parser) str() error {
	if !p.accept('"') {
		return errSyntax
	}
	carry := uint64(0) // 1 if the byte at p.i is escaped by the one before
	for p.i+64 <= len(p.b) {
		quotes, slashes, controls := specials((*[64]byte)(p.b[p.i:]))
		if controls {
			break
		}
		var escaped uint64
		escaped, carry = findEscaped(slashes, carry)
		quotes &^= escaped
		for e := escaped & (quotes - 1) &^ quotes; e != 0; e &= e - 1 {
			if !p.isEscape(p.i + bits.TrailingZeros64(e)) {
				return errSyntax
			}
		}
		if quotes != 0 {
			p.i += bits.TrailingZeros64(quotes) + 1
			return nil
		}
		p.i += 64
	}
	if carry != 0 {
		if !p.isEscape(p.i) {
			return errSyntax
		}
		p.i++
	}
	return p.restOfString()
}

// findEscaped returns which bytes a backslash before them escapes, and whether
// the one after the block is, given the backslashes of the block and whether
// its first byte is escaped. It is the method of simdjson: a subtraction
// carries through each run of backslashes, so that its end tells whether the
// run is of odd length.
func findEscaped(slashes, carry uint64) (escaped, carryOut uint64) {
	const odd = 0xAAAAAAAAAAAAAAAA
	free := slashes &^ carry // those that are not escaped by the block before
	ends := (free<<1 | odd) - free ^ odd
	return ends ^ (slashes | carry), ends & slashes >> 63
}

// specials returns the quotes and the backslashes among the 64 bytes of block,
// the first in the lowest bit, and whether there is a control character.
func specials(block *[64]byte) (quotes, slashes uint64, controls bool) {
	plain := uint64(tops)
	for k := 0; k < 64; k += 8 {
		w := binary.LittleEndian.Uint64(block[k:])
		quotes = quotes>>8 | zeroes(w^ones*'"')
		slashes = slashes>>8 | zeroes(w^ones*'\\')
		plain &= w&lows + below | w
	}
	return quotes, slashes, plain&tops != tops
}

// zeroes returns which bytes of w are zero, in the upper eight bits, the first
// in the lowest of those. Adding to the lower bits of a byte sets its top if
// any of them is set; multiplying gathers the tops.
func zeroes(w uint64) uint64 {
	return (^(w&lows + lows | w) & tops) >> 7 * 0x0102040810204080 &^ (1<<56 - 1)
}

// restOfString checks the rest of a string.
func (p *parser) restOfString() error {
	for {
		switch c := p.peek(); {
		case c == '"':
			p.i++
			return nil
		case c == '\\':
			if !p.isEscape(p.i + 1) {
				return errSyntax
			}
			p.i += 2
		case c < ' ':
			return errSyntax // or the end
		default:
			p.i++
		}
	}
}

// isEscape reports whether what stands at i makes an escape with the backslash
// before it.
func (p *parser) isEscape(i int) bool {
	if i < len(p.b) && escapes[p.b[i]] {
		return true
	}
	if i < len(p.b) && p.b[i] == 'u' {
		_, ok := hex4(p.b, i+1)
		return ok
	}
	return false
}

// escapes holds the characters that make an escape alone with a backslash.
var escapes = [256]bool{'"': true, '\\': true, '/': true, 'b': true, 'f': true, 'n': true, 'r': true, 't': true}
