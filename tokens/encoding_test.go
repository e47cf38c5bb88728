package tokens

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"flag"
	"hash"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/pkoukk/tiktoken-go"
	loader "github.com/pkoukk/tiktoken-go-loader"
	"github.com/pkoukk/tiktoken-go-loader/assets"
)

// appendIDs appends the tokens of s to ids, numbered as the vendor does.
func (e *encoding) appendIDs(ids []int, sc *scratch, s []byte) []int {
	for i := 0; i < len(s); {
		j := e.pieceEnd(s, i)
		if whole := e.tokens.find(s[i:j]); whole != none {
			ids = append(ids, e.vendorID(e.tokens.ids[whole]))
		} else {
			for _, id := range e.merge(sc, s[i:j]) {
				ids = append(ids, e.vendorID(id))
			}
		}
		i = j
	}
	return ids
}

// vendorID returns the vendor's number of a token: p50k_base has a special
// token between those of r50k_base and its own.
func (e *encoding) vendorID(id uint32) int {
	if e.pattern == patternP50K && id >= r50kTokens {
		id++
	}
	return int(id)
}

func TestVectors(t *testing.T) {
	vectors := readVectors(t)
	if len(vectors) < 4000 {
		t.Fatalf("only %d vectors", len(vectors))
	}
	check := func(v vector, name string, want []int) {
		e := vocabulary(name)
		if got := e.appendIDs(nil, new(scratch), v.Text); !slices.Equal(got, want) {
			t.Errorf("%s, %s %q: tokens %d, want %d", name, v.Cat, v.Text, got, want)
		}
		if got := e.text(string(v.Text)); got != len(want) {
			t.Errorf("%s, %s %q: count is %d, want %d", name, v.Cat, v.Text, got, len(want))
		}
	}
	for _, v := range vectors {
		check(v, cl100k, v.CL100K)
		check(v, o200k, v.O200K)
	}
}

// TestVocabularies compares the embedded tables with the vendor's files, whose
// checksums the vendor publishes.
func TestVocabularies(t *testing.T) {
	for name, want := range map[string]string{
		cl100k: "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
		o200k:  "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
		p50k:   "94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069",
		r50k:   "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930",
	} {
		b, err := assets.Assets.ReadFile(name + ".tiktoken")
		if err != nil {
			t.Fatal(err)
		}
		if got := sha256.Sum256(b); hex.EncodeToString(got[:]) != want {
			t.Errorf("%s: the vocabulary of the loader has checksum %x, the vendor's has %s", name, got, want)
		}
		ranks, err := loader.NewOfflineLoader().LoadTiktokenBpe(name + ".tiktoken")
		if err != nil {
			t.Fatal(err)
		}
		e := vocabulary(name)
		if len(e.tokens.ids) != len(ranks) {
			t.Errorf("%s: %d tokens, want %d", name, len(e.tokens.ids), len(ranks))
		}
		sc := new(scratch)
		for token, id := range ranks {
			p := e.tokens.find([]byte(token))
			if p == none || e.vendorID(e.tokens.ids[p]) != id {
				t.Fatalf("%s: token %q is not found as %d", name, token, id)
			}
			if got := e.piece(sc, []byte(token), 0, len(token)); got != 1 {
				t.Fatalf("%s: token %q counts as %d", name, token, got)
			}
		}
	}
}

// TestTables catches tables that changed unintentionally; after go generate,
// put the new checksums here.
func TestTables(t *testing.T) {
	for name, c := range map[string]struct {
		table []byte
		want  string
	}{
		"cl100k_base": {cl100kTable, "fb855bd94d9be174f83b253eee65537ccb892489113b22ddb927c264ddae6ba7"},
		"o200k_base":  {o200kTable, "b09d70a996e067c188d14b1e24797f3b2978e6dd048c01fd2529917d07606cfc"},
		"p50k_base":   {p50kTable, "4dca5a4473957bbce40e7bd7a9d32e6acb749ff8bfdc812262ef449833e886cb"},
		"classes":     {classTable, "9170de8c52fcbb8b40956b5671c4562651f7c5fd4fc1c096e90dde21c3187639"},
	} {
		if got := sha256.Sum256(c.table); hex.EncodeToString(got[:]) != c.want {
			t.Errorf("%s has checksum %x, want %s", name, got, c.want)
		}
	}
}

