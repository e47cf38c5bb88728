package tokens

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/iotest"
)

// TestTextsAreCountedInParts reads texts of the characters that patterns treat
// apart, with so small a chunk that they are cut wherever they may be.
func TestTextsAreCountedInParts(t *testing.T) {
	const seed = 20261201
	r := rand.New(rand.NewPCG(seed, 1))
	atoms := []string{"a", "Word", "x's", "'S", "don't", " ", " ", "  ", "\n", "\n", "\r\n", "\t", "1", "1234", ".", "/", "}\n", "é", "日本", "\u00a0", "🙂", "\xff", "I'LL", "\u0301"}
	for _, encoding := range []string{"cl100k_base", "o200k_base", "p50k_base", "r50k_base", "o200k_harmony"} {
		for range 4000 {
			var b strings.Builder
			for range 1 + r.IntN(60) {
				b.WriteString(atoms[r.IntN(len(atoms))])
			}
			text := b.String()
			want, err := TextIn(encoding, text)
			if err != nil {
				t.Fatal(err)
			}
			got, size, err := readIn(encoding, iotest.HalfReader(strings.NewReader(text)), 4, 1<<20)
			if err != nil || got != want || size != int64(len(text)) {
				t.Fatalf("%s %q (seed %d): %d tokens of %d bytes (%v), want %d of %d", encoding, text, seed, got, size, err, want, len(text))
			}
		}
	}
}

func TestTextsAreCutWhereTheyCanBe(t *testing.T) {
	for text, want := range map[string]int{
		"": 0, "a": 0, "a b": 1, "one two three": 7, "a  b": 0, "a\nb": 2, "x;\n7": 3, "a\r\nb": 0, " \nb": 0, "a .": 0, "1 b": 0, "é b": 0, "\n\nb": 0,
	} {
		if got := lastCut([]byte(text)); got != want {
			t.Errorf("%q is cut at %d, want %d", text, got, want)
		}
	}
}

func TestTextsThatCannotBeReadOrCut(t *testing.T) {
	if _, _, err := readIn(o200k, strings.NewReader(strings.Repeat("x", 100)), 4, 64); !errors.Is(err, ErrNoCut) {
		t.Errorf("no place to cut: %v", err)
	}
	if n, _, err := readIn(o200k, strings.NewReader(strings.Repeat("x", 60)), 4, 64); err != nil || n == 0 {
		t.Errorf("%d tokens, %v", n, err)
	}
	broken := errors.New("broken pipe")
	if _, _, err := ReadIn(o200k, iotest.ErrReader(broken)); !errors.Is(err, broken) {
		t.Errorf("an error of the reader: %v", err)
	}
	if _, _, err := ReadIn("latin", strings.NewReader("x")); err == nil {
		t.Error("an unknown encoding")
	}
}
