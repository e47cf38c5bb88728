package tokens

import (
	"encoding/binary"
	"sync"
	"unicode/utf8"
)

// The names of the encodings.
const (
	cl100k  = "cl100k_base"
	o200k   = "o200k_base"
	harmony = "o200k_harmony" // o200k_base with other special tokens, which no text has
	p50k    = "p50k_base"
	r50k    = "r50k_base"
)

const (
	none    = ^uint32(0) // no token
	singles = 256        // tokens below are those of a single byte
)

// An encoding counts the tokens of text by byte-pair encoding. Its tables
// never change after load.
//
// Text is split into pieces. A piece that is a token as a whole counts 1,
// which holds for 19 of 20 pieces of prose or code. The other pieces are
// merged from their bytes, the pair of lowest rank first.
//
// A token's id is its rank.
type encoding struct {
	pattern pattern
	classes *classes

	short shortSet // tokens of at most 7 bytes
	long  longSet  // tokens of 8 to 15 bytes

	single [256]uint32     // byte → token
	double [1 << 16]uint32 // first byte | second byte<<8 → token of these, or none
	triple [1 << 16]uint32 // the 16 free bits of a character of three bytes → its token, or none
	torn   byteSet         // two bytes → whether a token has part of a character on one side of their border
	pairs  pairTable       // two tokens → token
	merges []byte          // the merges of the tokens from singles on, as gen.go describes them
	sizes  []uint8         // token → length of its bytes

	tokens  tokenList
	scratch sync.Pool // of *scratch
}

// A scratch is the working memory of one count.
type scratch struct {
	text  []byte
	cache [cacheSize]cached
	slots
	merged []uint32      // tokens of the long piece merged last
	dead   []uint64      // bit set of positions no tokenization goes on from
	tag    [tagSize]byte // of the text digested last
	nonce  [12]byte      // of all zeroes, for digests
	work   int           // steps taken in merging, for tests
}

// The slots of the atoms of a piece while they are merged.
type slots struct {
	part       [scanLimit]uint32 // the token in each slot
	keys       [scanLimit]uint32 // keyOfPair of it and the next one
	next, prev [scanLimit]uint16 // the slots of its neighbours

	least [scanLimit / block]uint32 // the least key of each block
}

// A cached is the count of a piece of at most 15 bytes: its key, with the
// count in the four top bits of hi.
type cached struct{ lo, hi uint64 }

const (
	cacheBits = 13
	cacheSize = 1 << cacheBits
	countBits = 60 // where a cached keeps its count
)

// text returns the tokens of s, of which each invalid byte counts as U+FFFD:
// that is what encoders of JSON make of it.
func (e *encoding) text(s string) int {
	sc := e.scratch.Get().(*scratch)
	defer e.scratch.Put(sc)
	sc.text = sc.text[:0]
	if utf8.ValidString(s) {
		sc.text = append(sc.text, s...)
	} else {
		for _, r := range s {
			sc.text = utf8.AppendRune(sc.text, r)
		}
	}
	return e.count(sc, sc.text)
}

// count returns the tokens of s, which is taken as ordinary text throughout,
// even where it spells a special token. It allocates nothing, unless s has
// the longest piece sc has seen.
func (e *encoding) count(sc *scratch, s []byte) int {
	n := 0
	for i := 0; i < len(s); {
		j := e.pieceEnd(s, i)
		n += e.piece(sc, s, i, j)
		i = j
	}
	return n
}

// pieceEnd returns the end of the piece that starts at s[i].
func (e *encoding) pieceEnd(s []byte, i int) int {
	switch e.pattern {
	case patternO200K:
		return e.classes.pieceO200K(s, i)
	case patternCL100K:
		return e.classes.pieceCL100K(s, i)
	}
	return e.classes.pieceP50K(s, i)
}

// piece returns the tokens of the piece s[i:j].
func (e *encoding) piece(sc *scratch, s []byte, i, j int) int {
	n := j - i
	if n == 1 {
		return 1
	}
	if n > maxLong {
		if e.tokens.find(s[i:j]) != none {
			return 1
		}
		return len(e.merge(sc, s[i:j]))
	}
	lo, hi := keyOf(s, i, n)
	if n <= maxShort && e.short.has(lo) || n > maxShort && e.long.has(lo, hi) {
		return 1
	}
	c := &sc.cache[hash2(lo, hi)>>(64-cacheBits)]
	if c.lo == lo && c.hi&(1<<countBits-1) == hi {
		return int(c.hi >> countBits)
	}
	count := len(e.merge(sc, s[i:j]))
	*c = cached{lo, hi | uint64(count)<<countBits}
	return count
}

const (
	maxShort = 7  // bytes of a key in a shortSet
	maxLong  = 15 // bytes of a key in a longSet
)

