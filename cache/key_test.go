package cache

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

var byDefault = Options{Exclude: DefaultExclude()}

func bodyKey(t testing.TB, raw string) Key {
	t.Helper()
	return mustScan(t, raw).Key(Context{}, byDefault)
}

// with adds a member to a chat request.
func with(name, value string) string {
	body := `{"model":"gpt-4.1","messages":[{"role":"user","content":"Say A"}]}`
	if name == "" {
		return body
	}
	return strings.TrimSuffix(body, "}") + fmt.Sprintf(`,%q:%s}`, name, value)
}

func TestEveryChatFieldCounts(t *testing.T) {
	fields := map[string][]string{
		"audio":                 {`{"voice":"alloy","format":"wav"}`, `{"voice":"echo","format":"wav"}`},
		"frequency_penalty":     {`0`, `0.5`},
		"function_call":         {`"none"`, `"auto"`, `{"name":"f"}`},
		"functions":             {`[{"name":"f"}]`, `[{"name":"g"}]`},
		"logit_bias":            {`{"50256":-100}`, `{"50256":100}`},
		"logprobs":              {`true`, `false`},
		"max_completion_tokens": {`5`, `500`},
		"max_tokens":            {`5`, `500`},
		"modalities":            {`["text"]`, `["text","audio"]`},
		"n":                     {`1`, `2`},
		"parallel_tool_calls":   {`true`, `false`},
		"prediction":            {`{"type":"content","content":"a"}`, `{"type":"content","content":"b"}`},
		"presence_penalty":      {`0`, `-2`},
		"reasoning_effort":      {`"low"`, `"high"`},
		"response_format":       {`{"type":"text"}`, `{"type":"json_object"}`},
		"seed":                  {`1`, `2`, `9007199254740992`, `9007199254740993`},
		"stop":                  {`"a"`, `["a"]`, `["a","b"]`, `["b","a"]`},
		"temperature":           {`0`, `1`},
		"tool_choice":           {`"none"`, `"auto"`, `"required"`, `{"type":"function","function":{"name":"f"}}`},
		"tools":                 {`[{"type":"function","function":{"name":"f"}}]`, `[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"g"}}]`, `[{"type":"function","function":{"name":"f","description":"a"}}]`, `[{"type":"function","function":{"name":"f","description":"b"}}]`},
		"top_logprobs":          {`0`, `5`},
		"top_p":                 {`0`, `0.9`, `1`},
		"verbosity":             {`"low"`, `"high"`},
		"web_search_options":    {`{}`, `{"search_context_size":"low"}`},
		"some_future_field":     {`1`, `"1"`, `{}`, `[]`, `""`, `false`},
		"Temperature":           {`0`},
		"temprature":            {`0`},
	}
	seen := map[Key]string{bodyKey(t, with("", "")): "the request without"}
	for name, values := range fields {
		for _, value := range values {
			key := bodyKey(t, with(name, value))
			if other, ok := seen[key]; ok {
				t.Errorf("%s: %s has the key of %s", name, value, other)
			}
			seen[key] = name + ": " + value
		}
	}
}

func TestExcludedFieldsDoNotCount(t *testing.T) {
	base := bodyKey(t, with("", ""))
	for _, name := range DefaultExclude() {
		for _, value := range []string{`true`, `"x"`, `{"run":"1"}`} {
			raw := with(name, value)
			if bodyKey(t, raw) != base {
				t.Errorf("%s: %s counts", name, value)
			}
			if mustScan(t, raw).Key(Context{}, Options{}) == base {
				t.Errorf("%s: %s does not count where nothing is excluded", name, value)
			}
		}
		nested := with("unknown", fmt.Sprintf(`{%q:1}`, name))
		if bodyKey(t, nested) == bodyKey(t, with("unknown", `{}`)) {
			t.Errorf("%s is excluded inside another member", name)
		}
	}
	if o := (Options{Exclude: []string{"temperature"}}); mustScan(t, with("temperature", "1")).Key(Context{}, o) != base {
		t.Error("a name of one's own is not excluded")
	}
}