// TestEveryCodePoint counts each code point in three places. The hashes are
// those of the tokens that the reference implementation (npm tiktoken 1.0.22)
// gives: each as uint32, little endian, after each string 0xffffffff.
func TestEveryCodePoint(t *testing.T) {
	for _, c := range []struct{ encoding, before, after, want string }{
		{cl100k, "a", "b", "d21e6c2cbe2137d922aeee15c48caba28318a8f33b09804de29d99f3a0b5ee98"},
		{cl100k, "", "Ab", "67297bca757ea018a1f289e254b9eac6becb7dd04d7da83264a455d939532d2d"},
		{cl100k, "!!", "A", "b113fb6e7f0e984232428b7145850496f783771f6eb5c79e3efac12b8a614286"},
		{o200k, "a", "b", "b5fe272e2caeca2fd0e139257ec404aeeaffead61e001e7e30713d10daffc298"},
		{o200k, "", "Ab", "5b3e953d67a47dfd30b52884cd7ebded2e39a4d9671001bdcc73338aa19a1c73"},
		{o200k, "!!", "A", "c32203495ce4c6430eefae3f344aa060095ba48b80c06eb043dd30d10bd63511"},
	} {
		t.Run(c.encoding+" "+c.before+"*"+c.after, func(t *testing.T) {
			t.Parallel()
			h := sha256.New()
			e, sc, kinds := vocabulary(c.encoding), new(scratch), loadClasses()
			var text []byte
			var ids []int
			for r := rune(0); r <= unicode.MaxRune; r++ {
				if !utf8.ValidRune(r) {
					continue
				}
				text = append(utf8.AppendRune(append(text[:0], c.before...), r), c.after...)
				ids = e.appendIDs(ids[:0], sc, text)
				writeIDs(h, ids)
				if char(kinds.runes[r]) == other {
					continue // most are unassigned; the others show that counts are right
				}
				if n := e.count(sc, text); n != len(ids) {
					t.Fatalf("%q: count is %d, but there are %d tokens", text, n, len(ids))
				}
			}
			if got := hex.EncodeToString(h.Sum(nil)); got != c.want {
				t.Errorf("tokens have hash %s, want %s", got, c.want)
			}
		})
	}
}

func writeIDs(h hash.Hash, ids []int) {
	var b [256]byte
	out := b[:0]
	for _, id := range ids {
		out = binary.LittleEndian.AppendUint32(out, uint32(id))
	}
	h.Write(binary.LittleEndian.AppendUint32(out, 0xffffffff))
}

var randomStrings = flag.Int("strings", 2000, "number of random strings to compare with tiktoken-go")

