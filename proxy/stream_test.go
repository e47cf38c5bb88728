package proxy

import (
	"bufio"
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"llmproxy/cache"
	"llmproxy/ledger"
	"llmproxy/proxy/proxytest"
	"llmproxy/store"
)

// client is an answer that is read bit by bit.
type client struct {
	h     *harness
	r     *http.Response
	in    *bufio.Reader
	leave context.CancelFunc
}

// open sends a request and returns when the answer's header is there.
func (h *harness) open(body string, headers ...string) *client {
	h.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	h.Cleanup(cancel)
	r, err := http.DefaultClient.Do(h.request(ctx, "/v1/chat/completions", body, headers...))
	if err != nil {
		h.Fatal(err)
	}
	return &client{h: h, r: r, in: bufio.NewReader(r.Body), leave: func() { cancel(); r.Body.Close() }}
}

// event reads the next event, "" at the clean end of the stream.
func (c *client) event() string {
	c.h.Helper()
	var event strings.Builder
	for {
		line, err := c.in.ReadString('\n')
		event.WriteString(line)
		if err != nil {
			if event.Len() > 0 || err.Error() != "EOF" {
				c.h.Fatalf("the stream broke off after %q: %v", event.String(), err)
			}
			return ""
		}
		if line == "\n" {
			return event.String()
		}
	}
}

// rest reads all that comes until the clean end.
func (c *client) rest() (events []string) {
	c.h.Helper()
	for e := c.event(); e != ""; e = c.event() {
		events = append(events, e)
	}
	return events
}

// What an upstream sends is on its way to the client at once, byte for byte but
// for the usage chunk, which only those see who asked.
func TestEventsGoThroughAsTheyCome(t *testing.T) {
	chunks := proxytest.Chunks(wholeText, 4)
	chunks = slices.Insert(chunks, 2, ": a comment\n\n", "event: message\nid: 7\ndata:{\"choices\":[], \"x\" : 1}\n\n")
	usage := len(chunks) - 2
	for _, options := range []string{"", `,"stream_options":{"include_usage":true}`, `,"stream_options":{"include_usage":false}`} {
		t.Run(options, func(t *testing.T) {
			h := newHarness(t, nil)
			gates := make([]*proxytest.Gate, len(chunks))
			reply := proxytest.Stream(chunks...)
			for i := range gates {
				gates[i] = proxytest.NewGate()
				reply = reply.HoldAfter(i+1, gates[i])
			}
			h.upstream.Reply(reply)
			c := h.open(chat("hi", stream, options))
			for i, want := range chunks[:len(chunks)-1] {
				if i != usage || strings.Contains(options, "true") {
					if got := c.event(); got != want { // although the upstream waits
						t.Fatalf("event %d: %q, want %q", i, got, want)
					}
				}
				gates[i].Open()
			}
			if got := c.rest(); !slices.Equal(got, []string{proxytest.Done}) {
				t.Errorf("at the end: %q", got)
			}
			gates[len(chunks)-1].Open()
			for name, want := range map[string]string{"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-store",
				"X-Accel-Buffering": "no", "X-Llmproxy-Cache": "miss"} {
				if got := c.r.Header.Get(name); got != want {
					t.Errorf("%s: %q, want %q", name, got, want)
				}
			}
			if row := h.lastRow(); row.used != [2]int64{11, 7} {
				t.Errorf("the usage is lost: %+v", row)
			}
			if !strings.Contains(string(h.upstream.Requests()[0].Body), `"stream_options":{"include_usage":true}`) {
				t.Errorf("the upstream was not asked for its usage: %s", h.upstream.Requests()[0].Body)
			}
		})
	}
}