// The requests of each group differ in what they ask for.
func TestDifferentRequests(t *testing.T) {
	chat := func(messages string) string { return `{"model":"m","messages":` + messages + `}` }
	user := func(content string) string { return chat(`[{"role":"user","content":` + content + `}]`) }
	text := `[{"type":"text","text":"What is this?"},`
	calls := func(first, second string) string {
		return chat(`[{"role":"assistant","tool_calls":[{"id":"call_Aa1x7Qw","type":"function","function":{"name":"f","arguments":"{\"x\":1}"}},{"id":"call_Bb2x7Qw","type":"function","function":{"name":"f","arguments":"{\"x\":2}"}}]},` +
			`{"role":"tool","tool_call_id":"` + first + `","content":"one"},{"role":"tool","tool_call_id":"` + second + `","content":"two"}]`)
	}
	input := func(items string) string { return `{"model":"m","input":[` + items + `]}` }
	outputs := func(first, second, rest string) string {
		return `{"model":"m","input":[{"type":"function_call_output","call_id":"` + first + `","output":"one"},{"type":"function_call_output","call_id":"` + second + `","output":"two"}]` + rest + `}`
	}
	for what, group := range map[string][]string{
		"pictures": {
			user(text + `{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]`),
			user(text + `{"type":"image_url","image_url":{"url":"data:image/png;base64,BBBB"}}]`),
			user(text + `{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA","detail":"low"}}]`),
			user(text + `{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA","detail":"high"}}]`),
			user(`[{"type":"text","text":"What is this?"}]`),
			user(`"What is this?"`),
		},
		"sound and files": {
			user(`[{"type":"input_audio","input_audio":{"data":"AAAA","format":"wav"}}]`),
			user(`[{"type":"input_audio","input_audio":{"data":"BBBB","format":"wav"}}]`),
			user(`[{"type":"file","file":{"file_data":"AAAA"}}]`),
			user(`[{"type":"file","file":{"file_data":"BBBB"}}]`),
		},
		"parts": {user(`"ab"`), user(`[{"type":"text","text":"ab"}]`), user(`[{"type":"text","text":"a"},{"type":"text","text":"b"}]`), user(`[{"type":"text","text":"b"},{"type":"text","text":"a"}]`)},
		"conversations": {
			chat(`[{"role":"system","content":"s"},{"role":"user","content":"Who runs firm X?"},{"role":"user","content":"How old?"}]`),
			chat(`[{"role":"system","content":"s"},{"role":"user","content":"Who runs firm Y?"},{"role":"user","content":"How old?"}]`),
			chat(`[{"role":"system","content":"z"},{"role":"user","content":"Who runs firm X?"},{"role":"user","content":"How old?"}]`),
			chat(`[{"role":"developer","content":"s"},{"role":"user","content":"Who runs firm X?"},{"role":"user","content":"How old?"}]`),
			chat(`[{"role":"system","content":"s"},{"role":"user","name":"ann","content":"Who runs firm X?"},{"role":"user","content":"How old?"}]`),
			chat(`[{"role":"system","content":"s"},{"role":"user","content":"How old?"},{"role":"user","content":"Who runs firm X?"}]`),
			chat(`[{"role":"user","content":"How old?"}]`),
		},
		"texts that look alike": {user(`"A  B"`), user(`"A B"`), user(`"a b"`), user(`" A B"`), user(`"A B\n"`), user(`"A\u00a0B"`), user(`"A B\u0000"`), user(`"A\tB"`)},
		"composed":              {user(`"caf\u00e9"`), user(`"cafe\u0301"`), user(`"cafe"`), user(`"CAFÉ"`)},
		"escaped escapes":       {user(`"\n"`), user(`"\\n"`), user(`"\\\n"`), user(`"n"`), user(`"\\u000a"`)},
		"kinds of value":        {user(`""`), user(`null`), user(`[]`), user(`{}`), user(`0`), user(`"0"`), user(`false`), user(`"null"`)},
		"numbers": {
			with("seed", "1"), with("seed", "-1"), with("seed", "10"), with("seed", "1e-2"), with("seed", "9007199254740993"), with("seed", "9007199254740992"),
			with("seed", "100000000000000000000000000000"), with("seed", "100000000000000000000000000001"), with("seed", "1e400"), with("seed", "1e401"),
			with("seed", "0.1"), with("seed", "0.1000000000000000055511151231257827"),
		},
		"order in a schema": {
			with("response_format", `{"type":"json_schema","json_schema":{"name":"n","schema":{"properties":{"a":{"type":"string"},"b":{"type":"string"}}}}}`),
			with("response_format", `{"type":"json_schema","json_schema":{"name":"n","schema":{"properties":{"b":{"type":"string"},"a":{"type":"string"}}}}}`),
		},
		"order in a tool": {
			with("tools", `[{"type":"function","function":{"name":"f","parameters":{"a":1,"b":2}}}]`), with("tools", `[{"type":"function","function":{"name":"f","parameters":{"b":2,"a":1}}}]`),
			with("tools", `[{"type":"function","name":"f","parameters":{"a":1,"b":2}}]`), with("tools", `[{"type":"function","name":"f","parameters":{"b":2,"a":1}}]`),
			with("functions", `[{"name":"f","parameters":{"a":1,"b":2}}]`), with("functions", `[{"name":"f","parameters":{"b":2,"a":1}}]`),
		},
		"order in a Responses schema": {with("text", `{"format":{"type":"json_schema","schema":{"a":1,"b":[{"d":1,"c":2}]}}}`), with("text", `{"format":{"type":"json_schema","schema":{"a":1,"b":[{"c":2,"d":1}]}}}`)},
		"order of elements":           {with("tools", `[{"name":"f"},{"name":"g"}]`), with("tools", `[{"name":"g"},{"name":"f"}]`)},
		"nulls deeper down":           {with("x", `{"a":null}`), with("x", `{}`)},
		"results of two calls":        {calls("call_Aa1x7Qw", "call_Bb2x7Qw"), calls("call_Bb2x7Qw", "call_Aa1x7Qw"), calls("call_Aa1x7Qw", "call_Aa1x7Qw"), calls("call_Aa1x7Qw", "call_Cc3x7Qw")},
		"results of calls upstream":   {outputs("call_Aa1x7Qw", "call_Bb2x7Qw", ""), outputs("call_Bb2x7Qw", "call_Aa1x7Qw", ""), outputs("call_Aa1x7Qw", "call_Bb2x7Qw", `,"previous_response_id":"resp_1"`), outputs("call_Bb2x7Qw", "call_Aa1x7Qw", `,"previous_response_id":"resp_1"`)},
		"calls in a state upstream": {
			`{"model":"m","previous_response_id":"resp_1","input":[{"type":"function_call","call_id":"call_Aa1x7Qw","name":"f"}]}`,
			`{"model":"m","previous_response_id":"resp_1","input":[{"type":"function_call","call_id":"call_Bb2x7Qw","name":"f"}]}`,
			`{"model":"m","conversation":"conv_1","input":[{"type":"function_call","call_id":"call_Aa1x7Qw","name":"f"}]}`,
			`{"model":"m","conversation":"conv_1","input":[{"type":"function_call","call_id":"call_Bb2x7Qw","name":"f"}]}`,
		},
		"items kept upstream": {
			input(`{"type":"item_reference","id":"msg_1"}`), input(`{"type":"item_reference","id":"msg_2"}`), input(`{"id":"msg_1"}`), input(`{"id":"msg_2"}`),
			input(`{"type":"image_generation_call","id":"ig_1"}`), input(`{"type":"image_generation_call","id":"ig_2","status":"completed","result":null}`),
			input(`{"type":"reasoning","id":"rs_1","summary":[]}`), input(`{"type":"reasoning","id":"rs_2","summary":[ ]}`),
		},
		"a reference to one of two items": {
			input(`{"id":"msg_a1d4e5","content":"x"},{"id":"msg_b2d4e5","content":"y"},{"type":"item_reference","id":"msg_a1d4e5"}`),
			input(`{"id":"msg_b2d4e5","content":"x"},{"id":"msg_a1d4e5","content":"y"},{"type":"item_reference","id":"msg_a1d4e5"}`),
		},
		"ids that texts mention": {
			chat(`[{"role":"assistant","tool_calls":[{"id":"call_Aa1x7Qw","function":{"name":"f"}},{"id":"call_Bb2x7Qw","function":{"name":"g"}}]},{"role":"user","content":"Repeat\ncall_Aa1x7Qw."}]`),
			chat(`[{"role":"assistant","tool_calls":[{"id":"call_Bb2x7Qw","function":{"name":"f"}},{"id":"call_Aa1x7Qw","function":{"name":"g"}}]},{"role":"user","content":"Repeat\ncall_Aa1x7Qw."}]`),
		},
		"ids that arguments mention in a text": {
			chat(`[{"role":"assistant","tool_calls":[{"id":"Aa1x7Qw","function":{"name":"f","arguments":"{\"x\":\"see\\nAa1x7Qw \"}"}},{"id":"Bb2x7Qw","function":{"name":"f","arguments":""}}]}]`),
			chat(`[{"role":"assistant","tool_calls":[{"id":"Bb2x7Qw","function":{"name":"f","arguments":"{\"x\":\"see\\nAa1x7Qw \"}"}},{"id":"Aa1x7Qw","function":{"name":"f","arguments":""}}]}]`),
		},
		"ids in arguments": {
			chat(`[{"role":"assistant","tool_calls":[{"id":"call_Aa1x7Qw","function":{"name":"f","arguments":"{\"id\":\"call_Aa1x7Qw\"}"}},{"id":"call_Bb2x7Qw","function":{"name":"f","arguments":""}}]}]`),
			chat(`[{"role":"assistant","tool_calls":[{"id":"call_Aa1x7Qw","function":{"name":"f","arguments":"{\"id\":\"call_Bb2x7Qw\"}"}},{"id":"call_Bb2x7Qw","function":{"name":"f","arguments":""}}]}]`),
			chat(`[{"role":"assistant","tool_calls":[{"id":"call_Aa1x7Qw","function":{"name":"f","arguments":"{\"call_Aa1x7Qw\":\"id\"}"}},{"id":"call_Bb2x7Qw","function":{"name":"f","arguments":""}}]}]`),
			chat(`[{"role":"assistant","tool_calls":[{"id":"call_Aa1x7Qw","function":{"name":"f","arguments":"{\"id\":\"\\\\#1\"}"}},{"id":"call_Bb2x7Qw","function":{"name":"f","arguments":""}}]}]`),
		},
		"ids that are text": {user(`"call_Aa1x7Qw"`), user(`"call_Bb2x7Qw"`), with("x", `[{"id":"call_Aa1x7Qw"}]`), with("x", `[{"id":"call_Bb2x7Qw"}]`), with("messages2", `[{"tool_call_id":"call_Aa1x7Qw"}]`), with("messages2", `[{"tool_call_id":"call_Bb2x7Qw"}]`)},
		"Responses": {`{"model":"m","input":"x","instructions":"be brief"}`, `{"model":"m","input":"x","instructions":"be long"}`, `{"model":"m","input":"x"}`, `{"model":"m","input":["x"]}`,
			`{"model":"m","input":"x","previous_response_id":"resp_1"}`, `{"model":"m","input":"x","previous_response_id":"resp_2"}`},
		"embeddings": {`{"model":"m","input":"x"}`, `{"model":"m","input":"x","encoding_format":"base64"}`, `{"model":"m","input":"x","encoding_format":"float"}`, `{"model":"m","input":"x","dimensions":8}`, `{"model":"m","input":[1,2]}`, `{"model":"m","input":[12]}`, `{"model":"m","input":["1","2"]}`},
	} {
		seen := map[Key]string{}
		for _, raw := range group {
			key := bodyKey(t, raw)
			if other, ok := seen[key]; ok {
				t.Errorf("%s: one key for\n%s\n%s", what, raw, other)
			}
			seen[key] = raw
			for other, raw2 := range seen {
				if diff := mustScan(t, raw).Fingerprint(byDefault).Diff(mustScan(t, raw2).Fingerprint(byDefault)); (diff == nil) != (other == key) {
					t.Errorf("%s: %q sets apart\n%s\n%s", what, diff, raw, raw2)
				}
			}
		}
	}
}

