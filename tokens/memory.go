package tokens

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"fmt"
	"sync"
)

// A memory remembers the counts of texts by their digests, so that a growing
// conversation costs its new messages only. A digest is of the text as it
// stands in the body, escapes and all, so a text that is written otherwise is
// counted again.
//
// Whoever could make two texts collide could have a long one count as a short
// one. So the digest is the tag of AES-GCM over the text as additional data,
// by a random key that each memory has for itself: of any two texts of n
// blocks of 16 bytes, at most n+1 in 2^128 keys give the same tag, whatever
// the texts. No key or tag leaves the process, so the nonce need not change.
//
// It holds two generations. A full one becomes the old one, and what is found
// there moves to the new one; so what is in use stays.
type memory struct {
	once sync.Once
	aead cipher.AEAD // set by once

	mu       sync.Mutex
	new, old map[digest]int32 // guarded by mu
}

// A digest is that of a text and its encoding.
type digest struct {
	tag [tagSize]byte
	enc *encoding
}

const (
	tagSize        = 16
	memorable      = 256     // bytes from which a text is remembered; below, counting is as fast
	generationSize = 1 << 14 // texts in a generation; both together take some 2 MiB
)

// digest returns the digest of text in encoding e. The tag is built in sc.
func (m *memory) digest(sc *scratch, e *encoding, text []byte) digest {
	m.once.Do(m.pickKey)
	m.aead.Seal(sc.tag[:0], sc.nonce[:], nil, text)
	return digest{sc.tag, e}
}

// pickKey panics if there is no AES-GCM with a nonce of one's own, as where
// only what FIPS 140-3 allows may run.
func (m *memory) pickKey() {
	var key [16]byte
	rand.Read(key[:]) // never fails
	block, err := aes.NewCipher(key[:])
	if err == nil {
		m.aead, err = cipher.NewGCM(block)
	}
	if err != nil {
		panic(fmt.Sprintf("tokens: keying the memory of counts: %v", err))
	}
}

func (m *memory) get(d digest) (count int, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, ok := m.new[d]
	if !ok {
		if n, ok = m.old[d]; ok {
			m.put(d, n)
		}
	}
	return int(n), ok
}

func (m *memory) set(d digest, count int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.put(d, int32(count))
}

// put adds a count; m.mu is held.
func (m *memory) put(d digest, count int32) {
	if m.new == nil || len(m.new) >= generationSize {
		m.new, m.old = make(map[digest]int32), m.new
	}
	m.new[d] = count
}