// No client sees the end of an answer before it is stored.
func TestTheEndIsHeldUntilTheAnswerIsDurable(t *testing.T) {
	for _, form := range []string{"", stream} {
		t.Run(form, func(t *testing.T) {
			h := newHarness(t, nil)
			upstream := proxytest.NewGate()
			if form == stream {
				h.upstream.Reply(whole.HoldAfter(6, upstream)) // all but the usage and [DONE]
			} else {
				h.upstream.Reply(proxytest.JSON(200, proxytest.Completion(wholeText)).HoldAfter(0, upstream))
			}
			end := make(chan string, 1)
			if form == stream {
				c := h.open(chat("hi", form))
				for i := range 6 {
					if e := c.event(); e == "" || e == proxytest.Done {
						t.Fatalf("event %d is %q", i, e)
					}
				}
				go func() { end <- strings.Join(c.rest(), "") }()
			} else {
				go func() { end <- h.post(chat("hi")).body }()
			}
			proxytest.Wait(t, upstream.Reached(), "the answer")
			reached, disk := h.holdCommits()
			upstream.Open()
			proxytest.Wait(t, reached, "the commit")
			select {
			case got := <-end:
				t.Errorf("the client saw %q before the answer was stored", got)
			case <-time.After(100 * time.Millisecond):
			}
			if n := h.stored(); n != 0 {
				t.Errorf("%d answers are stored before the commit", n)
			}
			disk()
			if got := <-end; form == stream && got != proxytest.Done || form == "" && !strings.Contains(got, wholeText) {
				t.Errorf("the end is %q", got)
			}
			if n := h.stored(); n != 1 {
				t.Errorf("%d answers are stored when the client has seen the end", n)
			}
		})
	}
}

// holdCommits lets every commit wait until release is called. reached is closed
// when the first one waits.
func (h *harness) holdCommits() (reached <-chan struct{}, release func()) {
	waiting, free := make(chan struct{}), make(chan struct{})
	seen, release := sync.OnceFunc(func() { close(waiting) }), sync.OnceFunc(func() { close(free) })
	h.commits.set(func(commit func() error) error {
		seen()
		<-free
		return commit()
	})
	h.Cleanup(release)
	return waiting, release
}

// stored is how many answers are in the database at this moment.
func (h *harness) stored() (n int) {
	h.Helper()
	h.view(func(tx *store.Tx) error {
		_, err := tx.Get(`SELECT count(*) FROM entry`, nil, &n)
		return err
	})
	return n
}

// Who joins late gets every byte from the first, in either form.
func TestAFollowerThatJoinsInMidStreamMissesNothing(t *testing.T) {
	h := newHarness(t, nil)
	gate := proxytest.NewGate()
	h.upstream.Reply(whole.HoldAfter(3, gate))
	leader := h.open(chat("hi", stream))
	begun := []string{leader.event(), leader.event(), leader.event()}
	follower := h.open(chat("hi", stream))
	if got := []string{follower.event(), follower.event(), follower.event()}; !slices.Equal(got, begun) {
		t.Errorf("the follower's first events are %q, want %q", got, begun)
	}
	if got := follower.r.Header.Get("X-LLMProxy-Cache"); got != "collapsed" {
		t.Errorf("X-LLMProxy-Cache: %s", got)
	}
	asJSON := make(chan response, 1)
	go func() { asJSON <- h.post(chat("hi")) }()
	h.waiting(3)
	gate.Open()
	rest := leader.rest()
	if got := follower.rest(); !slices.Equal(got, rest) || len(rest) != 4 {
		t.Errorf("the follower ends with %q, want %q", got, rest)
	}
	late := h.open(chat("hi", stream))
	if got := late.rest(); !slices.Equal(got, append(begun, rest...)) || late.r.Header.Get("X-LLMProxy-Cache") != "hit" {
		t.Errorf("a hit gets %q", got)
	}
	whole := <-asJSON
	if text, err := contentOf(whole.body, false); text != wholeText || err != nil || whole.cache() != "collapsed" {
		t.Errorf("as JSON: %s %q %v", whole.cache(), text, err)
	}
	if n := h.upstream.Count(); n != 1 {
		t.Errorf("%d upstream calls", n)
	}
}