// The requests of each group are one in different words.
func TestEqualRequests(t *testing.T) {
	agent := func(first, second, arguments string) string {
		return `{"model":"m","messages":[{"role":"user","content":"Go"},{"role":"assistant","content":null,"tool_calls":[{"id":"` + first + `","type":"function","function":{"name":"f","arguments":"` + arguments + `"}},` +
			`{"id":"` + second + `","type":"function","function":{"name":"g","arguments":"{}"}}]},{"role":"tool","tool_call_id":"` + second + `","content":"two"},{"role":"tool","tool_call_id":"` + first + `","content":"one"}]}`
	}
	responses := func(message, call, item string) string {
		return `{"model":"m","input":[{"type":"message","id":"` + message + `","role":"user","content":"Go"},{"type":"function_call","id":"` + item + `","call_id":"` + call + `","name":"f","arguments":"{\"id\":\"` + call + `\"}"},` +
			`{"type":"function_call_output","call_id":"` + call + `","output":"one"}]}`
	}
	for what, group := range map[string][]string{
		"order": {
			`{"model":"m","messages":[{"role":"user","content":"x"}],"temperature":0}`, `{"temperature":0,"messages":[{"content":"x","role":"user"}],"model":"m"}`,
			"{\n  \"model\": \"m\",\n  \"messages\": [\n    {\n      \"role\": \"user\",\n      \"content\": \"x\"\n    }\n  ],\n  \"temperature\": 0\n}\n",
		},
		"escapes":                         {with("x", `"é/\n😀\u0000\""`), with("x", `"\u00e9\/\u000a\ud83d\ude00\u0000\u0022"`), with("x", `"\u00E9/\u000A\uD83D\uDE00\u0000\""`)},
		"escaped names":                   {with("x", `{"é":1,"z":2}`), with("x", `{"z":2,"\u00e9":1}`), with("x", `{"\u007a":2,"\u00E9":1}`)},
		"numbers":                         {with("top_p", "1"), with("top_p", "1.0"), with("top_p", "1e0"), with("top_p", "10E-1")},
		"zeros":                           {with("seed", "0"), with("seed", "-0"), with("seed", "0.0"), with("seed", "0e9")},
		"nulls":                           {with("", ""), with("stop", "null"), with("tools", " null ")},
		"run ids":                         {with("metadata", `{"run":"1"}`), with("metadata", `{"run":"2"}`), with("client_metadata", `{"x-codex":"3"}`), with("prompt_cache_key", `"k"`)},
		"streams":                         {with("stream", "true"), with("stream", "false"), with("stream_options", `{"include_usage":true}`)},
		"fresh call ids":                  {agent("call_Aa1x7Qw", "call_Bb2x7Qw", `{}`), agent("call_Bb2x7Qw", "call_Aa1x7Qw", `{}`), agent("toolu_01A09q90qw90", "chatcmpl-tool-5f1e", `{}`), agent("123e4567-e89b-12d3-a456-426614174000", "call_é9x7Qw", `{}`)},
		"ids behind a quote in arguments": {agent("call_Aa1x7Qw", "call_Bb2x7Qw", `{\"x\":\"\\\"\",\"id\":\"call_Aa1x7Qw\"}`), agent("call_Cc3x7Qw", "call_Dd4x7Qw", `{\"x\":\"\\\"\",\"id\":\"call_Cc3x7Qw\"}`)},
		"ids in arguments":                {agent("call_Aa1x7Qw", "call_Bb2x7Qw", `{\"input\":\"x\",\"id\":\"call_Aa1x7Qw\"}`), agent("call_Cc3x7Qw", "call_Dd4x7Qw", `{\"input\":\"x\",\"id\":\"call_Cc3x7Qw\"}`)},
		"ids of items":                    {responses("msg_a1d4e5", "call_Aa1x7Qw", "fc_a1d4e5"), responses("msg_b2d4e5", "call_Bb2x7Qw", "fc_b2d4e5"), responses("0f1e2d3c", "call_Cc3x7Qw", "fc_c3d4e5")},
		"a run id that is a call's": {
			strings.Replace(agent("call_Aa1x7Qw", "call_Bb2x7Qw", `{}`), `{`, `{"metadata":{"id":"call_Aa1x7Qw"},`, 1), strings.Replace(agent("call_Aa1x7Qw", "call_Bb2x7Qw", `{}`), `{`, `{"metadata":{"id":"call_Zz9x7Qw"},`, 1),
		},
	} {
		for _, raw := range group[1:] {
			if bodyKey(t, raw) != bodyKey(t, group[0]) {
				t.Errorf("%s: two keys for\n%s\n%s", what, raw, group[0])
			}
			if diff := mustScan(t, raw).Fingerprint(byDefault).Diff(mustScan(t, group[0]).Fingerprint(byDefault)); diff != nil {
				t.Errorf("%s: %q sets apart\n%s\n%s", what, diff, raw, group[0])
			}
		}
	}
}

