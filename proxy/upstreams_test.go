package proxy

import (
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"llmproxy/ledger"
	"llmproxy/proxy/proxytest"
)

// vendor is how a compatible upstream answers, in its own dialect, one question in
// both forms.
type vendor struct {
	name   string
	stream []string // data of events; comments begin with a colon
	json   string

	content   string
	reasoning string
	arguments string   // of the first tool call
	used      [2]int64 // tokens of input and output; -1: not reported
	jsonUsed  [2]int64 // of the JSON form, where it differs
	kept      []string // what both forms must show
	keptWhole []string // what the JSON form must show: nobody asked the stream for its usage
}

var vendors = []vendor{
	{
		name: "Azure OpenAI",
		stream: []string{
			`{"choices":[],"created":0,"id":"","model":"","object":"","prompt_filter_results":[{"prompt_index":0,"content_filter_results":{"hate":{"filtered":false,"severity":"safe"}}}]}`,
			`{"choices":[{"content_filter_results":{},"delta":{"content":"","refusal":null,"role":"assistant"},"finish_reason":null,"index":0,"logprobs":null}],"created":1,"id":"az","model":"gpt-4o","object":"chat.completion.chunk","usage":null}`,
			`{"choices":[{"content_filter_results":{"hate":{"filtered":false,"severity":"safe"}},"delta":{"content":"Hi"},"finish_reason":null,"index":0}],"created":1,"id":"az","model":"gpt-4o","object":"chat.completion.chunk","usage":null}`,
			`{"choices":[{"content_filter_offsets":{"check_offset":1},"content_filter_results":{},"delta":{"content":" there"},"finish_reason":null,"index":0}],"created":1,"id":"az","model":"gpt-4o","object":"chat.completion.chunk"}`,
			`{"choices":[{"content_filter_results":{},"delta":{},"finish_reason":"stop","index":0}],"created":1,"id":"az","model":"gpt-4o","object":"chat.completion.chunk"}`,
			`{"choices":[],"created":1,"id":"az","model":"gpt-4o","object":"chat.completion.chunk","usage":{"completion_tokens":2,"prompt_tokens":8,"total_tokens":10}}`,
			`[DONE]`,
		},
		json:    `{"choices":[{"content_filter_results":{"hate":{"filtered":false,"severity":"safe"}},"finish_reason":"stop","index":0,"message":{"content":"Hi there","refusal":null,"role":"assistant"}}],"created":1,"id":"az","model":"gpt-4o","object":"chat.completion","prompt_filter_results":[{"prompt_index":0,"content_filter_results":{"hate":{"filtered":false,"severity":"safe"}}}],"usage":{"completion_tokens":2,"prompt_tokens":8,"total_tokens":10}}`,
		content: "Hi there", used: [2]int64{8, 2}, kept: []string{"prompt_filter_results", "content_filter_results"},
	},
	{
		name: "OpenRouter",
		stream: []string{
			": OPENROUTER PROCESSING", ": OPENROUTER PROCESSING",
			`{"id":"gen-1","provider":"DeepInfra","model":"x/y","object":"chat.completion.chunk","created":1,"choices":[{"index":0,"delta":{"role":"assistant","content":"","reasoning":"Let me","reasoning_details":[{"type":"reasoning.text","text":"Let me","format":"unknown","index":0}]},"finish_reason":null,"native_finish_reason":null,"logprobs":null}]}`,
			`{"id":"gen-1","provider":"DeepInfra","model":"x/y","object":"chat.completion.chunk","created":1,"choices":[{"index":0,"delta":{"role":"assistant","content":"","reasoning":" see","reasoning_details":[{"type":"reasoning.text","text":" see","format":"unknown","index":0}]},"finish_reason":null,"native_finish_reason":null,"logprobs":null}]}`,
			": OPENROUTER PROCESSING",
			`{"id":"gen-1","provider":"DeepInfra","model":"x/y","object":"chat.completion.chunk","created":1,"choices":[{"index":0,"delta":{"role":"assistant","content":"Yes","reasoning":null},"finish_reason":null,"native_finish_reason":null,"logprobs":null}]}`,
			`{"id":"gen-1","provider":"DeepInfra","model":"x/y","object":"chat.completion.chunk","created":1,"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":"stop","native_finish_reason":"eos","logprobs":null}]}`,
			`{"id":"gen-1","provider":"DeepInfra","model":"x/y","object":"chat.completion.chunk","created":1,"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null,"native_finish_reason":null,"logprobs":null}],"usage":{"prompt_tokens":9,"completion_tokens":6,"total_tokens":15,"cost":1.2e-05,"cost_details":{"upstream_inference_cost":null},"completion_tokens_details":{"reasoning_tokens":4}}}`,
			`[DONE]`,
		},
		json:    `{"id":"gen-1","provider":"DeepInfra","model":"x/y","object":"chat.completion","created":1,"choices":[{"logprobs":null,"finish_reason":"stop","native_finish_reason":"eos","index":0,"message":{"role":"assistant","content":"Yes","refusal":null,"reasoning":"Let me see","reasoning_details":[{"type":"reasoning.text","text":"Let me see","format":"unknown","index":0}]}}],"usage":{"prompt_tokens":9,"completion_tokens":6,"total_tokens":15,"cost":1.2e-05}}`,
		content: "Yes", reasoning: "Let me see", used: [2]int64{9, 6}, kept: []string{`"provider":"DeepInfra"`, `"native_finish_reason":"eos"`, "reasoning_details"}, keptWhole: []string{"1.2e-05"},
	},
	{
		name: "vLLM",
		stream: []string{
			`{"id":"chatcmpl-v","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":null,"usage":{"prompt_tokens":7,"total_tokens":7,"completion_tokens":0}}`,
			`{"id":"chatcmpl-v","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"One"},"logprobs":null,"finish_reason":null,"token_ids":null}],"usage":{"prompt_tokens":7,"total_tokens":8,"completion_tokens":1}}`,
			`{"id":"chatcmpl-v","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":" two"},"logprobs":null,"finish_reason":"stop","stop_reason":128009,"token_ids":null}],"usage":{"prompt_tokens":7,"total_tokens":9,"completion_tokens":2}}`,
			`{"id":"chatcmpl-v","object":"chat.completion.chunk","created":1,"model":"m","choices":[],"usage":{"prompt_tokens":7,"total_tokens":10,"completion_tokens":3}}`,
			`[DONE]`,
		},
		json:    `{"id":"chatcmpl-v","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"One two","refusal":null,"annotations":null,"audio":null,"function_call":null,"tool_calls":[],"reasoning_content":null},"logprobs":null,"finish_reason":"stop","stop_reason":128009,"token_ids":null}],"service_tier":null,"usage":{"prompt_tokens":7,"total_tokens":10,"completion_tokens":3,"prompt_tokens_details":null},"prompt_logprobs":null,"kv_transfer_params":null}`,
		content: "One two", used: [2]int64{7, 3}, kept: []string{`"stop_reason":128009`},
	},
	{
		name: "llama.cpp",
		stream: []string{
			`{"choices":[{"finish_reason":null,"index":0,"delta":{"role":"assistant","content":null}}],"created":1,"id":"chatcmpl-l","model":"m.gguf","system_fingerprint":"b5000","object":"chat.completion.chunk"}`,
			`{"choices":[{"finish_reason":null,"index":0,"delta":{"content":"Sure"}}],"created":1,"id":"chatcmpl-l","model":"m.gguf","system_fingerprint":"b5000","object":"chat.completion.chunk"}`,
			`{"choices":[{"finish_reason":"stop","index":0,"delta":{}}],"created":1,"id":"chatcmpl-l","model":"m.gguf","system_fingerprint":"b5000","object":"chat.completion.chunk","usage":{"completion_tokens":4,"prompt_tokens":6,"total_tokens":10},"timings":{"prompt_n":6,"prompt_ms":12.25,"predicted_n":4,"predicted_per_second":88.5}}`,
			`[DONE]`,
		},
		json:    `{"choices":[{"finish_reason":"stop","index":0,"message":{"role":"assistant","content":"Sure"}}],"created":1,"model":"m.gguf","system_fingerprint":"b5000","object":"chat.completion","usage":{"completion_tokens":4,"prompt_tokens":6,"total_tokens":10},"id":"chatcmpl-l","timings":{"prompt_n":6,"prompt_ms":12.25,"predicted_n":4,"predicted_per_second":88.5}}`,
		content: "Sure", used: [2]int64{6, 4}, keptWhole: []string{`"timings"`, "88.5"},
	},
	{
		name: "Ollama",
		stream: []string{
			`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"llama3.2","system_fingerprint":"fp_ollama","choices":[{"index":0,"delta":{"role":"assistant","content":"","tool_calls":[{"id":"call_1","type":"function","function":{"name":"weather","arguments":"{\"city\":\"Köln\"}"}}]},"finish_reason":null}]}`,
			`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"llama3.2","system_fingerprint":"fp_ollama","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":"tool_calls"}]}`,
			`[DONE]`,
		},
		json:      `{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"llama3.2","system_fingerprint":"fp_ollama","choices":[{"index":0,"message":{"role":"assistant","content":"","tool_calls":[{"id":"call_1","index":0,"type":"function","function":{"name":"weather","arguments":"{\"city\":\"Köln\"}"}}]},"finish_reason":"tool_calls"}],"usage":{"prompt_tokens":20,"completion_tokens":11,"total_tokens":31}}`,
		arguments: `{"city":"Köln"}`, used: [2]int64{-1, -1}, jsonUsed: [2]int64{20, 11}, kept: []string{"fp_ollama", `"name":"weather"`, `"id":"call_1"`},
	},
	{
		name: "DeepSeek",
		stream: []string{
			`{"id":"d","object":"chat.completion.chunk","created":1,"model":"deepseek-reasoner","system_fingerprint":"fp_d","choices":[{"index":0,"delta":{"role":"assistant","content":null,"reasoning_content":""},"logprobs":null,"finish_reason":null}]}`,
			": keep-alive",
			`{"id":"d","object":"chat.completion.chunk","created":1,"model":"deepseek-reasoner","system_fingerprint":"fp_d","choices":[{"index":0,"delta":{"content":null,"reasoning_content":"9.11"},"logprobs":null,"finish_reason":null}]}`,
			`{"id":"d","object":"chat.completion.chunk","created":1,"model":"deepseek-reasoner","system_fingerprint":"fp_d","choices":[{"index":0,"delta":{"content":null,"reasoning_content":" < 9.8"},"logprobs":null,"finish_reason":null}]}`,
			`{"id":"d","object":"chat.completion.chunk","created":1,"model":"deepseek-reasoner","system_fingerprint":"fp_d","choices":[{"index":0,"delta":{"content":"9.8","reasoning_content":null},"logprobs":null,"finish_reason":null}]}`,
			`{"id":"d","object":"chat.completion.chunk","created":1,"model":"deepseek-reasoner","system_fingerprint":"fp_d","choices":[{"index":0,"delta":{"content":"","reasoning_content":null},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":12,"completion_tokens":9,"total_tokens":21,"prompt_tokens_details":{"cached_tokens":8},"prompt_cache_hit_tokens":8,"prompt_cache_miss_tokens":4,"completion_tokens_details":{"reasoning_tokens":6}}}`,
			`[DONE]`,
		},
		json:    `{"id":"d","object":"chat.completion","created":1,"model":"deepseek-reasoner","choices":[{"index":0,"message":{"role":"assistant","content":"9.8","reasoning_content":"9.11 < 9.8"},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":12,"completion_tokens":9,"total_tokens":21,"prompt_cache_hit_tokens":8,"prompt_cache_miss_tokens":4},"system_fingerprint":"fp_d"}`,
		content: "9.8", reasoning: "9.11 < 9.8", used: [2]int64{12, 9}, kept: []string{"fp_d"}, keptWhole: []string{"prompt_cache_hit_tokens"},
	},
	{
		name: "Gemini",
		stream: []string{
			`{"choices":[{"delta":{"role":"assistant","tool_calls":[{"extra_content":{"google":{"thought_signature":"c2ln"}},"function":{"arguments":"{\"n\":1}","name":"f"},"id":"function-call-7","type":"function"}]},"index":0}],"created":1,"id":"g","model":"gemini-2.5-flash","object":"chat.completion.chunk","usage":{"completion_tokens":5,"prompt_tokens":30,"total_tokens":75}}`,
			`{"choices":[],"created":1,"id":"g","model":"gemini-2.5-flash","object":"chat.completion.chunk"}`,
			`{"choices":[{"delta":{"role":"assistant"},"finish_reason":"stop","index":0}],"created":1,"id":"g","model":"gemini-2.5-flash","object":"chat.completion.chunk","usage":{"completion_tokens":5,"prompt_tokens":30,"total_tokens":75}}`,
			`[DONE]`,
		},
		json:      `{"choices":[{"finish_reason":"stop","index":0,"message":{"role":"assistant","tool_calls":[{"extra_content":{"google":{"thought_signature":"c2ln"}},"function":{"arguments":"{\"n\":1}","name":"f"},"id":"function-call-7","type":"function"}]}}],"created":1,"id":"g","model":"gemini-2.5-flash","object":"chat.completion","usage":{"completion_tokens":5,"prompt_tokens":30,"total_tokens":75}}`,
		arguments: `{"n":1}`, used: [2]int64{30, 45}, kept: []string{"thought_signature", "function-call-7"}, // thinking is in the total alone
	},
	{
		name: "xAI",
		stream: []string{
			`{"id":"x","object":"chat.completion.chunk","created":1,"model":"grok-4","choices":[{"index":0,"delta":{"reasoning_content":"Hm","role":"assistant"}}],"usage":{"prompt_tokens":5,"completion_tokens":0,"total_tokens":6,"num_sources_used":0},"system_fingerprint":"fp_x"}`,
			`{"id":"x","object":"chat.completion.chunk","created":1,"model":"grok-4","choices":[{"index":0,"delta":{"content":"Ha","role":"assistant"}}],"usage":{"prompt_tokens":5,"completion_tokens":1,"total_tokens":7,"num_sources_used":0},"system_fingerprint":"fp_x"}`,
			`{"id":"x","object":"chat.completion.chunk","created":1,"model":"grok-4","choices":[{"index":0,"delta":{"content":"","role":"assistant"},"finish_reason":"stop"}],"system_fingerprint":"fp_x"}`,
			`{"id":"x","object":"chat.completion.chunk","created":1,"model":"grok-4","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":1,"total_tokens":16,"num_sources_used":0,"completion_tokens_details":{"reasoning_tokens":10}},"system_fingerprint":"fp_x"}`,
			`[DONE]`,
		},
		json:    `{"id":"x","object":"chat.completion","created":1,"model":"grok-4","choices":[{"index":0,"message":{"role":"assistant","content":"Ha","reasoning_content":"Hm","refusal":null},"finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":1,"total_tokens":16,"num_sources_used":0,"completion_tokens_details":{"reasoning_tokens":10}},"system_fingerprint":"fp_x"}`,
		content: "Ha", reasoning: "Hm", used: [2]int64{5, 11}, kept: []string{"fp_x"},
	},
}

