package tokens

import (
	"bufio"
	"compress/gzip"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
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

func TestRendering(t *testing.T) {
	const schema = `[{"name":"plan","description":"Plans.\n","parameters":{"title":"plan_args","description":"All of it.",
		"properties":{"who":{"$ref":"#/$defs/Who","description":"For whom"},"how":{"title":"How","enum":["fast",2,null]},
			"when":{"anyOf":[{"type":"integer"},{"type":"array","items":{"type":["string","null"]}}]}},
		"required":["how"],"$defs":{"Who":{"type":"object","properties":{"name":{"type":"string"},"boss":{"$ref":"#/$defs/Who"}}}}}},
		{"name":"stop","parameters":{"type":"object","properties":{}}}]`
	var tools []node
	for _, f := range node(schema).elements() {
		tools = append(tools, f)
	}
	const head = "# Tools\n\n## functions\n\nnamespace functions {\n\n// Plans.\ntype plan = (_: "
	const tail = ") => any;\n\ntype stop = () => any;\n\n} // namespace functions"
	const how = "how: \"fast\" | 2 | null,\nwhen?: number | string | null[],\n}"
	for _, c := range []struct {
		rendering rendering
		want      string
	}{
		{rendering{}, head + "{\n// For whom\nwho?: any,\n" + how + tail},
		{rendering{description: true}, head + "// All of it.\n{\n// For whom\nwho?: any,\n" + how + tail},
		{rendering{titles: true, refs: true}, head + "// plan_args\n{\n// For whom\nwho?: {\n    name?: string,\n    boss?: any,\n},\n// How\n" + how + tail},
	} {
		if got := c.rendering.tools(tools); got != c.want {
			t.Errorf("%+v:\n%s\nwant\n%s", c.rendering, got, c.want)
		}
	}
}

func TestRenderFormat(t *testing.T) {
	for _, c := range []struct{ format, want string }{
		{`{"name":"x","schema":{"type": "object", "required": ["a"], "properties": {"a": [ 1 , {} , [ ] ], "required": {"type": "string"}},
			"additionalProperties" : false}}`,
			"x\n\n" + `{"type":"object","properties":{"a":[1,{},[]],"required":{"type":"string"}}}`},
		{`{"name":"x","description":"What\nfor","schema":{"additionalProperties":{"type":"number"},"x":"a, b"}}`,
			"x\n\n// What\nfor\n" + `{"additionalProperties":{"type":"number"},"x":"a, b"}`},
		{`{"schema":{"required":[]}}`, "\n\n{}"},
		{`{}`, "\n\n"},
	} {
		if got := renderFormat(node(c.format)); got != "# Response Formats\n\n## "+c.want {
			t.Errorf("%s:\n%s\nwant\n%s", c.format, got, c.want)
		}
	}
}

// TestReferencesAreBounded renders definitions that stand for each other so
// many times over that they would not end.
func TestReferencesAreBounded(t *testing.T) {
	var b strings.Builder
	b.WriteString(`[{"name":"f","parameters":{"properties":{"a":{"$ref":"#/$defs/0"}},"$defs":{`)
	for i := range 20 {
		fmt.Fprintf(&b, `"%d":{"type":"object","properties":{`, i)
		for k := range 20 {
			fmt.Fprintf(&b, `"p%d":{"$ref":"#/$defs/%d"},`, k, i+1)
		}
		b.WriteString(`"q":{}}},`)
	}
	b.WriteString(`"20":{}}}}]`)
	schema, err := parse([]byte(b.String()))
	if err != nil {
		t.Fatal(err)
	}
	var tools []node
	for _, f := range schema.elements() {
		tools = append(tools, f)
	}
	if got := len(rendering{refs: true}.tools(tools)); got > 2*maxFollowed*b.Len() {
		t.Errorf("%d bytes from %d", got, b.Len())
	}
}

func TestCountToolCalls(t *testing.T) {
	const call1 = `{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}`
	const call2 = `{"id":"2","type":"function","function":{"name":"g","arguments":"{\"a\":1}"}}`
	text := func(s string) int { return Text("gpt-4o", s) }
	for _, c := range []struct {
		name     string
		endpoint Endpoint
		model    string
		body     string
		want     int
	}{
		{"one call", ChatCompletions, "gpt-4o",
			`{"messages":[{"role":"assistant","tool_calls":[` + call1 + `]},{"role":"tool","tool_call_id":"1","content":"done"}]}`,
			3 + 4 + text(" to=functions.f") + text("{}") + 2 + 3 + text("functions.f") + text("done")},
		{"two at once", ChatCompletions, "gpt-4o",
			`{"messages":[{"role":"assistant","tool_calls":[` + call1 + `,` + call2 + `]}]}`,
			3 + 4 + text(" to=multi_tool_use.parallel") + 2 +
				text(`{"tool_uses":[{"recipient_name":"functions.f","parameters":{}},{"recipient_name":"functions.g","parameters":{"a":1}}]}`)},
		{"two at once, with channels", ChatCompletions, "gpt-5",
			`{"messages":[{"role":"assistant","tool_calls":[` + call1 + `,` + call2 + `]}]}`,
			2 + 2*(4+8) + text(" to=functions.f") + text("{}") + text(" to=functions.g") + text(`{"a":1}`)},
		{"legacy", ChatCompletions, "gpt-4o",
			`{"messages":[{"role":"assistant","function_call":{"name":"f","arguments":"{}"}},{"role":"function","name":"f","content":"done"}]}`,
			3 + 4 + text(" to=functions.f") + text("{}") + 2 + 3 + text("functions.f") + text("done")},
		{"items", Responses, "gpt-4o",
			`{"input":[{"type":"function_call","call_id":"1","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"1","output":"done"}]}`,
			3 + 4 + text(" to=functions.f") + text("{}") + 3 + text("functions.f") + text("done")},
		{"item with an id", Responses, "gpt-4o",
			`{"input":[{"type":"function_call","id":"fc_1","call_id":"1","name":"f","arguments":"{}"}]}`,
			3 + 4 + text(" to=functions.f") + text("{}") + 3},
		{"item of a reasoning model", Responses, "gpt-5",
			`{"input":[{"type":"function_call","call_id":"1","name":"f","arguments":"{}"}]}`,
			2 + 4 + text(" to=functions.f") + text("{}") + 8},
	} {
		e, err := Count(Request{c.endpoint, c.model, []byte(c.body)})
		if err != nil || e.Tokens != c.want || e.Basis != Rule {
			t.Errorf("%s: %d %s, %v; want %d", c.name, e.Tokens, e.Basis, err, c.want)
		}
	}
}

func TestCountReasoning(t *testing.T) {
	item := `{"type":"reasoning","encrypted_content":"` + strings.Repeat("x", 2098) + `"}`
	user := `{"role":"user","content":"hi"}`
	for _, c := range []struct {
		name, input string
		want        int
		basis       Basis
	}{
		{"in a tool loop", user + `,` + item, 2 + 5 + 200, Estimated},
		{"before the user's last word", item + `,` + user, 2 + 5, Rule},
		{"kept by the upstream", user + `,{"type":"reasoning","id":"rs_1"}`, 2 + 5 + DefaultUnknownPart, Estimated},
	} {
		e, err := Count(Request{Responses, "gpt-5", []byte(`{"input":[` + c.input + `]}`)})
		if err != nil || e.Tokens != c.want || e.Basis != c.basis {
			t.Errorf("%s: %d %s, %v; want %d %s", c.name, e.Tokens, e.Basis, err, c.want, c.basis)
		}
	}
}

func TestCountAudio(t *testing.T) {
	wav := make([]byte, 44+2*16_000*7) // seven seconds
	copy(wav, "RIFF\x00\x00\x00\x00WAVEfmt ")
	binary.LittleEndian.PutUint32(wav[28:], 2*16_000)
	for _, c := range []struct {
		audio string
		want  int
		basis Basis
	}{
		{`{"format":"wav","data":"` + base64.StdEncoding.EncodeToString(wav) + `"}`, 5 + 70, Rule},
		{`{"format":"mp3","data":"` + base64.StdEncoding.EncodeToString(make([]byte, 12_000)) + `"}`, 5 + 30, Estimated},
		{`{"format":"mp3","data":""}`, 5, Estimated},
		{`{}`, DefaultUnknownPart, Estimated},
	} {
		e, err := Count(Request{ChatCompletions, "gpt-audio", []byte(`{"messages":[{"role":"user","content":[{"type":"input_audio","input_audio":` + c.audio + `}]}]}`)})
		if err != nil || e.Tokens != 3+4+c.want || e.Basis != c.basis {
			t.Errorf("%.60s: %d %s, %v; want %d %s", c.audio, e.Tokens, e.Basis, err, 3+4+c.want, c.basis)
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
	f.Add([]byte(`{"instructions":"x","input":[{"type":"function_call"},{"type":"reasoning","encrypted_content":"x"}],"tools":[{"type":"function","name":"f",
		"parameters":{"title":"t","properties":{"a":{"$ref":"#/$defs/A"},"b":{"anyOf":[{"type":["array","object"]}]}},"$defs":{"A":{"items":{"$ref":"#/$defs/A"},"type":"array"}}}}],
		"text":{"format":{"type":"json_schema","name":"x","schema":{"required":[],"a":[1,{}]}}}}`))
	f.Add([]byte(`{"messages":[{"content":[{"type":"input_audio","input_audio":{"data":"UklGRg=="}},{"type":"file"}],"tool_calls":[{},{"custom":{"input":"x"}}],"name":1}],
		"response_format":{"type":"json_schema"},"prompt":[[1],"x",2],"functions":[{}]}`))
	f.Add([]byte(`{"messages":[{"role":"tool","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw0KGgo="}}]}],"tools":[{"function":{"parameters":{"properties":{"a":{"enum":[1]}}}}}],"input":[{"type":"function_call"}],"prompt":[[1]]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, endpoint := range []Endpoint{ChatCompletions, Responses, Completions, Embeddings} {
			for _, model := range []string{"gpt-4o", "gpt-5"} {
				e, err := Count(Request{endpoint, model, body})
				if err == nil && !json.Valid(body) {
					t.Errorf("%s: counted %q, which is not JSON", endpoint, body)
				}
				if e.Tokens < 0 {
					t.Errorf("%s, %s %q: %d tokens", model, endpoint, body, e.Tokens)
				}
			}
		}
	})
}
