package proxy

import (
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"llmproxy/ledger"
	"llmproxy/proxy/proxytest"
	"llmproxy/tokens"
)

// Texts of which every fault's charge is known.
const (
	wholeText = "alpha theta gamma delta!"
	seenText  = "alpha theta " // what two of four pieces hold
)

// whole is a stream of four pieces: the role, the pieces, the finish reason, the
// usage, [DONE].
var whole = proxytest.Stream(proxytest.Chunks(wholeText, 4)...)

// fault is one way in which an upstream fails, and what becomes of it.
type fault struct {
	name   string
	reply  proxytest.Reply
	stream bool // the client asks for a stream
	status int
	code   string   // ours; empty: the upstream's own error goes through
	text   string   // of the client's answer before the error, where it is a stream
	has    string   // in the client's answer
	used   [2]int64 // -1 for the counted input
	finish string
}

const countedInput = -1

func faults() []fault {
	counted := [2]int64{countedInput, 0}
	seen := [2]int64{countedInput, int64(tokens.Text("gpt-4o", seenText))}
	ownError := proxytest.ErrorEvent("the model fell over")
	chunks := proxytest.Chunks(wholeText, 4)
	garbled := slices.Insert(slices.Clone(chunks), 3, "data: {\"choices\":[\n\n")
	inBand := slices.Insert(slices.Clone(chunks), 3, ownError)
	return []fault{
		{name: "429", reply: proxytest.RateLimited("7"), status: 429, has: "slow down"},
		{name: "429 to a stream", reply: proxytest.RateLimited("7"), stream: true, status: 429, has: "slow down"},
		{name: "500", reply: proxytest.Error(500, "broken"), status: 500, has: "broken"},
		{name: "400", reply: proxytest.Error(400, "no such parameter"), status: 400, has: "no such parameter"},
		{name: "503 in HTML", reply: proxytest.JSON(503, "<html>busy").Header("Content-Type", "text/html"), stream: true, status: 503, has: "<html>busy"},
		{name: "302", reply: proxytest.JSON(302, "elsewhere").Header("Location", "/elsewhere"), status: 302, has: "elsewhere"},
		{name: "reset", reply: proxytest.Reset(), status: 502, code: "upstream_unreachable", used: counted},
		{name: "dropped", reply: proxytest.Drop(), stream: true, status: 502, code: "upstream_unreachable", used: counted},
		{name: "empty 200", reply: proxytest.Empty(), status: 502, code: "upstream_invalid", used: counted},
		{name: "empty 200 to a stream", reply: proxytest.Empty(), stream: true, status: 502, code: "upstream_invalid", used: counted},
		{name: "invalid JSON", reply: proxytest.InvalidJSON(), status: 502, code: "upstream_invalid", used: counted},
		{name: "a list", reply: proxytest.JSON(200, "[]"), status: 502, code: "upstream_invalid", used: counted},
		{name: "null", reply: proxytest.JSON(200, "null"), stream: true, status: 502, code: "upstream_invalid", used: counted},
		{name: "HTML", reply: proxytest.JSON(200, "<html>hello").Header("Content-Type", "text/html"), status: 502, code: "upstream_invalid", used: counted},
		{name: "200 with an error to a stream", reply: proxytest.Error(200, "the model fell over"), stream: true, status: 200, has: "the model fell over", used: counted, finish: "upstream_error"},
		{name: "JSON cut", reply: proxytest.JSON(200, proxytest.Completion(wholeText)).SplitEvery(40).DropAfter(2), status: 502, code: "upstream_invalid", used: counted},
		{name: "JSON ended early", reply: proxytest.JSON(200, proxytest.Completion(wholeText)).SplitEvery(40).EndAfter(2), status: 502, code: "upstream_invalid", used: counted},
		{name: "JSON without end", reply: proxytest.JSON(200, strings.Repeat("x", 20_000)), status: 502, code: "upstream_invalid", has: "response_body", used: counted},
		{name: "no gzip", reply: proxytest.JSON(200, "plain").Header("Content-Encoding", "gzip"), status: 502, code: "upstream_invalid", used: counted},
		{name: "reset before the first chunk", reply: whole.ResetAfter(0), stream: true, status: 502, code: "upstream_invalid", used: counted},
		{name: "dropped before the first chunk", reply: whole.DropAfter(0), stream: true, status: 502, code: "upstream_invalid", used: counted},
		{name: "no chunk", reply: whole.EndAfter(0), stream: true, status: 502, code: "upstream_invalid", used: counted},
		{name: "no chunk for JSON", reply: whole.EndAfter(0), status: 502, code: "upstream_invalid", used: counted},
		{name: "[DONE] alone", reply: proxytest.Stream(proxytest.Done), stream: true, status: 502, code: "upstream_invalid", used: counted},
		{name: "[DONE] alone for JSON", reply: proxytest.Stream(proxytest.Done), status: 502, code: "upstream_invalid", used: counted},
		{name: "[DONE] after a comment", reply: proxytest.Stream(proxytest.Comment("wait"), proxytest.Done), stream: true, status: 200, code: "upstream_invalid", used: counted},
		{name: "reset after chunks", reply: whole.ResetAfter(3), stream: true, status: 200, code: "upstream_invalid", text: seenText, used: seen},
		{name: "dropped after chunks", reply: whole.DropAfter(3), stream: true, status: 200, code: "upstream_invalid", text: seenText, used: seen},
		{name: "ended after chunks", reply: whole.EndAfter(3), stream: true, status: 200, code: "upstream_invalid", text: seenText, used: seen},
		{name: "ended after chunks for JSON", reply: whole.EndAfter(3), status: 502, code: "upstream_invalid", used: seen},
		{name: "not JSON in mid-stream", reply: proxytest.Stream(garbled...), stream: true, status: 200, code: "upstream_invalid", used: seen},
		{name: "error in mid-stream", reply: proxytest.Stream(inBand...), stream: true, status: 200, text: seenText, has: ownError, used: seen, finish: "upstream_error"},
		{name: "error in mid-stream for JSON", reply: proxytest.Stream(inBand...), status: 502, has: "the model fell over", used: seen, finish: "upstream_error"},
		{name: "error as the first event", reply: proxytest.Stream(ownError), stream: true, status: 200, has: ownError, used: counted, finish: "upstream_error"},
		{name: "gzip cut off", reply: whole.Gzip().DropAfter(3), stream: true, status: 200, code: "upstream_invalid", text: seenText, used: seen},
		{name: "endless", reply: proxytest.Endless(chunks[1]), stream: true, status: 200, code: "upstream_invalid", has: "response_body", used: [2]int64{countedInput, -1}},
		{name: "endless for JSON", reply: proxytest.Endless(chunks[1]), status: 502, code: "upstream_invalid", has: "response_body", used: [2]int64{countedInput, -1}},
		{name: "endless comments", reply: proxytest.Endless(proxytest.Comment("wait")), stream: true, status: 200, code: "upstream_invalid", has: "response_body", used: counted},
		{name: "an event without end", reply: proxytest.Endless("data: xxxxxxxxxxxxxxxxxxx"), stream: true, status: 502, code: "upstream_invalid", has: "response_body", used: counted},
	}
}

