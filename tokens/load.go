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
	//go:embed tables/classes.bin
	classTable []byte
)

var (
	loadCL100K  = sync.OnceValue(func() *encoding { return load(cl100kTable, false) })
	loadO200K   = sync.OnceValue(func() *encoding { return load(o200kTable, true) })
	loadClasses = sync.OnceValue(unpackClasses)
)

// vocabulary returns the encoding of that name, which must be known.
func vocabulary(name string) *encoding {
	if name == cl100k {
		return loadCL100K()
	}
	return loadO200K()
}

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

// load builds an encoding from its table, whose form gen.go describes.
func load(table []byte, o200k bool) *encoding {
	r := reader(table)
	n := int(r.uint24())
	e := &encoding{o200k: o200k, classes: loadClasses()}
	e.scratch.New = func() any { return new(scratch) }
	e.readMerges(n, &r)
	e.tokens.read(n, &r)
	e.fillSets()
	return e
}

// newTable returns the slots for n keys and by how much their hash is shifted.
func newTable[slot any](n int) ([]slot, uint) {
	width := bits.Len(uint(n + n/3))
	return make([]slot, 1<<width), uint(64 - width)
}

// readMerges reads the merges of n tokens.
func (e *encoding) readMerges(n int, r *reader) {
	e.pairs = newPairTable(n)
	e.merges = (*r)[:(n-singles)*6]
	for id := uint32(singles); id < uint32(n); id++ {
		left, right := r.uint24(), r.uint24()
		e.pairs.add(left, right, id)
	}
}

// read reads n tokens.
func (l *tokenList) read(n int, r *reader) {
	l.ids = make([]uint32, n)
	l.keys = make([]uint64, n)
	l.start = make([]uint32, n+1)
	l.prefix = make([]uint32, n)
	l.bytes = make([]byte, 0, 8*n)
	var open []uint32 // the token before and its prefixes
	for p := range uint32(n) {
		shared, rest := uint32((*r)[0]), (*r)[1]
		for len(open) > 0 && l.size(open[len(open)-1]) > shared {
			open = open[:len(open)-1]
		}
		l.prefix[p] = none
		if len(open) > 0 {
			l.prefix[p] = open[len(open)-1]
		}
		open = append(open, p)

		if p > 0 {
			l.bytes = append(l.bytes, l.bytes[l.start[p-1]:l.start[p-1]+shared]...)
		}
		l.bytes = append(l.bytes, (*r)[2:2+rest]...)
		*r = (*r)[2+rest:]
		l.start[p+1] = uint32(len(l.bytes))
		l.ids[p] = r.uint24()
		t := l.token(p)
		l.keys[p] = keyOfPrefix(t)
		l.bucket[bucketOf(t)+1]++
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
	e.short.slots, e.short.shift = newTable[uint64](short)
	e.long.slots, e.long.shift = newTable[[2]uint64](long)
	for i := range e.double {
		e.double[i] = none
	}
	for p, id := range l.ids {
		t := l.token(uint32(p))
		switch len(t) {
		case 1:
			e.single[t[0]] = id
			l.single[t[0]] = uint32(p)
		case 2:
			e.double[uint(t[0])|uint(t[1])<<8] = id
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
