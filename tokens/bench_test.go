package tokens

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/pkoukk/tiktoken-go"
	loader "github.com/pkoukk/tiktoken-go-loader"
)

// oracle returns tiktoken-go's encoding of that name.
func oracle(t testing.TB, name string) *tiktoken.Tiktoken {
	t.Helper()
	tiktoken.SetBpeLoader(loader.NewOfflineLoader()) // or it downloads the vocabulary
	e, err := tiktoken.GetEncoding(name)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// oracles returns tiktoken-go's encodings by their names.
func oracles(t testing.TB) map[string]*tiktoken.Tiktoken {
	t.Helper()
	encodings := map[string]*tiktoken.Tiktoken{}
	for _, name := range []string{cl100k, o200k, p50k, r50k} {
		encodings[name] = oracle(t, name)
	}
	return encodings
}

// corpora returns texts of about 192 KiB each, by kind.
func corpora(t testing.TB) map[string]string {
	t.Helper()
	const size = 192 << 10
	texts := map[string]string{
		"English": goFile(t, "testdata/Isaac.Newton-Opticks.txt")[:size],
		"code":    (goFile(t, "net/http/server.go") + goFile(t, "net/http/transport.go"))[:size],
		"JSON":    toolCalls(size),
		"Chinese": chinese(size),
	}
	var mixed strings.Builder
	for i := 0; mixed.Len() < size; i += 4096 {
		for _, kind := range []string{"English", "JSON", "code", "Chinese"} {
			mixed.WriteString(strings.ToValidUTF8(texts[kind][i:i+4096], ""))
		}
	}
	texts["mixed"] = mixed.String()
	return texts
}

// goFile returns a file of the Go source tree.
func goFile(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(runtime.GOROOT(), "src", name))
	if err != nil {
		t.Skipf("no Go source tree to read a text from: %v", err)
	}
	return string(b)
}

// toolCalls returns made-up tool calls in JSON.
func toolCalls(size int) string {
	r := rand.New(rand.NewPCG(1, 2))
	words := strings.Fields("invoice customer shipment refund ticket priority region warehouse status pending contact order note retry")
	word := func() string { return words[r.IntN(len(words))] }
	var b bytes.Buffer
	for b.Len() < size {
		arguments, err := json.Marshal(map[string]any{
			word(): word() + " " + word(), "id": r.IntN(1e6), word() + "_at": fmt.Sprintf("2026-%02d-%02dT%02d:00:00Z", r.IntN(12)+1, r.IntN(28)+1, r.IntN(24)),
			"amount": float64(r.IntN(1e5)) / 100, "tags": []string{word(), word()},
		})
		if err != nil {
			panic(err)
		}
		fmt.Fprintf(&b, `{"id":"call_%x","type":"function","function":{"name":"%s_%s","arguments":%q}},`+"\n", r.Uint64(), word(), word(), arguments)
	}
	return b.String()[:size]
}

// chinese returns made-up clauses of Chinese words, the commoner the more
// often.
func chinese(size int) string {
	l := &vocabulary(o200k).tokens
	var words []string
	at := slices.Repeat([]uint32{0}, len(l.ids)) // id → position
	for p, id := range l.ids {
		at[id] = uint32(p)
	}
	for _, p := range at {
		w := string(l.token(p))
		if utf8.ValidString(w) && strings.IndexFunc(w, func(r rune) bool { return !unicode.Is(unicode.Han, r) }) < 0 {
			words = append(words, w)
		}
	}
	r := rand.New(rand.NewPCG(3, 4))
	var b strings.Builder
	for b.Len() < size {
		for range 3 + r.IntN(8) {
			f := r.Float64()
			b.WriteString(words[int(f*f*f*float64(len(words)))])
		}
		b.WriteString([]string{"，", "，", "。", "、", "\n"}[r.IntN(5)])
	}
	return strings.ToValidUTF8(b.String()[:size], "")
}