// Whatever an upstream does wrong: the client learns it in a form that its SDK
// raises, nothing is stored, the next request leads again, and the budget is
// charged with what is known to have been spent.
func TestFaultsOfAnUpstream(t *testing.T) {
	h := newHarness(t, func(p *Policy) {
		counting(p)
		p.ResponseBody = 10_000
	})
	for _, f := range faults() {
		t.Run(f.name, func(t *testing.T) {
			h := h.sub(t)
			before, calls := h.charged(), h.upstream.Count()
			h.upstream.Always(f.reply)
			body := chat(f.name)
			if f.stream {
				body = chat(f.name, stream)
			}
			r := h.post(body)
			h.checkAnswer(f, r)
			h.checkCharge(f, before)
			if n := h.number(`SELECT count(*) FROM entry`); n != 0 {
				t.Errorf("%d answers are stored", n)
			}
			h.upstream.Always(proxytest.Error(404, "not again"))
			if again := h.post(body); again.status != 404 || again.cache() != "miss" || h.upstream.Count() != calls+2 {
				t.Errorf("the next request got %d %s after %d upstream calls: %s", again.status, again.cache(), h.upstream.Count()-calls, again.body)
			}
			if row := h.lastRow(); row.attempt != 2 {
				t.Errorf("the ledger takes the next request for attempt %d", row.attempt)
			}
			h.nothingHeld()
		})
	}
}

