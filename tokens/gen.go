//go:build ignore

// Gen writes the tables that package tokens embeds, from the vendor's
// vocabularies (as tiktoken-go-loader carries them) and Go's Unicode tables.
//
// NAME.bin holds the vocabulary of encoding NAME as its list of merges:
//
//	n       uint24                number of tokens; a token's id is its place in the order of ranks
//	merges  (n-256) × 2 × uint24  the two tokens that token 256+i is merged from
//	tokens  n × token             in the order of their bytes
//
// where a token is
//
//	shared  uint8   how many bytes it shares with the start of the token before
//	rest    uint8   how many bytes it has beyond those
//	bytes   rest × uint8
//	id      uint24
//
// classes.bin holds the character classes of Unicode 16 as runs, each the
// first code point (uint24) and its class (uint8). All numbers are little
// endian.
package main

import (
	"bytes"
	"cmp"
	"fmt"
	"log"
	"os"
	"slices"
	"unicode"

	loader "github.com/pkoukk/tiktoken-go-loader"
)

func main() {
	log.SetFlags(0)
	for _, name := range []string{"cl100k_base", "o200k_base", "p50k_base"} {
		ranks, err := loader.NewOfflineLoader().LoadTiktokenBpe(name + ".tiktoken")
		if err != nil {
			log.Fatal(err)
		}
		b, err := packVocabulary(ranks)
		if err != nil {
			log.Fatalf("%s: %v", name, err)
		}
		write(name, b)
	}
	if unicode.Version != "15.0.0" {
		log.Fatalf("Unicode tables are %s; the additions below are those since 15.0.0", unicode.Version)
	}
	write("classes", packClasses())
}

func write(name string, b []byte) {
	if err := os.WriteFile("tables/"+name+".bin", b, 0o644); err != nil {
		log.Fatal(err)
	}
}

func append24(b []byte, v int) []byte { return append(b, byte(v), byte(v>>8), byte(v>>16)) }

func packVocabulary(ranks map[string]int) ([]byte, error) {
	// Ranks may have gaps, where special tokens stand: p50k_base has one.
	tokens := make([][]byte, 0, len(ranks))
	for t := range ranks {
		tokens = append(tokens, []byte(t))
	}
	slices.SortFunc(tokens, func(x, y []byte) int { return ranks[string(x)] - ranks[string(y)] })
	for id, t := range tokens {
		ranks[string(t)] = id
	}
	b := append24(nil, len(tokens))
	for rank, t := range tokens {
		if (len(t) == 1) != (rank < 256) {
			return nil, fmt.Errorf("token %d has %d bytes", rank, len(t))
		}
		if len(t) > 255 {
			return nil, fmt.Errorf("token %d has %d bytes", rank, len(t))
		}
		if rank < 256 {
			continue
		}
		left, right, err := lastMerge(ranks, t)
		if err != nil {
			return nil, err
		}
		b = append24(append24(b, left), right)
	}
	order := make([]int, len(tokens))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(x, y int) int { return bytes.Compare(tokens[x], tokens[y]) })
	var before []byte
	for _, id := range order {
		t := tokens[id]
		shared := 0
		for shared < min(len(t), len(before)) && t[shared] == before[shared] {
			shared++
		}
		b = append(b, byte(shared), byte(len(t)-shared))
		b = append(b, t[shared:]...)
		b = append24(b, id)
		before = t
	}
	return b, nil
}

// lastMerge returns the two tokens that the encoder has left of the bytes of
// token t before it merges them to t.
func lastMerge(ranks map[string]int, t []byte) (left, right int, err error) {
	limit := ranks[string(t)]
	parts := make([][]byte, len(t))
	for i := range t {
		parts[i] = t[i : i+1]
	}
	for len(parts) > 2 {
		best, at := limit, -1
		for i := range len(parts) - 1 {
			pair := string(parts[i]) + string(parts[i+1])
			if rank, ok := ranks[pair]; ok && rank < best {
				best, at = rank, i
			}
		}
		if at < 0 {
			return 0, 0, fmt.Errorf("token %d (%q) is not the merge of two tokens", limit, t)
		}
		n := len(parts[at]) + len(parts[at+1])
		parts[at] = parts[at][:n] // the parts lie side by side in t
		parts = slices.Delete(parts, at+1, at+2)
	}
	return ranks[string(parts[0])], ranks[string(parts[1])], nil
}