// keyOf returns s[i:i+n] and n, at most maxLong, as two words: up to maxShort
// bytes and their number in lo; or 8 bytes in lo, the rest and n in hi.
func keyOf(s []byte, i, n int) (lo, hi uint64) {
	if n <= maxShort {
		return bytesAt(s, i, n) | uint64(n)<<56, 0
	}
	return bytesAt(s, i, 8), bytesAt(s, i+8, n-8) | uint64(n)<<56
}

// bytesAt returns the n ≤ 8 bytes at s[i:], the first in the lowest place.
func bytesAt(s []byte, i, n int) uint64 {
	if i+8 <= len(s) {
		return binary.LittleEndian.Uint64(s[i:]) & (^uint64(0) >> (64 - 8*uint(n)))
	}
	var w uint64
	for k := n - 1; k >= 0; k-- {
		w = w<<8 | uint64(s[i+k])
	}
	return w
}

// Multipliers of the hash functions: odd, with their bits well mixed.
const (
	mix1 = 0x9E3779B97F4A7C15
	mix2 = 0xC2B2AE3D27D4EB4F
)

func hash2(lo, hi uint64) uint64 { return (lo*mix1 ^ hi*mix2>>7) * mix1 }

// The tables are open-addressed with linear probing and at most half full. A
// slot of zero is empty; no key is zero.

// A shortSet holds keys of at most maxShort bytes.
type shortSet struct {
	slots []uint64
	shift uint
}

func (t *shortSet) has(key uint64) bool {
	mask := uint64(len(t.slots) - 1)
	for h := key * mix1 >> t.shift; ; h++ {
		switch t.slots[h&mask] {
		case key:
			return true
		case 0:
			return false
		}
	}
}

func (t *shortSet) add(key uint64) {
	mask := uint64(len(t.slots) - 1)
	h := key * mix1 >> t.shift
	for t.slots[h&mask] != 0 {
		h++
	}
	t.slots[h&mask] = key
}

// A longSet holds keys of maxShort+1 to maxLong bytes.
type longSet struct {
	slots [][2]uint64
	shift uint
}

func (t *longSet) has(lo, hi uint64) bool {
	mask := uint64(len(t.slots) - 1)
	for h := hash2(lo, hi) >> t.shift; ; h++ {
		slot := &t.slots[h&mask]
		if slot[0] == lo && slot[1] == hi {
			return true
		}
		if slot[1] == 0 {
			return false
		}
	}
}

func (t *longSet) add(lo, hi uint64) {
	mask := uint64(len(t.slots) - 1)
	h := hash2(lo, hi) >> t.shift
	for t.slots[h&mask][1] != 0 {
		h++
	}
	t.slots[h&mask] = [2]uint64{lo, hi}
}

// A byteSet is a set of pairs of bytes.
type byteSet [1 << 16 / 64]uint64

func (t *byteSet) add(first, second byte) { t[int(first)<<2|int(second)>>6] |= 1 << (second & 63) }

func (t *byteSet) has(first, second byte) bool {
	return t[int(first)<<2|int(second)>>6]>>(second&63)&1 != 0
}

// A pairTable maps two tokens to the token they merge to. A slot holds the
// two (idBits each, plus 1) above the third. Most pairs that are asked for do
// not merge; a bit for each hash, in a table small enough for a near cache,
// tells that of nine in ten of them.
type pairTable struct {
	slots []uint64
	shift uint
	bits  []uint64
}

const (
	idBits     = 18 // of a token's id; both vocabularies have less than 1<<18
	noRank     = 1 << idBits
	bitsFactor = 3 // 1<<bitsFactor bits for each slot
)

func newPairTable(n int) (t pairTable) {
	t.slots, t.shift = newTable[uint64](n, n/4)
	t.bits = make([]uint64, len(t.slots)<<bitsFactor/64)
	return t
}

func (t *pairTable) get(left, right uint32) uint32 {
	key := uint64(left)<<idBits | uint64(right)
	h := key * mix1 >> (t.shift - bitsFactor)
	if t.bits[h/64]>>(h%64)&1 == 0 {
		return none
	}
	mask := uint64(len(t.slots) - 1)
	for h >>= bitsFactor; ; h++ {
		slot := t.slots[h&mask]
		if slot == 0 {
			return none
		}
		if slot>>idBits == key+1 {
			return uint32(slot & (1<<idBits - 1))
		}
	}
}

func (t *pairTable) add(left, right, merged uint32) {
	key := uint64(left)<<idBits | uint64(right)
	h := key * mix1 >> (t.shift - bitsFactor)
	t.bits[h/64] |= 1 << (h % 64)
	mask := uint64(len(t.slots) - 1)
	for h >>= bitsFactor; t.slots[h&mask] != 0; h++ {
	}
	t.slots[h&mask] = (key+1)<<idBits | uint64(merged)
}
