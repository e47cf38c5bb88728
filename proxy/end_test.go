package proxy

import (
	"fmt"
	"testing"
)

// Whoever has the whole answer finds it stored: the next call is a hit, never a
// follower of an exchange that is over.
func TestTheCallAfterTheEndIsAHit(t *testing.T) {
	h := newHarness(t, nil)
	const n = 200
	h.upstream.Reply(numbered(n)...)
	for i := range n {
		body := chat(fmt.Sprint("question ", i))
		h.wantAnswer(h.post(body), "miss", i+1)
		h.wantAnswer(h.post(body), "hit", i+1)
	}
}