// said is what a client makes of an answer in either form.
type said struct{ content, reasoning, arguments string }

func (s *said) add(t *testing.T, data string) {
	t.Helper()
	type message struct {
		Content, Reasoning *string
		ReasoningContent   *string                                         `json:"reasoning_content"`
		ToolCalls          []struct{ Function struct{ Arguments string } } `json:"tool_calls"`
	}
	var chunk struct {
		Choices []struct{ Delta, Message *message }
	}
	if err := json.Unmarshal([]byte(data), &chunk); err != nil {
		t.Fatalf("%v: %s", err, data)
	}
	for _, c := range chunk.Choices {
		for _, m := range []*message{c.Delta, c.Message} {
			if m == nil {
				continue
			}
			for into, from := range map[*string][]*string{&s.content: {m.Content}, &s.reasoning: {m.Reasoning, m.ReasoningContent}} {
				for _, text := range from {
					if text != nil {
						*into += *text
					}
				}
			}
			for _, call := range m.ToolCalls {
				s.arguments += call.Function.Arguments
			}
		}
	}
}

// read checks an answer in the form it was asked for.
func (v *vendor) read(t *testing.T, r response, asStream bool) {
	t.Helper()
	var got said
	if !asStream {
		got.add(t, r.body)
	} else {
		events := readEvents(t, strings.NewReader(r.body))
		for i, event := range events {
			data, ok := eventData(event)
			switch done := isDone(data); {
			case done != (i == len(events)-1):
				t.Errorf("[DONE] is not the last of %s", r.body)
			case ok && !done:
				got.add(t, string(data))
			}
		}
	}
	if want := (said{v.content, v.reasoning, v.arguments}); got != want {
		t.Errorf("got %+v, want %+v: %s", got, want, r.body)
	}
	kept := v.kept
	if !asStream {
		kept = slices.Concat(v.kept, v.keptWhole)
	}
	for _, member := range kept {
		if !strings.Contains(r.body, member) {
			t.Errorf("%s is lost: %s", member, r.body)
		}
	}
}