func TestContextCounts(t *testing.T) {
	d := mustScan(t, with("", ""))
	seen := map[Key]string{d.Key(Context{}, byDefault): "no context"}
	check := func(c Context) {
		for _, key := range []Key{d.Key(c, byDefault), ExplicitKey(c, "k")} {
			if other, ok := seen[key]; ok {
				t.Errorf("%+v has the key of %s", c, other)
			}
			seen[key] = fmt.Sprintf("%+v", c)
		}
	}
	for i := range reflect.TypeFor[Context]().NumField() {
		for _, value := range []string{"a", "ab", "b"} {
			var c Context
			reflect.ValueOf(&c).Elem().Field(i).SetString(value)
			check(c)
		}
	}
	check(Context{Tenant: "a", Scope: "bc"}) // what one field loses its neighbour gains
	check(Context{Tenant: "ab", Scope: "c"})
	check(Context{Tenant: "abc"})
}

func TestExplicitKey(t *testing.T) {
	c := Context{Tenant: "acme"}
	body := `{"model":"m"}`
	seen := map[Key]string{mustScan(t, body).Key(c, byDefault): "a body"}
	for _, name := range []string{"", "k", "K", "k ", body, "\x00", strings.Repeat("k", 5000)} {
		key := ExplicitKey(c, name)
		if other, ok := seen[key]; ok {
			t.Errorf("%.20q has the key of %.20q", name, other)
		}
		seen[key] = name
	}
}

