package proxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"llmproxy/cache"
	"llmproxy/ledger"
	"llmproxy/proxy/proxytest"
)

// leaving sends a request whose client can leave; gone is closed when it has its
// answer or has left.
func (h *harness) leaving(body string) (leave context.CancelFunc, gone <-chan struct{}) {
	ctx, cancel := context.WithCancel(context.Background())
	h.Cleanup(cancel)
	done := make(chan struct{})
	req := h.request(ctx, "/v1/chat/completions", body)
	go func() {
		defer close(done)
		if r, err := http.DefaultClient.Do(req); err == nil {
			<-ctx.Done()
			r.Body.Close()
		}
	}()
	return cancel, done
}

// handlers waits until n requests are being handled.
func (h *harness) handlers(n int64) {
	h.Helper()
	h.eventually(fmt.Sprintf("%d handlers", n), func() bool { return h.handling.Load() == n })
}

func TestAClientThatLeavesBeforeTheUpstreamCallCostsNothing(t *testing.T) {
	h := newHarness(t, counting)
	h.upstream.Reply(whole)
	for range countWorkers { // nobody is counted until these places are free
		h.server.counting <- struct{}{}
	}
	leave, gone := h.leaving(chat("hi"))
	h.inside(1, "(*call).estimate")
	follower := make(chan response, 1)
	go func() { follower <- h.post(chat("hi", stream)) }()
	h.handlers(2)
	leave()
	<-gone
	h.handlers(1)
	if n := h.upstream.Count(); n != 0 {
		t.Errorf("%d upstream calls for a client that has left", n)
	}
	for range countWorkers {
		<-h.server.counting
	}
	if r := <-follower; r.status != 200 || r.cache() != "miss" || !strings.HasSuffix(r.body, proxytest.Done) {
		t.Errorf("who waited for it does not lead: %d %s %s", r.status, r.cache(), r.body)
	}
	if rows := h.rows(""); len(rows) != 1 || rows[0].outcome != ledger.Miss || h.charged() != [3]int64{11, 7, 1} {
		t.Errorf("rows %+v, charged %v", rows, h.charged())
	}
	h.nothingHeld()
}

func TestAClientThatLeavesInMidStreamLosesNothing(t *testing.T) {
	h := newHarness(t, counting)
	gate := proxytest.NewGate()
	h.upstream.Reply(whole.HoldAfter(3, gate))
	c := h.open(chat("hi", stream))
	begun := c.event() + c.event() + c.event()
	c.leave()
	h.handlers(0)
	retry := h.open(chat("hi", stream)) // attaches to what goes on without a reader
	if got := retry.event() + retry.event() + retry.event(); got != begun || retry.r.Header.Get("X-LLMProxy-Cache") != "collapsed" {
		t.Errorf("the retry began with %q (%s)", got, retry.r.Header.Get("X-LLMProxy-Cache"))
	}
	retry.leave()
	h.handlers(0)
	gate.Open()
	row := h.rows("")[0]
	if row.outcome != ledger.Miss || row.flags&ledger.ClientLeft == 0 || row.flags&ledger.Stored == 0 || row.used != [2]int64{11, 7} {
		t.Errorf("the row says %+v", row)
	}
	if r := h.post(chat("hi")); r.cache() != "hit" || !strings.Contains(r.body, wholeText) {
		t.Errorf("then %s %s", r.cache(), r.body)
	}
	if n := h.upstream.Count(); n != 1 {
		t.Errorf("%d upstream calls", n)
	}
	h.nothingHeld()
}

// Go clients close the connection as soon as they have read [DONE].
func TestAClientThatLeavesAfterTheEndHasBeenServed(t *testing.T) {
	h := newHarness(t, nil)
	h.upstream.Reply(whole)
	const calls = 20
	for i := range calls {
		c := h.open(chat(fmt.Sprint("hi ", i), stream))
		for c.event() != proxytest.Done {
		}
		c.leave()
	}
	rows := h.rows("")
	for _, row := range rows {
		if row.outcome != ledger.Miss || row.status != 200 || row.finish != "stop" || row.flags&ledger.Stored == 0 {
			t.Errorf("the row says %+v", row)
		}
	}
	if len(rows) != calls || h.stored() != calls {
		t.Errorf("%d rows, %d stored", len(rows), h.stored())
	}
	h.nothingHeld()
}

