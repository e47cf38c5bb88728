package proxy

import (
	"fmt"
	"strings"
	"testing"
)

func TestJudge(t *testing.T) {
	message := func(message, finish string) string {
		return `{"choices":[{"index":0,"message":` + message + `,"finish_reason":` + finish + `}]}`
	}
	call := func(arguments string) string {
		return message(`{"role":"assistant","content":null,"tool_calls":[{"id":"i","type":"function","function":{"name":"f","arguments":`+arguments+`}}]}`, `"tool_calls"`)
	}
	wanted := usualRules
	wanted.LengthIsWanted = true
	two := usualRules
	two.N = 2
	for _, test := range []struct {
		name, body string
		rules      storeRules
		want       string
	}{
		{"a plain answer", message(`{"role":"assistant","content":"a"}`, `"stop"`), usualRules, ""},
		{"cut", message(`{"role":"assistant","content":"a"}`, `"length"`), usualRules, "finish reason length"},
		{"cut where the request wanted it", message(`{"role":"assistant","content":"a"}`, `"length"`), wanted, ""},
		{"cut before anything came", message(`{"role":"assistant","content":""}`, `"length"`), wanted, "empty"},
		{"filtered", message(`{"role":"assistant","content":"a"}`, `"content_filter"`), wanted, "finish reason content_filter"},
		{"a reason that fits no log", message(`{"role":"assistant","content":"a"}`, `"a\nb"`), usualRules, "finish reason unknown"},
		{"a reason without end", message(`{"role":"assistant","content":"a"}`, `"`+strings.Repeat("a", 99)+`"`), usualRules, "finish reason unknown"},
		{"no reason", message(`{"role":"assistant","content":"a"}`, `null`), usualRules, "no finish reason"},
		{"an empty reason", message(`{"role":"assistant","content":"a"}`, `""`), usualRules, "no finish reason"},
		{"a reason of the wrong kind", message(`{"role":"assistant","content":"a"}`, `1`), usualRules, "no finish reason"},
		{"no rule allows it", message(`{"role":"assistant","content":"a"}`, `"stop"`), storeRules{}, "finish reason stop"},

		{"empty", message(`{"role":"assistant","content":"","tool_calls":null}`, `"stop"`), usualRules, "empty"},
		{"null", message(`{"role":"assistant","content":null,"tool_calls":[]}`, `"stop"`), usualRules, "empty"},
		{"white space", message(`{"role":"assistant","content":" \n\t"}`, `"stop"`), usualRules, "empty"},
		{"no message", `{"choices":[{"index":0,"finish_reason":"stop"}]}`, usualRules, "empty"},
		{"reasoning alone", message(`{"role":"assistant","content":"","reasoning_content":"hm"}`, `"stop"`), usualRules, "empty"},
		{"thinking alone", message(`{"role":"assistant","content":[{"type":"thinking","thinking":[{"type":"text","text":"hm"}]},{"type":"text","text":""}]}`, `"stop"`), usualRules, "empty"},
		{"no parts", message(`{"role":"assistant","content":[]}`, `"stop"`), usualRules, "empty"},
		{"text parts", message(`{"role":"assistant","content":[{"type":"text","text":"a"}]}`, `"stop"`), usualRules, ""},
		{"other parts", message(`{"role":"assistant","content":[{"type":"image"}]}`, `"stop"`), usualRules, ""},
		{"a refusal", message(`{"role":"assistant","content":null,"refusal":"no"}`, `"stop"`), usualRules, ""},
		{"audio", message(`{"role":"assistant","content":null,"audio":{"id":"a"}}`, `"stop"`), usualRules, ""},
		{"pictures", message(`{"role":"assistant","content":"","images":[{}]}`, `"stop"`), usualRules, ""},

		{"a call", call(`"{\"a\":1}"`), usualRules, ""},
		{"a call with no argument", call(`"{}"`), usualRules, ""},
		{"a call with white space", call(`" [1] "`), usualRules, ""},
		{"a cut call", call(`"{\"a\":"`), usualRules, "tool arguments are not JSON"},
		{"two calls in one", call(`"{}{}"`), usualRules, "tool arguments are not JSON"},
		{"empty arguments", call(`""`), usualRules, "tool arguments are not JSON"},
		{"null arguments", call(`null`), usualRules, "tool arguments are not JSON"},
		{"arguments as an object", call(`{"a":1}`), usualRules, ""},
		{"no arguments", message(`{"role":"assistant","tool_calls":[{"function":{"name":"f"}}]}`, `"tool_calls"`), usualRules, "tool arguments are not JSON"},
		{"the second call is bad", message(`{"role":"assistant","content":"a","tool_calls":[{"function":{"arguments":"{}"}},{"function":{"arguments":"{"}}]}`, `"tool_calls"`), usualRules, "tool arguments are not JSON"},
		{"a custom tool takes any text", message(`{"role":"assistant","tool_calls":[{"type":"custom","custom":{"name":"sh","input":"{ls"}}]}`, `"tool_calls"`), usualRules, ""},
		{"the older form", message(`{"role":"assistant","function_call":{"name":"f","arguments":"{}"}}`, `"function_call"`), usualRules, ""},
		{"the older form, cut", message(`{"role":"assistant","function_call":{"name":"f","arguments":"{"}}`, `"function_call"`), usualRules, "tool arguments are not JSON"},

		{"one of two", message(`{"role":"assistant","content":"a"}`, `"stop"`), two, "choices missing: 1 of 2"},
		{"none", `{"choices":[]}`, usualRules, "choices missing: 1 of 1"},
		{"nothing", `{}`, usualRules, "choices missing: 1 of 1"},
		{"the second has not ended", `{"choices":[{"index":0,"message":{"content":"a"},"finish_reason":"stop"},{"index":1,"message":{"content":"a"}}]}`, two, "no finish reason"},
		{"the second is empty", `{"choices":[{"index":0,"message":{"content":"a"},"finish_reason":"stop"},{"index":1,"message":{"content":""},"finish_reason":"stop"}]}`, two, "empty"},
		{"both", `{"choices":[{"index":0,"message":{"content":"a"},"finish_reason":"stop"},{"index":1,"message":{"content":"b"},"finish_reason":"stop"}]}`, two, ""},
		{"both with one index", `{"choices":[{"index":0,"message":{"content":"a"},"finish_reason":"stop"},{"index":0,"message":{"content":"b"},"finish_reason":"stop"}]}`, two, "two choices have one index"},

		{"choices are an object", `{"choices":{"0":{}}}`, usualRules, "choices are not a list"},
		{"a choice is a string", `{"choices":["a"]}`, usualRules, "a choice is not an object"},
		{"the message is a string", message(`"a"`, `"stop"`), usualRules, "a message is not an object"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, err := parseChat([]byte(test.body))
			if err != nil {
				t.Fatal(err)
			}
			if got := c.judge(test.rules); got != test.want {
				t.Errorf("judged %q, want %q", got, test.want)
			}
			if test.want == "" {
				checkUnrolled(t, []byte(fillIn(test.body)))
			}
		})
	}
	bad := chunks(t, `{"choices":[{"index":0,"delta":"a","finish_reason":"stop"}]}`)
	if got := bad.judge(usualRules); got != "a message is not an object" {
		t.Errorf("a delta that is a string: judged %q", got)
	}
}

