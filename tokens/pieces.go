package tokens

import (
	"unicode/utf8"
)

// Before the merges, text is split into pieces: words with what stands before
// them, short runs of digits, punctuation, white space. The vendor defines
// the pieces by regular expressions; here they are written out, because a
// backtracking regexp takes most of the time of a count. The expressions are
//
//	cl100k_base   (?i:'s|'t|'re|'ve|'m|'ll|'d)
//	              | [^\r\n\p{L}\p{N}]?\p{L}+
//	              | \p{N}{1,3}
//	              |  ?[^\s\p{L}\p{N}]+[\r\n]*
//	              | \s*[\r\n]+ | \s+(?!\S) | \s+
//
//	o200k_base    [^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+CONTRACTION?
//	              | [^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*CONTRACTION?
//	              | \p{N}{1,3}
//	              |  ?[^\s\p{L}\p{N}]+[\r\n/]*
//	              | \s*[\r\n]+ | \s+(?!\S) | \s+
//
// where CONTRACTION is the first line of cl100k_base. The first alternative
// that matches wins, and its repetitions are greedy but give back. Together
// the alternatives match any text, so pieces follow each other without gaps.

// A class is what the expressions tell apart of a character: one bit, so that
// a set of classes is an or.
type class uint8

const (
	other   class = 1 << iota // punctuation, symbols, controls, unassigned
	upper                     // Lu, Lt
	lower                     // Ll
	letter                    // Lm, Lo: letters without case
	mark                      // M
	number                    // N
	space                     // white space but \r and \n
	newline                   // \r, \n

	anyLetter = upper | lower | letter
	wordStart = upper | letter | mark // what the head of a word in o200k_base is made of
	wordEnd   = lower | letter | mark // and its tail
)

// classes holds the class of every code point, of Unicode 16 as the vendor's
// tokenizer has it (Go's own tables change with its versions).
type classes [utf8.MaxRune + 1]class

// at returns the class of the character at s[i] and its length in bytes.
// An invalid byte counts as U+FFFD.
func (c *classes) at(s []byte, i int) (class, int) {
	if b := s[i]; b < utf8.RuneSelf {
		return c[b], 1
	}
	r, n := utf8.DecodeRune(s[i:])
	return c[r], n
}

// run returns the end of the run of characters of set that starts at s[i].
func (c *classes) run(s []byte, i int, set class) int {
	for i < len(s) {
		if b := s[i]; b < utf8.RuneSelf {
			if c[b]&set == 0 {
				break
			}
			i++
			continue
		}
		r, n := utf8.DecodeRune(s[i:])
		if c[r]&set == 0 {
			break
		}
		i += n
	}
	return i
}

// pieceCL100K returns the end of the piece of cl100k_base that starts at s[i].
func (c *classes) pieceCL100K(s []byte, i int) int {
	k, n := c.at(s, i)
	j := i + n
	switch k {
	case upper, lower, letter:
		return c.run(s, j, anyLetter)
	case number:
		return c.digits(s, j)
	case newline:
		return c.whiteSpace(s, i)
	}
	if end := contraction(s, i); end > i {
		return end
	}
	next, n := class(0), 0
	if j < len(s) {
		next, n = c.at(s, j)
	}
	switch {
	case next&anyLetter != 0:
		return c.run(s, j+n, anyLetter)
	case k != space:
		return c.punctuation(s, j, false)
	case s[i] == ' ' && next&(other|mark) != 0:
		return c.punctuation(s, j+n, false)
	}
	return c.whiteSpace(s, i)
}

// pieceO200K returns the end of the piece of o200k_base that starts at s[i].
func (c *classes) pieceO200K(s []byte, i int) int {
	k, n := c.at(s, i)
	j := i + n
	switch k {
	case upper, lower, letter:
		end, _ := c.word(s, i)
		return contraction(s, end)
	case number:
		return c.digits(s, j)
	case newline:
		return c.whiteSpace(s, i)
	}
	next, n := class(0), 0
	if j < len(s) {
		next, n = c.at(s, j)
	}
	switch {
	case next&(anyLetter|mark) != 0:
		end, cased := c.word(s, j)
		if k == mark && !cased {
			// The first alternative fails with the mark as prefix, then
			// matches with the mark as a whole word.
			return j
		}
		return contraction(s, end)
	case k == mark:
		return contraction(s, j)
	case k == other:
		return c.punctuation(s, j, true)
	case s[i] == ' ' && next == other:
		return c.punctuation(s, j+n, true)
	}
	return c.whiteSpace(s, i)
}

// word returns the end of the word of o200k_base that starts at s[i], which
// is a letter or a mark: a head of wordStart and a tail of wordEnd. If no tail
// follows the head, the head gives its last character back that can be one;
// without any (ok is false) the second alternative takes the head alone.
func (c *classes) word(s []byte, i int) (end int, ok bool) {
	both := -1 // end of the last character that can stand in head and tail
	head := i
	for head < len(s) {
		k, n := c.at(s, head)
		if k&wordStart == 0 {
			break
		}
		head += n
		if k != upper {
			both = head
		}
	}
	if end = c.run(s, head, wordEnd); end > head {
		return end, true
	}
	if both >= 0 {
		return both, true
	}
	return head, false
}

// contraction returns the end of the contraction ('s, 'LL, …) that starts at
// s[i], or i if there is none.
func contraction(s []byte, i int) int {
	if i+1 >= len(s) || s[i] != '\'' {
		return i
	}
	second := byte(0)
	if i+2 < len(s) {
		second = s[i+2]
	}
	switch s[i+1] | 0x20 {
	case 's', 't', 'm', 'd':
		return i + 2
	case 'r', 'v':
		if second|0x20 == 'e' {
			return i + 3
		}
	case 'l':
		if second|0x20 == 'l' {
			return i + 3
		}
	}
	if s[i+1] == 0xC5 && second == 0xBF { // U+017F is a lower case of S
		return i + 3
	}
	return i
}

// digits returns the end of a run of at most three digits, of which the first
// ends at s[i].
func (c *classes) digits(s []byte, i int) int {
	for range 2 {
		if i == len(s) {
			break
		}
		k, n := c.at(s, i)
		if k != number {
			break
		}
		i += n
	}
	return i
}

// punctuation returns the end of a run of punctuation that goes on at s[i],
// with the line breaks after it, and slashes if they belong to them.
func (c *classes) punctuation(s []byte, i int, slashes bool) int {
	i = c.run(s, i, other|mark)
	for i < len(s) && (s[i] == '\n' || s[i] == '\r' || slashes && s[i] == '/') {
		i++
	}
	return i
}

// whiteSpace returns the end of the piece of white space that starts at s[i]:
// up to the last line break of the run, else the run without its last
// character, which goes with what follows, unless nothing does or the run is
// that character.
func (c *classes) whiteSpace(s []byte, i int) int {
	lineEnd, last := -1, i
	j := i
	for j < len(s) {
		k, n := c.at(s, j)
		if k&(space|newline) == 0 {
			break
		}
		last = j
		j += n
		if k == newline {
			lineEnd = j
		}
	}
	switch {
	case lineEnd >= 0:
		return lineEnd
	case j == len(s) || last == i:
		return j
	}
	return last
}