// sub is the harness for a subtest.
func (h *harness) sub(t *testing.T) *harness {
	return &harness{T: t, server: h.server, store: h.store, upstream: h.upstream, policy: h.policy, url: h.url,
		logs: h.logs, commits: h.commits, handling: h.handling}
}

func (h *harness) checkAnswer(f fault, r response) {
	h.Helper()
	if r.status != f.status || !strings.Contains(r.body, f.has) {
		h.Errorf("%d %.300s; want %d with %q", r.status, r.body, f.status, f.has)
	}
	if strings.Contains(r.body, "[DONE]") {
		h.Errorf("the failed answer ends as if it were whole: %s", r.body)
	}
	switch {
	case f.status == 200:
		if text, _ := assembleText(r.body); f.text != "" && text != f.text {
			h.Errorf("the client saw %q before the error, want %q", text, f.text)
		}
		frames := strings.Split(strings.TrimSuffix(r.body, "\n\n"), "\n\n")
		last, ok := strings.CutPrefix(frames[len(frames)-1], `data: `)
		if !ok || !strings.HasPrefix(last, `{"error":`) {
			h.Errorf("the stream does not end with an error: %s", r.body)
			return
		}
		if e := h.errorIn(last); f.code != "" && (e.Code == nil || *e.Code != f.code) {
			h.Errorf("the error frame says %s, want %s", last, f.code)
		}
	case f.code != "":
		h.wantError(r, f.status, f.code, f.has)
	}
}

// checkCharge compares what the budget and the ledger say.
func (h *harness) checkCharge(f fault, before [3]int64) {
	h.Helper()
	row, after := h.lastRow(), h.charged()
	want := f.used
	if want[0] == countedInput {
		want[0] = row.input
	}
	if want[1] < 0 { // as much as was read
		want[1] = row.used[1]
		if f.used[1] < 0 && (row.used[1] < 10 || row.used[1] > 10_000) {
			h.Errorf("%d tokens of output are charged", row.used[1])
		}
	}
	if row.used != want || after != [3]int64{before[0] + want[0], before[1] + want[1], before[2] + 1} {
		h.Errorf("charged %v (budget %v → %v), want %v", row.used, before, after, want)
	}
	if estimated := row.flags&ledger.UsageEstimated != 0; estimated != (want[0] > 0) {
		h.Errorf("flags %b; the charge is estimated: %v", row.flags, want[0] > 0)
	}
	finish := f.finish
	if finish == "" {
		finish = f.code
	}
	if row.outcome != ledger.Failed || row.finish != finish {
		h.Errorf("the row says %s %q, want failed %q", row.outcome, row.finish, finish)
	}
}

func TestAnUpstreamThatRefusesConnectionsCostsNothing(t *testing.T) {
	h := newHarness(t, func(p *Policy) {
		counting(p)
		p.Upstreams[0].BaseURL, _ = url.Parse(proxytest.RefusedURL(t))
	})
	for _, form := range []string{"", stream} {
		h.wantError(h.post(chat("hi", form)), 502, "upstream_unreachable", "refused", "base_url")
		if row := h.lastRow(); row.outcome != ledger.Failed || row.used != [2]int64{-1, -1} || row.flags&ledger.UsageEstimated != 0 {
			t.Errorf("the row says %+v", row)
		}
	}
	if got := h.charged(); got != [3]int64{} {
		t.Errorf("charged %v", got)
	}
	h.nothingHeld()
}

// A connection that was made may have carried the request to a model.
func TestAnUpstreamThatClosesConnectionsMayHaveWorked(t *testing.T) {
	h := newHarness(t, func(p *Policy) {
		counting(p)
		p.Upstreams[0].BaseURL, _ = url.Parse(proxytest.ClosingURL(t))
	})
	h.wantError(h.post(chat("hi")), 502, "upstream_unreachable", "charged")
	if row := h.lastRow(); h.charged() != [3]int64{row.input, 0, 1} || row.input == 0 {
		t.Errorf("charged %v of %d tokens of input", h.charged(), row.input)
	}
	h.nothingHeld()
}

