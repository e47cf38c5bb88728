package proxy

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"llmproxy/ledger"
	"llmproxy/proxy/proxytest"
)

// everyItem holds each kind of output item that a stream takes apart, and one
// that nothing is known of.
const everyItem = `{"id":"resp_1","object":"response","created_at":1767225600,"status":"completed","error":null,"incomplete_details":null,"model":"gpt-4.1",
 "output":[
  {"id":"rs_1","type":"reasoning","summary":[{"type":"summary_text","text":"First \"think\"."},{"type":"summary_text","text":"Then act."}],"content":[{"type":"reasoning_text","text":"raw thought"}],"encrypted_content":"xyz","status":"completed"},
  {"id":"msg_1","type":"message","status":"completed","role":"assistant","content":[
   {"type":"output_text","text":"Grüße \ud83d\ude00 and more.","annotations":[{"type":"url_citation","url":"https://example.com","start_index":0,"end_index":5}],"logprobs":[]},
   {"type":"refusal","refusal":"No more."},
   {"type":"output_picture","data":"AAAA"}]},
  {"id":"fc_1","type":"function_call","status":"completed","call_id":"call_1","name":"look","arguments":"{\"q\":\"x\"}"},
  {"id":"ctc_1","type":"custom_tool_call","call_id":"call_2","name":"free","input":"anything"},
  {"id":"ws_1","type":"web_search_call","status":"completed","action":{"type":"search","query":"x"}}],
 "usage":{"input_tokens":11,"input_tokens_details":{"cached_tokens":4},"output_tokens":7,"output_tokens_details":{"reasoning_tokens":3},"total_tokens":18},"metadata":{}}`

// answerOf is a small response that says text.
func answerOf(text, status string) string {
	return fmt.Sprintf(`{"id":"resp_%s","object":"response","created_at":1767225600,"status":%q,"error":null,"incomplete_details":null,"model":"gpt-4o","output":[{"id":"msg_1","type":"message","status":%q,"role":"assistant","content":[{"type":"output_text","text":%q,"annotations":[]}]}],"usage":{"input_tokens":11,"output_tokens":7,"total_tokens":18}}`,
		strings.ReplaceAll(text, " ", "_"), status, status, text)
}

// streamOf is the stream of a response as the upstream sends it, its last event
// included.
func responseEvents(t testing.TB, body string) []string {
	t.Helper()
	r := &modelResponse{}
	if err := r.parse([]byte(body)); err != nil {
		t.Fatal(err)
	}
	events, err := r.unroll(false)
	if err != nil {
		t.Fatal(err)
	}
	var frames []string
	for _, e := range events {
		frames = append(frames, string(e))
	}
	return frames
}

// ask is a small request to the Responses endpoint.
func ask(text string, more ...string) string {
	return `{"model":"gpt-4o","input":"` + text + `"` + strings.Join(more, "") + `}`
}

func (h *harness) respond(body string, headers ...string) response {
	h.Helper()
	return h.postTo("/v1/responses", body, headers...)
}

