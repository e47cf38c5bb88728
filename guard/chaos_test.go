package guard

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path"
	"strings"
	"sync"
	"testing"
	"time"
)

// fault is what a chaotic downstream does with one request.
type fault string

const (
	ok            fault = "ok"
	slow          fault = "slow"
	readThenClose fault = "read, then close"
	closeAtAccept fault = "close at accept"
	reset         fault = "reset"
	noAnswer      fault = "no answer"
	errorAfter    fault = "500 after the effect"
	errorBefore   fault = "500 before the effect"
	bodyCut       fault = "201, body cut"
	redirect      fault = "307"
	tooMany       fault = "429"
	duplicate     fault = "409 for a duplicate"
)

// chaos is a downstream that makes effects and faults. Each POST makes one
// effect for the unit in its body, unless the fault comes before it.
type chaos struct {
	t        testing.TB
	listener net.Listener
	idemp    bool          // one effect for each Idempotency-Key
	seen     chan struct{} // gets a value for each connection that was taken up
	gate     chan struct{} // not closed: every answer waits

	mu      sync.Mutex
	script  []fault // for the next requests; then ok
	effects map[string]int
	keys    map[string]bool
	posts   int
	conns   []net.Conn
	serving sync.WaitGroup
}

func newChaos(t testing.TB, script ...fault) *chaos {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d := &chaos{t: t, listener: listener, script: script, seen: make(chan struct{}, 100), gate: make(chan struct{}),
		effects: map[string]int{}, keys: map[string]bool{}}
	d.serving.Go(d.accept)
	t.Cleanup(func() {
		listener.Close()
		d.mu.Lock()
		for _, conn := range d.conns {
			conn.Close()
		}
		d.mu.Unlock()
		d.serving.Wait()
	})
	return d
}

func (d *chaos) url() string { return "http://" + d.listener.Addr().String() }

func (d *chaos) accept() {
	for {
		conn, err := d.listener.Accept()
		if err != nil {
			return
		}
		d.mu.Lock()
		d.conns = append(d.conns, conn)
		early := len(d.script) > 0 && d.script[0] == closeAtAccept
		if early {
			d.script = d.script[1:]
		}
		d.mu.Unlock()
		d.serving.Go(func() {
			if early {
				d.seen <- struct{}{}
				<-d.gate
				conn.Close()
				return
			}
			d.handle(conn.(*net.TCPConn))
		})
	}
}

func (d *chaos) next() fault {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.posts++
	if len(d.script) == 0 {
		return ok
	}
	f := d.script[0]
	d.script = d.script[1:]
	return f
}

func (d *chaos) act(unit, key string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.idemp && d.keys[key] {
		return
	}
	d.keys[key] = true
	d.effects[unit]++
}

func (d *chaos) count(unit string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.effects[unit]
}

func (d *chaos) handle(conn *net.TCPConn) {
	req, err := http.ReadRequest(bufio.NewReader(conn))
	if err != nil {
		conn.Close()
		return
	}
	body, err := io.ReadAll(req.Body)
	if err != nil {
		conn.Close()
		return
	}
	if req.Method == http.MethodGet { // a probe: /made/{unit}
		unit := path.Base(req.URL.Path)
		answer := `{"made":[]}`
		if d.count(unit) > 0 {
			answer = `{"made":["` + unit + `"]}`
		}
		d.answer(conn, "200 OK", answer)
		return
	}
	var sent struct{ Unit string }
	if err := json.Unmarshal(body, &sent); err != nil {
		d.t.Errorf("the downstream got %q: %v", body, err)
	}
	f := d.next()
	switch f {
	case errorBefore, redirect, tooMany, duplicate:
	default:
		d.act(sent.Unit, req.Header.Get("Idempotency-Key"))
	}
	d.seen <- struct{}{}
	<-d.gate
	d.reply(conn, f, sent.Unit)
}

func (d *chaos) reply(conn *net.TCPConn, f fault, unit string) {
	made := `{"id":"r-` + unit + `"}`
	switch f {
	case slow:
		time.Sleep(100 * time.Millisecond)
		d.answer(conn, "201 Created", made)
	case readThenClose:
		conn.Close()
	case reset:
		conn.SetLinger(0)
		conn.Close()
	case noAnswer: // the connection stays open until the test ends
	case errorAfter, errorBefore:
		d.answer(conn, "500 Internal Server Error", `{"oops":true}`)
	case bodyCut:
		fmt.Fprintf(conn, "HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n%s", made)
		conn.Close()
	case redirect:
		d.answer(conn, "307 Temporary Redirect\r\nLocation: "+d.url()+"/elsewhere", "")
	case tooMany:
		d.answer(conn, "429 Too Many Requests\r\nRetry-After: 1", `{"slow":"down"}`)
	case duplicate:
		d.answer(conn, "409 Conflict", `{"exists":true}`)
	default:
		d.answer(conn, "201 Created", made)
	}
}

