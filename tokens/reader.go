package tokens

import (
	"errors"
	"fmt"
	"io"
	"slices"
)

// How much text ReadIn holds.
const (
	readChunk = 1 << 20  // bytes at first
	readMost  = 64 << 20 // bytes without a place to cut
)

// ErrNoCut says that a text is too long to be counted in pieces: some 64 MiB
// of it have no place where a line or a word begins.
var ErrNoCut = errors.New("64 MiB of text without a line or a word that begins in ASCII")

// ReadIn returns the tokens of the text that r yields, in the encoding of that
// name, and how many bytes they are of. It is TextIn for texts of any length:
// it holds a part at a time, cut where all encodings begin a new piece.
func ReadIn(encoding string, r io.Reader) (tokens int, size int64, err error) {
	return readIn(encoding, r, readChunk, readMost)
}

func readIn(encoding string, r io.Reader, chunk, most int) (tokens int, size int64, err error) {
	held := make([]byte, 0, chunk)
	for {
		n, err := io.ReadFull(r, held[len(held):cap(held)])
		held = held[:len(held)+n]
		end := err == io.EOF || err == io.ErrUnexpectedEOF
		if err != nil && !end {
			return 0, 0, fmt.Errorf("reading text: %w", err)
		}
		cut := len(held)
		if !end {
			cut = lastCut(held)
		}
		if cut > 0 || end {
			counted, err := TextIn(encoding, string(held[:cut]))
			if err != nil {
				return 0, 0, err
			}
			tokens += counted
			size += int64(cut)
			held = held[:copy(held, held[cut:])]
		}
		switch {
		case end:
			return tokens, size, nil
		case cut == 0 && cap(held) >= most:
			return 0, 0, ErrNoCut
		case cut == 0:
			held = slices.Grow(held, cap(held))
		}
	}
}

// lastCut returns the last place in text where every encoding begins a piece
// whatever stands before or after, or 0. No pattern lets a piece hold a letter
// and then a space, nor a line break and then a letter or a digit; and single
// white space is split in the same way at the end of a text and before a word.
func lastCut(text []byte) int {
	for i := len(text) - 1; i >= 2; i-- {
		before, at, after := text[i-2], text[i-1], text[i]
		switch {
		case at == ' ' && isASCIILetter(before) && isASCIILetter(after):
			return i - 1
		case at == '\n' && '!' <= before && before <= '~' && (isASCIILetter(after) || '0' <= after && after <= '9'):
			return i
		}
	}
	return 0
}

func isASCIILetter(c byte) bool { return 'a' <= c|0x20 && c|0x20 <= 'z' }
