package tokens

import (
	"crypto/sha256"
	"sync"
)

// A memory remembers the counts of texts by their hashes, so that a growing
// conversation costs its new messages only. The hash is cryptographic:
// whoever could make two texts collide could have a long one count as a short
// one. It is of the text as it stands in the body, escapes and all, so a text
// that is written otherwise is counted again.
//
// It holds two generations. A full one becomes the old one, and what is found
// there moves to the new one; so what is in use stays.
type memory struct {
	mu       sync.Mutex
	new, old map[digest]int32 // guarded by mu
}

// A digest is that of a text and its encoding.
type digest struct {
	sum [sha256.Size]byte
	enc *encoding
}

const (
	memorable      = 256     // bytes from which a text is remembered; below, counting is as fast
	generationSize = 1 << 14 // texts in a generation; both together take some 4 MiB
)

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
