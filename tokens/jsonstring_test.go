package tokens

import (
	"encoding/json"
	"math/rand/v2"
	"testing"
)

// TestStringSyntax compares with encoding/json on strings of several blocks,
// dense with what their syntax is about, right and wrong.
func TestStringSyntax(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	right := []string{`\\`, `\"`, `\n`, `\u00e9`, `\ud83d\ude00`, "a", "plain text", "é", "\x7f", "\xff", "!", "#", "[", "]"}
	wrong := []string{`\x`, `\u12g4`, `"`, "\n", "\x00", "\x1f", `\`, `\u`}
	valid := 0
	for range 20_000 {
		body := []byte(`["`)
		for range r.IntN(80) {
			body = append(body, right[r.IntN(len(right))]...)
		}
		if r.IntN(3) == 0 {
			body = append(body, wrong[r.IntN(len(wrong))]...)
			for range r.IntN(80) {
				body = append(body, right[r.IntN(len(right))]...)
			}
		}
		body = append(body, `","b"]`...)
		d, err := parseDocument(body)
		if want := json.Valid(body); (err == nil) != want {
			t.Fatalf("seed %d: parsing %q: %v; json.Valid says %t", seed, body, err, want)
		}
		if err == nil {
			valid++
			sameAsJSON(t, d.root)
			sameAsNode(t, d, d.root)
		}
	}
	if valid < 10_000 || valid == 20_000 {
		t.Errorf("%d of 20,000 bodies are valid", valid)
	}
}