func TestAnUpstreamThatIsTooSlow(t *testing.T) {
	silent := proxytest.NewGate()
	seen := int64(tokens.Text("gpt-4o", seenText))
	for name, tt := range map[string]struct {
		idle, total time.Duration
		reply       proxytest.Reply
		stream      bool
		status      int
		output      int64
		says        string
	}{
		"no answer":           {time.Minute, 50 * time.Millisecond, proxytest.Never(), false, 504, 0, "total"},
		"no answer, a stream": {time.Minute, 50 * time.Millisecond, proxytest.Never(), true, 504, 0, "total"},
		"silent body":         {50 * time.Millisecond, time.Minute, proxytest.JSON(200, "{}").HoldAfter(0, silent), false, 504, 0, "silent"},
		"silent stream":       {50 * time.Millisecond, time.Minute, whole.HoldAfter(3, silent), true, 200, seen, "silent"},
		"silent stream, JSON": {50 * time.Millisecond, time.Minute, whole.HoldAfter(3, silent), false, 504, seen, "silent"},
		"endless stream":      {time.Minute, 100 * time.Millisecond, proxytest.Endless(proxytest.Comment("wait")).Every(time.Millisecond), true, 200, 0, "total"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, func(p *Policy) {
				counting(p)
				p.Upstreams[0].Idle, p.Upstreams[0].Total = tt.idle, tt.total
			})
			h.upstream.Reply(tt.reply)
			body := chat("hi")
			if tt.stream {
				body = chat("hi", stream)
			}
			r := h.post(body)
			h.checkAnswer(fault{status: tt.status, code: "upstream_timeout", has: tt.says, stream: tt.stream}, r)
			row := h.lastRow()
			if row.outcome != ledger.Failed || row.finish != "upstream_timeout" || row.status != 504 || row.used != [2]int64{row.input, tt.output} ||
				row.flags&ledger.UsageEstimated == 0 {
				t.Errorf("the row says %+v", row)
			}
			proxytest.Wait(t, h.upstream.Requests()[0].Gone, "the end of the upstream request")
			h.nothingHeld()
		})
	}
}

// Those who wait for an exchange that fails get its error, once: nobody of them
// calls the upstream at that moment.
func TestFollowersOfAFailingLeaderGetItsError(t *testing.T) {
	for name, tt := range map[string]struct {
		reply  proxytest.Reply
		status int
		has    string
	}{
		"429":     {proxytest.RateLimited("30"), 429, "slow down"},
		"500":     {proxytest.Error(500, "broken"), 500, "broken"},
		"reset":   {proxytest.Reset(), 502, "upstream_unreachable"},
		"empty":   {proxytest.Empty(), 502, "upstream_invalid"},
		"in-band": {proxytest.Stream(proxytest.ErrorEvent("broken")), 502, "broken"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, counting)
			gate := proxytest.NewGate()
			h.upstream.Reply(tt.reply.Hold(gate), proxytest.JSON(200, proxytest.Completion("fine")))
			answers := make([]response, 6)
			var wg sync.WaitGroup
			for i := range answers {
				body := chat("same")
				if i >= 3 {
					body = chat("same", stream)
				}
				if i == 0 {
					wg.Go(func() { answers[i] = h.post(body) })
					proxytest.Wait(t, gate.Reached(), "the leader's upstream call")
					continue
				}
				wg.Go(func() { answers[i] = h.post(body) })
			}
			h.waiting(6)
			gate.Open()
			wg.Wait()
			for i, a := range answers {
				if i >= 3 { // a collapsed stream was answered at once
					h.checkAnswer(fault{status: 200, has: tt.has}, a)
				} else if a.status != tt.status || !strings.Contains(a.body, tt.has) {
					t.Errorf("client %d got %d %s", i, a.status, a.body)
				} else if name == "429" && a.header.Get("Retry-After") != "30" {
					t.Errorf("client %d is not told to wait: %v", i, a.header)
				}
			}
			if n := h.upstream.Count(); n != 1 {
				t.Errorf("%d upstream calls", n)
			}
			if got := h.outcomes(); got[ledger.Failed] != 1 || got[ledger.Collapsed] != 5 || len(got) != 2 {
				t.Errorf("ledger: %v", got)
			}
			if n := h.number(`SELECT sum(avoided_input + avoided_output) FROM call`); n != 0 {
				t.Errorf("%d tokens count as avoided by a failure", n)
			}
			if next := h.post(chat("same")); next.status != 200 || next.cache() != "miss" || !strings.Contains(next.body, "fine") {
				t.Errorf("the next request got %d %s: %s", next.status, next.cache(), next.body)
			}
			h.nothingHeld()
		})
	}
}
