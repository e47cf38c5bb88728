package cache

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
)

// proseBody is a chat request of about size bytes: English prose, with a word
// in (escaped) quotation marks and the (escaped) end of a paragraph about every
// paragraph bytes, or neither if that is 0.
func proseBody(size, paragraph int) []byte {
	words := strings.Fields("the quick report says that customers wait for three days before anyone answers and most of them write again so the team reads every letter twice")
	var text strings.Builder
	quoted, since := false, 0
	for i := 0; text.Len() < size-150; i++ {
		word := words[i*7%len(words)] + " "
		switch since += len(word); {
		case paragraph > 0 && since > paragraph:
			word += `end.\n\n`
			quoted, since = false, 0
		case paragraph > 0 && !quoted && since > paragraph/2:
			word += `\"so\" `
			quoted = true
		}
		text.WriteString(word)
	}
	return fmt.Appendf(nil, `{"model":"gpt-4.1-mini","messages":[{"role":"system","content":"You summarise tickets."},{"role":"user","content":"%s"}],"temperature":0.2}`, text.String())
}

// toolsBody is an agent's request of about size bytes, with tool calls and
// their ids if calls is set.
func toolsBody(size int, calls bool) []byte {
	var tools, messages []any
	for n := 0; n < size; n += 900 {
		tools = append(tools, map[string]any{"type": "function", "function": map[string]any{
			"name": fmt.Sprint("tool_", n), "description": strings.Repeat("Looks things up in the shop. ", 8),
			"parameters": map[string]any{"type": "object", "required": []string{"q"}, "properties": map[string]any{
				"q": map[string]any{"type": "string", "description": "What to look for"}, "limit": map[string]any{"type": "integer", "minimum": 1}}}}})
		messages = append(messages, map[string]any{"role": "user", "content": strings.Repeat("Find it. ", 10)})
		if calls {
			id := fmt.Sprintf("call_%x", sha256.Sum256(fmt.Append(nil, n)))[:29]
			messages = append(messages,
				map[string]any{"role": "assistant", "content": nil, "tool_calls": []any{map[string]any{"id": id, "type": "function", "function": map[string]any{"name": "f", "arguments": `{"q":"x","limit":3}`}}}},
				map[string]any{"role": "tool", "tool_call_id": id, "content": strings.Repeat("Nothing found. ", 10)})
		}
	}
	raw, err := json.Marshal(map[string]any{"model": "gpt-4.1", "messages": messages, "tools": tools})
	if err != nil {
		panic(err)
	}
	return raw
}

// BenchmarkKey times Scan and Key beside SHA-256 alone over the same body. The
// metric xsha256 is the quotient of the shortest times of both, which other
// work on the machine disturbs least.
func BenchmarkKey(b *testing.B) {
	c := Context{Tenant: "acme", Scope: "summarize-ticket", Upstream: "openai", Endpoint: "/v1/chat/completions"}
	short := `{"model":"gpt-4.1-mini","messages":[{"role":"user","content":"` + strings.Repeat("one message ", 76) + `"}]}`
	for _, body := range []struct {
		name string
		raw  []byte
	}{
		{"message-1K", []byte(short)},
		{"prose-1K", proseBody(1<<10, 0)}, {"prose-32K", proseBody(32<<10, 0)}, {"prose-512K", proseBody(512<<10, 0)},
		{"paragraphs-1K", proseBody(1<<10, 400)}, {"paragraphs-32K", proseBody(32<<10, 400)}, {"paragraphs-512K", proseBody(512<<10, 400)},
		{"escapes-32K", proseBody(32<<10, 200)},
		{"tools-32K", toolsBody(32<<10, false)}, {"calls-32K", toolsBody(32<<10, true)}, {"calls-512K", toolsBody(512<<10, true)},
	} {
		b.Run(body.name, func(b *testing.B) {
			b.SetBytes(int64(len(body.raw)))
			b.ReportAllocs()
			batch := max(1, 32<<10/len(body.raw))
			sha, key := time.Duration(1<<60), time.Duration(1<<60)
			for b.Loop() {
				start := time.Now()
				for range batch {
					sha256.Sum256(body.raw)
				}
				between := time.Now()
				for range batch {
					d, err := Scan(body.raw)
					if err != nil {
						b.Fatal(err)
					}
					d.Key(c, byDefault)
				}
				sha, key = min(sha, between.Sub(start)), min(key, time.Since(between))
			}
			b.ReportMetric(float64(key)/float64(sha), "xsha256")
			b.ReportMetric(float64(key)/float64(batch), "key-ns")
			b.ReportMetric(float64(sha)/float64(batch), "sha-ns")
		})
	}
}

func BenchmarkFingerprint(b *testing.B) {
	for _, raw := range [][]byte{proseBody(32<<10, 400), toolsBody(512<<10, true)} {
		d, err := Scan(raw)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(fmt.Sprint(len(raw)), func(b *testing.B) {
			b.SetBytes(int64(len(raw)))
			for b.Loop() {
				d.Fingerprint(byDefault)
			}
		})
	}
}