// A stream that is made of a response adds up to it, in numbered events of one
// line each; pieces add up to what their last event says.
func TestAResponseIsUnrolledWhole(t *testing.T) {
	sum, grown := &modelResponse{}, map[string]string{}
	var kinds []string
	frames := responseEvents(t, everyItem)
	for i, frame := range frames {
		data, _ := eventData([]byte(frame))
		var e struct {
			Type        string `json:"type"`
			Number      int    `json:"sequence_number"`
			ItemID      string `json:"item_id"`
			Content     int    `json:"content_index"`
			Summary     int    `json:"summary_index"`
			Delta       string
			Text        string
			Refusal     string
			Arguments   string
			Input       string
			Part, Item  json.RawMessage
			OutputIndex *int `json:"output_index"`
		}
		if err := json.Unmarshal(data, &e); err != nil || e.Number != i || !strings.HasPrefix(frame, "event: "+e.Type+"\ndata: {") || strings.Count(frame, "\n") != 3 {
			t.Fatalf("event %d: %v %q", i, err, frame)
		}
		kinds = append(kinds, strings.TrimPrefix(e.Type, "response."))
		base, isDelta := strings.CutSuffix(e.Type, ".delta")
		place := fmt.Sprint(base, e.ItemID, e.Content, e.Summary)
		if isDelta {
			grown[place] += e.Delta
		} else if base, ok := strings.CutSuffix(e.Type, ".done"); ok && e.Part == nil && e.Item == nil {
			place = fmt.Sprint(base, e.ItemID, e.Content, e.Summary)
			if got, want := grown[place], e.Text+e.Refusal+e.Arguments+e.Input; got != want || want == "" {
				t.Errorf("%s: pieces say %q, the end %q", place, got, want)
			}
		}
		last, err := sum.event(data)
		if err != nil || last != (i == len(frames)-1) {
			t.Errorf("event %d of %d: last %v, %v", i, len(frames), last, err)
		}
	}
	body, err := sum.body()
	if err != nil || !sameJSON(t, body, []byte(everyItem)) {
		t.Errorf("%v: %s", err, body)
	}
	want := "created in_progress " +
		"output_item.added reasoning_summary_part.added reasoning_summary_text.delta reasoning_summary_text.done reasoning_summary_part.done " +
		"reasoning_summary_part.added reasoning_summary_text.delta reasoning_summary_text.done reasoning_summary_part.done " +
		"content_part.added reasoning_text.delta reasoning_text.done content_part.done output_item.done " +
		"output_item.added content_part.added output_text.delta output_text.annotation.added output_text.done content_part.done " +
		"content_part.added refusal.delta refusal.done content_part.done content_part.added content_part.done output_item.done " +
		"output_item.added function_call_arguments.delta function_call_arguments.done output_item.done " +
		"output_item.added custom_tool_call_input.delta custom_tool_call_input.done output_item.done " +
		"output_item.added output_item.done completed"
	if got := strings.Join(kinds, " "); got != want {
		t.Errorf("the events are\n%s\nwant\n%s", got, want)
	}
}

// One entry serves both forms, whichever came first, and each form again as it
// was.
func TestAResponseInBothForms(t *testing.T) {
	h := newHarness(t, nil)
	for _, tt := range []struct {
		name  string
		form  string
		reply proxytest.Reply
	}{
		{"JSON", "", proxytest.JSON(200, everyItem)},
		{"stream", stream, proxytest.Stream(responseEvents(t, everyItem)...)},
		{"stream in pieces", stream, proxytest.Stream(responseEvents(t, everyItem)...).SplitEvery(7)},
		{"stream with CRLF", stream, proxytest.Stream(responseEvents(t, everyItem)...).CRLF()},
		{"stream and [DONE]", stream, proxytest.Stream(append(responseEvents(t, everyItem), proxytest.Data("[DONE]"))...)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := h.sub(t)
			h.upstream.Always(tt.reply)
			first := h.respond(ask(t.Name(), tt.form))
			asJSON, asStream, again := h.respond(ask(t.Name())), h.respond(ask(t.Name(), stream)), h.respond(ask(t.Name(), tt.form))
			if first.status != 200 || first.cache() != "miss" || asJSON.cache() != "hit" || asStream.cache() != "hit" {
				t.Fatalf("%d %s %s %s: %s", first.status, first.cache(), asJSON.cache(), asStream.cache(), first.body)
			}
			if again.body != first.body {
				t.Errorf("again %s", again.body)
			}
			if !sameJSON(t, []byte(asJSON.body), []byte(everyItem)) {
				t.Errorf("as JSON %s", asJSON.body)
			}
			if !strings.HasPrefix(asStream.header.Get("Content-Type"), "text/event-stream") || !strings.Contains(asStream.body, "response.completed") || strings.Contains(asStream.body, "[DONE]") {
				t.Errorf("as a stream %v %s", asStream.header, asStream.body)
			}
			row := h.rows("ORDER BY c.id DESC LIMIT 4")[3]
			if row.used != [2]int64{11, 7} || row.finish != "completed" || row.flags&ledger.Stored == 0 {
				t.Errorf("the row says %+v", row)
			}
		})
	}
}

