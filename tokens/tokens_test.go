package tokens

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
)

// vector is one line of testdata/tokens/vectors.jsonl.gz.
type vector struct {
	Cat    string `json:"cat"`
	Text   []byte `json:"text_b64"`
	CL100K []int  `json:"cl100k_base"`
	O200K  []int  `json:"o200k_base"`
}

func readVectors(t testing.TB) []vector {
	t.Helper()
	f, err := os.Open("../testdata/tokens/vectors.jsonl.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var vectors []vector
	lines := bufio.NewScanner(z)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var v vector
		if err := json.Unmarshal(lines.Bytes(), &v); err != nil {
			t.Fatal(err)
		}
		vectors = append(vectors, v)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return vectors
}

func TestSpecialTokensAreText(t *testing.T) {
	for _, c := range []struct {
		model, text string
		want        int
	}{
		{"gpt-4", "<|endoftext|>", 7},
		{"gpt-4o", "<|endoftext|>", 7},
		{"gpt-4o", "<|im_start|>", 6},
		{"gpt-4o", "", 0},
	} {
		if got := Text(c.model, c.text); got != c.want {
			t.Errorf("Text(%q, %q) = %d, want %d", c.model, c.text, got, c.want)
		}
	}
}

func TestTextIn(t *testing.T) {
	if n, err := TextIn("cl100k_base", "hello world"); n != 2 || err != nil {
		t.Errorf("TextIn = %d, %v, want 2", n, err)
	}
	if _, err := TextIn("nope", "x"); err == nil {
		t.Error("TextIn with an unknown encoding: no error")
	}
}

// jargon is the example of the OpenAI cookbook, whose billed figures are
// published there.
const jargon = `{"messages":[
 {"role":"system","content":"You are a helpful, pattern-following assistant that translates corporate jargon into plain English."},
 {"role":"system","name":"example_user","content":"New synergies will help drive top-line growth."},
 {"role":"system","name":"example_assistant","content":"Things working well together will increase revenue."},
 {"role":"system","name":"example_user","content":"Let's circle back when we have more bandwidth to touch base on opportunities for increased leverage."},
 {"role":"system","name":"example_assistant","content":"Let's talk later when we're less busy about how to do better."},
 {"role":"user","content":"This late pivot means we don't have time to boil the ocean for the client deliverable."}]}`

func TestCountChat(t *testing.T) {
	for _, c := range []struct {
		name, model, body string
		want              int
		basis             Basis
		uncounted         []string
	}{
		{"cookbook, cl100k", "gpt-4-0613", jargon, 129, Exact, nil},
		{"cookbook, o200k", "gpt-4o-mini", jargon, 124, Exact, nil},
		{"one word", "gpt-4o", `{"messages":[{"role":"user","content":"hi"}]}`, 3 + 4 + 1, Exact, nil},
		{"reasoning model", "o3", `{"messages":[{"role":"user","content":"hi"}]}`, 2 + 4 + 1, Exact, nil},
		{"final channel", "gpt-5", `{"messages":[{"role":"assistant","content":"hi"}]}`, 2 + 4 + 1 + 2, Exact, nil},
		{"text part", "gpt-4o", `{"messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}]}`, 8, Exact, nil},
		{"escapes", "gpt-4o", `{"m\u0065ssages":[{"role":"user","content":"h\u0069"}]}`, 8, Exact, nil},
		{"another case is another member", "gpt-4o",
			`{"messages":[{"role":"user","content":"hi","CONTENT":"a much longer text"}],"Messages":[]}`, 8, Exact, nil},
		{"unknown model", "llama", `{"messages":[{"role":"user","content":"hi"}]}`, 8, FallbackEncoding, nil},
		{"no messages", "gpt-4o", `{"messages":[]}`, 3, Exact, nil},
		{"unknown part", "gpt-4o", `{"messages":[{"role":"user","content":[{"type":"hologram"}]}]}`,
			3 + 4 + 1000, Estimated, []string{"messages[0].content[0]"}},
		{"image of low detail", "gpt-4o",
			`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"https://x/y.png","detail":"low"}}]}]}`,
			3 + 4 + 85, Rule, nil},
		{"image of unknown size", "gpt-4o",
			`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"https://x/y.png"}}]}]}`,
			3 + 4 + 85 + 8*170, Estimated, []string{"messages[0].content[0]"}},
	} {
		e, err := Count(Request{Endpoint: ChatCompletions, Model: c.model, Body: []byte(c.body)})
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if e.Tokens != c.want || e.Basis != c.basis || !slices.Equal(e.Uncounted(), c.uncounted) {
			t.Errorf("%s: %d %s %q, want %d %s %q", c.name, e.Tokens, e.Basis, e.Uncounted(), c.want, c.basis, c.uncounted)
		}
	}
}

func TestCountOtherEndpoints(t *testing.T) {
	for _, c := range []struct {
		endpoint Endpoint
		model    string
		body     string
		want     int
	}{
		{Embeddings, "text-embedding-3-small", `{"input":"hello world"}`, 2},
		{Embeddings, "text-embedding-3-small", `{"input":["hello","world"]}`, 2},
		{Embeddings, "text-embedding-3-small", `{"input":[1,2,3]}`, 3},
		{Embeddings, "text-embedding-3-small", `{"input":[[1,2],[3]]}`, 3},
		{Completions, "gpt-3.5-turbo-instruct", `{"prompt":["hello","hello world"]}`, 3},
		{Responses, "gpt-4o", `{"input":"hi"}`, 8},
		{Responses, "gpt-4o", `{"instructions":"hi","input":"hi"}`, 13},
		{Responses, "o3", `{"input":[{"role":"user","content":[{"type":"input_text","text":"hi"}]}]}`, 7},
	} {
		e, err := Count(Request{Endpoint: c.endpoint, Model: c.model, Body: []byte(c.body)})
		if err != nil || e.Tokens != c.want || e.Basis != Exact {
			t.Errorf("%s %s: %d %s, %v; want %d exact", c.endpoint, c.body, e.Tokens, e.Basis, err, c.want)
		}
	}
}

func TestPartsAddUp(t *testing.T) {
	const body = `{"messages":[{"role":"system","content":"be brief"},{"role":"user","content":[
		{"type":"text","text":"what is this"},{"type":"image_url","image_url":{"url":"https://x/y.png"}},{"type":"blob"}]},
		{"role":"assistant","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]},
		{"role":"tool","tool_call_id":"1","content":"done"}],
		"tools":[{"type":"function","function":{"name":"f"}}],
		"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":{"type":"object"}}}}`
	e, err := Count(Request{Endpoint: ChatCompletions, Model: "gpt-4o", Body: []byte(body)})
	if err != nil {
		t.Fatal(err)
	}
	sum, messages := 0, 0
	for _, p := range e.Parts {
		sum += p.Tokens
		if strings.HasPrefix(p.Path, "messages[") {
			messages += p.Tokens
		}
	}
	if sum != e.Tokens {
		t.Errorf("parts add up to %d, Tokens is %d", sum, e.Tokens)
	}
	total := 0
	for _, n := range e.Messages {
		total += n
	}
	if len(e.Messages) != 4 || total != messages {
		t.Errorf("Messages = %v, want 4 adding up to %d", e.Messages, messages)
	}
}

func TestCountRejects(t *testing.T) {
	for endpoint, bodies := range map[Endpoint][]string{
		ChatCompletions: {``, `[]`, `{`, `{}`, `{"messages":{}}`, `{"messages":[1]}`, `{"messages":[]}x`, `{"Messages":[]}`},
		Responses:       {`{"input":1}`, `null`},
		Embeddings:      {`{}`, `{"input":{}}`, `{"input":[{}]}`},
		Completions:     {`{}`, `{"prompt":null}`},
		"images":        {`{}`},
	} {
		for _, b := range bodies {
			if e, err := Count(Request{Endpoint: endpoint, Model: "gpt-4o", Body: []byte(b)}); err == nil {
				t.Errorf("%s %s: counted %d, want an error", endpoint, b, e.Tokens)
			}
		}
	}
}

func TestCountConcurrently(t *testing.T) {
	var c Counter
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			e, err := c.Count(Request{Endpoint: ChatCompletions, Model: "gpt-4o", Body: []byte(jargon)})
			if err != nil || e.Tokens != 124 {
				t.Errorf("%d, %v; want 124", e.Tokens, err)
			}
		})
	}
	wg.Wait()
}
