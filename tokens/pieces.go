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
//	p50k_base     's|'t|'re|'ve|'m|'ll|'d | ?\p{L}+ | ?\p{N}+ | ?[^\s\p{L}\p{N}]+ | \s+(?!\S) | \s+
//
// where CONTRACTION is the first line of cl100k_base; r50k_base is split as
// p50k_base. The first alternative
// that matches wins, and its repetitions are greedy but give back. Together
// the alternatives match any text, so pieces follow each other without gaps.

// A pattern is one of these expressions.
type pattern uint8

const (
	patternCL100K pattern = iota
	patternO200K
	patternP50K
)

// A char is what the expressions tell apart of a character: its class, one
// bit, so that a set of classes is an or; and above, its length in bytes.
type char uint16

const (
	other   char = 1 << iota // punctuation, symbols, controls, unassigned
	upper                    // Lu, Lt
	lower                    // Ll
	letter                   // Lm, Lo: letters without case
	mark                     // M
	number                   // N
	space                    // white space but \r and \n
	newline                  // \r, \n

	anyClass  = 1<<8 - 1
	anyLetter = upper | lower | letter
	wordHead  = upper | letter | mark // what the head of a word in o200k_base is made of
	wordTail  = lower | letter | mark // and its tail
)

func (c char) size() int { return int(c >> 8) }

// classes tells the class of each code point, of Unicode 16 as the vendor's
// tokenizer has it (Go's own tables change with its versions).
type classes struct {
	ascii [256]char // 0 for the bytes of longer characters
	runes [utf8.MaxRune + 1]uint8
}

// at returns the character at s[i]. An invalid byte counts as U+FFFD.
func (c *classes) at(s []byte, i int) char {
	if k := c.ascii[s[i]]; k != 0 {
		return k
	}
	return c.decode(s, i)
}

// decode is kept apart so that at can be inlined.
//
//go:noinline
func (c *classes) decode(s []byte, i int) char {
	r, n := utf8.DecodeRune(s[i:])
	return char(n<<8) | char(c.runes[r])
}

// run returns the end of the run of characters of set that starts at s[i].
// It does not take the size of an ASCII character from the table, because then
// each step would wait for the one before.
func (c *classes) run(s []byte, i int, set char) int {
	for i < len(s) {
		k := c.ascii[s[i]]
		if k&set != 0 {
			i++
			continue
		}
		if k == 0 {
			k = c.decode(s, i)
		}
		if k&set == 0 {
			break
		}
		i += k.size()
	}
	return i
}

// pieceCL100K returns the end of the piece of cl100k_base that starts at s[i].
func (c *classes) pieceCL100K(s []byte, i int) int {
	k := c.at(s, i)
	j := i + k.size()
	switch k & anyClass {
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
	next := char(0)
	if j < len(s) {
		next = c.at(s, j)
	}
	switch {
	case next&anyLetter != 0:
		return c.run(s, j+next.size(), anyLetter)
	case k&space == 0:
		return c.punctuation(s, j, false)
	case s[i] == ' ' && next&(other|mark) != 0:
		return c.punctuation(s, j+next.size(), false)
	}
	return c.whiteSpace(s, i)
}

// pieceO200K returns the end of the piece of o200k_base that starts at s[i].
func (c *classes) pieceO200K(s []byte, i int) int {
	k := c.at(s, i)
	j := i + k.size()
	switch k & anyClass {
	case upper, lower, letter:
		end, _ := c.word(s, i)
		return contraction(s, end)
	case number:
		return c.digits(s, j)
	case newline:
		return c.whiteSpace(s, i)
	}
	next := char(0)
	if j < len(s) {
		next = c.at(s, j)
	}
	switch {
	case next&(anyLetter|mark) != 0:
		end, ok := c.word(s, j)
		if k&mark != 0 && !ok {
			// The first alternative fails with the mark as prefix, then
			// matches with the mark as a whole word.
			return j
		}
		return contraction(s, end)
	case k&mark != 0:
		return contraction(s, j)
	case k&other != 0:
		return c.punctuation(s, j, true)
	case s[i] == ' ' && next&other != 0:
		return c.punctuation(s, j+next.size(), true)
	}
	return c.whiteSpace(s, i)
}

// pieceP50K returns the end of the piece of p50k_base that starts at s[i].
func (c *classes) pieceP50K(s []byte, i int) int {
	if s[i] == '\'' {
		// Here only lower-case letters make a contraction.
		if end := afterApostrophe(s, i); end > i && isLowerASCII(s[i+1:end]) {
			return end
		}
	}
	k := c.at(s, i)
	j := i + k.size()
	if s[i] == ' ' && j < len(s) {
		if next := c.at(s, j); next&(space|newline) == 0 {
			k, j = next, j+next.size()
		}
	}
	switch {
	case k&anyLetter != 0:
		return c.run(s, j, anyLetter)
	case k&number != 0:
		return c.run(s, j, number)
	case k&(other|mark) != 0:
		return c.run(s, j, other|mark)
	}
	end, last, _ := c.blanks(s, i)
	if end == len(s) || last == i {
		return end
	}
	return last
}

func isLowerASCII(s []byte) bool {
	for _, b := range s {
		if b < 'a' || b > 'z' {
			return false
		}
	}
	return true
}

// word returns the end of the word of o200k_base that starts at s[i], which
// is a letter or a mark: a head of wordHead and a tail of wordTail. If no tail
// follows the head, the head gives back what follows its last character that
// can stand in a tail; without any (ok is false) the second alternative takes
// the head alone.
func (c *classes) word(s []byte, i int) (end int, ok bool) {
	both := -1 // end of the last character that can stand in head and tail
	for i < len(s) {
		k := c.at(s, i)
		if k&wordHead == 0 {
			break
		}
		i += k.size()
		if k&upper == 0 {
			both = i
		}
	}
	if end = c.run(s, i, wordTail); end > i {
		return end, true
	}
	if both >= 0 {
		return both, true
	}
	return i, false
}

// contraction returns the end of the contraction ('s, 'LL, …) that starts at
// s[i], or i if there is none.
func contraction(s []byte, i int) int {
	if i < len(s) && s[i] == '\'' {
		return afterApostrophe(s, i)
	}
	return i
}

func afterApostrophe(s []byte, i int) int {
	first, second := byte(0), byte(0)
	if i+1 < len(s) {
		first = s[i+1]
	}
	if i+2 < len(s) {
		second = s[i+2]
	}
	switch first | 0x20 {
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
	if first == 0xC5 && second == 0xBF { // U+017F is a lower case of S
		return i + 3
	}
	return i
}

// digits returns the end of a run of at most three digits, of which the first
// ends at s[i].
func (c *classes) digits(s []byte, i int) int {
	for n := 1; n < 3 && i < len(s); n++ {
		k := c.at(s, i)
		if k&number == 0 {
			break
		}
		i += k.size()
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
	end, last, lineEnd := c.blanks(s, i)
	switch {
	case lineEnd >= 0:
		return lineEnd
	case end == len(s) || last == i:
		return end
	}
	return last
}

// blanks returns the end of the run of white space that starts at s[i], where
// its last character starts and where its last line break ends, or -1.
func (c *classes) blanks(s []byte, i int) (end, last, lineEnd int) {
	end, last, lineEnd = i, i, -1
	for end < len(s) {
		k := c.at(s, end)
		if k&(space|newline) == 0 {
			break
		}
		last = end
		end += k.size()
		if k&newline != 0 {
			lineEnd = end
		}
	}
	return end, last, lineEnd
}