func TestNormalise(t *testing.T) {
	o := Options{Exclude: DefaultExclude(), Normalise: []Normaliser{
		{regexp.MustCompile(`\d\d:\d\d:\d\d`), "<time>"},
		{regexp.MustCompile(`run (\w+)-\d+`), "run $1"},
	}}
	for _, form := range []string{
		`{"messages":[{"role":"user","content":"Now is %s. Summarise"}]}`,
		`{"messages":[{"role":"user","content":[{"type":"text","text":"%s"}]}]}`,
		`{"messages":[{"content":[{"text":"%s","type":"text"}],"role":"user"}]}`,
		`{"messages":[{"role":"tool","tool_call_id":"call_1","content":"%s"}]}`,
		`{"input":"%s"}`, `{"input":["%s"]}`, `{"input":[{"role":"user","content":"%s"}]}`,
		`{"input":[{"role":"user","content":[{"type":"input_text","text":"%s"}]}]}`,
		`{"input":[{"type":"function_call_output","call_id":"c","output":"%s"}]}`,
		`{"instructions":"%s"}`, `{"prompt":"%s"}`,
	} {
		first, second := fmt.Sprintf(form, `12:00:01 run a-1`), fmt.Sprintf(form, `12:\u00300:02 run a-22`)
		if mustScan(t, first).Key(Context{}, o) != mustScan(t, second).Key(Context{}, o) {
			t.Errorf("two keys for %s and %s", first, second)
		}
		if bodyKey(t, first) == bodyKey(t, second) {
			t.Errorf("without normalisers, one key for %s and %s", first, second)
		}
		if third := fmt.Sprintf(form, `12:00:01 run b-1`); mustScan(t, first).Key(Context{}, o) == mustScan(t, third).Key(Context{}, o) {
			t.Errorf("one key for %s and %s", first, third)
		}
	}
	for _, form := range []string{
		`{"model":"%s"}`, `{"x":{"content":"%s"}}`, `{"messages":[{"role":"%s"}]}`, `{"messages":[{"content":[{"image_url":"%s"}]}]}`,
		`{"tools":[{"description":"%s"}]}`, `{"messages":[{"tool_calls":[{"function":{"arguments":"%s"}}]}]}`,
	} {
		first, second := fmt.Sprintf(form, "12:00:01"), fmt.Sprintf(form, "12:00:02")
		if mustScan(t, first).Key(Context{}, o) == mustScan(t, second).Key(Context{}, o) {
			t.Errorf("%s is normalised, but it is no text of a message", first)
		}
	}
}