// Each vendor's answer is served in its own bytes, kept, billed as it says, and
// given again in both forms.
func TestCompatibleUpstreams(t *testing.T) {
	spellings := map[string]func(string) string{
		"":                 func(data string) string { return proxytest.Data(data) },
		", no space":       func(data string) string { return "data:" + data + "\n\n" },
		", CRLF":           func(data string) string { return "data: " + data + "\r\n\r\n" },
		", CRLF, no space": func(data string) string { return "data:" + data + "\r\n\r\n" },
	}
	h := newHarness(t, nil)
	for _, v := range vendors {
		for spelling, spell := range spellings {
			t.Run(v.name+" stream"+spelling, func(t *testing.T) {
				h := h.sub(t)
				var frames []string
				shown := ""
				for _, data := range v.stream {
					frame := spell(data)
					if data[0] == ':' {
						frame = data + "\n\n"
					}
					if frames = append(frames, frame); !isUsageChunk([]byte(data)) {
						shown += frame
					}
				}
				h.upstream.Always(proxytest.Stream(frames...))
				first := h.post(chat(t.Name(), stream))
				if first.cache() != "miss" || first.body != shown {
					t.Errorf("%s\n got %s\nwant %s", first.cache(), first.body, shown)
				}
				v.check(h, first, stream, v.used)
			})
		}
		t.Run(v.name+" JSON", func(t *testing.T) {
			h := h.sub(t)
			h.upstream.Always(proxytest.JSON(200, v.json))
			first := h.post(chat(t.Name()))
			if first.cache() != "miss" || first.body != v.json {
				t.Errorf("%s\n got %s\nwant %s", first.cache(), first.body, v.json)
			}
			used := v.used
			if v.jsonUsed != [2]int64{} {
				used = v.jsonUsed
			}
			v.check(h, first, "", used)
		})
	}
}