// fillIn adds the members that a body always has, so that it can be compared.
func fillIn(body string) string {
	body = strings.Replace(body, `{"choices"`, `{"object":"chat.completion","choices"`, 1)
	for _, member := range []string{"content", "audio", "function_call"} {
		body = strings.ReplaceAll(body, `"message":{"`+member, `"message":{"role":"assistant","`+member)
	}
	return body
}

// A stream that was cut is never stored, however it closes.
func TestCutStreams(t *testing.T) {
	const delta = "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"a\"},\"finish_reason\":null}]}\n\n"
	const finish = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n"
	for _, test := range []struct {
		name, stream, want string
		done               bool
	}{
		{"complete", delta + delta + finish + "data: [DONE]\n\n", "", true},
		{"complete without the marker", delta + delta + finish, "", false},
		{"two deltas and no more", delta + delta, "no finish reason", false},
		{"the marker without a finish reason", delta + delta + "data: [DONE]\n\n", "no finish reason", true},
		{"an error in the middle", delta + "data: {\"error\":{\"message\":\"m\"}}\n\n" + finish + "data: [DONE]\n\n", "error object", true},
		{"cut within a chunk", delta + finish[:40], "not a JSON object", false},
		{"nothing", "", "choices missing: 1 of 1", false},
		{"only comments", ": a\n\n: b\n\n", "choices missing: 1 of 1", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, done := new(chatCompletion), false
			for _, raw := range readEvents(t, strings.NewReader(test.stream)) {
				data, ok := eventData(raw)
				if !ok {
					continue
				}
				if done = isDone(data); done {
					break
				}
				if err := c.add(data); err != nil && test.want == "" {
					t.Error(err)
				}
			}
			if got := c.judge(usualRules); got != test.want || done != test.done {
				t.Errorf("judged %q with the marker %v, want %q", got, done, test.want)
			}
			if wholly := test.want == "" || test.want == "error object"; c.ended() != wholly {
				t.Errorf("ended: %v", c.ended())
			}
		})
	}
}