// Only what is complete and says something is kept; everything is passed on.
func TestWhichResponsesAreKept(t *testing.T) {
	h := newHarness(t, nil)
	incomplete := strings.Replace(answerOf("cut", "incomplete"), `"incomplete_details":null`, `"incomplete_details":{"reason":"max_output_tokens"}`, 1)
	failed := strings.Replace(answerOf("broken", "failed"), `"error":null`, `"error":{"code":"server_error","message":"it fell over"}`, 1)
	failedStream := append(responseEvents(t, answerOf("x", "completed"))[:3], proxytest.Event("response.failed", `{"type":"response.failed","sequence_number":3,"response":`+failed+`}`))
	flat := append(responseEvents(t, answerOf("x", "completed"))[:3], proxytest.Event("error", `{"type":"error","code":"server_error","message":"it fell over","param":null,"sequence_number":3}`))
	for _, tt := range []struct {
		name   string
		reply  proxytest.Reply
		status int
		says   string // in the client's body
		finish string
		kept   bool
	}{
		{"whole", proxytest.JSON(200, answerOf("fine", "completed")), 200, "fine", "completed", true},
		{"stream without the output at its end", proxytest.Stream(strings.Split(strings.Replace(strings.Join(responseEvents(t, answerOf("late", "completed")), "\x00"),
			`"status":"completed","error":null,"incomplete_details":null,"model":"gpt-4o","output":[{"id":"msg_1","type":"message","status":"completed","role":"assistant","content":[{"type":"output_text","text":"late","annotations":[]}]}]`,
			`"status":"completed","error":null,"incomplete_details":null,"model":"gpt-4o","output":[]`, 1), "\x00")...), 200, "late", "completed", true},
		{"incomplete", proxytest.JSON(200, incomplete), 200, "max_output_tokens", "max_output_tokens", false},
		{"incomplete stream", proxytest.Stream(responseEvents(t, incomplete)...), 200, "response.incomplete", "max_output_tokens", false},
		{"failed", proxytest.JSON(200, failed), 200, "it fell over", "upstream_error", false},
		{"failed stream", proxytest.Stream(failedStream...), 200, `"error":{"code":"server_error","message":"it fell over"`, "upstream_error", false},
		{"flat error event", proxytest.Stream(flat...), 200, `data: {"error":{"type":"server_error","code":"server_error","message":"it fell over","param":null},"type":"error"`, "upstream_error", false},
		{"queued", proxytest.JSON(200, strings.Replace(answerOf("", "queued"), `"queued"`, `"queued"`, 1)), 200, "queued", "queued", false},
		{"empty", proxytest.JSON(200, answerOf("", "completed")), 200, "resp_", "completed", false},
		{"arguments that are no JSON", proxytest.JSON(200, strings.Replace(everyItem, `"{\"q\":\"x\"}"`, `"{\"q\":"`, 1)), 200, "look", "completed", false},
		{"cut stream", proxytest.Stream(responseEvents(t, answerOf("cut", "completed"))[:5]...), 200, "ended before its answer did", "upstream_invalid", false},
		{"no response", proxytest.JSON(200, proxytest.Completion("chat")), 502, "no response (no output)", "upstream_invalid", false},
		{"an event that is no JSON", proxytest.Stream(proxytest.Event("response.created", "{")), 200, "no part of a response", "upstream_invalid", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := h.sub(t)
			h.upstream.Always(tt.reply)
			streamed := strings.HasPrefix(tt.name, "stream") || strings.HasSuffix(tt.name, "stream") || strings.Contains(tt.name, "event")
			form := ""
			if streamed {
				form = stream
			}
			first := h.respond(ask(t.Name(), form))
			if first.status != tt.status || !strings.Contains(first.body, tt.says) {
				t.Errorf("%d %s", first.status, first.body)
			}
			if row := h.lastRow(); row.finish != tt.finish || (row.flags&ledger.Stored != 0) != tt.kept {
				t.Errorf("the row says %+v", row)
			}
			if again := h.respond(ask(t.Name(), form)); (again.cache() == "hit") != tt.kept {
				t.Errorf("again: %s", again.cache())
			}
			asJSON := h.respond(ask(t.Name()))
			if tt.kept && !strings.Contains(asJSON.body, tt.says) {
				t.Errorf("as JSON: %s", asJSON.body)
			}
		})
	}
}

