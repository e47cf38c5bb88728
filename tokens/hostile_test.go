package tokens

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"
)

var endpoints = []Endpoint{ChatCompletions, Responses, Completions, Embeddings}

// FuzzCount holds counts of whatever body to what their documentation says.
func FuzzCount(f *testing.F) {
	for _, body := range []string{
		jargon,
		`{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"},{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw0KGgo="}},{"type":"text"}]}]}`,
		`{"messages":[{"content":[{"type":"input_audio","input_audio":{"data":"UklGRg=="}},{"type":"file"}],"tool_calls":[{},{"custom":{"input":"x"}}],"name":1}],"response_format":{"type":"json_schema"},"prompt":[[1],"x",2],"functions":[{}]}`,
		`{"messages":[{"role":"assistant","tool_calls":[{"id":"1","function":{"name":"f","arguments":"{\"a\": [1 , 2]}"}}]},{"role":"tool","tool_call_id":"1","content":[{"type":"text","text":"x"}]}],"tools":[{"function":{"name":"f","parameters":{"properties":{"a":{"enum":[1],"default":" "}}}}}],"tool_choice":{"function":{"name":"f"}}}`,
		`{"instructions":"x","input":[{"type":"function_call","id":"a","arguments":"{ }"},{"type":"function_call_output","output":"x"},{"type":"reasoning","encrypted_content":"x"},{"type":"item_reference"}],"previous_response_id":"r",
		"tools":[{"type":"function","name":"f","description":" a\n b ","parameters":{"title":"t","properties":{"a":{"$ref":"#/$defs/A"},"b":{"anyOf":[{"type":["array","object"]}]}},"$defs":{"A":{"title":"A","items":{"$ref":"#/$defs/A"},"type":"array"}}}},{"type":"web_search"}],
		"tool_choice":"required","text":{"format":{"type":"json_schema","name":"x","schema":{"required":[],"a":[1,{}]}}}}`,
		`{"input":"hi","prompt":"hi","suffix":"x","messages":[]}`,
		`{"input":["a",1,[2,3]],"prompt":[[1,2]]}`,
		`{"input":[{"role":"user","content":[{"type":"input_image","image_url":"data:image/jpeg;base64,/9j/4AAQ","detail":"low"},{"type":"refusal","refusal":"no"}]}]}`,
	} {
		f.Add([]byte(body), 7)
	}
	f.Fuzz(func(t *testing.T, body []byte, previous int) {
		previous = min(max(previous, 0), 1<<30)
		var counter Counter
		for _, endpoint := range endpoints {
			for _, model := range []string{"gpt-4o", "gpt-5", "text-embedding-3-small"} {
				r := Request{Endpoint: endpoint, Model: model, Body: body, Previous: previous}
				e, err := counter.Count(r)
				if err != nil {
					continue
				}
				if !json.Valid(body) {
					t.Errorf("%s: counted %q, which is not JSON", endpoint, body)
				}
				holds(t, r, e)
				if again, err := counter.Count(r); err != nil || again.Tokens != e.Tokens {
					t.Errorf("%s, %s %q: %d tokens, then %d, %v", model, endpoint, body, e.Tokens, again.Tokens, err)
				}
			}
		}
	})
}

// holds checks what is said of an Estimate.
func holds(t *testing.T, r Request, e Estimate) {
	t.Helper()
	parts, messages, basis := 0, 0, modelOf(r.Model).basis
	for _, p := range e.Parts {
		if p.Tokens < 0 || p.Path == "" || p.Rule == "" {
			t.Errorf("%s, %s %q: part %+v", r.Model, r.Endpoint, r.Body, p)
		}
		parts += p.Tokens
		basis = max(basis, p.Basis)
	}
	for _, n := range e.Messages {
		messages += n
	}
	if parts != e.Tokens || messages > e.Tokens || basis != e.Basis {
		t.Errorf("%s, %s %q: %d tokens %s, parts %d %s, messages %d", r.Model, r.Endpoint, r.Body, e.Tokens, e.Basis, parts, basis, messages)
	}
}