func TestFiftyClientsLeaveAndEveryAnswerIsStored(t *testing.T) {
	h := newHarness(t, counting)
	gate := proxytest.NewGate()
	h.upstream.Reply(whole.Hold(gate))
	const calls = 50
	leave := make([]context.CancelFunc, calls)
	for i := range calls {
		form := ""
		if i%2 == 1 {
			form = stream
		}
		leave[i], _ = h.leaving(chat(fmt.Sprint("hi ", i), form))
	}
	h.upstream.WaitFor(calls)
	for _, f := range leave {
		f()
	}
	h.handlers(0)
	gate.Open()
	h.nothingHeld()
	if got := h.outcomes(); got[ledger.Miss] != calls || len(got) != 1 || h.stored() != calls {
		t.Errorf("ledger %v, %d stored", got, h.stored())
	}
	if got := h.charged(); got != [3]int64{calls * 11, calls * 7, calls} {
		t.Errorf("charged %v", got)
	}
	h.upstream.Always(proxytest.Error(500, "not again"))
	for i := range calls {
		if r := h.post(chat(fmt.Sprint("hi ", i))); r.cache() != "hit" {
			t.Errorf("call %d: %d %s", i, r.status, r.cache())
		}
	}
}

// Clients leave at any moment, most of them while the answer is written down.
// Whatever was paid for is stored.
func TestClientsThatLeaveAtAnyMomentLoseNoPaidAnswer(t *testing.T) {
	h := newHarness(t, counting)
	h.upstream.Reply(whole)
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			leave, gone := h.leaving(chat(fmt.Sprint("hi ", i), stream))
			time.Sleep(time.Duration(rand.Int64N(int64(20 * time.Millisecond))))
			leave()
			<-gone
		})
	}
	wg.Wait()
	h.nothingHeld()
	paid := h.upstream.Count()
	if got := h.outcomes(); got[ledger.Miss] != paid || h.stored() != paid || got[ledger.Failed]+got[ledger.Lost] != 0 {
		t.Errorf("%d upstream calls, ledger %v, %d stored", paid, got, h.stored())
	}
	if got := h.charged(); got != [3]int64{int64(paid) * 11, int64(paid) * 7, int64(paid)} {
		t.Errorf("%d upstream calls charged %v", paid, got)
	}
}

func TestAStepMayCancelWhenItsLastClientLeaves(t *testing.T) {
	h := newHarness(t, func(p *Policy) {
		counting(p)
		p.Default.CancelOnDisconnect = true
	})
	early, late := proxytest.NewGate(), proxytest.NewGate()
	h.upstream.Reply(whole.HoldAfter(2, early).HoldAfter(3, late), proxytest.JSON(200, proxytest.Completion("anew")))
	c := h.open(chat("hi", stream))
	c.event()
	c.event()
	second := h.open(chat("hi", stream))
	second.event()
	second.event()
	c.leave()
	h.handlers(1)
	early.Open()
	if got := second.event(); !strings.Contains(got, "theta") {
		t.Errorf("the call ends although a client reads it: %q", got)
	}
	reached, disk := h.holdCommits() // the cancelled call cannot land yet
	second.leave()
	proxytest.Wait(t, h.upstream.Requests()[0].Gone, "the end of the upstream request")
	proxytest.Wait(t, reached, "the commit")
	retry := make(chan response, 1)
	go func() { retry <- h.post(chat("hi")) }()
	h.inside(1, "(*call).admission")
	disk()
	if r := <-retry; r.cache() != "miss" || !strings.Contains(r.body, "anew") {
		t.Errorf("the retry shares the cancelled call's end: %d %s %s", r.status, r.cache(), r.body)
	}
	row := h.rows("")[0]
	if row.outcome != ledger.Failed || row.flags&ledger.ClientLeft == 0 || row.flags&ledger.UsageEstimated == 0 || row.used[0] != row.input || row.used[1] == 0 {
		t.Errorf("the row says %+v", row)
	}
	h.nothingHeld()
}

func TestTooManyDetachedCallsCancelTheOldest(t *testing.T) {
	h := newHarness(t, nil)
	h.server.Cache.Flights.DetachedLimit = 2
	gate := proxytest.NewGate()
	h.upstream.Reply(whole.HoldAfter(1, gate))
	for i := range 3 {
		c := h.open(chat(fmt.Sprint("hi ", i), stream))
		c.event()
		c.leave()
		h.handlers(0)
	}
	reader := h.open(chat("hi 3", stream)) // does not count
	reader.event()
	requests := h.upstream.Requests()
	proxytest.Wait(t, requests[0].Gone, "the end of the oldest")
	h.eventually("the oldest to land", func() bool { running, _ := h.server.Cache.Flights.Count(); return running == 3 })
	for i, r := range requests[1:] {
		select {
		case <-r.Gone:
			t.Errorf("request %d was cancelled as well", i+1)
		default:
		}
	}
	if _, detached := h.server.Cache.Flights.Count(); detached != 2 {
		t.Errorf("%d calls are detached", detached)
	}
	gate.Open()
	if got := reader.rest(); len(got) != 6 {
		t.Errorf("the call with a reader ends with %q", got)
	}
	for i, row := range h.rows("") {
		if want := map[bool]string{true: "too_many_detached", false: "stop"}[i == 0]; row.finish != want {
			t.Errorf("row %d says %+v", i, row)
		}
	}
	h.nothingHeld()
}

