package tokens

import "bytes"

// An atom is where merging may begin: a byte, or a whole character that is a
// token and that no merge reaches into from outside. Starting with characters
// saves most of the merges of text that is not Latin.
//
// Merges come in the order of their ranks, and a token ranks after the two it
// is merged from. So the bytes of a character merge among themselves as they
// would alone, unless a token exists that joins some of them, not all, to a
// neighbour. Such tokens are few; encoding.torn tells between which bytes
// they reach across the border of a character, and there both neighbours are
// merged from bytes.

const (
	scanLimit = 512 // slots for atoms, a power of two
	block     = 32  // slots whose least key is remembered
	window    = 256 // atoms of a window of a longer piece
	overlap   = 2   // tokens of a window that the next one merges again
	retry     = 128 // bytes that a window merges again if that was not enough
)

// merge returns the tokens that p, a piece that is no token as a whole, is
// merged to. They are valid until sc is used again.
func (e *encoding) merge(sc *scratch, p []byte) []uint32 {
	if n, end := e.atoms(sc, p, scanLimit); end == len(p) {
		return e.scan(sc, n)
	}
	if e.windows(sc, p) {
		return sc.merged
	}
	return e.backtrack(sc, p)
}

// atoms fills the slots of sc with up to limit atoms from the start of p. It
// returns their number and the length of their bytes.
func (e *encoding) atoms(sc *scratch, p []byte, limit int) (n, end int) {
	bytewise := false // whether the last atom is a single byte
	for end < len(p) && n < limit {
		b := p[end]
		id, size := none, 1
		if b >= 0xC0 {
			id, size = e.character(p, end)
		}
		if id == none {
			id, size = e.single[b], 1
		}
		slot := n % scanLimit
		sc.part[slot], sc.next[slot], sc.prev[slot] = id, uint16(n+1), uint16(n-1)
		if n > 0 {
			rank := none
			if bytewise && size == 1 {
				rank = e.double[uint(p[end-1])|uint(b)<<8]
			} else {
				rank = e.pairs.get(sc.part[slot-1], id)
			}
			sc.keys[slot-1] = keyOfPair(rank, slot-1)
		}
		bytewise = size == 1
		n++
		end += size
	}
	for i := n - 1; i < (n+block-1)&^(block-1); i++ {
		sc.keys[i] = noPair
	}
	return n, end
}

// character returns the token of the character of two or three bytes at p[i]
// and its size, or none if it is no atom.
func (e *encoding) character(p []byte, i int) (id uint32, size int) {
	switch b := p[i:]; {
	case len(b) >= 2 && b[0] < 0xE0 && isTail(b[1]):
		id, size = e.double[uint(b[0])|uint(b[1])<<8], 2
	case len(b) >= 3 && b[0] >= 0xE0 && b[0] < 0xF0 && isTail(b[1]) && isTail(b[2]):
		id, size = e.triple[tripleIndex(b)], 3
	default:
		return none, 0
	}
	if i > 0 && e.torn.has(p[i-1], p[i]) {
		return none, 0
	}
	if next := i + size; next < len(p) && (isTail(p[next]) || e.torn.has(p[next-1], p[next])) {
		return none, 0
	}
	return id, size
}

// tripleIndex returns the bits that a character of three bytes has free.
func tripleIndex(b []byte) uint {
	return uint(b[0]&0xF)<<12 | uint(b[1]&0x3F)<<6 | uint(b[2]&0x3F)
}

// isTail reports whether b goes on with a character of several bytes.
func isTail(b byte) bool { return b&0xC0 == 0x80 }

// scan merges the n atoms as byte-pair encoding is defined: again and again the
// pair of lowest rank, of equal ones the first. Atoms keep their slots, so that
// a slot can be part of its key; a slot that was merged into the one before it
// is skipped by the links. The least key is found by way of the blocks.
func (e *encoding) scan(sc *scratch, n int) []uint32 {
	part, keys := &sc.part, &sc.keys
	blocks := (n + block - 1) / block
	for i := range blocks {
		sc.renew(i)
	}
	for {
		best := noPair
		for _, k := range sc.least[:blocks] {
			best = min(best, k)
		}
		sc.work += block + blocks
		if best >= noPair {
			break
		}
		at, id := int(best%scanLimit), best/scanLimit
		right := int(sc.next[at]) % scanLimit
		after := int(sc.next[right])
		part[at], sc.next[at] = id, uint16(after)
		keys[at], keys[right] = noPair, noPair
		if after < n {
			after %= scanLimit
			sc.prev[after] = uint16(at)
			keys[at] = keyOfPair(e.pairs.get(id, part[after]), at)
		}
		sc.renew(at / block)
		if right/block != at/block {
			sc.renew(right / block)
		}
		if at > 0 {
			left := int(sc.prev[at]) % scanLimit
			keys[left] = keyOfPair(e.pairs.get(part[left], id), left)
			sc.renew(left / block)
		}
	}
	left := 0
	for at := 0; at < n; at = int(sc.next[at]) {
		part[left] = part[at]
		left++
	}
	return part[:left]
}

// renew finds the least key of block i.
func (s *slots) renew(i int) {
	a, b, c, d := noPair, noPair, noPair, noPair
	keys := (*[block]uint32)(s.keys[i*block:])
	for j := 0; j < block; j += 4 {
		a, b, c, d = min(a, keys[j]), min(b, keys[j+1]), min(c, keys[j+2]), min(d, keys[j+3])
	}
	s.least[i] = min(a, b, c, d)
}