// TestAgainstTiktokenGo compares random strings with tiktoken-go.
func TestAgainstTiktokenGo(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	theirs := oracles(t)
	for range *randomStrings {
		text := randomText(r)
		for name, oracle := range theirs {
			sameAsOracle(t, name, oracle, text)
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func FuzzAgainstTiktokenGo(f *testing.F) {
	for _, s := range []string{"I'LL", "a  \n b", "ABCdef'sx", "x/\r\n/y", "\u0301Ab\u0301'd", " \u00a01234", "\u02b0AB"} {
		f.Add(s)
	}
	theirs := oracles(f)
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 1000 || !splitsAlike(text) {
			return
		}
		for name, oracle := range theirs {
			sameAsOracle(t, name, oracle, text)
		}
	})
}

func sameAsOracle(t *testing.T, name string, oracle *tiktoken.Tiktoken, text string) {
	t.Helper()
	e, sc := vocabulary(name), new(scratch)
	want := oracle.EncodeOrdinary(text)
	if got := e.appendIDs(nil, sc, []byte(text)); !slices.Equal(got, want) {
		t.Errorf("%s %q: tokens %d, want %d", name, text, got, want)
	}
	if got := e.count(sc, []byte(text)); got != len(want) {
		t.Errorf("%s %q: count is %d, want %d", name, text, got, len(want))
	}
}

// splitsAlike reports whether tiktoken-go should split text as the reference
// does. Its Unicode tables are older, and it does not take U+017F for an s.
func splitsAlike(text string) bool {
	c := loadClasses()
	for _, r := range text {
		newer := char(c.runes[r]) != other && !unicode.In(r, unicode.L, unicode.M, unicode.N, unicode.White_Space)
		if newer || r == '\u017f' || r == utf8.RuneError {
			return false
		}
	}
	return utf8.ValidString(text)
}

// randomText returns up to 40 characters or words that the splitting into
// pieces treats differently.
func randomText(r *rand.Rand) string {
	samples := strings.Split("a|b|e|Z|LL|The|hello|world|ing|'s|'LL|'Ve|'|''|\"| |  |\t|\u00a0|\u2003|\u0085|\n|\r\n|\n\n|1|12|3456|\u0663|½|Ⅳ|/|//|.|,|!|()|{\"|\\n|_|-|<|\u007f|\x00|中|文字|的|한국어|日本|か|カ|ー|é|ß|Ǆ|ǅ|ʰ|ª|א|ب|ท|ि|\u0301|\u20dd|😀|👩\u200d💻|€|→|𝒜|𠀀|aaaaaaaa|        |================|abcdefghijklmnopqrstuvwxyz", "|")
	for {
		var b strings.Builder
		for range 1 + r.IntN(40) {
			if r.IntN(8) == 0 {
				b.WriteRune(rune(r.IntN(0x20000)))
				continue
			}
			b.WriteString(samples[r.IntN(len(samples))])
		}
		if splitsAlike(b.String()) {
			return b.String()
		}
	}
}

// TestMergeByDefinition compares merging with the definition of byte-pair
// encoding, on pieces short and long, of whole characters, of torn ones and of
// runs.
func TestMergeByDefinition(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	for _, name := range []string{cl100k, o200k, p50k, r50k} {
		e, sc := vocabulary(name), new(scratch)
		for _, alphabet := range []string{
			"a", " ", "ab", "abcdefghijklmnopqrstuvwxyz", " \n\t", "-=_*", "的一是不了人我", " 的，か", "ーカキのをアイ、",
			"가나다라마바", "абвгдеж", "กขคงจะาิ", "კლმნო", "अआकखि्", "éèßü", "😀🎉👩\u200d💻", "\xe4\xb8\x8d\x80\xf0\x9f\x98\xe3", "-------- ",
		} {
			for range 10 {
				p := randomPiece(r, alphabet)
				want := e.mergeByDefinition(p)
				for by, merge := range map[string]func(*scratch, []byte) []uint32{"merge": e.merge, "backtrack": e.backtrack} {
					if got := merge(sc, p); !slices.Equal(got, want) {
						t.Fatalf("%s, %s of %q, seed %d: tokens %d, want %d", name, by, p, seed, got, want)
					}
				}
			}
		}
	}
}

// randomPiece returns up to some thousand bytes: characters of the alphabet,
// or its bytes where it is no text, singly or in runs.
func randomPiece(r *rand.Rand, alphabet string) []byte {
	runes := strings.Split(alphabet, "")
	length, longest := 1+r.IntN(40), 1
	if r.IntN(3) == 0 {
		length = 1 + r.IntN(1500)
	}
	if r.IntN(3) == 0 {
		longest = 200
	}
	var p []byte
	for len(p) < length {
		p = append(p, strings.Repeat(runes[r.IntN(len(runes))], 1+r.IntN(longest))...)
	}
	return p
}

// mergeByDefinition merges the first pair of lowest rank until none is left.
func (e *encoding) mergeByDefinition(p []byte) []uint32 {
	parts := make([]uint32, len(p))
	for i, b := range p {
		parts[i] = e.single[b]
	}
	for {
		best, at := none, 0
		for i := range len(parts) - 1 {
			if id := e.pairs.get(parts[i], parts[i+1]); id < best {
				best, at = id, i
			}
		}
		if best == none {
			return parts
		}
		parts = slices.Replace(parts, at, at+2, best)
	}
}

// TestWorkIsLinear counts the steps of merging, not the time.
func TestWorkIsLinear(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	random := func(alphabet string, n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = alphabet[r.IntN(len(alphabet))]
		}
		return b
	}
	for kind, text := range map[string]func(n int) []byte{
		"one letter":     func(n int) []byte { return []byte(strings.Repeat("a", n)) },
		"spaces":         func(n int) []byte { return []byte(strings.Repeat(" ", n)) },
		"carets":         func(n int) []byte { return []byte(strings.Repeat("^", n)) },
		"two letters":    func(n int) []byte { return random("ab", n) },
		"random letters": func(n int) []byte { return random("abcdefghijklmnopqrstuvwxyz", n) },
		"random blanks":  func(n int) []byte { return random(" \t\n\r", n) },
		"ideographs":     func(n int) []byte { return []byte(strings.Repeat("的一是不了人我在有他", n/30)) },
		"dashes":         func(n int) []byte { return []byte(strings.Repeat("-", n)) },
		"runs": func(n int) (b []byte) {
			for len(b) < n {
				b = append(b, strings.Repeat(string("-=*#/_."[r.IntN(7)]), 1+r.IntN(150))...)
			}
			return b[:n]
		},
		"zeroes":  func(n int) []byte { return []byte(strings.Repeat("0", n)) },
		"byte 80": func(n int) []byte { return []byte(strings.Repeat("\x80", n)) },
		"byte FF": func(n int) []byte { return []byte(strings.Repeat("\xff", n)) },
		"base64":  func(n int) []byte { return random("ABCDEFabcdef0123456789+/", n) },
	} {
		for _, name := range []string{cl100k, o200k, p50k} {
			e := vocabulary(name)
			work := func(n int) int {
				sc := new(scratch)
				e.count(sc, text(n))
				return sc.work
			}
			small, large := work(30_000), work(300_000)
			if large > 11*small+10_000 {
				t.Errorf("%s, %s: %d steps for 30 kB, %d for 300 kB", name, kind, small, large)
			}
			if large > stepsPerByte*300_000 {
				t.Errorf("%s, %s: %d steps for 300 kB", name, kind, large)
			}
		}
	}
	if n := Text("gpt-4o", strings.Repeat("a", 100_000)); n != 12_500 {
		t.Errorf("100,000 times a: %d tokens, want 12,500", n)
	}
}

func TestCountAllocatesNothing(t *testing.T) {
	e, sc := vocabulary(o200k), new(scratch)
	text := []byte(toolCalls(10_000) + strings.Repeat("x", 1000) + chinese(10_000))
	e.count(sc, text)
	if n := testing.AllocsPerRun(10, func() { e.count(sc, text) }); n > 0 {
		t.Errorf("%v allocations per count", n)
	}
}