// check checks the row of a vendor's first answer, which came in the given form,
// and asks for it again in both forms.
func (v *vendor) check(h *harness, first response, form string, used [2]int64) {
	h.Helper()
	v.read(h.T, first, form == stream)
	row := h.lastRow()
	if estimated := used[0] < 0; (row.flags&ledger.UsageEstimated != 0) != estimated || !estimated && row.used != used {
		h.Errorf("used %v, want %v: %+v", row.used, used, row)
	}
	if row.flags&ledger.Stored == 0 || row.flags&ledger.UsageOdd != 0 {
		h.Errorf("the row says %+v", row)
	}
	for _, again := range []string{form, "", stream} {
		r := h.post(chat(h.Name(), again))
		if r.cache() != "hit" || again == form && r.body != first.body {
			h.Errorf("again as stream %v: %s %s", again == stream, r.cache(), r.body)
		}
		v.read(h.T, r, again == stream)
	}
}

// An upstream at an Azure base URL gets the deployment's path, the version with
// the client's query, and its own key alone.
func TestAzureRequest(t *testing.T) {
	h := newHarness(t, func(p *Policy) {
		base := *p.Upstreams[0].BaseURL
		base.Path, base.RawQuery = "/v1/openai/deployments/gpt4o", "api-version=2024-10-21"
		p.Upstreams[0].BaseURL, p.Upstreams[0].Header = &base, http.Header{"Api-Key": {"azure-key"}}
	})
	h.upstream.Always(proxytest.JSON(200, vendors[0].json))
	h.post(chat("hi"), "Authorization", "Bearer of another vendor")
	h.do(h.request(t.Context(), "/v1/chat/completions?trace=1", chat("hi")))
	for i, want := range []url.Values{{"api-version": {"2024-10-21"}}, {"api-version": {"2024-10-21"}, "trace": {"1"}}} {
		r := h.upstream.WaitFor(2)[i]
		if r.Path != "/v1/openai/deployments/gpt4o/chat/completions" || r.Query.Encode() != want.Encode() {
			t.Errorf("%s ? %s", r.Path, r.Query.Encode())
		}
		if r.Header.Get("Api-Key") != "azure-key" || r.Header.Get("Authorization") != "" {
			t.Errorf("the credentials %v", r.Header)
		}
	}
}