// A collapsed stream is answered at once, and both kinds of clients are told by
// comments that the connection lives.
func TestACollapsedStreamIsAnsweredAtOnce(t *testing.T) {
	h := newHarness(t, nil)
	gate := proxytest.NewGate()
	h.upstream.Reply(whole.Hold(gate))
	answered := make(chan response, 1)
	go func() { answered <- h.post(chat("hi", stream)) }()
	proxytest.Wait(t, gate.Reached(), "the upstream call")
	follower := h.open(chat("hi", stream)) // returns although nothing has come
	if follower.r.StatusCode != 200 || follower.r.Header.Get("X-LLMProxy-Cache") != "collapsed" {
		t.Errorf("%d %v", follower.r.StatusCode, follower.r.Header)
	}
	gate.Open()
	if got := strings.Join(follower.rest(), ""); got != (<-answered).body {
		t.Errorf("the follower got %q", got)
	}
}

// recorder is a ResponseWriter that tells of every write.
type recorder struct {
	header http.Header
	writes chan string
}

func (r *recorder) Header() http.Header { return r.header }
func (r *recorder) WriteHeader(int)     {}
func (r *recorder) FlushError() error   { return nil }
func (r *recorder) Write(p []byte) (int, error) {
	r.writes <- string(p)
	return len(p), nil
}

// Silence is filled with comments, between events only and on streams only. The
// clock is the bubble's: nobody waits.
func TestSilenceIsFilledWithComments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := &cache.Recording{}
		w := &recorder{http.Header{}, make(chan string, 100)}
		c := &call{w: w, r: httptest.NewRequestWithContext(t.Context(), "POST", "/", nil), row: &ledger.Call{Outcome: ledger.Miss}, step: &Step{}, dialect: chatDialect,
			view: view{Stream: true}}
		done := make(chan error, 1)
		go func() { done <- c.replyStream(rec) }()
		take := func() (got []string) {
			synctest.Wait()
			for {
				select {
				case s := <-w.writes:
					got = append(got, s)
				default:
					return got
				}
			}
		}
		head := cache.Head{Status: 200, Form: cache.SSE, Header: http.Header{}}
		const comment, event = ": keep-alive\n\n", "data: {}\n\n"
		for _, tt := range []struct {
			after time.Duration
			then  func()
			want  []string
		}{
			{keepAliveEvery - time.Second, nil, nil},
			{time.Second, nil, []string{comment}},
			{2 * keepAliveEvery, nil, []string{comment, comment}},
			{keepAliveEvery - time.Second, func() { rec.Start(head); rec.Append([]byte(event)) }, []string{event}},
			{keepAliveEvery - time.Second, nil, nil}, // the event has broken the silence
			{time.Second, nil, []string{comment}},
			{0, func() { rec.Finish(cache.Origin{}, nil, []byte(proxytest.Done)) }, []string{proxytest.Done}},
		} {
			time.Sleep(tt.after)
			synctest.Wait()
			if tt.then != nil {
				tt.then()
			}
			if got := take(); !slices.Equal(got, tt.want) {
				t.Errorf("after %v: %q, want %q", tt.after, got, tt.want)
			}
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		time.Sleep(time.Hour)
		if got := take(); got != nil {
			t.Errorf("after the end: %q", got)
		}
	})
}

// A client that wants JSON gets no comments: nothing may stand before its body.
func TestSilenceBeforeJSONStaysSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := &cache.Recording{}
		w := &recorder{http.Header{}, make(chan string, 100)}
		c := &call{w: w, r: httptest.NewRequestWithContext(t.Context(), "POST", "/", nil), row: &ledger.Call{Outcome: ledger.Miss}, step: &Step{}, dialect: chatDialect}
		done := make(chan error, 1)
		go func() { done <- c.replyWhole(rec) }()
		time.Sleep(time.Hour)
		synctest.Wait()
		if len(w.writes) != 0 {
			t.Errorf("%q was written", <-w.writes)
		}
		rec.Start(cache.Head{Status: 200, Form: cache.JSON})
		rec.Finish(cache.Origin{}, nil, []byte("{}"))
		if err := <-done; err != nil || <-w.writes != "{}" {
			t.Errorf("%v", err)
		}
	})
}