// TestHostileBodies counts bodies that are made to exhaust whoever reads them.
// That it ends is the test.
func TestHostileBodies(t *testing.T) {
	const large = 32 << 20
	deep := func(open, middle, shut string, n int) string {
		return strings.Repeat(open, n) + middle + strings.Repeat(shut, n)
	}
	tool := func(parameters string) string {
		return `{"messages":[],"input":[],"tools":[{"type":"function","name":"f","parameters":` + parameters +
			`,"function":{"name":"f","parameters":` + parameters + `}}]}`
	}
	refused := map[string]bool{"one byte": true, "one open bracket": true, "nested too deep": true}
	for name, body := range map[string]string{
		"one byte":           strings.Repeat("a", large),
		"one open bracket":   strings.Repeat("[", large),
		"one letter as text": `{"messages":[{"content":"` + strings.Repeat("a", large) + `"}],"input":"","prompt":"a"}`,
		"escapes":            `{"messages":[{"content":"` + strings.Repeat(`\u0061`, large/6) + `"}],"input":"","prompt":"a"}`,
		"empty messages":     `{"messages":[` + strings.Repeat("{},", 1<<20) + `{}],"input":[` + strings.Repeat("{},", 1<<20) + `{}]}`,
		"empty parts":        `{"messages":[{"content":[` + strings.Repeat("{},", 1<<20) + `{}]}]}`,
		"empty tools":        `{"messages":[],"tools":[` + strings.Repeat(`{"function":{}},`, 1<<19) + `{}],"input":[]}`,
		"nested properties":  tool(deep(`{"properties":{"a":`, `{"title":"`+strings.Repeat("a ", 1<<19)+`"}`, `}}`, 50)),
		"nested arrays":      tool(`{"properties":{"a":` + deep(`{"type":"array","items":`, `{}`, `}`, 100) + `}}`),
		"nested too deep":    tool(deep(`{"items":`, `{}`, `}`, 5000)),
		"cycle of one":       tool(`{"properties":{"a":{"$ref":"#/$defs/A"}},"$defs":{"A":{"$ref":"#/$defs/A"}}}`),
		"cycle of two":       tool(`{"properties":{"a":{"$ref":"#/$defs/A"}},"$defs":{"A":{"items":{"$ref":"#/$defs/B"},"type":"array"},"B":{"anyOf":[{"$ref":"#/$defs/A"},{"$ref":"#/$defs/A"}]}}}`),
		"wide schema":        tool(`{"properties":{` + strings.Repeat(`"a":{"type":"object","properties":{"b":{}}},`, 1<<17) + `"z":{}}}`),
	} {
		for _, endpoint := range endpoints {
			r := Request{Endpoint: endpoint, Model: "gpt-4o", Body: []byte(body)}
			e, err := Count(r)
			if endpoint == ChatCompletions && (err != nil) != refused[name] {
				t.Errorf("%s: %d tokens, %v", name, e.Tokens, err)
			}
			if err != nil {
				continue
			}
			if len(e.Parts) > maxParts {
				t.Errorf("%s: %d parts", name, len(e.Parts))
			}
			r.Body = []byte(name) // for messages
			holds(t, r, e)
		}
	}
}

// TestPartsBeyondTheMostAreAddedUp counts more messages than there are parts.
func TestPartsBeyondTheMostAreAddedUp(t *testing.T) {
	n := maxParts + 10
	body := `{"messages":[` + strings.Repeat(`{"role":"user"},`, n-1) + `{"role":"user","content":[{"type":"hologram"}]}]}`
	e, err := Count(Request{Endpoint: ChatCompletions, Model: "gpt-4o", Body: []byte(body)})
	if err != nil || e.Tokens != 4*n+1000+3 || len(e.Messages) != n || len(e.Parts) != maxParts || e.Basis != Estimated {
		t.Fatalf("%d tokens %s, %d messages, %d parts, %v", e.Tokens, e.Basis, len(e.Messages), len(e.Parts), err)
	}
	if last := e.Parts[maxParts-1]; last.Tokens != 4*11+1000+3 || last.Basis != Estimated {
		t.Errorf("the last part is %+v", last)
	}
}

// TestHostileImages counts images that are not what they claim to be. None
// costs more than the largest image, and none is free.
func TestHostileImages(t *testing.T) {
	base := func(b string) string { return base64.StdEncoding.EncodeToString([]byte(b)) }
	png := func(w, h string) string {
		return "\x89PNG\r\n\x1a\n\x00\x00\x00\x0dIHDR" + w + h + "\x08\x00\x00\x00\x00" + strings.Repeat("x", 100)
	}
	for name, url := range map[string]string{
		"huge by its header":    "data:image/png;base64," + base(png("\x7f\xff\xff\xff", "\x7f\xff\xff\xff")),
		"no width":              "data:image/png;base64," + base(png("\x00\x00\x00\x00", "\x00\x00\x00\x01")),
		"negative width":        "data:image/png;base64," + base(png("\xff\xff\xff\xff", "\x00\x00\x00\x01")),
		"GIF without a size":    "data:image/gif;base64," + base("GIF89a"),
		"GIF of no size":        "data:image/gif;base64," + base("GIF89a\x00\x00\x00\x00\x00\x00\x00"),
		"WebP of the largest":   "data:image/webp;base64," + base("RIFF\x00\x00\x00\x00WEBPVP8X\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff\xff\xff"),
		"JPEG of markers":       "data:image/jpeg;base64," + base("\xff\xd8"+strings.Repeat("\xff", 1<<20)),
		"JPEG of segments":      "data:image/jpeg;base64," + base("\xff\xd8"+strings.Repeat("\xff\xfe\x00\x02", 1<<18)),
		"cut":                   "data:image/png;base64,iVBORw0KGgo",
		"no base64":             "data:image/png;base64,iVBORw0KGgo*****",
		"another type":          "data:text/plain;base64,aGVsbG8=",
		"no data":               "data:,",
		"no comma":              "data:image/png;base64",
		"a scheme and nothing":  "data:",
		"white space":           "data:image/png;base64,\\n" + base(png("\x00\x00\x00\x01", "\x00\x00\x00\x01")),
		"one letter, very long": "data:image/png;base64,iVBORw0KGgo" + strings.Repeat("A", 32<<20),
		"a path":                "file:///etc/passwd",
		"":                      "",
	} {
		for _, model := range []string{"gpt-4o", "gpt-4o-mini", "gpt-5-mini", "gpt-5.4"} {
			rule := modelOf(model).images
			body := `{"messages":[{"content":[{"type":"image_url","image_url":{"url":"` + url + `"}}]}]}`
			e, err := Count(Request{Endpoint: ChatCompletions, Model: model, Body: []byte(body)})
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			if n := e.Parts[0].Tokens; n <= 0 || n > rule.largest() {
				t.Errorf("%s, %s: %d tokens, want 1 to %d", name, model, n, rule.largest())
			}
		}
	}
}
