package tokens

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"
)

// stepsPerByte bounds the steps of merging: the slots looked at for each merge,
// and some more for what a window merges again.
const stepsPerByte = 90

// FuzzText counts any bytes: pieces follow each other without gaps, their
// tokens are those of byte-pair encoding by its definition, the work is
// bounded, and an invalid byte counts as U+FFFD.
func FuzzText(f *testing.F) {
	for _, s := range []string{
		"", "\xff", "a\x80b", "\xe4\xbd", "\xf0\x9f\x98", "\xed\xa0\x80", "\xc0\xaf", "é\xcc", " \xe4\xbd\xa0", "\x00\x00", "'\xc5\xbf", "'\xc5",
		strings.Repeat("-", 300), strings.Repeat("\x80", 700), strings.Repeat("ab", 400), strings.Repeat("中A", 300), strings.Repeat("\u0301A", 300),
		strings.Repeat("0", 600), strings.Repeat(" \n", 300), strings.Repeat("的、", 200), "<|endoftext|>",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 3000 {
			return
		}
		for _, name := range []string{cl100k, o200k, p50k, r50k} {
			e, sc := vocabulary(name), new(scratch)
			want := 0
			for i := 0; i < len(b); {
				j := e.pieceEnd(b, i)
				if j <= i || j > len(b) {
					t.Fatalf("%s %q: the piece at %d ends at %d", name, b, i, j)
				}
				if e.tokens.find(b[i:j]) != none {
					want++
				} else {
					want += len(e.mergeByDefinition(b[i:j]))
				}
				i = j
			}
			if got := e.count(sc, b); got != want {
				t.Errorf("%s %q: %d tokens, want %d", name, b, got, want)
			}
			if most := stepsPerByte*len(b) + 10_000; sc.work > most {
				t.Errorf("%s: %d steps for %d bytes", name, sc.work, len(b))
			}
			valid := bytes.Runes(b)
			if got, want := e.text(string(b)), e.text(string(valid)); got != want {
				t.Errorf("%s %q: %d tokens, %d with U+FFFD for invalid bytes", name, b, got, want)
			}
		}
	})
}

func TestInvalidBytesCountAsReplacementCharacters(t *testing.T) {
	for _, name := range []string{cl100k, o200k, p50k, r50k} {
		n, err := TextIn(name, "a\xe4\xbdb")
		want, _ := TextIn(name, "a"+strings.Repeat(string(utf8.RuneError), 2)+"b")
		if err != nil || n != want {
			t.Errorf("%s: %d tokens (%v), want %d", name, n, err, want)
		}
	}
}

// TestRunsOfOneByte: the work for a run of any one byte grows as its length.
func TestRunsOfOneByte(t *testing.T) {
	const small, large = 4 << 10, 64 << 10
	for _, name := range []string{cl100k, o200k, p50k, r50k} {
		e := vocabulary(name)
		for b := range 256 {
			work := func(n int) int {
				sc := new(scratch)
				e.count(sc, bytes.Repeat([]byte{byte(b)}, n))
				return sc.work
			}
			few, many := work(small), work(large)
			if many > few*large/small+10_000 || many > stepsPerByte*large {
				t.Errorf("%s, byte %#x: %d steps for %d bytes, %d for %d", name, b, few, small, many, large)
			}
		}
	}
}