// The classes, as pieces.go numbers them.
const (
	other = 1 << iota
	upper
	lower
	letter
	mark
	number
	space
	newline
)

func packClasses() []byte {
	added := map[rune]byte{}
	for _, a := range additions {
		for r := a.first; r <= a.last; r++ {
			added[r] = a.class
		}
	}
	var b []byte
	previous := byte(0)
	for r := rune(0); r <= unicode.MaxRune; r++ {
		c := cmp.Or(classOf(r), added[r], other)
		if c != previous {
			b = append(append24(b, int(r)), c)
			previous = c
		}
	}
	return b
}

// classOf returns the class of r, or 0 if none but other is left.
func classOf(r rune) byte {
	switch {
	case r == '\r' || r == '\n':
		return newline
	case unicode.Is(unicode.White_Space, r):
		return space
	case unicode.In(r, unicode.Lu, unicode.Lt):
		return upper
	case unicode.Is(unicode.Ll, r):
		return lower
	case unicode.In(r, unicode.Lm, unicode.Lo):
		return letter
	case unicode.Is(unicode.M, r):
		return mark
	case unicode.Is(unicode.N, r):
		return number
	}
	return 0
}

// additions are the letters, marks and numbers that Unicode 15.1 and 16.0
// added.
var additions = []struct {
	first, last rune
	class       byte
}{
	{0x897, 0x897, mark},
	{0x1C89, 0x1C89, upper},
	{0x1C8A, 0x1C8A, lower},
	{0xA7CB, 0xA7CC, upper},
	{0xA7CD, 0xA7CD, lower},
	{0xA7DA, 0xA7DA, upper},
	{0xA7DB, 0xA7DB, lower},
	{0xA7DC, 0xA7DC, upper},
	{0x105C0, 0x105F3, letter},
	{0x10D40, 0x10D49, number},
	{0x10D4A, 0x10D4F, letter},
	{0x10D50, 0x10D65, upper},
	{0x10D69, 0x10D6D, mark},
	{0x10D6F, 0x10D6F, letter},
	{0x10D70, 0x10D85, lower},
	{0x10EC2, 0x10EC4, letter},
	{0x10EFC, 0x10EFC, mark},
	{0x11380, 0x11389, letter},
	{0x1138B, 0x1138B, letter},
	{0x1138E, 0x1138E, letter},
	{0x11390, 0x113B5, letter},
	{0x113B7, 0x113B7, letter},
	{0x113B8, 0x113C0, mark},
	{0x113C2, 0x113C2, mark},
	{0x113C5, 0x113C5, mark},
	{0x113C7, 0x113CA, mark},
	{0x113CC, 0x113D0, mark},
	{0x113D1, 0x113D1, letter},
	{0x113D2, 0x113D2, mark},
	{0x113D3, 0x113D3, letter},
	{0x113E1, 0x113E2, mark},
	{0x116D0, 0x116E3, number},
	{0x11BC0, 0x11BE0, letter},
	{0x11BF0, 0x11BF9, number},
	{0x11F5A, 0x11F5A, mark},
	{0x13460, 0x143FA, letter},
	{0x16100, 0x1611D, letter},
	{0x1611E, 0x1612F, mark},
	{0x16130, 0x16139, number},
	{0x16D40, 0x16D6C, letter},
	{0x16D70, 0x16D79, number},
	{0x18CFF, 0x18CFF, letter},
	{0x1CCF0, 0x1CCF9, number},
	{0x1E5D0, 0x1E5ED, letter},
	{0x1E5EE, 0x1E5EF, mark},
	{0x1E5F0, 0x1E5F0, letter},
	{0x1E5F1, 0x1E5FA, number},
	{0x2EBF0, 0x2EE5D, letter},
}