// Errors in the middle of a stream reach every client as an error object, however
// the upstream writes them, and nothing is kept.
func TestErrorsWithinCompatibleStreams(t *testing.T) {
	begun := proxytest.Data(`{"id":"e","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":"Half"},"finish_reason":null}]}`)
	h := newHarness(t, nil)
	for name, tt := range map[string]struct{ chunk, message string }{
		"OpenRouter":       {`{"id":"e","object":"chat.completion.chunk","created":1,"model":"m","error":{"code":502,"message":"Provider disconnected"},"choices":[{"index":0,"delta":{"content":""},"finish_reason":"error"}]}`, "Provider disconnected"},
		"LiteLLM, text":    {`{"error": "litellm.APIError: boom"}`, "litellm.APIError: boom"},
		"LiteLLM, object":  {`{"error": {"message": "litellm.RateLimitError: slow", "type": "None", "param": "None", "code": "429"}}`, "litellm.RateLimitError: slow"},
		"vLLM, old":        {`{"object":"error","message":"too long","type":"BadRequestError","param":null,"code":400}`, "too long"},
		"vLLM":             {`{"error":{"message":"EngineCore died","type":"InternalServerError","param":null,"code":500}}`, "EngineCore died"},
		"llama.cpp":        {`{"error":{"code":500,"message":"context shift is disabled","type":"server_error"}}`, "context shift is disabled"},
		"number for error": {`{"error":503}`, "503"},
	} {
		t.Run(name, func(t *testing.T) {
			h := h.sub(t)
			h.upstream.Always(proxytest.Stream(begun, proxytest.Data(tt.chunk), proxytest.Done))
			r := h.post(chat(t.Name(), stream))
			events := readEvents(t, strings.NewReader(r.body))
			data, _ := eventData(events[len(events)-1])
			var got struct{ Error struct{ Message string } }
			if err := json.Unmarshal(data, &got); err != nil || got.Error.Message != tt.message {
				t.Errorf("%v: the last event is %s", err, data)
			}
			if row := h.lastRow(); row.outcome != ledger.Failed || row.flags&ledger.Stored != 0 || row.used[1] == 0 {
				t.Errorf("the row says %+v", row)
			}
			if r := h.post(chat(t.Name())); r.status != 502 || !strings.Contains(r.body, tt.message) || !strings.HasPrefix(r.body, `{"error":{`) {
				t.Errorf("as JSON: %d %s", r.status, r.body)
			}
		})
	}
}