// A failure in a stream is one event that every client raises on: its name, its
// type and an error object, numbered on from the events before it.
func TestAnErrorInAStreamOfResponses(t *testing.T) {
	h := newHarness(t, nil)
	begun := responseEvents(t, answerOf("half", "completed"))[:4]
	h.upstream.Reply(proxytest.Stream(begun...))
	r := h.respond(ask("hi", stream))
	frame := strings.TrimPrefix(r.body, strings.Join(begun, ""))
	var e struct {
		Type, Code, Message string
		Number              int `json:"sequence_number"`
		Error               struct{ Message, Code string }
	}
	data, ok := strings.CutPrefix(frame, "event: error\ndata: {\"error\":")
	if !ok || strings.Count(frame, "\n") != 3 {
		t.Fatalf("the last event is %q", frame)
	}
	if err := json.Unmarshal([]byte(`{"error":`+data), &e); err != nil || e.Type != "error" || e.Code != "upstream_invalid" || e.Number != 4 || e.Message == "" || e.Error.Message != e.Message || e.Error.Code != e.Code {
		t.Errorf("%v: %+v", err, e)
	}
}

// What ties a call to state upstream is not answered from the store, and what
// only names an immutable response is.
func TestStatefulResponses(t *testing.T) {
	h := newHarness(t, nil)
	h.upstream.Always(proxytest.JSON(200, answerOf("fine", "completed")))
	for name, tt := range map[string]struct {
		more   string
		again  string
		detail string
	}{
		"store":                {`,"store":true`, "hit", ""},
		"previous_response_id": {`,"previous_response_id":"resp_0"`, "hit", ""},
		"no conversation":      {`,"conversation":null,"background":false`, "hit", ""},
		"conversation":         {`,"conversation":"conv_1"`, "bypass", "conversation"},
		"conversation object":  {`,"conversation":{"id":"conv_1"}`, "bypass", "conversation"},
		"background":           {`,"background":true`, "bypass", "background"},
	} {
		t.Run(name, func(t *testing.T) {
			h := h.sub(t)
			h.respond(ask(t.Name(), tt.more))
			r := h.respond(ask(t.Name(), tt.more))
			if r.cache() != tt.again || tt.detail != "" && r.header.Get("Cache-Status") != "llmproxy; fwd=bypass; detail="+tt.detail {
				t.Errorf("%s %s", r.cache(), r.header.Get("Cache-Status"))
			}
		})
	}
	h.respond(ask("who", `,"previous_response_id":"resp_1"`))
	if r := h.respond(ask("who", `,"previous_response_id":"resp_2"`)); r.cache() != "miss" {
		t.Errorf("another previous response: %s", r.cache())
	}
}

// The second turn of a loop hits after the first was answered afresh, with other
// ids.
func TestTheSecondTurnOfALoopHits(t *testing.T) {
	h := newHarness(t, nil)
	h.upstream.Always(proxytest.JSON(200, answerOf("sunny", "completed")))
	turn := func(call, item string) string {
		return `{"model":"gpt-4o","input":[{"role":"user","content":"weather?"},` +
			`{"type":"function_call","id":"` + item + `","call_id":"` + call + `","name":"look","arguments":"{\"city\":\"Rome\",\"id\":\"` + call + `\"}"},` +
			`{"type":"function_call_output","call_id":"` + call + `","output":"25"}]}`
	}
	h.respond(turn("call_aaaa1111", "fc_aaaa1111"))
	if r := h.respond(turn("call_bbbb2222", "fc_bbbb2222")); r.cache() != "hit" {
		t.Errorf("other ids: %s", r.cache())
	}
}

func TestInputTokensAreCountedHere(t *testing.T) {
	h := newHarness(t, nil)
	r := h.postTo("/v1/responses/input_tokens", ask("one two three"))
	var got struct {
		Object string
		Tokens int64 `json:"input_tokens"`
	}
	if err := json.Unmarshal([]byte(r.body), &got); err != nil || r.status != 200 || got.Object != "response.input_tokens" || got.Tokens < 5 {
		t.Errorf("%d %s %v", r.status, r.body, err)
	}
	h.upstream.Reply(proxytest.JSON(200, answerOf("fine", "completed")))
	if call := h.respond(ask("one two three")); call.header.Get("X-LLMProxy-Input-Tokens") != fmt.Sprint(got.Tokens) {
		t.Errorf("the call counts %s, this says %d", call.header.Get("X-LLMProxy-Input-Tokens"), got.Tokens)
	}
	h.wantError(h.postTo("/v1/responses/input_tokens", `{"model":"gpt-4o"}`), 400, "invalid_request", "input")
	if n := h.upstream.Count(); n != 1 {
		t.Errorf("%d upstream calls", n)
	}
}