func (d *chaos) answer(conn net.Conn, status, body string) {
	fmt.Fprintf(conn, "HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", status, len(body), body)
	conn.Close()
}

// faults are the scripts of a first attempt and what is right about them; every
// later request of a unit meets a sound downstream.
var faults = []struct {
	script  []fault
	acted   int // effects that the first attempt makes
	outcome Outcome
	status  int // that the first client gets
}{
	{[]fault{ok}, 1, OutcomeDone, 201},
	{[]fault{slow}, 1, OutcomeDone, 201},
	{[]fault{readThenClose}, 1, OutcomeUnknown, 504},
	{[]fault{closeAtAccept}, 0, OutcomeUnknown, 504},
	{[]fault{reset}, 1, OutcomeUnknown, 504},
	{[]fault{noAnswer}, 1, OutcomeUnknown, 504},
	{[]fault{errorAfter}, 1, OutcomeUnknown, 500},
	{[]fault{errorBefore}, 0, OutcomeUnknown, 500},
	{[]fault{bodyCut}, 1, OutcomeDone, 201},
	{[]fault{redirect}, 0, OutcomeNone, 307},
	{[]fault{tooMany}, 0, OutcomeNone, 429},
	{[]fault{errorAfter, duplicate}, 1, OutcomeUnknown, 500},
}

// policies are how a step may treat the unknown, and the effects and the state
// that must come of an unknown first attempt that made so many effects.
var policies = map[string]struct {
	set  func(*Route, string)
	want func(acted int, repeats bool) (effects int, final State)
}{
	"hold": {func(*Route, string) {}, func(acted int, _ bool) (int, State) { return acted, Unknown }},
	"retry": {func(r *Route, _ string) { r.OnUnknown = Retry }, func(acted int, refuses bool) (int, State) {
		if refuses { // the downstream itself knows duplicates
			return acted, Completed
		}
		return acted + 1, Completed
	}},
	"idempotent": {func(r *Route, _ string) {
		r.Idempotency = &DownstreamIdempotency{Header: "Idempotency-Key", Retention: time.Hour}
	}, func(int, bool) (int, State) { return 1, Completed }},
	"probe": {func(r *Route, url string) {
		r.OnUnknown, r.Probe = Probe, &DownstreamProbe{URL: url + "/made/{/unit}", Found: "/made/0"}
	}, func(int, bool) (int, State) { return 1, Completed }},
}

// TestChaos sends each unit of work until it is settled, through every fault of
// the downstream, every policy, and with a client that stays or leaves, and then
// counts the effects that the downstream has made.
func TestChaos(t *testing.T) {
	g := newGuard(t)
	g.Step = func(string) Step { return Step{Drain: time.Millisecond} }
	for i, c := range faults {
		for name, policy := range policies {
			for _, leaves := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%s/leaves=%v", c.script[len(c.script)-1], name, leaves), func(t *testing.T) {
					t.Parallel()
					d := newChaos(t, c.script...)
					d.idemp = name == "idempotent"
					rt := routeTo(t, d.url())
					rt.Step = fmt.Sprintf("%d-%s-%v", i, name, leaves)
					rt.Lease = minForwardLease // so that a call without an answer takes a second
					rt.Select, rt.DuplicateStatuses = []string{"/unit"}, []int{409}
					policy.set(&rt, d.url())
					f := forward(t, g, rt)

					first := firstAttempt(t, f, d, rt.Step, leaves)
					if first != nil && first.status != c.status {
						t.Errorf("the first client got %d %s, want %d", first.status, first.body, c.status)
					}
					effects, final := 1, Completed
					if c.outcome == OutcomeUnknown {
						effects, final = policy.want(c.acted, len(c.script) > 1)
					}
					var last *forwardedAnswer
					for range 4 {
						last = sendUnit(t, f, rt.Step)
					}
					if n := d.count("u1"); n != effects {
						t.Errorf("%d effects, want %d", n, effects)
					}
					if state := f.record(last).State; state != final {
						t.Errorf("the state is %s, want %s", state, final)
					}
					switch {
					case final == Unknown && (last.status != 409 || last.header.Get("X-Should-Retry") != "false"):
						t.Errorf("the last client got %d %s", last.status, last.body)
					case final == Completed && last.header.Get("Idempotent-Replayed") != "true":
						t.Errorf("the last client got %d %v", last.status, last.header)
					}
					if first != nil && c.outcome == OutcomeDone && last.body != first.body {
						t.Errorf("replayed %q, first %q", last.body, first.body)
					}
					if cut := last.header.Get("Guard-Truncated") != ""; cut != (c.script[0] == bodyCut) {
						t.Errorf("truncated is %v", cut)
					}
				})
			}
		}
	}
}

