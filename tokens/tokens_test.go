package tokens

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"os"
	"reflect"
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

func TestModel(t *testing.T) {
	for _, c := range []struct {
		name, encoding string
		priming        int
		basis          Basis
	}{
		{"gpt-3.5-turbo-0125", cl100k, 3, Exact},
		{"gpt-4", cl100k, 3, Exact},
		{"gpt-4-0613", cl100k, 3, Exact},
		{"gpt-4o", o200k, 3, Exact},
		{"gpt-4o-mini-2024-07-18", o200k, 3, Exact},
		{"gpt-4.1", o200k, 3, Exact},
		{"gpt-4.9-preview", o200k, 3, FallbackEncoding},
		{"o3-mini", o200k, 2, Exact},
		{"gpt-5", o200k, 2, Exact},
		{"gpt-5.1-2030-01-01", o200k, 2, Exact},
		{"gpt-5.9", o200k, 2, FallbackEncoding},
		{"gpt-7-turbo", o200k, 2, FallbackEncoding},
		{"ft:gpt-4o:org::id", o200k, 3, Exact},
		{"ft:gpt-4.1-mini-2025-04-14:org::id", o200k, 3, Exact},
		{"ft:gpt-4:org::id", cl100k, 3, Exact},
		{"azure/gpt-4o", o200k, 3, Exact},
		{"openai/gpt-4", cl100k, 3, Exact},
		{"GPT-4o", o200k, 3, Exact},
		{"text-embedding-3-small", cl100k, 0, Exact},
		{"my-alias", o200k, 3, FallbackEncoding},
		{"g", o200k, 3, FallbackEncoding},
		{"", o200k, 3, FallbackEncoding},
	} {
		m := modelOf(c.name)
		if m.encoding != c.encoding || m.priming != c.priming || m.basis != c.basis {
			t.Errorf("modelOf(%q) = %s, priming %d, %s; want %s, %d, %s",
				c.name, m.encoding, m.priming, m.basis, c.encoding, c.priming, c.basis)
		}
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
			3 + 4 + DefaultUnknownPart, Estimated, []string{"messages[0].content[0]"}},
		{"image of low detail", "gpt-4o",
			`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"https://x/y.png","detail":"low"}}]}]}`,
			3 + 4 + 85, Rule, nil},
		{"image of unknown size", "gpt-4o",
			`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"https://x/y.png"}}]}]}`,
			3 + 4 + 85 + 8*170, Estimated, []string{"messages[0].content[0]"}},
	} {
		e, err := Count(Request{ChatCompletions, c.model, []byte(c.body)})
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if e.Tokens != c.want || e.Basis != c.basis || !slices.Equal(e.Uncounted(), c.uncounted) {
			t.Errorf("%s: %d %s %q, want %d %s %q", c.name, e.Tokens, e.Basis, e.Uncounted(), c.want, c.basis, c.uncounted)
		}
	}
}