// A client that does not read holds up nobody but itself.
func TestAClientThatNeverReads(t *testing.T) {
	h := newHarness(t, func(p *Policy) { p.ResponseBody = 64 << 20 })
	piece := proxytest.Data(`{"choices":[{"index":0,"delta":{"content":"` + strings.Repeat("x", 64<<10) + `"}}]}`)
	var frames []string
	for range 96 { // 6 MiB, more than the sockets take in
		frames = append(frames, piece)
	}
	frames = append(frames, proxytest.Data(`{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":2}}`), proxytest.Done)
	gate := proxytest.NewGate()
	h.upstream.Reply(proxytest.Stream(frames...).HoldAfter(1, gate))
	slow := h.dial()
	if err := h.request(t.Context(), "/v1/chat/completions", chat("hi", stream)).Write(slow); err != nil {
		t.Fatal(err)
	}
	proxytest.Wait(t, gate.Reached(), "the upstream call")
	for _, outcome := range []string{"collapsed", "hit"} {
		c := h.open(chat("hi", stream))
		gate.Open()
		if got := c.r.Header.Get("X-LLMProxy-Cache"); got != outcome {
			t.Errorf("%s, want %s", got, outcome)
		}
		if got := c.rest(); len(got) != len(frames) {
			t.Errorf("%d events, want %d", len(got), len(frames))
		}
	}
	h.handlers(1) // the slow one's, which is stuck
	if h.stored() != 1 {
		t.Error("the answer is not stored while a client does not read")
	}
	r, err := http.ReadResponse(bufio.NewReader(slow), nil) // it begins to read after all
	if err != nil {
		t.Fatal(err)
	}
	if body, err := io.ReadAll(r.Body); err != nil || strings.Join(frames, "") != string(body) {
		t.Errorf("the slow client gets %d bytes, %v", len(body), err)
	}
}

// dial opens a connection with a buffer that does not grow to the proxy.
func (h *harness) dial() net.Conn {
	h.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(h.url, "http://"))
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() { conn.Close() })
	if err := conn.(*net.TCPConn).SetReadBuffer(64 << 10); err != nil {
		h.Fatal(err)
	}
	return conn
}

func TestACollapsedCallWaitsOnlySoLong(t *testing.T) {
	h := newHarness(t, func(p *Policy) { p.Default.Wait = 30 * time.Millisecond })
	gate := proxytest.NewGate()
	h.upstream.Reply(whole.Hold(gate))
	leader := make(chan response, 1)
	go func() { leader <- h.post(chat("hi")) }()
	proxytest.Wait(t, gate.Reached(), "the upstream call")
	r := h.post(chat("hi"))
	h.wantError(r, 503, "call_in_progress", "again")
	if after := r.header.Get("Retry-After"); after != "10" || r.header.Get("X-Should-Retry") != "true" || r.cache() != "collapsed" {
		t.Errorf("Retry-After %q, x-should-retry %q, %s", after, r.header.Get("X-Should-Retry"), r.cache())
	}
	h.checkAnswer(fault{status: 200, code: "call_in_progress"}, h.post(chat("hi", stream)))
	gate.Open()
	if r := <-leader; r.status != 200 || r.cache() != "miss" { // who leads has no such limit
		t.Errorf("the leader got %d %s", r.status, r.body)
	}
	if r := h.post(chat("hi")); r.cache() != "hit" {
		t.Errorf("then %s", r.cache())
	}
	if got := h.outcomes(); got[ledger.Miss] != 1 || got[ledger.Collapsed] != 2 || got[ledger.Hit] != 1 {
		t.Errorf("ledger %v", got)
	}
	if n := h.number(`SELECT sum(avoided_input) FROM call WHERE outcome = 3`); n != 0 {
		t.Errorf("%d tokens count as avoided by calls that got nothing", n)
	}
}

// The error of a call that was cancelled reaches those who attached meanwhile.
func TestACancelledCallSaysWhy(t *testing.T) {
	for _, cause := range []error{cache.ErrTooManyDetached, cache.ErrAbandoned, errShutdown} {
		e := toError((&exchange{ctx: cancelled(cause), upstream: &Upstream{}}).cause())
		if e.Code == "internal_error" || !strings.Contains(e.Message, "again") {
			t.Errorf("%v: %s", cause, e)
		}
	}
}

func cancelled(cause error) context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(cause)
	return ctx
}