// Requests of the wrong shape are refused with the member's name, before
// anything is counted or sent.
func TestWrongShapesOfEachEndpoint(t *testing.T) {
	h := newHarness(t, nil)
	for _, tt := range []struct{ path, body, param string }{
		{"/v1/responses", `{"input":"x"}`, "model"},
		{"/v1/responses", `{"model":"","input":"x"}`, "model"},
		{"/v1/responses", `{"model":"m"}`, "input"},
		{"/v1/responses", `{"model":"m","input":7}`, "input"},
		{"/v1/responses", `{"model":"m","input":{"role":"user"}}`, "input"},
		{"/v1/responses", `{"model":"m","input":"x","stream":"yes"}`, "stream"},
		{"/v1/responses", `{"model":"m","input":"x","background":1}`, "background"},
		{"/v1/responses", `{"model":"m","input":"x","max_output_tokens":-1}`, "max_output_tokens"},
		{"/v1/responses", `{"prompt":{"id":"p"},"model":3}`, "model"},
		{"/v1/completions", `{"model":"m"}`, "prompt"},
		{"/v1/completions", `{"model":"m","prompt":null}`, "prompt"},
		{"/v1/completions", `{"model":"m","prompt":{}}`, "prompt"},
		{"/v1/completions", `{"model":"m","prompt":"x","best_of":999}`, "best_of"},
		{"/v1/completions", `{"model":"m","prompt":"x","n":1.5}`, "n"},
		{"/v1/embeddings", `{"model":"m"}`, "input"},
		{"/v1/embeddings", `{"model":"m","input":null}`, "input"},
		{"/v1/embeddings", `{"input":"x"}`, "model"},
		{"/v1/embeddings", `{"model":"m","input":"x","encoding_format":"hex"}`, "encoding_format"},
	} {
		r := h.postTo(tt.path, tt.body)
		h.wantError(r, 400, "invalid_request", tt.param)
		if e := h.errorIn(r.body); e.Param == nil || *e.Param != tt.param {
			t.Errorf("%s %s: %s", tt.path, tt.body, r.body)
		}
	}
	for _, path := range []string{"/v1/responses", "/v1/completions", "/v1/embeddings"} {
		req := h.request(t.Context(), path, `{}`)
		req.Method = "PUT"
		h.wantError(h.do(req), 405, "invalid_request", "POST")
	}
	if n := h.upstream.Count(); n != 0 {
		t.Errorf("%d upstream calls", n)
	}
}