func sendUnit(t *testing.T, f *forwarder, step string) *forwardedAnswer {
	t.Helper()
	a, err := f.do(t.Context(), http.MethodPost, forwardBase+step, `{"unit":"u1","text":"hello"}`)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// firstAttempt sends the unit; a client that leaves does so once the downstream
// is at work, and gets nothing.
func firstAttempt(t *testing.T, f *forwarder, d *chaos, step string, leaves bool) *forwardedAnswer {
	t.Helper()
	if !leaves {
		close(d.gate)
		return sendUnit(t, f, step)
	}
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error)
	go func() {
		_, err := f.do(ctx, http.MethodPost, forwardBase+step, `{"unit":"u1","text":"hello"}`)
		left <- err
	}()
	<-d.seen
	leave()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("the client that left got %v", err)
	}
	close(d.gate)
	if err := f.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	return nil
}

// TestTheTransportSendsOnce repeats what makes net/http send a request a second
// time: a connection that was used before dies after it took the request, whose
// Idempotency-Key makes it look safe to repeat. With a transport that keeps
// connections the downstream makes two effects of one grant; with the
// forwarder's own, one, and the outcome is unknown.
func TestTheTransportSendsOnce(t *testing.T) {
	for _, body := range []string{"", `{"n":1}`} {
		for _, kept := range []bool{false, true} {
			t.Run(fmt.Sprintf("body=%v/kept=%v", body != "", kept), func(t *testing.T) {
				d := newDyingKeeper(t)
				rt := routeTo(t, "http://"+d.listener.Addr().String())
				rt.Idempotency = &DownstreamIdempotency{Header: "Idempotency-Key"}
				f := forward(t, newGuard(t), rt)
				if kept {
					shared := &http.Transport{}
					t.Cleanup(shared.CloseIdleConnections)
					f.transport = func(*line) http.RoundTripper { return &keeping{shared, []byte(body)} }
				}
				f.post(body, "Idempotency-Key", "first").is(t, 201, "completed", "")
				second := f.post(body, "Idempotency-Key", "second")
				if kept {
					if n := d.count(2); n != 2 {
						t.Fatalf("the transport that keeps connections made %d effects; this test no longer shows what it is for", n)
					}
					return
				}
				second.is(t, 504, "unknown", "effect_outcome_unknown")
				if n := d.count(2); n != 1 {
					t.Errorf("%d effects of one grant", n)
				}
				if len(d.conns) != 2 {
					t.Errorf("%d connections for two grants", len(d.conns))
				}
			})
		}
	}
}

// keeping is a transport as net/http makes it: connections are used again, and a
// body can be read again.
type keeping struct {
	shared *http.Transport
	body   []byte
}

func (k *keeping) RoundTrip(r *http.Request) (*http.Response, error) {
	if len(k.body) > 0 {
		r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(k.body)), nil }
	}
	return k.shared.RoundTrip(r)
}

// dyingKeeper is a downstream that makes an effect of each request. It answers
// the first on a connection and keeps it open; a second one there is acted on,
// and the connection closed without an answer.
type dyingKeeper struct {
	listener net.Listener
	mu       sync.Mutex
	conns    []net.Conn
	effects  map[string]int // by Idempotency-Key
	order    []string       // of the keys
}

func newDyingKeeper(t *testing.T) *dyingKeeper {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d := &dyingKeeper{listener: listener, effects: map[string]int{}}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			d.mu.Lock()
			d.conns = append(d.conns, conn)
			d.mu.Unlock()
			serving.Go(func() { d.handle(conn) })
		}
	})
	t.Cleanup(func() {
		listener.Close()
		d.mu.Lock()
		for _, conn := range d.conns {
			conn.Close()
		}
		d.mu.Unlock()
		serving.Wait()
	})
	return d
}

func (d *dyingKeeper) handle(conn net.Conn) {
	defer conn.Close()
	reader := bufio.NewReader(conn)
	for n := 0; ; n++ {
		req, err := http.ReadRequest(reader)
		if err != nil {
			return
		}
		if _, err := io.Copy(io.Discard, req.Body); err != nil {
			return
		}
		second := d.act(req.Header.Get("Idempotency-Key"))
		// The second unit's first request dies, on whatever connection it came.
		if n > 0 || second {
			return
		}
		io.WriteString(conn, "HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}")
		if strings.EqualFold(req.Header.Get("Connection"), "close") {
			return
		}
	}
}

// act counts an effect and tells whether it is the first of the second unit.
func (d *dyingKeeper) act(key string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.effects[key]++
	if d.effects[key] == 1 {
		d.order = append(d.order, key)
		return len(d.order) == 2
	}
	return false
}

// count is the number of effects of the n-th unit.
func (d *dyingKeeper) count(n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.effects[d.order[n-1]]
}
