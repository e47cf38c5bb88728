package tokens

import (
	"slices"
	"strings"
	"testing"
)

func TestCountReasoning(t *testing.T) {
	item := `{"type":"reasoning","encrypted_content":"` + strings.Repeat("x", 2298) + `"}`
	short := `{"type":"reasoning","encrypted_content":"x"}`
	for _, c := range []struct {
		name, input string
		want        int
		basis       Basis
	}{
		{"in a tool loop", userHi + `,` + item, 2 + 5 + 200, Estimated},
		{"short", userHi + `,` + short, 2 + 5, Estimated},
		{"before the user's last word", item + `,` + userHi, 2 + 5, Rule},
		{"kept by the upstream", userHi + `,{"type":"reasoning","id":"rs_1"}`, 2 + 5 + 1000, Estimated},
		{"compaction", userHi + `,` + userHi + `,{"type":"function_call"},` + strings.Replace(item, "reasoning", "compaction", 1) + `,` + userHi, 2 + 200 + 5, Estimated},
	} {
		e, err := Count(Request{Endpoint: Responses, Model: "gpt-5", Body: []byte(`{"input":[` + c.input + `]}`)})
		if err != nil || e.Tokens != c.want || e.Basis != c.basis {
			t.Errorf("%s: %d %s, %v; want %d %s", c.name, e.Tokens, e.Basis, err, c.want, c.basis)
		}
	}
}

func TestCountPreviousResponse(t *testing.T) {
	const body = `{"previous_response_id":"resp_1","input":"hi"}`
	for _, c := range []struct {
		body     string
		previous int
		want     int
		basis    Basis
	}{
		{body, 23, 8 + 23, Rule},
		{body, 0, 8 + 1000, Estimated},
		{`{"previous_response_id":null,"input":"hi"}`, 23, 8, Exact},
		{`{"input":"hi"}`, 23, 8, Exact},
		{`{"conversation":"conv_1","input":"hi"}`, 23, 8 + 1000, Estimated},
	} {
		e, err := Count(Request{Endpoint: Responses, Model: "gpt-4.1", Body: []byte(c.body), Previous: c.previous})
		if err != nil || e.Tokens != c.want || e.Basis != c.basis {
			t.Errorf("%s after %d: %d %s, %v; want %d %s", c.body, c.previous, e.Tokens, e.Basis, err, c.want, c.basis)
		}
	}
}

// TestCharges sees every charge that can be configured, by default and
// configured.
func TestCharges(t *testing.T) {
	chat := func(part string) string { return `{"messages":[{"role":"user","content":[` + part + `]}]}` }
	const image = `{"type":"image_url","image_url":{"url":"https://x/y.png"}}`
	configured := Charges{Image: 11, Audio: 12, File: 13, WebSearch: 14, HostedTool: 15, State: 16, Part: 17}
	for _, c := range []struct {
		name           string
		endpoint       Endpoint
		model          string
		body           string
		frame          int // what is counted beside the charge
		byDefault, set int
		path           string
	}{
		{"image", ChatCompletions, "gpt-4o", chat(image), 7, 85 + 8*170, 11, "messages[0].content[0]"},
		{"image, by patches", ChatCompletions, "gpt-5-mini", chat(image), 6, 1844, 11, "messages[0].content[0]"},
		{"image, model without sight", ChatCompletions, "gpt-3.5-turbo", chat(image), 7, 1000, 11, "messages[0].content[0]"},
		{"image of the upstream", Responses, "gpt-4o", `{"input":[{"role":"user","content":[{"type":"input_image","file_id":"file-1"}]}]}`,
			7, 85 + 8*170, 11, "input[0].content[0]"},
		{"audio kept", ChatCompletions, "gpt-audio", `{"messages":[{"role":"assistant","audio":{"id":"a"}}]}`, 7, 1000, 12, "messages[0].audio"},
		{"audio without data", ChatCompletions, "gpt-audio", chat(`{"type":"input_audio","input_audio":{}}`), 7, 1000, 12, "messages[0].content[0]"},
		{"file", ChatCompletions, "gpt-4o", chat(`{"type":"file","file":{"file_data":"data:application/pdf;base64,JVBE"}}`), 7, 1000, 13, "messages[0].content[0]"},
		{"file of a response", Responses, "gpt-4o", `{"input":[{"role":"user","content":[{"type":"input_file","file_id":"f"}]}]}`, 7, 1000, 13, "input[0].content[0]"},
		{"web search", Responses, "gpt-5", `{"tools":[{"type":"web_search_preview"}]}`, 2, 8600, 14, "tools[0]"},
		{"web search without results", Responses, "gpt-4.1", `{"tools":[{"type":"web_search"}]}`, 3, 1350, 15, "tools[0]"},
		{"file search", Responses, "gpt-4.1", `{"tools":[{"type":"file_search"}]}`, 3, 1350, 15, "tools[0]"},
		{"search model", ChatCompletions, "gpt-4o", `{"messages":[],"web_search_options":{}}`, 3, 0, 0, "web_search_options"},
		{"state", Responses, "gpt-4.1", `{"prompt":{"id":"p"}}`, 3, 1000, 16, "prompt"},
		{"item kept", Responses, "gpt-4.1", `{"input":[{"type":"item_reference","id":"x"}]}`, 3, 1000, 16, "input[0]"},
		{"part", ChatCompletions, "gpt-4o", chat(`{"type":"hologram"}`), 7, 1000, 17, "messages[0].content[0]"},
		{"item", Responses, "gpt-4.1", `{"input":[{"type":"hologram"}]}`, 3, 1000, 17, "input[0]"},
		{"item of a tool", Responses, "gpt-4.1", `{"input":[{"type":"web_search_call"}]}`,
			3 + Text("gpt-4.1", `{"type":"web_search_call"}`), 0, 0, "input[0]"},
		{"large item of a tool", Responses, "gpt-4.1", `{"input":[{"type":"image_generation_call","result":"` + strings.Repeat("A", 20_000) + `"}]}`,
			3, 1000, 17, "input[0]"},
		{"content", ChatCompletions, "gpt-4o", `{"messages":[{"role":"user","content":{}}]}`, 7, 1000, 17, "messages[0].content"},
	} {
		for counter, want := range map[*Counter]int{{}: c.byDefault, {Charges: configured}: c.set} {
			e, err := counter.Count(Request{Endpoint: c.endpoint, Model: c.model, Body: []byte(c.body)})
			if err != nil || e.Tokens != c.frame+want || e.Basis != Estimated || !slices.Equal(e.Uncounted(), []string{c.path}) {
				t.Errorf("%s: %d %s %q, %v; want %d %q", c.name, e.Tokens, e.Basis, e.Uncounted(), err, c.frame+want, c.path)
			}
		}
	}
}
