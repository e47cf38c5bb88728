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
			got, err := c.Count(Request{Endpoint: ChatCompletions, Model: model, Body: body})
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
		copy(d.tag[:], fmt.Sprint(i))
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

// TestOnlyNewTextsAreCounted looks at the bytes that went through the splitter
// last: a text that is remembered does not.
func TestOnlyNewTextsAreCounted(t *testing.T) {
	var c Counter
	sc, e := new(scratch), vocabulary(o200k)
	text := node(`"` + strings.Repeat("all work and no play ", 100) + `"`)
	count := func(n node) int {
		sc.text = sc.text[:0]
		tally := tally{enc: e, scratch: sc, memory: &c.memory}
		return tally.text(n)
	}
	first := count(text)
	if len(sc.text) != len(text)-2 {
		t.Fatalf("%d bytes counted at first, want %d", len(sc.text), len(text)-2)
	}
	if again := count(text); again != first || len(sc.text) != 0 {
		t.Errorf("again: %d tokens, want %d; %d bytes were counted anew", again, first, len(sc.text))
	}
	if count(node(`"!` + string(text[1:]))); len(sc.text) != len(text)-1 {
		t.Errorf("another text: %d bytes counted, want %d", len(sc.text), len(text)-1)
	}
}

// TestDigests: two of one text agree, but not those of another text, encoding
// or memory.
func TestDigests(t *testing.T) {
	var m, other memory
	sc, e := new(scratch), vocabulary(o200k)
	text := strings.Repeat("x", 1000)
	d := m.digest(sc, e, []byte(text))
	if again := m.digest(new(scratch), e, []byte(text)); again != d {
		t.Errorf("digests %v and %v of one text", d, again)
	}
	for what, d2 := range map[string]digest{
		"another text":     m.digest(sc, e, []byte(text[1:]+"y")),
		"a shorter text":   m.digest(sc, e, []byte(text[1:])),
		"a longer text":    m.digest(sc, e, []byte(text+"\x00")),
		"another encoding": m.digest(sc, vocabulary(cl100k), []byte(text)),
		"another memory":   other.digest(sc, e, []byte(text)),
	} {
		if d2 == d {
			t.Errorf("%s has the same digest", what)
		}
	}
}
