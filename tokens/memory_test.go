package tokens

import (
	"fmt"
	"strings"
	"testing"
)

func TestMemoryCountsAlike(t *testing.T) {
	long := strings.Repeat("all work and no play ", 100)
	body := fmt.Appendf(nil, `{"messages":[{"role":"user","content":%q},{"role":"user","content":%q}]}`, long, long+"!")
	var c Counter
	for range 3 {
		for _, model := range []string{"gpt-4", "gpt-4o"} { // two encodings
			got, err := c.Count(Request{ChatCompletions, model, body})
			if err != nil {
				t.Fatal(err)
			}
			if want := 3 + 2*4 + Text(model, long) + Text(model, long+"!"); got.Tokens != want {
				t.Errorf("%s: %d tokens, want %d", model, got.Tokens, want)
			}
		}
	}
	if n := len(c.memory.new); n != 4 {
		t.Errorf("%d texts remembered, want 4", n)
	}
}

func TestMemoryIsBounded(t *testing.T) {
	var m memory
	of := func(i int) (d digest) {
		copy(d.sum[:], fmt.Sprint(i))
		return d
	}
	m.set(of(0), 7)
	for i := 1; i < 10*generationSize; i++ {
		m.set(of(i), i)
		if n, ok := m.get(of(0)); !ok || n != 7 {
			t.Fatalf("after %d others, the text in use counts %d, %t", i, n, ok)
		}
	}
	if n := len(m.new) + len(m.old); n > 2*generationSize {
		t.Errorf("%d texts remembered", n)
	}
	if _, ok := m.get(of(1)); ok {
		t.Error("a text not used for long is still remembered")
	}
}
