package proxy

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"llmproxy/ledger"
	"llmproxy/proxy/proxytest"
	"llmproxy/tokens"
)

// Odd, but whole: these answers are served and stored.
func TestOddAnswersThatAreWhole(t *testing.T) {
	chunks := proxytest.Chunks(wholeText, 4)
	json200 := proxytest.JSON(200, proxytest.Completion(wholeText))
	h := newHarness(t, nil)
	for _, tt := range []struct {
		name  string
		reply proxytest.Reply
	}{
		{"JSON", json200},
		{"JSON byte by byte", json200.SplitEvery(1)},
		{"JSON before the request was read", json200.Early()},
		{"JSON in gzip", json200.Gzip()},
		{"JSON in GZIP", json200.Gzip().Header("Content-Encoding", "GZIP")},
		{"JSON called text", json200.Header("Content-Type", "text/plain")},
		{"stream", whole},
		{"stream byte by byte", whole.SplitEvery(1)},
		{"stream before the request was read", whole.Early()},
		{"stream in gzip", whole.Gzip()},
		{"stream with CRLF", whole.CRLF()},
		{"stream with a charset", whole.Header("Content-Type", "text/event-stream; charset=utf-8")},
		{"stream with comments", proxytest.Stream(append([]string{proxytest.Comment("wait")}, chunks...)...)},
		{"stream without [DONE]", proxytest.Stream(chunks[:len(chunks)-1]...)},
		{"stream that is reset after [DONE]", whole.ResetAfter(len(chunks))},
	} {
		for _, form := range []string{"", stream} {
			t.Run(fmt.Sprintf("%s to stream %v", tt.name, form == stream), func(t *testing.T) {
				h, body := h.sub(t), chat(t.Name(), form)
				h.upstream.Always(tt.reply)
				first, again := h.post(body), h.post(body)
				if first.status != 200 || first.cache() != "miss" || again.cache() != "hit" || first.body != again.body {
					t.Fatalf("first %d %s %s\nagain %s %s", first.status, first.cache(), first.body, again.cache(), again.body)
				}
				text, err := contentOf(first.body, form == stream)
				if err != nil || text != wholeText {
					t.Errorf("%q, %v: %s", text, err, first.body)
				}
				if enc := first.header.Get("Content-Encoding"); enc != "" {
					t.Errorf("Content-Encoding: %s", enc)
				}
				if row := h.rows("ORDER BY c.id DESC LIMIT 2")[1]; row.used != [2]int64{11, 7} || row.finish != "stop" || row.flags&ledger.Stored == 0 {
					t.Errorf("the row says %+v", row)
				}
			})
		}
	}
}

// contentOf is what a client makes of an answer in the form it asked for.
func contentOf(body string, asStream bool) (string, error) {
	if asStream {
		if !strings.HasSuffix(strings.TrimRight(body, "\r\n"), "data: [DONE]") || strings.Contains(body, `"choices":[]`) {
			return "", fmt.Errorf("not a whole stream, or one with an unasked usage chunk")
		}
		return assembleText(body)
	}
	var answer struct {
		Object  string
		Choices []struct{ Message struct{ Content string } }
	}
	if err := json.Unmarshal([]byte(body), &answer); err != nil {
		return "", err
	}
	if answer.Object != "chat.completion" || len(answer.Choices) != 1 {
		return "", fmt.Errorf("not a chat completion")
	}
	return answer.Choices[0].Message.Content, nil
}

