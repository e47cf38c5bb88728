package tokens

import (
	"strings"
	"testing"
)

// counted is a request with what it costs.
type counted struct {
	name     string
	endpoint Endpoint
	model    string
	body     string
	want     int
}

// check counts requests whose worst part is counted by a rule.
func check(t *testing.T, cases []counted) {
	t.Helper()
	for _, c := range cases {
		e, err := Count(Request{Endpoint: c.endpoint, Model: c.model, Body: []byte(c.body)})
		if err != nil || e.Tokens != c.want || e.Basis != Rule {
			t.Errorf("%s: %d %s, %v; want %d\n%v", c.name, e.Tokens, e.Basis, err, c.want, e.Parts)
		}
	}
}

const (
	weather = `{"name":"get_weather","description":"Weather of a city",
		"parameters":{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"}},"required":["city"]}}`
	weatherText = "# Tools\n\n## functions\n\nnamespace functions {\n\n// Weather of a city\n" +
		"type get_weather = (_: { city: string, days?: number }) => any;\n\n} // namespace functions"
	stopText = "# Tools\n\n## functions\n\nnamespace functions {\n\ntype stop = () => any;\n\n} // namespace functions"

	userHi    = `{"role":"user","content":"hi"}`
	chatTool  = `"tools":[{"type":"function","function":` + weather + `}]`
	inputTool = `"tools":[{"type":"function",` + "\n" // and the rest of weather
)

func TestCountTools(t *testing.T) {
	const stop = `{"type":"function","name":"stop"}`
	item := inputTool + strings.TrimPrefix(weather, "{") + `]`
	check(t, []counted{
		{"own message", ChatCompletions, "gpt-4o", `{"messages":[` + userHi + `],` + chatTool + `}`,
			8 + 4 + Text("gpt-4o", weatherText) - 1},
		{"functions", ChatCompletions, "gpt-4", `{"messages":[` + userHi + `],"functions":[` + weather + `]}`,
			8 + 4 + Text("gpt-4", weatherText) - 1},
		{"joined to the system message", ChatCompletions, "gpt-4",
			`{"messages":[{"role":"system","content":"be brief"},` + userHi + `],` + chatTool + `}`,
			8 + 4 + Text("gpt-4", "be brief\n\n"+weatherText) - 1},
		{"joined to its parts", ChatCompletions, "gpt-4o",
			`{"messages":[{"role":"developer","content":[{"type":"text","text":"be "},{"type":"text","text":"brief"}]},` + userHi + `],` + chatTool + `}`,
			8 + 4 + Text("gpt-4o", "be brief\n\n"+weatherText) - 1},
		{"with the preamble", ChatCompletions, "gpt-5", `{"messages":[` + userHi + `],` + chatTool + `}`,
			7 + 4 + Text("gpt-5", weatherText) + 81},
		{"not described", ChatCompletions, "gpt-5", `{"messages":[` + userHi + `],"functions":[{"name":"stop"}]}`,
			7 + 4 + Text("gpt-5", stopText) + 80},
		{"o-series", ChatCompletions, "o3", `{"messages":[` + userHi + `],` + chatTool + `}`,
			7 + 4 + Text("o3", weatherText) - 1},

		{"responses", Responses, "gpt-4.1", `{"input":"hi",` + item + `}`, 8 + Text("gpt-4.1", weatherText) - 3},
		{"responses, joined", Responses, "gpt-4.1", `{"instructions":"be brief","input":"hi",` + item + `}`,
			8 + 4 + Text("gpt-4.1", "be brief\n\n"+weatherText) - 3},
		{"responses, reasoning", Responses, "gpt-5", `{"input":"hi",` + item + `}`, 7 + 4 + Text("gpt-5", weatherText) - 1},
		{"responses, not described", Responses, "gpt-5", `{"input":"hi","tools":[` + stop + `]}`, 7 + 4 + Text("gpt-5", stopText) - 2},
	})
}

func TestCountToolChoice(t *testing.T) {
	base := 8 + 4 + Text("gpt-4o", weatherText) - 1
	name := Text("gpt-4o", "get_weather")
	chat := func(more string) string { return `{"messages":[` + userHi + `],` + chatTool + `,` + more + `}` }
	item := inputTool + strings.TrimPrefix(weather, "{") + `]`
	input := func(more string) string { return `{"input":"hi",` + item + `,` + more + `}` }
	const named = `"tool_choice":{"type":"function","function":{"name":"get_weather"}}`
	inputBase := 8 + Text("gpt-4o", weatherText) - 3
	check(t, []counted{
		{"auto", ChatCompletions, "gpt-4o", chat(`"tool_choice":"auto"`), base},
		{"required", ChatCompletions, "gpt-4o", chat(`"tool_choice":"required"`), base},
		{"none", ChatCompletions, "gpt-4o", chat(`"tool_choice":"none"`), base + 1},
		{"named", ChatCompletions, "gpt-4o", chat(named), base + 7 + name},
		{"named, of old", ChatCompletions, "gpt-4o", chat(`"function_call":{"name":"get_weather"}`), base + 4 + name},
		{"none, of old", ChatCompletions, "gpt-4o", chat(`"function_call":"none"`), base + 1},
		{"named, reasoning", ChatCompletions, "gpt-5", chat(named), base - 1 + 82},
		{"responses, auto", Responses, "gpt-4o", input(`"tool_choice":"auto"`), inputBase},
		{"responses, named", Responses, "gpt-4o", input(`"tool_choice":{"type":"function","name":"get_weather"}`), inputBase + 7 + name},
		{"responses, the only one", Responses, "gpt-4o", input(`"tool_choice":"required"`), inputBase + 7 + name},
		{"responses, reasoning", Responses, "gpt-5", input(`"tool_choice":"required"`), 7 + 4 + Text("gpt-5", weatherText) - 1},
	})
	e, err := Count(Request{Endpoint: ChatCompletions, Model: "gpt-4o", Body: []byte(`{"messages":[` + userHi + `],` + named + `}`)})
	if err != nil || e.Tokens != 8 || e.Basis != Exact {
		t.Errorf("a choice without tools: %d %s, %v; want 8 exact", e.Tokens, e.Basis, err)
	}
}