func TestKeyText(t *testing.T) {
	key := Key{0x8f, 0x01, 2, 3, 4, 5, 6, 7, 31: 0xab}
	text := key.String()
	if text != "8f01020304050607"+strings.Repeat("00", 23)+"ab" {
		t.Errorf("String: %s", text)
	}
	if key.Short() != -0x70fefdfcfbfaf9f9 {
		t.Errorf("Short: %#x", key.Short())
	}
	for _, s := range []string{text, strings.ToUpper(text)} {
		if first, last, err := KeyRange(s); err != nil || first != key || last != key {
			t.Errorf("KeyRange(%q) = %v, %v, %v", s, first, last, err)
		}
	}
	for _, s := range []string{text + "0", "x" + text[1:], text[:63] + "é"} {
		if first, _, err := KeyRange(s); err == nil {
			t.Errorf("KeyRange(%q) = %v", s, first)
		}
	}
	for prefix, want := range map[string][2]string{
		"":    {strings.Repeat("0", 64), strings.Repeat("f", 64)},
		"8":   {"8" + strings.Repeat("0", 63), "8" + strings.Repeat("f", 63)},
		"8f0": {"8f0" + strings.Repeat("0", 61), "8f0" + strings.Repeat("f", 61)},
		text:  {text, text},
	} {
		first, last, err := KeyRange(prefix)
		if err != nil || first.String() != want[0] || last.String() != want[1] {
			t.Errorf("KeyRange(%q) = %v, %v, %v", prefix, first, last, err)
		}
	}
	for _, s := range []string{"g", "8_", "+1", text + "0"} {
		if _, _, err := KeyRange(s); err == nil {
			t.Errorf("KeyRange(%q) is no error", s)
		}
	}
}