// What one form can say and the other cannot is passed on where it was asked
// for, and refused where it was not.
func TestAnAnswerThatHasOneFormOnly(t *testing.T) {
	for name, tt := range map[string]struct {
		reply proxytest.Reply
		asks  string
		other string
	}{
		"JSON":   {proxytest.JSON(200, `{"choices":"none"}`), "", stream},
		"stream": {proxytest.Stream(proxytest.Data(`{"choices":[{"delta":{"content":"x"}}]}`), proxytest.Data(`{"choices":[4]}`), proxytest.Done), stream, ""},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, nil)
			h.upstream.Reply(tt.reply)
			if r := h.post(chat("hi", tt.asks)); r.status != 200 {
				t.Errorf("asked for as it came: %d %s", r.status, r.body)
			}
			h.wantError(h.post(chat("hi", tt.other)), 502, "upstream_invalid", "form")
			if n := h.number(`SELECT count(*) FROM entry`); n != 0 {
				t.Errorf("%d answers are stored", n)
			}
		})
	}
}

// An error object under status 200 goes through as it came, and is a failure all
// the same.
func TestAnErrorUnderStatus200(t *testing.T) {
	h := newHarness(t, nil)
	reply := proxytest.Error(200, "the model fell over")
	h.upstream.Reply(reply, reply, proxytest.JSON(200, proxytest.Completion("fine")))
	for range 2 {
		r := h.post(chat("hi"))
		if r.status != 200 || !strings.HasPrefix(r.body, `{"error":`) || h.errorIn(r.body).Message != "the model fell over" {
			t.Errorf("%d %s", r.status, r.body)
		}
		if row := h.lastRow(); row.outcome != ledger.Failed || row.finish != "upstream_error" || row.flags&ledger.Stored != 0 {
			t.Errorf("the row says %+v", row)
		}
	}
	if r := h.post(chat("hi")); r.cache() != "miss" || !strings.Contains(r.body, "fine") {
		t.Errorf("then %s %s", r.cache(), r.body)
	}
}

// Figures that cannot be true are not believed: they would empty or refill a
// budget. What was counted is charged instead, and flagged.
func TestUsageThatCannotBeBelieved(t *testing.T) {
	text := int64(tokens.Text("gpt-4o", wholeText))
	for name, tt := range map[string]struct {
		usage     proxytest.Option
		estimated bool
		odd       bool
		used      [2]int64
	}{
		"true":            {proxytest.Usage(12, 9), false, false, [2]int64{12, 9}},
		"none":            {proxytest.NoUsage(), true, false, [2]int64{countedInput, text}},
		"zero":            {proxytest.Usage(0, 0), true, false, [2]int64{countedInput, text}},
		"negative input":  {proxytest.Usage(-1000, 5), true, true, [2]int64{countedInput, text}},
		"negative output": {proxytest.Usage(12, -1), true, true, [2]int64{countedInput, text}},
		"absurd":          {proxytest.Usage(1<<50, 5), true, true, [2]int64{countedInput, text}},
	} {
		for _, reply := range []proxytest.Reply{
			proxytest.JSON(200, proxytest.Completion(wholeText, tt.usage)),
			proxytest.Stream(proxytest.Chunks(wholeText, 3, tt.usage)...),
		} {
			t.Run(name, func(t *testing.T) {
				h := newHarness(t, counting)
				h.upstream.Reply(reply)
				h.post(chat("hi"))
				row, want := h.lastRow(), tt.used
				if want[0] == countedInput {
					want[0] = row.input
				}
				if row.input == 0 || row.used != want || h.charged() != [3]int64{want[0], want[1], 1} {
					t.Errorf("charged %v (budget %v), want %v", row.used, h.charged(), want)
				}
				if estimated, odd := row.flags&ledger.UsageEstimated != 0, row.flags&ledger.UsageOdd != 0; estimated != tt.estimated || odd != tt.odd {
					t.Errorf("estimated %v, odd %v", estimated, odd)
				}
				h.nothingHeld()
			})
		}
	}
}

func retrying(max int) func(*Policy) {
	return func(p *Policy) {
		counting(p)
		u := p.Upstreams[0]
		u.Retries, u.RetryConnect, u.RetryStatuses = max, true, []int{429, 500, 502, 503, 504}
	}
}