func BenchmarkCount(b *testing.B) {
	texts := corpora(b)
	for _, name := range []string{o200k, cl100k} {
		e := vocabulary(name)
		theirs := oracle(b, name)
		for _, kind := range []string{"English", "code", "JSON", "Chinese", "mixed"} {
			text := texts[kind]
			b.Run(name+"/"+kind+"/ours", func(b *testing.B) {
				b.SetBytes(int64(len(text)))
				b.ReportAllocs()
				for b.Loop() {
					e.text(text)
				}
			})
			b.Run(name+"/"+kind+"/tiktoken-go", func(b *testing.B) {
				b.SetBytes(int64(len(text)))
				b.ReportAllocs()
				for b.Loop() {
					theirs.EncodeOrdinary(text)
				}
			})
		}
	}
}

// BenchmarkLongPiece counts pieces of 100 kB, where merging is all there is.
func BenchmarkLongPiece(b *testing.B) {
	e := vocabulary(o200k)
	r := rand.New(rand.NewPCG(5, 6))
	letters, blanks := make([]byte, 100_000), make([]byte, 100_000)
	for i := range letters {
		letters[i] = byte('a' + r.IntN(26))
		blanks[i] = " \t\n\r"[r.IntN(4)]
	}
	for kind, text := range map[string]string{
		"same letter":    strings.Repeat("a", 100_000),
		"spaces":         strings.Repeat(" ", 100_000),
		"random letters": string(letters),
		"random blanks":  string(blanks),
		"ideographs":     strings.Repeat("的一是不了人我在有他这为之大来以个中上们", 1667),
	} {
		b.Run(kind, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				e.text(text)
			}
		})
	}
}

func BenchmarkLoad(b *testing.B) {
	for _, name := range []string{cl100k, o200k, p50k} {
		table := map[string][]byte{cl100k: cl100kTable, o200k: o200kTable, p50k: p50kTable}[name]
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				load(table, patternO200K, noLimit)
			}
		})
	}
	b.Run("classes", func(b *testing.B) {
		for b.Loop() {
			unpackClasses()
		}
	})
}

// conversation returns the body of a chat of some messages of 4 KB: about a
// million tokens for 1,000.
func conversation(texts map[string]string, messages int) []byte {
	body := []byte(`{"model":"gpt-4o","messages":[`)
	for i := range messages {
		text := texts[[]string{"English", "JSON", "code"}[i%3]]
		at := i * 151 % (len(text) - 4200)
		body = append(appendMessage(body, text[at:at+4000]), ',')
	}
	return append(body[:len(body)-1], `]}`...)
}

func appendMessage(body []byte, content string) []byte {
	quoted, err := json.Marshal(content)
	if err != nil {
		panic(err) // a string has a form in JSON
	}
	return fmt.Appendf(body, `{"role":"user","content":%s}`, quoted)
}

// BenchmarkGrowingConversation counts a chat of about a million tokens in 1,000
// messages: as it comes first, and with one new message at each turn, all
// others having been counted before. Scan and digest are the least that takes.
func BenchmarkGrowingConversation(b *testing.B) {
	texts := corpora(b)
	body := conversation(texts, 1000)
	count := func(b *testing.B, c *Counter, body []byte) {
		b.Helper()
		e, err := c.Count(Request{Endpoint: ChatCompletions, Model: "gpt-4o", Body: body})
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(e.Tokens), "tokens")
	}
	b.Run("first", func(b *testing.B) {
		b.SetBytes(int64(len(body)))
		for b.Loop() {
			count(b, new(Counter), body)
		}
	})
	b.Run("one more", func(b *testing.B) {
		b.SetBytes(int64(len(body)))
		b.ReportAllocs()
		c := new(Counter)
		count(b, c, body)
		open := len(body) - len("]}")
		turn := 0
		for b.Loop() {
			b.StopTimer()
			text := texts["English"][turn*37%100_000:][:4000]
			body = append(appendMessage(append(body[:open], ','), fmt.Sprint(turn, text)), "]}"...)
			turn++
			b.StartTimer()
			count(b, c, body)
		}
	})
	b.Run("scan", func(b *testing.B) {
		b.SetBytes(int64(len(body)))
		for b.Loop() {
			if _, err := parseDocument(body); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("digest", func(b *testing.B) {
		b.SetBytes(int64(len(body)))
		var m memory
		e := vocabulary(o200k)
		sc := new(scratch)
		for b.Loop() {
			m.digest(sc, e, body)
		}
	})
}