// golden is one file of testdata/keys.
type golden struct {
	About   string  `json:"about"`
	Context Context `json:"context"`
	Body    string  `json:"body"`
	Key     string  `json:"key"`
}

// The keys of testdata/keys are those of stored answers. A change to one makes
// every cache useless, and must come with another version in the domain string.
func TestGoldenKeys(t *testing.T) {
	files, err := filepath.Glob("../testdata/keys/*.json")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 15 {
		t.Fatalf("testdata/keys holds %d files", len(files))
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var g golden
		if err := json.Unmarshal(raw, &g); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if key := mustScan(t, g.Body).Key(g.Context, byDefault).String(); key != g.Key {
			t.Errorf("%s: the key is %s and was %s: a change of keys needs another version in %q", file, key, g.Key, domain)
		}
		if key := refKey(t, []byte(g.Body), g.Context, byDefault).String(); key != g.Key {
			t.Errorf("%s: the reference says %s", file, key)
		}
	}
}

// Scan and Key allocate a fixed number of times, however long the texts and
// however many the tools. (Under the race detector pools lose things now and
// then, so that a few more are allowed.)
func TestKeyAllocations(t *testing.T) {
	allocations := func(raw []byte) float64 {
		return testing.AllocsPerRun(100, func() {
			d, err := Scan(raw)
			if err != nil {
				t.Fatal(err)
			}
			d.Key(Context{Tenant: "acme"}, byDefault)
		})
	}
	for what, bodies := range map[string][2][]byte{
		"prose":      {proseBody(1<<10, 0), proseBody(1<<20, 0)},
		"paragraphs": {proseBody(1<<10, 100), proseBody(1<<20, 100)},
		"tools":      {toolsBody(32<<10, false), toolsBody(512<<10, false)},
	} {
		if small, large := allocations(bodies[0]), allocations(bodies[1]); small > 5 || large > small+4 {
			t.Errorf("%s: %v allocations for a small body and %v for a large one", what, small, large)
		}
	}
}
