package tokens

import (
	"bytes"
	"encoding/binary"
)

// A tokenList holds the tokens of a vocabulary in the order of their bytes.
// A token's place in that order is its position.
type tokenList struct {
	bytes  []byte   // of all tokens
	start  []uint32 // position → where its bytes start; they end where the next one's start
	ids    []uint32 // position → id
	keys   []uint64 // position → keyOfPrefix
	prefix []uint32 // position → that of the longest other token it starts with, or none

	single [256]uint32       // byte → position of the token
	bucket [1<<16 + 1]uint32 // first two bytes → position of the first token with them
}

func (l *tokenList) token(p uint32) []byte { return l.bytes[l.start[p]:l.start[p+1]] }
func (l *tokenList) size(p uint32) uint32  { return l.start[p+1] - l.start[p] }

// keyOfPrefix returns the first eight bytes of t as a number that orders as
// they do.
func keyOfPrefix(t []byte) uint64 {
	if len(t) >= 8 {
		return binary.BigEndian.Uint64(t)
	}
	var b [8]byte
	copy(b[:], t)
	return binary.BigEndian.Uint64(b[:])
}

// bucketOf returns the first two bytes of t as a number.
func bucketOf(t []byte) int {
	if len(t) == 1 {
		return int(t[0]) << 8
	}
	return int(t[0])<<8 | int(t[1])
}

// last returns the position of the last token that is not after s, among
// those that share the first two bytes of s; or none. key is that of s, which
// is not empty.
func (l *tokenList) last(s []byte, key uint64) uint32 {
	b := bucketOf(s)
	from, to := l.bucket[b], l.bucket[b+1]
	first := from
	for from < to {
		mid := (from + to) / 2
		k := l.keys[mid]
		if k < key || k == key && bytes.Compare(l.token(mid), s) <= 0 {
			from = mid + 1
		} else {
			to = mid
		}
	}
	if from == first {
		return none
	}
	return from - 1
}

// find returns the position of the token whose bytes are s, or none.
func (l *tokenList) find(s []byte) uint32 {
	p := l.last(s, keyOfPrefix(s))
	if p == none || !bytes.Equal(l.token(p), s) {
		return none
	}
	return p
}

// longest returns the position of the longest token that s starts with, or
// none if s is empty. That token is the last one not after s or a prefix of
// it.
func (l *tokenList) longest(s []byte) uint32 {
	if len(s) == 0 {
		return none
	}
	key := keyOfPrefix(s)
	for p := l.last(s, key); p != none; p = l.prefix[p] {
		n := int(l.size(p))
		if n > len(s) || (key^l.keys[p])>>(64-8*min(n, 8)) != 0 {
			continue
		}
		if n <= 8 || bytes.HasPrefix(s, l.token(p)) {
			return p
		}
	}
	return l.single[s[0]]
}
