package tokens

import "testing"

// knownDifferences is how many vectors the present engine counts differently:
// those with letters newer than the Unicode tables of Go 1.26, and the
// contraction of a long s.
const knownDifferences = 4

func TestVectors(t *testing.T) {
	vectors := readVectors(t)
	if len(vectors) < 4000 {
		t.Fatalf("only %d vectors", len(vectors))
	}
	c, o := vocabulary(cl100k), vocabulary(o200k)
	differ := 0
	for _, v := range vectors {
		gotC, gotO := c.count(string(v.Text)), o.count(string(v.Text))
		if gotC != len(v.CL100K) || gotO != len(v.O200K) {
			differ++
			t.Logf("%s %q: %d and %d tokens, want %d and %d", v.Cat, v.Text, gotC, gotO, len(v.CL100K), len(v.O200K))
		}
	}
	if differ != knownDifferences {
		t.Errorf("%d vectors differ, want the %d known", differ, knownDifferences)
	}
}
