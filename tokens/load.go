package tokens

import (
	_ "embed"
	"math/bits"
	"sync"
	"unicode/utf8"
)

//go:generate go run gen.go

var (
	//go:embed tables/cl100k_base.bin
	cl100kTable []byte
	//go:embed tables/o200k_base.bin
	o200kTable []byte
	//go:embed tables/p50k_base.bin
	p50kTable []byte
	//go:embed tables/classes.bin
	classTable []byte
)

var (
	loadCL100K  = sync.OnceValue(func() *encoding { return load(cl100kTable, patternCL100K, noLimit) })
	loadO200K   = sync.OnceValue(func() *encoding { return load(o200kTable, patternO200K, noLimit) })
	loadP50K    = sync.OnceValue(func() *encoding { return load(p50kTable, patternP50K, noLimit) })
	loadR50K    = sync.OnceValue(func() *encoding { return load(p50kTable, patternP50K, r50kTokens) })
	loadClasses = sync.OnceValue(unpackClasses)
)

// r50kTokens is the number of tokens of r50k_base. They are the first of
// p50k_base, which adds runs of spaces.
const (
	r50kTokens = 50256
	noLimit    = 1 << idBits
)

// loaderOf returns the function that loads the encoding of that name at first
// use, or nil if there is none.
func loaderOf(name string) func() *encoding {
	switch name {
	case cl100k:
		return loadCL100K
	case o200k, harmony:
		return loadO200K
	case p50k:
		return loadP50K
	case r50k:
		return loadR50K
	}
	return nil
}

func known(name string) bool { return loaderOf(name) != nil }

// vocabulary returns the encoding of that name, which must be known.
func vocabulary(name string) *encoding { return loaderOf(name)() }

// A reader takes little-endian numbers from a table.
type reader []byte

func (r *reader) uint24() uint32 {
	b := (*r)[:3]
	*r = (*r)[3:]
	return uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16
}

func unpackClasses() *classes {
	c := new(classes)
	r := reader(classTable)
	start := r.uint24()
	for {
		class := r[0]
		r = r[1:]
		end := uint32(len(c.runes))
		if len(r) > 0 {
			end = r.uint24()
		}
		run := c.runes[start:end]
		for i := range run {
			run[i] = class
		}
		if len(r) == 0 {
			break
		}
		start = end
	}
	for b := range utf8.RuneSelf {
		c.ascii[b] = 1<<8 | char(c.runes[b])
	}
	return c
}

// load builds an encoding of the first tokens, at most limit, of its table,
// whose form gen.go describes.
func load(table []byte, pattern pattern, limit int) *encoding {
	r := reader(table)
	all := int(r.uint24())
	n := min(all, limit)
	e := &encoding{pattern: pattern, classes: loadClasses()}
	e.scratch.New = func() any { return new(scratch) }
	var merges sync.WaitGroup
	merges.Go(func() { e.readMerges(n, r) })
	e.tokens.read(all, n, r[(all-singles)*6:])
	e.fillSets()
	merges.Wait()
	return e
}

// newTable returns the slots for n keys, room more of them than n, and by how
// much the keys' hashes are shifted.
func newTable[slot any](n, room int) ([]slot, uint) {
	width := bits.Len(uint(n + room))
	return make([]slot, 1<<width), uint(64 - width)
}

// readMerges reads the merges of n tokens.
func (e *encoding) readMerges(n int, r reader) {
	e.pairs = newPairTable(n)
	e.merges = r[:(n-singles)*6]
	for id := uint32(singles); id < uint32(n); id++ {
		left, right := r.uint24(), r.uint24()
		e.pairs.add(left, right, id)
	}
}

// read reads those of all tokens whose ids are below n.
func (l *tokenList) read(all, n int, r reader) {
	l.ids = make([]uint32, 0, n)
	l.keys = make([]uint64, 0, n)
	l.start = append(make([]uint32, 0, n+1), 0)
	l.prefix = make([]uint32, 0, n)
	l.bytes = make([]byte, 0, 8*n)
	var token []byte
	var open []uint32 // the token before and its prefixes
	for range all {
		shared, rest := int(r[0]), int(r[1])
		token = append(token[:shared], r[2:2+rest]...)
		r = r[2+rest:]
		for len(open) > 0 && int(l.size(open[len(open)-1])) > shared {
			open = open[:len(open)-1]
		}
		id := r.uint24()
		if id >= uint32(n) {
			continue
		}
		prefix := none
		if len(open) > 0 {
			prefix = open[len(open)-1]
		}
		open = append(open, uint32(len(l.ids)))
		l.ids = append(l.ids, id)
		l.keys = append(l.keys, keyOfPrefix(token))
		l.prefix = append(l.prefix, prefix)
		l.bytes = append(l.bytes, token...)
		l.start = append(l.start, uint32(len(l.bytes)))
		l.bucket[bucketOf(token)+1]++
	}
	for i := range l.bucket[1:] {
		l.bucket[i+1] += l.bucket[i]
	}
}

// fillSets fills the tables that are looked up by the bytes of a token.
func (e *encoding) fillSets() {
	l := &e.tokens
	short, long := 0, 0
	for p := range uint32(len(l.ids)) {
		switch n := l.size(p); {
		case n <= maxShort:
			short++
		case n <= maxLong:
			long++
		}
	}
	e.short.slots, e.short.shift = newTable[uint64](short, short/3)
	e.long.slots, e.long.shift = newTable[[2]uint64](long, long/3)
	for i := range e.double {
		e.double[i], e.triple[i] = none, none
	}
	e.sizes = make([]uint8, len(l.ids))
	for p, id := range l.ids {
		t := l.token(uint32(p))
		e.sizes[id] = uint8(len(t))
		e.tear(t)
		switch {
		case len(t) == 1:
			e.single[t[0]] = id
			l.single[t[0]] = uint32(p)
		case len(t) == 2:
			e.double[uint(t[0])|uint(t[1])<<8] = id
		case len(t) == 3 && t[0] >= 0xE0 && t[0] < 0xF0 && isTail(t[1]) && isTail(t[2]):
			e.triple[tripleIndex(t)] = id
		}
		if len(t) > maxLong {
			continue
		}
		lo, hi := keyOf(l.bytes, int(l.start[p]), len(t))
		if hi == 0 {
			e.short.add(lo)
		} else {
			e.long.add(lo, hi)
		}
	}
}

// tear notes in e.torn where t, a token, has part of a character beside
// something else: its last bytes at the start of t, or its first ones at the
// end.
func (e *encoding) tear(t []byte) {
	i := 0
	for i < len(t) && isTail(t[i]) {
		i++
	}
	if i == len(t) {
		return
	}
	if i > 0 {
		e.torn.add(t[i-1], t[i])
	}
	i = len(t) - 1
	for isTail(t[i]) {
		i--
	}
	if i > 0 && len(t)-i < characterSize(t[i]) {
		e.torn.add(t[i-1], t[i])
	}
}

// characterSize returns the length of the character that starts with b.
func characterSize(b byte) int {
	switch {
	case b < 0xC0:
		return 1
	case b < 0xE0:
		return 2
	case b < 0xF0:
		return 3
	}
	return 4
}