// FuzzCompletion feeds any bytes as chunks and as a body: nothing panics, and what
// may be stored has both forms.
func FuzzCompletion(f *testing.F) {
	for _, seed := range []string{
		`{"choices":[{"index":0,"delta":{"role":"assistant","content":"a\ud83d"},"finish_reason":"stop"}]}`,
		`{"choices":[{"index":-1,"delta":{"tool_calls":[{"index":1e9,"id":"a","function":{"name":"f","arguments":"{}"}},1,{"custom":{}}]},"logprobs":{"content":[1]},"finish_reason":"stop"}]}`,
		`{"choices":[{"message":{"role":"assistant","content":[{"type":"text","text":"a"}],"tool_calls":[{"function":{"name":"f","arguments":"{\"a\":1}"}}]},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":-1}}`,
		`{"choices":[{"delta":{"content":[1],"x":[{"index":0},{"index":0,"s":"a"}]}},{"message":"a"}],"error":"e"}`,
		`{"choices":{},"usage":7,"object":null}`, `{"a":{"b":[{"c":"\\\""}]}}`, `[`, `{"usage":{"`, `{"choices":[{"index":0,"delta":{"content":"\u00`,
	} {
		f.Add([]byte(seed), []byte(seed))
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		for range jsonMembers(first) { // on text that may not be JSON
		}
		for item := range jsonItems(first) {
			jsonText(item)
		}
		isUsageChunk(first)
		c := new(chatCompletion)
		for _, chunk := range [][]byte{first, second, first} {
			_ = c.add(chunk) // any error is right for such bytes
		}
		checkAny(t, c)
		if whole, err := parseChat(first); err == nil {
			checkAny(t, whole)
		}
	})
}

func checkAny(t *testing.T, c *chatCompletion) {
	t.Helper()
	if u, _, _ := c.usage(); min(u.Input, u.Cached, u.Output, u.Reasoning) < 0 || u.Cached > u.Input || u.Reasoning > u.Output || max(u.Input, u.Output) > maxUsage {
		t.Errorf("usage %v", u)
	}
	_ = fmt.Sprint(c.text(), c.finish(), c.ended())
	if c.judge(usualRules) != "" {
		return
	}
	bodyOf(t, c)
	events, err := c.unroll(true)
	if err != nil {
		t.Fatal(err)
	}
	again := sumOf(t, events)
	if reason := again.judge(usualRules); reason != "" {
		t.Errorf("its stream is judged %q: %s", reason, events)
	}
}
