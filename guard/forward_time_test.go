package guard

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// inBubbleForward runs f with a Forwarder whose downstream is at the other end of
// a pipe, and a clock that only moves while everybody sleeps. The lease is the
// default minute.
func inBubbleForward(t *testing.T, downstream func(net.Conn), f func(*testing.T, *Forwarder)) {
	inBubble(t, func(t *testing.T, g *Guard) {
		rt := routeTo(t, "http://api.example.com")
		rt.Lease = 0
		fw := &Forwarder{Guard: g, Routes: []Route{rt}, Identify: everyone}
		fw.resolve = func(context.Context, string) ([]netip.Addr, error) {
			return []netip.Addr{netip.MustParseAddr("93.184.215.14")}, nil
		}
		var serving sync.WaitGroup
		fw.connect = func(context.Context, netip.AddrPort) (net.Conn, error) {
			near, far := net.Pipe()
			serving.Go(func() {
				defer far.Close()
				downstream(far)
			})
			return near, nil
		}
		f(t, fw)
		if err := fw.Wait(t.Context()); err != nil {
			t.Error(err)
		}
		serving.Wait()
	})
}

// answering answers with a status, some time after the request.
func answering(after time.Duration, status string) func(net.Conn) {
	return func(conn net.Conn) {
		req, err := http.ReadRequest(bufio.NewReader(conn))
		if err != nil {
			return
		}
		io.Copy(io.Discard, req.Body)
		time.Sleep(after)
		io.WriteString(conn, "HTTP/1.1 "+status+"\r\nContent-Length: 4\r\n\r\nmade")
	}
}

// silent takes a request and says nothing until it is hung up on.
func silent(conn net.Conn) { io.Copy(io.Discard, conn) }

func askIn(ctx context.Context, f *Forwarder, headers ...string) *forwardedAnswer {
	r := httptest.NewRequest(http.MethodPost, forwardBase+"row", strings.NewReader(`{"a":1}`)).WithContext(ctx)
	r.Header.Set("Guard-Authorization", "Bearer acme")
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	f.ServeHTTP(w, r)
	return &forwardedAnswer{w.Code, w.Header(), w.Body.String()}
}

func TestACallIsGivenUpBeforeItsLeaseEnds(t *testing.T) {
	inBubbleForward(t, silent, func(t *testing.T, f *Forwarder) {
		begun := time.Now()
		a := askIn(t.Context(), f)
		a.is(t, 504, "unknown", "effect_outcome_unknown")
		if passed := time.Since(begun); passed > 55*time.Second || passed < 54*time.Second {
			t.Errorf("given up after %v, want 55 s", passed)
		}
		if a.header.Get("X-Should-Retry") != "false" || a.header.Get("Retry-After") != "" {
			t.Errorf("held, and told %v", a.header)
		}
		begun = time.Now()
		askIn(t.Context(), f, "Guard-On-Unknown", "retry").is(t, 409, "unknown", "effect_outcome_unknown") // promised one grant
		if passed := time.Since(begun); passed > time.Second {
			t.Errorf("held after %v", passed)
		}
	})
}

func TestARetryWaitsForTheDrain(t *testing.T) {
	inBubbleForward(t, silent, func(t *testing.T, f *Forwarder) {
		a := askIn(t.Context(), f, "Guard-On-Unknown", "retry", "Guard-Lease", "10")
		a.is(t, 504, "unknown", "effect_outcome_unknown")
		if a.header.Get("X-Should-Retry") != "true" || a.header.Get("Retry-After") != "10" {
			t.Errorf("a retry goes on after the drain of 10 s, and is told %v", a.header)
		}
		begun := time.Now()
		askIn(t.Context(), f, "Guard-On-Unknown", "retry", "Guard-Lease", "10", "Guard-Wait", "9").is(t, 409, "unknown", "effect_in_progress")
		if passed := time.Since(begun); passed != 9*time.Second {
			t.Errorf("waited for %v, want 9 s", passed)
		}
		b := askIn(t.Context(), f, "Guard-On-Unknown", "retry", "Guard-Lease", "10")
		b.is(t, 504, "unknown", "")
		if passed := time.Since(begun); b.header.Get("Guard-Fence") != "2" || passed > 16*time.Second || passed < 14*time.Second {
			t.Errorf("fence %s after %v, want 2 after the drain of 10 s and a call of 5 s", b.header.Get("Guard-Fence"), passed)
		}
	})
}

