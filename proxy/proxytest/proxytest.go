// Package proxytest is an upstream for tests, which answers by a script and
// fails in every way that upstreams fail.
//
//	up := proxytest.New(t) // up.URL is its base URL
//	up.Reply(
//		proxytest.RateLimited("2"),
//		proxytest.Stream(proxytest.Chunks("Hello there", 4)...).ResetAfter(3),
//		proxytest.JSON(200, proxytest.Completion("Hello there")),
//	)
//	…
//	up.WaitFor(3)
//
// It listens on a real TCP port and writes HTTP/1.1 itself, so that a reset is
// a reset, a half-closed connection is half closed, and bytes go out exactly
// as the script says. Everything ends when the test ends.
//
// A test makes two things happen in a known order with a [Gate] and by waiting
// for requests, never by sleeping.
package proxytest

import (
	"bufio"
	"errors"
	"net"
	"net/http"
	"net/url"
	"sync"
	"testing"
	"time"
)

// patience bounds the waiting for what never comes. Nothing is measured by it.
const patience = 20 * time.Second

// Upstream is a listening server. Its methods are safe for concurrent use.
type Upstream struct {
	URL string // such as http://127.0.0.1:4711/v1

	t        testing.TB
	listener net.Listener
	quit     chan struct{} // closed by Close
	running  sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	conns    map[net.Conn]bool
	script   []Reply
	requests []*Request    // in the order in which their headers came
	arrived  chan struct{} // closed, and made anew, when one is complete
}

// Request is a request as it came.
type Request struct {
	Method string
	Path   string // with /v1, percent-decoded
	Query  url.Values
	Host   string
	Header http.Header
	Body   []byte

	// Gone is closed when the client has closed the connection before its
	// answer was complete.
	Gone <-chan struct{}

	// Guarded by Upstream.mu:
	gone     chan struct{}
	complete bool // the body has come, or broken off
	answered bool // Gone means nothing any more
}

// New starts an upstream that ends with the test. A request that comes before
// [Upstream.Reply] was called fails the test.
func New(t testing.TB) *Upstream {
	t.Helper()
	u := &Upstream{t: t, quit: make(chan struct{}), conns: map[net.Conn]bool{}, arrived: make(chan struct{})}
	u.listener = listen(t)
	u.URL = "http://" + u.listener.Addr().String() + "/v1"
	u.running.Go(u.accept)
	t.Cleanup(u.Close)
	return u
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("proxytest: %v", err)
	}
	return l
}

// Close stops listening, closes all connections and waits for their end.
// Later connections are refused. It may be called again.
func (u *Upstream) Close() {
	u.mu.Lock()
	if !u.closed {
		u.closed = true
		close(u.quit)
		u.listener.Close()
		for conn := range u.conns {
			conn.Close()
		}
	}
	u.mu.Unlock()
	u.running.Wait()
}

// Reply adds to the script. Each request takes the next reply, in the order in
// which the headers of requests come; the last reply is for all that follow.
func (u *Upstream) Reply(replies ...Reply) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.script = append(u.script, replies...)
}

// Always replaces what is left of the script by one reply for all requests.
func (u *Upstream) Always(reply Reply) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.script = []Reply{reply}
}

// Requests returns the requests so far whose body has come, or broken off.
func (u *Upstream) Requests() []Request {
	u.mu.Lock()
	defer u.mu.Unlock()
	var list []Request
	for _, r := range u.requests {
		if r.complete {
			list = append(list, *r)
		}
	}
	return list
}

// Count returns how many requests came so far; see [Upstream.Requests].
func (u *Upstream) Count() int { return len(u.Requests()) }

// WaitFor waits until n requests have come and returns all that have. It fails
// the test when they do not come.
func (u *Upstream) WaitFor(n int) []Request {
	u.t.Helper()
	timeout := time.After(patience)
	for {
		u.mu.Lock()
		arrived := u.arrived
		u.mu.Unlock()
		list := u.Requests()
		if len(list) >= n {
			return list
		}
		select {
		case <-arrived:
		case <-timeout:
			u.t.Fatalf("proxytest: waited for %d requests, %d came", n, len(list))
		}
	}
}

// Wait waits until ch is closed, such as [Request.Gone] or [Gate.Reached], and
// fails the test when that does not happen.
func Wait(t testing.TB, ch <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-ch:
	case <-time.After(patience):
		t.Fatalf("proxytest: waited in vain for this: %s", what)
	}
}

// RefusedURL returns a base URL at which connections are refused.
func RefusedURL(t testing.TB) string {
	t.Helper()
	l := listen(t)
	defer l.Close()
	return "http://" + l.Addr().String() + "/v1"
}

// ClosingURL returns a base URL at which each connection is accepted and
// closed at once, before a byte is read.
func ClosingURL(t testing.TB) string {
	t.Helper()
	l := listen(t)
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
			conn.Close()
		}
	})
	t.Cleanup(func() {
		l.Close()
		accepting.Wait()
	})
	return "http://" + l.Addr().String() + "/v1"
}

func (u *Upstream) accept() {
	for {
		conn, err := u.listener.Accept()
		if err != nil {
			if !errors.Is(err, net.ErrClosed) {
				u.t.Errorf("proxytest: accepting: %v", err)
			}
			return
		}
		u.mu.Lock()
		if u.closed {
			conn.Close()
		} else {
			u.conns[conn] = true
			u.running.Go(func() { u.serve(conn.(*net.TCPConn)) })
		}
		u.mu.Unlock()
	}
}

// serve answers the requests of one connection, one after the other.
func (u *Upstream) serve(conn *net.TCPConn) {
	defer func() {
		conn.Close()
		u.mu.Lock()
		delete(u.conns, conn)
		u.mu.Unlock()
	}()
	in := bufio.NewReader(conn)
	for {
		req, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		r, reply, ok := u.admit(req)
		if !ok {
			return
		}
		x := &exchange{up: u, conn: conn, request: r}
		if keep := x.run(reply, in, req.Body); !keep || req.Close {
			return
		}
	}
}

// admit records a request whose headers have come and picks its reply.
func (u *Upstream) admit(req *http.Request) (*Request, Reply, bool) {
	gone := make(chan struct{})
	r := &Request{Method: req.Method, Path: req.URL.Path, Query: req.URL.Query(), Host: req.Host, Header: req.Header,
		Gone: gone, gone: gone}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.requests = append(u.requests, r)
	if len(u.script) == 0 {
		if !u.closed {
			u.t.Errorf("proxytest: no reply is scripted for %s %s", req.Method, req.URL)
		}
		return nil, Reply{}, false
	}
	reply := u.script[0]
	if len(u.script) > 1 {
		u.script = u.script[1:]
	}
	return r, reply, true
}

// setBody tells those who wait that a request is complete.
func (u *Upstream) setBody(r *Request, body []byte) {
	u.mu.Lock()
	defer u.mu.Unlock()
	r.Body, r.complete = body, true
	close(u.arrived)
	u.arrived = make(chan struct{})
}

// leave records that the client has gone, unless it has been answered.
func (u *Upstream) leave(r *Request) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !r.answered && !u.closed {
		r.answered = true
		close(r.gone)
	}
}

// answer records that whatever the client does from now on is its right.
func (u *Upstream) answer(r *Request) {
	u.mu.Lock()
	defer u.mu.Unlock()
	r.answered = true
}