func TestCountTools(t *testing.T) {
	const tools = `"tools":[{"type":"function","function":{"name":"get_weather","description":"Weather of a city",
		"parameters":{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"}},"required":["city"]}}}]`
	text := "# Tools\n\n## functions\n\nnamespace functions {\n\n// Weather of a city\n" +
		"type get_weather = (_: { city: string, days?: number }) => any;\n\n} // namespace functions"
	user := `{"role":"user","content":"hi"}`
	for _, c := range []struct {
		name, model, body string
		want              int
	}{
		{"own message", "gpt-4o", `{"messages":[` + user + `],` + tools + `}`, 8 + 4 + Text("gpt-4o", text) - 1},
		{"joined to the system message", "gpt-4", `{"messages":[{"role":"system","content":"be brief"},` + user + `],` + tools + `}`,
			8 + 4 + Text("gpt-4", "be brief\n\n"+text) - 1},
		{"with the preamble", "gpt-5", `{"messages":[` + user + `],` + tools + `}`, 7 + 4 + Text("gpt-5", text) + 81},
	} {
		e, err := Count(Request{ChatCompletions, c.model, []byte(c.body)})
		if err != nil || e.Tokens != c.want || e.Basis != Rule {
			t.Errorf("%s: %d %s, %v; want %d", c.name, e.Tokens, e.Basis, err, c.want)
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
		e, err := Count(Request{c.endpoint, c.model, []byte(c.body)})
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
	e, err := Count(Request{ChatCompletions, "gpt-4o", []byte(body)})
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

func TestUnknownPartIsConfigurable(t *testing.T) {
	c := Counter{UnknownPart: 7}
	e, err := c.Count(Request{ChatCompletions, "gpt-4o", []byte(`{"messages":[{"role":"user","content":[{"type":"?"}]}]}`)})
	if err != nil || e.Tokens != 3+4+7 {
		t.Errorf("%d, %v; want 14", e.Tokens, err)
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
			if e, err := Count(Request{endpoint, "gpt-4o", []byte(b)}); err == nil {
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
			e, err := c.Count(Request{ChatCompletions, "gpt-4o", []byte(jargon)})
			if err != nil || e.Tokens != 124 {
				t.Errorf("%d, %v; want 124", e.Tokens, err)
			}
		})
	}
	wg.Wait()
}

func FuzzCount(f *testing.F) {
	f.Add([]byte(jargon))
	f.Add([]byte(`{"messages":[{"role":"tool","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw0KGgo="}}]}],"tools":[{"function":{"parameters":{"properties":{"a":{"enum":[1]}}}}}],"input":[{"type":"function_call"}],"prompt":[[1]]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, endpoint := range []Endpoint{ChatCompletions, Responses, Completions, Embeddings} {
			e, err := Count(Request{endpoint, "gpt-5", body})
			if err == nil && !json.Valid(body) {
				t.Errorf("%s: counted %q, which is not JSON", endpoint, body)
			}
			if e.Tokens < 0 {
				t.Errorf("%s %q: %d tokens", endpoint, body, e.Tokens)
			}
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{
		`{"a":[1,2.5e-3,{"b":"c\"\\\u00e9\ud83d\ude00"}],"d":null}`, ` [ ] `, `{}`, `""`, `"\ud800"`, "\"\xff\"",
		`-0`, `01`, `1.`, `[1,]`, `{"a"}`, `tru`, `"a`, `"\x"`, "\"\n\"", `{"a":{"b":[[],{},""]} , "c" : true}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		n, err := parse(b)
		if (err == nil) != json.Valid(b) && err != errDepth {
			t.Fatalf("parse(%q) = %v, json.Valid says %t", b, err, json.Valid(b))
		}
		if err == nil {
			sameAsJSON(t, n)
		}
	})
}

// sameAsJSON compares what node reads with what encoding/json reads.
func sameAsJSON(t *testing.T, n node) {
	t.Helper()
	switch {
	case n.isObject():
		var want map[string]json.RawMessage
		if err := json.Unmarshal(n, &want); err != nil {
			t.Fatal(err)
		}
		got := map[string]json.RawMessage{}
		for name, v := range n.members() {
			got[name] = json.RawMessage(v)
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("members of %q: %q, want %q", n, got, want)
		}
		for name := range got {
			sameAsJSON(t, n.get(name))
		}
	case n.isArray():
		var want []json.RawMessage
		if err := json.Unmarshal(n, &want); err != nil {
			t.Fatal(err)
		}
		for i, v := range n.elements() {
			if i >= len(want) || string(v) != string(want[i]) {
				t.Fatalf("elements of %q: [%d] is %q, want of %q", n, i, v, want)
			}
			sameAsJSON(t, v)
		}
	case n.isString():
		var want string
		if err := json.Unmarshal(n, &want); err != nil {
			t.Fatal(err)
		}
		if got := n.str(); got != want {
			t.Fatalf("str of %q = %q, want %q", n, got, want)
		}
	}
}
