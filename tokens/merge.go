package tokens

// scanLimit is the length in bytes from which a piece is merged by
// backtracking: scanning takes quadratic time, but is faster for less.
const scanLimit = maxLong + 1

// merge returns the number of tokens that p, a piece that is no token as a
// whole, is merged to.
func (e *encoding) merge(sc *scratch, p []byte) int {
	if len(p) < scanLimit {
		return e.scan(sc, p)
	}
	return e.backtrack(sc, p)
}

// scan merges p as byte-pair encoding is defined: again and again the pair of
// lowest rank, of equal ones the first. The tokens are left in sc.part.
func (e *encoding) scan(sc *scratch, p []byte) int {
	n := len(p)
	part, rank := sc.part[:n], sc.rank[:n] // rank[i] is that of part[i] and part[i+1]
	for i, b := range p {
		part[i] = e.single[b]
	}
	for i := range n - 1 {
		rank[i] = e.double[uint(p[i])|uint(p[i+1])<<8]
	}
	rank[n-1] = none
	for {
		best, at := none, 0
		for i, r := range rank {
			if r < best {
				best, at = r, i
			}
		}
		sc.work += n
		if best == none {
			return n
		}
		n--
		copy(part[at+1:], part[at+2:])
		copy(rank[at:], rank[at+1:])
		part, rank = part[:n], rank[:n]
		part[at] = best
		rank[at] = none
		if at+1 < n {
			rank[at] = e.pairs.get(best, part[at+1])
		}
		if at > 0 {
			rank[at-1] = e.pairs.get(part[at-1], best)
		}
	}
}

// backtrack merges p in linear time, by the method of the Rust crate bpe
// (github.com/github/rust-gems, MIT): any string has exactly one sequence of
// tokens each neighbouring two of which the encoder would leave apart, and
// that sequence is the encoder's. So it takes the longest token that goes
// with the one before, and steps back where none does. A position it stepped
// back from is never tried again. The tokens are left in sc.merged.
func (e *encoding) backtrack(sc *scratch, p []byte) int {
	words := len(p)/64 + 1
	if cap(sc.dead) < words {
		sc.dead = make([]uint64, words)
	}
	dead := sc.dead[:words]
	clear(dead)
	l := &e.tokens
	tokens := sc.merged[:0]
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
	sc.merged = tokens
	return len(tokens)
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