func TestCountToolCalls(t *testing.T) {
	const call1 = `{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}`
	const call2 = `{"id":"2","type":"function","function":{"name":"g","arguments":"{\"a\": \"b c\"}"}}`
	text := func(s string) int { return Text("gpt-4o", s) }
	f := 4 + text(" to=functions.f") + text("{}")
	done := 3 + text("functions.f") + text("done")
	check(t, []counted{
		{"one call", ChatCompletions, "gpt-4o",
			`{"messages":[{"role":"assistant","tool_calls":[` + call1 + `]},{"role":"tool","tool_call_id":"1","content":"done"}]}`,
			3 + f + 2 + done},
		{"arguments with white space", ChatCompletions, "gpt-4o",
			`{"messages":[{"role":"assistant","tool_calls":[` + call2 + `]}]}`,
			3 + 4 + text(" to=functions.g") + text(`{"a":"b c"}`) + 2},
		{"arguments that are no JSON", ChatCompletions, "gpt-4o",
			`{"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{ a"}}]}]}`,
			3 + 4 + text(" to=functions.f") + text(`{ a`) + 2},
		{"two at once", ChatCompletions, "gpt-4o",
			`{"messages":[{"role":"assistant","tool_calls":[` + call1 + `,` + call2 + `]}]}`,
			3 + 4 + text(" to=multi_tool_use.parallel") + 2 +
				text(`{"tool_uses":[{"recipient_name":"functions.f","parameters":{}},{"recipient_name":"functions.g","parameters":{"a":"b c"}}]}`)},
		{"two at once, with channels", ChatCompletions, "gpt-5",
			`{"messages":[{"role":"assistant","tool_calls":[` + call1 + `,` + call2 + `]}]}`,
			2 + f + 8 + 4 + text(" to=functions.g") + text(`{"a":"b c"}`) + 8},
		{"legacy", ChatCompletions, "gpt-4o",
			`{"messages":[{"role":"assistant","function_call":{"name":"f","arguments":"{}"}},{"role":"function","name":"f","content":"done"}]}`,
			3 + f + 2 + done},
		{"free text", ChatCompletions, "gpt-4o",
			`{"messages":[{"role":"assistant","tool_calls":[{"id":"1","type":"custom","custom":{"name":"f","input":"{}"}}]},{"role":"tool","tool_call_id":"1","content":"done"}]}`,
			3 + f + 2 + done},
		{"items", Responses, "gpt-4o",
			`{"input":[{"type":"function_call","call_id":"1","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"1","output":"done"}]}`,
			3 + f + done},
		{"item with an id", Responses, "gpt-4o",
			`{"input":[{"type":"function_call","id":"fc_1","call_id":"1","name":"f","arguments":"{}"}]}`, 3 + f + 3},
		{"item of a reasoning model", Responses, "gpt-5",
			`{"input":[{"type":"function_call","call_id":"1","name":"f","arguments":"{}"}]}`, 2 + f + 6},
		{"item of a reasoning model with an id", Responses, "gpt-5",
			`{"input":[{"type":"custom_tool_call","id":"x","call_id":"1","name":"f","input":"{}"}]}`, 2 + f + 9},
	})
}

func TestCompacted(t *testing.T) {
	for text, want := range map[string]string{
		"":                                   "",
		"{}":                                 "{}",
		" { \"a b\" : [ 1 , \"\\\" ,\" ] } ": `{"a b":[1,"\" ,"]}`,
		"[1 2]":                              "[1 2]",
		"\ttrue\n":                           "true",
		`{"a": "x"`:                          `{"a": "x"`,
	} {
		if got := string(compacted([]byte(text))); got != want {
			t.Errorf("compacted(%q) = %q, want %q", text, got, want)
		}
	}
}

func TestCountStructuredOutput(t *testing.T) {
	const format = `"name":"x","schema":{"type":"object","required":[]}`
	text := Text("gpt-4o", "# Response Formats\n\n## x\n\n"+`{"type":"object"}`)
	const chat = `"response_format":{"type":"json_schema","json_schema":{` + format + `}}`
	const input = `"text":{"format":{"type":"json_schema",` + format + `}}`
	check(t, []counted{
		{"chat", ChatCompletions, "gpt-4o", `{"messages":[` + userHi + `],` + chat + `}`, 8 + text + 8},
		{"with a system message", ChatCompletions, "gpt-4o",
			`{"messages":[{"role":"system","content":"hi"},` + userHi + `],` + chat + `}`, 13 + text + 3},
		{"with tools", ChatCompletions, "gpt-4o", `{"messages":[` + userHi + `],` + chatTool + `,` + chat + `}`,
			8 + 4 + Text("gpt-4o", weatherText) - 1 + text + 1},
		{"responses", Responses, "gpt-4o", `{"input":"hi",` + input + `}`, 8 + text + 1},
		{"responses, reasoning", Responses, "gpt-5", `{"input":"hi",` + input + `}`, 7 + text},
	})
}