// A retry of a response attaches to the stream that runs.
func TestAResponseIsJoinedInMidStream(t *testing.T) {
	h := newHarness(t, nil)
	gate := proxytest.NewGate()
	frames := responseEvents(t, answerOf("shared by two", "completed"))
	h.upstream.Reply(proxytest.Stream(frames...).HoldAfter(3, gate))
	first := make(chan response, 2)
	go func() { first <- h.respond(ask("hi", stream)) }()
	h.upstream.WaitFor(1)
	go func() { first <- h.respond(ask("hi", stream)) }()
	h.waiting(2)
	gate.Open()
	for range 2 {
		select {
		case r := <-first:
			if r.body != strings.Join(frames, "") {
				t.Errorf("%s got %s", r.cache(), r.body)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("a client waits in vain")
		}
	}
	if n := h.upstream.Count(); n != 1 {
		t.Errorf("%d upstream calls", n)
	}
}

const embedded = `{"object":"list","data":[{"object":"embedding","index":0,"embedding":[0.5,-1.25]}],"model":"text-embedding-3-small","usage":{"prompt_tokens":3,"total_tokens":3}}`

// A client that asked for base64 would read no numbers: it gets base64, whatever
// the upstream made of the wish.
func TestEmbeddings(t *testing.T) {
	h := newHarness(t, counting)
	h.upstream.Always(proxytest.JSON(200, embedded))
	const plain = `{"model":"text-embedding-3-small","input":"one two three"}`
	first, again := h.postTo("/v1/embeddings", plain), h.postTo("/v1/embeddings", plain)
	if first.body != embedded || first.cache() != "miss" || again.body != embedded || again.cache() != "hit" || first.header.Get("X-LLMProxy-Input-Tokens") != "3" {
		t.Errorf("%s %v\n%s %s", first.body, first.header, again.cache(), again.body)
	}
	if row := h.rows("ORDER BY c.id DESC LIMIT 2")[1]; row.used != [2]int64{3, 0} || row.flags&ledger.Stored == 0 {
		t.Errorf("the row says %+v", row)
	}
	if got := h.charged(); got != [3]int64{3, 0, 1} {
		t.Errorf("charged %v", got)
	}
	coded := `{"model":"text-embedding-3-small","input":"one two three","encoding_format":"base64"}`
	packed := strings.Replace(embedded, "[0.5,-1.25]", `"AAAAPwAAoL8="`, 1)
	for _, want := range []string{"miss", "hit"} {
		if r := h.postTo("/v1/embeddings", coded); r.cache() != want || !sameJSON(t, []byte(r.body), []byte(packed)) {
			t.Errorf("%s %s", r.cache(), r.body)
		}
	}
	h.upstream.Always(proxytest.JSON(200, strings.Replace(embedded, "[0.5,-1.25]", "[]", 1)))
	if h.postTo("/v1/embeddings", `{"model":"m","input":["x"]}`); h.lastRow().flags&ledger.Stored != 0 {
		t.Error("an empty vector is kept")
	}
	h.nothingHeld()
}

// The older endpoint streams texts where chat streams deltas.
func TestCompletionsInBothForms(t *testing.T) {
	const whole = `{"id":"cmpl-1","object":"text_completion","created":1767225600,"model":"gpt-3.5-turbo-instruct","choices":[{"index":0,"text":"Once upon","logprobs":{"tokens":["Once"," upon"],"token_logprobs":[-0.5,-0.25]},"finish_reason":"stop"},{"index":1,"text":"Hello","logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":11,"completion_tokens":7,"total_tokens":18}}`
	chunk := func(choices, usage string) string {
		return proxytest.Data(`{"id":"cmpl-1","object":"text_completion","created":1767225600,"model":"gpt-3.5-turbo-instruct","choices":[` + choices + `]` + usage + `}`)
	}
	streamed := []string{
		chunk(`{"index":0,"text":"Once","logprobs":{"tokens":["Once"],"token_logprobs":[-0.5]},"finish_reason":null}`, ""),
		chunk(`{"index":1,"text":"Hel","logprobs":null,"finish_reason":null}`, ""),
		chunk(`{"index":0,"text":" upon","logprobs":{"tokens":[" upon"],"token_logprobs":[-0.25]},"finish_reason":null}`, ""),
		chunk(`{"index":1,"text":"lo","logprobs":null,"finish_reason":"stop"}`, ""),
		chunk(`{"index":0,"text":"","logprobs":null,"finish_reason":"stop"}`, ""),
		chunk("", `,"usage":{"prompt_tokens":11,"completion_tokens":7,"total_tokens":18}`),
		proxytest.Data("[DONE]"),
	}
	h := newHarness(t, nil)
	request := func(more string) string {
		return `{"model":"gpt-3.5-turbo-instruct","prompt":"Tell","n":2` + more + `}`
	}
	for name, reply := range map[string]proxytest.Reply{"JSON": proxytest.JSON(200, whole), "stream": proxytest.Stream(streamed...)} {
		t.Run(name, func(t *testing.T) {
			h := h.sub(t)
			h.upstream.Always(reply)
			first := h.postTo("/v1/completions", request(`,"seed":`+fmt.Sprint(len(name))+map[string]string{"stream": stream}[name]))
			asJSON := h.postTo("/v1/completions", request(`,"seed":`+fmt.Sprint(len(name))))
			asStream := h.postTo("/v1/completions", request(`,"seed":`+fmt.Sprint(len(name))+stream))
			if first.status != 200 || asJSON.cache() != "hit" || asStream.cache() != "hit" {
				t.Fatalf("%d %s %s: %s", first.status, asJSON.cache(), asStream.cache(), first.body)
			}
			if !sameJSON(t, []byte(asJSON.body), []byte(whole)) {
				t.Errorf("as JSON %s", asJSON.body)
			}
			sum := &chatCompletion{legacy: true}
			for _, frame := range strings.SplitAfter(asStream.body, "\n\n") {
				if data, ok := eventData([]byte(frame)); ok {
					if _, err := sum.event(data); err != nil {
						t.Errorf("%v: %s", err, frame)
					}
				}
			}
			body, err := sum.body()
			if want := strings.Replace(whole, `,"usage":{"prompt_tokens":11,"completion_tokens":7,"total_tokens":18}`, "", 1); err != nil || !sameJSON(t, body, []byte(want)) {
				t.Errorf("the stream adds up to %s, %v", body, err)
			}
			if strings.Contains(asStream.body, "usage") || strings.Contains(asStream.body, "delta") || !strings.HasSuffix(asStream.body, "data: [DONE]\n\n") {
				t.Errorf("as a stream %s", asStream.body)
			}
			if row := h.rows("ORDER BY c.id DESC LIMIT 3")[2]; row.used != [2]int64{11, 7} || row.finish != "stop" || row.flags&ledger.Stored == 0 {
				t.Errorf("the row says %+v", row)
			}
		})
	}
}

// Whatever a response looks like, its stream adds up to it, and a stream of any
// events does no harm.
func FuzzResponse(f *testing.F) {
	f.Add(everyItem)
	f.Add(answerOf("x", "incomplete"))
	f.Add(`{"output":[{"type":"message","content":[{"type":"output_text","text":7,"annotations":{}}]},{"type":"message"},7,null,{}]}`)
	f.Add(`{"output":[{"type":"reasoning","summary":null,"content":[]},{"type":"function_call","arguments":{"a":1}}],"status":"completed","status":"failed"}`)
	f.Add(`{"type":"response.output_item.done","output_index":3,"item":{}}`)
	f.Add(`{"type":"error","message":null}`)
	f.Fuzz(func(t *testing.T, body string) {
		anything := &modelResponse{}
		anything.event([]byte(body)) //nolint:errcheck // only no panic is asked for
		anything.judge(storeRules{})
		anything.text()
		anything.usage()
		r := &modelResponse{}
		if r.parse([]byte(body)) != nil {
			return
		}
		r.judge(storeRules{})
		events, err := r.unroll(false)
		if err != nil {
			t.Fatal(err)
		}
		sum := &modelResponse{}
		for i, event := range events {
			data, ok := eventData(event)
			if !ok || !json.Valid(data) {
				t.Fatalf("%q", event)
			}
			last, err := sum.event(data)
			if err != nil || last != (i == len(events)-1) {
				t.Fatalf("event %d of %d: %v %q", i, len(events), err, event)
			}
		}
		if got, err := sum.body(); err != nil || !sameJSON(t, got, []byte(body)) {
			t.Fatalf("%s adds up to %s, %v", body, got, err)
		}
	})
}

// A call that goes on from a response is counted with what that one used, without
// its reasoning and its instructions; one that nothing is known of is estimated.
func TestAnEarlierResponseIsCounted(t *testing.T) {
	h := newHarness(t, nil)
	h.upstream.Reply(proxytest.JSON(200, strings.Replace(answerOf("fine", "completed"), `"usage":{"input_tokens":11,"output_tokens":7,"total_tokens":18}`,
		`"usage":{"input_tokens":1000,"output_tokens":300,"output_tokens_details":{"reasoning_tokens":100},"total_tokens":1300}`, 1)))
	h.upstream.Reply(proxytest.JSON(200, answerOf("more", "completed")))
	h.upstream.Reply(proxytest.JSON(200, answerOf("lost", "completed")))
	count := func(r response) (n int) {
		fmt.Sscan(r.header.Get("X-LLMProxy-Input-Tokens"), &n)
		return n
	}
	first := count(h.respond(ask("hello", `,"instructions":"Answer as a pirate would, and in one sentence."`)))
	without := count(h.respond(ask("hello")))
	instructions := first - without
	next := count(h.respond(ask("go on", `,"previous_response_id":"resp_fine"`)))
	if want := 1000 + 300 - 100 - instructions; next < want || next > want+20 {
		t.Errorf("counted %d, want a little over %d", next, want)
	}
	if row := h.lastRow(); row.flags&ledger.Uncounted != 0 {
		t.Errorf("the row says %+v", row)
	}
	h.upstream.Always(proxytest.JSON(200, answerOf("lost", "completed")))
	if h.respond(ask("go on", `,"previous_response_id":"resp_elsewhere"`)); h.lastRow().flags&ledger.Uncounted == 0 {
		t.Errorf("an unknown response: the row says %+v", h.lastRow())
	}
	other := h.respond(ask("go on", `,"previous_response_id":"resp_fine"`), "Authorization", "Bearer somebody else")
	if n := count(other); n == next {
		t.Error("another tenant learns what a response used")
	}
}