// keyOfPair returns the rank and the slot of the first of two neighbours as a
// number that orders by rank, then by slot: the key of a pair that does not
// merge is at least noPair.
func keyOfPair(rank uint32, slot int) uint32 {
	return min(rank, noRank)*scanLimit + uint32(slot)
}

const noPair uint32 = noRank * scanLimit

// windows merges p, a long piece, window by window, and leaves the tokens in
// sc.merged. It reports whether it could.
//
// Any string has exactly one sequence of tokens each neighbouring two of which
// the encoder would leave apart, and that sequence is the encoder's. Within a
// window they are apart because it was merged as a whole; at the border to
// the one before it is checked. The last tokens of a window, which may depend
// on what follows, are merged again with the next.
func (e *encoding) windows(sc *scratch, p []byte) bool {
	sc.merged = sc.merged[:0]
	for at := 0; at < len(p); {
		start := at
		n, size := e.atoms(sc, p[at:], window)
		part := e.scan(sc, n)
		if !e.follows(sc, part[0]) {
			at -= e.takeBack(sc, len(sc.merged), retry)
			n, size = e.atoms(sc, p[at:], scanLimit)
			if part = e.scan(sc, n); !e.follows(sc, part[0]) {
				return false
			}
		}
		sc.merged = append(sc.merged, part...)
		if at += size; at == len(p) {
			return true
		}
		at -= e.takeBack(sc, min(overlap, len(part)-1), retry)
		if at <= start {
			return false
		}
		at = e.repeat(sc, p, at)
	}
	return true
}

// follows reports whether the encoder leaves t apart from the last token of
// sc.merged, if there is one.
func (e *encoding) follows(sc *scratch, t uint32) bool {
	return len(sc.merged) == 0 || e.apart(sc, sc.merged[len(sc.merged)-1], t)
}

// takeBack removes the last tokens from sc.merged, at most n and as many as
// have at most max bytes. It returns how many bytes they have.
func (e *encoding) takeBack(sc *scratch, n, max int) (size int) {
	for ; n > 0 && len(sc.merged) > 0; n-- {
		last := len(sc.merged) - 1
		more := int(e.sizes[sc.merged[last]])
		if size+more > max {
			break
		}
		size += more
		sc.merged = sc.merged[:last]
	}
	return size
}

// repeat appends the last token of sc.merged, which ends at p[at], as often as
// its bytes are repeated, and returns the end of that. It spares long runs of
// one character.
func (e *encoding) repeat(sc *scratch, p []byte, at int) int {
	t := sc.merged[len(sc.merged)-1]
	size := int(e.sizes[t])
	if !e.follows(sc, t) {
		return at
	}
	for at+size <= len(p) && bytes.Equal(p[at:at+size], p[at-size:at]) {
		sc.merged = append(sc.merged, t)
		at += size
		sc.work++
	}
	return at
}

// backtrack merges p in linear time, by the method of the Rust crate bpe
// (github.com/github/rust-gems, MIT): it looks for the sequence of tokens that
// the encoder would leave apart, always taking the longest token that goes
// with the one before, and stepping back where none does. A position it
// stepped back from is never tried again.
func (e *encoding) backtrack(sc *scratch, p []byte) []uint32 {
	words := len(p)/64 + 1
	if cap(sc.dead) < words {
		sc.dead = make([]uint64, words)
	}
	dead := sc.dead[:words]
	clear(dead)
	l := &e.tokens
	tokens := sc.merged[:0] // their positions in l
	t := l.longest(p)
	for at := 0; at < len(p); {
		last := none
		if len(tokens) > 0 {
			last = tokens[len(tokens)-1]
		}
		for ; t != none; t = l.prefix[t] {
			sc.work++
			end := at + int(l.size(t))
			if dead[end/64]>>(end%64)&1 == 0 && (last == none || e.apart(sc, l.ids[last], l.ids[t])) {
				break
			}
		}
		if t != none {
			tokens = append(tokens, t)
			at += int(l.size(t))
			t = l.longest(p[at:])
			continue
		}
		dead[at/64] |= 1 << (at % 64)
		tokens = tokens[:len(tokens)-1]
		at -= int(l.size(last))
		t = l.prefix[last]
	}
	for i, t := range tokens {
		tokens[i] = l.ids[t]
	}
	sc.merged = tokens
	return tokens
}

// apart reports whether the encoder leaves tokens a and b apart when their
// bytes stand side by side: it takes their merges back, the last one first,
// and looks whether a merge across the border would have come before the one
// taken back.
func (e *encoding) apart(sc *scratch, a, b uint32) bool {
	for limit := none; ; {
		sc.work++
		if e.pairs.get(a, b) < limit {
			return false
		}
		switch {
		case max(a, b) < singles:
			return true
		case a > b:
			limit = a
			_, a = e.split(a)
		default:
			limit = b + 1 // of two merges of one rank the left one comes first
			b, _ = e.split(b)
		}
	}
}

// split returns the two tokens that a token of more than one byte is merged
// from.
func (e *encoding) split(id uint32) (left, right uint32) {
	m := e.merges[(id-singles)*6:]
	return uint32(m[0]) | uint32(m[1])<<8 | uint32(m[2])<<16, uint32(m[3]) | uint32(m[4])<<8 | uint32(m[5])<<16
}