// Retries happen before the first byte of an answer, never after, and are seen.
func TestRetries(t *testing.T) {
	fine := proxytest.JSON(200, proxytest.Completion("fine"))
	for name, tt := range map[string]struct {
		replies []proxytest.Reply
		calls   int
		status  int
	}{
		"500, then fine":         {[]proxytest.Reply{proxytest.Error(500, "a"), fine}, 2, 200},
		"429 and 503, then fine": {[]proxytest.Reply{proxytest.RateLimited("0"), proxytest.Error(503, "b"), fine}, 3, 200},
		"too many":               {[]proxytest.Reply{proxytest.Error(500, "a"), proxytest.Error(500, "b"), proxytest.Error(500, "c"), fine}, 3, 500},
		"a status of no retries": {[]proxytest.Reply{proxytest.Error(400, "a"), fine}, 1, 400},
		"to wait too long":       {[]proxytest.Reply{proxytest.RateLimited("3600"), fine}, 1, 429},
		"after the request":      {[]proxytest.Reply{proxytest.Reset(), fine}, 1, 502},
		"after the head":         {[]proxytest.Reply{whole.ResetAfter(0), fine}, 1, 502},
		"after a byte":           {[]proxytest.Reply{whole.ResetAfter(1), fine}, 1, 502},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // each waits
			h := newHarness(t, retrying(2))
			h.upstream.Reply(tt.replies...)
			r := h.post(chat("hi"))
			if r.status != tt.status || h.upstream.Count() != tt.calls {
				t.Errorf("%d after %d upstream calls, want %d after %d: %s", r.status, h.upstream.Count(), tt.status, tt.calls, r.body)
			}
			if after := r.header.Get("Retry-After"); name == "to wait too long" && after != "60" {
				t.Errorf("Retry-After: %q", after)
			}
			var first string
			for _, req := range h.upstream.Requests() {
				if first = string(h.upstream.Requests()[0].Body); string(req.Body) != first || req.Header.Get("Authorization") != "" {
					t.Errorf("an attempt sent %s", req.Body)
				}
			}
			if rows := h.rows(""); len(rows) != 1 || h.charged()[2] != 1 {
				t.Errorf("%d rows, charged %v", len(rows), h.charged())
			}
			want := fmt.Sprintf(`llmproxy_upstream_retries_total{upstream="test"} %d`, tt.calls-1)
			if got := h.metric("llmproxy_upstream_retries_total"); got != want {
				t.Errorf("the metrics say %q, want %q", got, want)
			}
			h.nothingHeld()
		})
	}
}

// metric is the line of /metrics that begins with a name.
func (h *harness) metric(name string) string {
	h.Helper()
	req := h.request(h.Context(), "/metrics", "")
	req.Method, req.Body = http.MethodGet, nil
	for line := range strings.Lines(h.do(req).body) {
		if strings.HasPrefix(line, name) {
			return strings.TrimSpace(line)
		}
	}
	return ""
}

func TestARetryWaitsAsLongAsItIsTold(t *testing.T) {
	h := newHarness(t, retrying(1))
	h.upstream.Reply(proxytest.RateLimited("1"), proxytest.JSON(200, proxytest.Completion("fine")))
	begun := time.Now()
	if r := h.post(chat("hi")); r.status != 200 {
		t.Errorf("%d %s", r.status, r.body)
	}
	if waited := time.Since(begun); waited < time.Second {
		t.Errorf("sent again after %v, although the upstream asked for a second", waited)
	}
}

func TestARefusedConnectionIsTriedAgain(t *testing.T) {
	h := newHarness(t, retrying(1))
	h.upstream.Close()
	h.wantError(h.post(chat("hi")), 502, "upstream_unreachable")
	if got := h.metric("llmproxy_upstream_retries_total"); got != `llmproxy_upstream_retries_total{upstream="test"} 1` {
		t.Errorf("the metrics say %q", got)
	}
	if got := h.charged(); got != [3]int64{} {
		t.Errorf("charged %v", got)
	}
}