func TestAWaiterWaitsForItsTime(t *testing.T) {
	inBubbleForward(t, answering(40*time.Second, "201 Created"), func(t *testing.T, f *Forwarder) {
		var wg sync.WaitGroup
		begun := time.Now()
		wg.Go(func() { askIn(t.Context(), f).is(t, 201, "completed", "made") })
		synctest.Wait()
		for wait, want := range map[string]time.Duration{"0": 0, "7": 7 * time.Second, "": 25 * time.Second} {
			wg.Go(func() {
				var headers []string
				if wait != "" {
					headers = []string{"Guard-Wait", wait}
				}
				a := askIn(t.Context(), f, headers...)
				a.is(t, 409, "pending", "effect_in_progress")
				if passed := time.Since(begun); passed != want {
					t.Errorf("Guard-Wait %q: told after %v, want %v", wait, passed, want)
				}
			})
		}
		wg.Go(func() {
			a := askIn(t.Context(), f, "Guard-Wait", "55")
			a.is(t, 201, "completed", "made")
			if passed := time.Since(begun); passed != 40*time.Second {
				t.Errorf("answered after %v, want 40 s", passed)
			}
		})
		wg.Wait()
	})
}

func TestACallGoesOnWithoutItsClient(t *testing.T) {
	inBubbleForward(t, answering(40*time.Second, "201 Created"), func(t *testing.T, f *Forwarder) {
		patient, leave := context.WithTimeoutCause(t.Context(), 20*time.Second, errors.New("the client has left"))
		defer leave()
		begun := time.Now()
		if a := askIn(patient, f); a.body != "" || time.Since(begun) != 20*time.Second {
			t.Errorf("a client that left got %q after %v", a.body, time.Since(begun))
		}
		waiting, leave := context.WithTimeout(t.Context(), 5*time.Second)
		defer leave()
		if a := askIn(waiting, f); a.body != "" {
			t.Errorf("a waiter that left got %q", a.body)
		}
		askIn(t.Context(), f).is(t, 201, "completed", "made")
		if passed := time.Since(begun); passed != 40*time.Second {
			t.Errorf("the next client was answered after %v, want 40 s", passed)
		}
		if effects, _, err := f.Guard.List(t.Context(), Query{NS: "acme/default"}); err != nil || len(effects) != 1 || effects[0].Record.Fence != 1 {
			t.Errorf("%+v, %v", effects, err)
		}
	})
}

// TestADialThatTakesTooLong comes back with a connection when the lease is over:
// nothing may be sent on it.
func TestADialThatTakesTooLong(t *testing.T) {
	got := make(chan int, 1)
	downstream := func(conn net.Conn) {
		n, _ := io.Copy(io.Discard, conn)
		got <- int(n)
	}
	inBubbleForward(t, downstream, func(t *testing.T, f *Forwarder) {
		connect := f.connect
		f.connect = func(ctx context.Context, addr netip.AddrPort) (net.Conn, error) {
			time.Sleep(2 * time.Minute) // whatever the context says
			return connect(ctx, addr)
		}
		askIn(t.Context(), f).is(t, 502, "failed", "downstream_unreachable")
		time.Sleep(2 * time.Minute)
		if n := <-got; n > 0 {
			t.Errorf("%d bytes were sent after the lease", n)
		}
	})
}

func TestADownstreamThatAsksToWait(t *testing.T) {
	first := true
	downstream := func(conn net.Conn) {
		status := "201 Created"
		if first {
			status = "429 Too Many Requests\r\nRetry-After: 20"
		}
		first = false
		answering(0, status)(conn)
	}
	inBubbleForward(t, downstream, func(t *testing.T, f *Forwarder) {
		begun := time.Now()
		askIn(t.Context(), f).is(t, 429, "failed", "made")
		a := askIn(t.Context(), f, "Guard-Wait", "0")
		a.is(t, 409, "failed", "retry_later")
		if a.header.Get("Retry-After") != "20" || a.header.Get("X-Should-Retry") != "true" {
			t.Errorf("told %v", a.header)
		}
		askIn(t.Context(), f).is(t, 201, "completed", "made")
		if passed := time.Since(begun); passed != 20*time.Second {
			t.Errorf("sent again after %v, want 20 s", passed)
		}
	})
}
