package guard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"llmproxy/store"
	"llmproxy/store/storetest"
)

// statuses answers each request with the next status, the last one for ever.
func statuses(list ...int) http.HandlerFunc {
	var n atomic.Int64
	return func(w http.ResponseWriter, _ *http.Request) {
		i := int(n.Add(1)) - 1
		w.WriteHeader(list[min(i, len(list)-1)])
		fmt.Fprint(w, "answer ", i+1)
	}
}

// atOnce drains at once, so that a policy of Retry can act.
func atOnce(string) Step { return Step{Drain: time.Millisecond} }

func TestWaitersGetTheAnswerOfTheCallUnderWay(t *testing.T) {
	for _, status := range []int{201, 400, 500} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			arrived, release := make(chan struct{}, 100), make(chan struct{})
			d := newTarget(t, func(w http.ResponseWriter, _ *http.Request) {
				arrived <- struct{}{}
				<-release
				w.Header().Set("Set-Cookie", "a=b")
				w.WriteHeader(status)
				io.WriteString(w, "the answer")
			})
			f := forward(t, newGuard(t), routeTo(t, d.URL))
			answers := make(chan *forwardedAnswer, 5)
			var wg sync.WaitGroup
			ask := func() {
				wg.Go(func() {
					a, err := f.do(t.Context(), "POST", forwardBase+"row", `{"a":1}`)
					if err != nil {
						t.Error(err)
						return
					}
					answers <- a
				})
			}
			ask()
			<-arrived
			var events atomic.Int64
			f.Guard.Observe = func(Transition) { events.Add(1) } // of the begins that are told to wait
			for range 4 {
				ask()
			}
			for events.Load() < 4 {
				time.Sleep(time.Millisecond)
			}
			close(release)
			wg.Wait()
			close(answers)
			cookies := 0
			for a := range answers {
				if a.status != status || a.body != "the answer" {
					t.Errorf("got %d %q", a.status, a.body)
				}
				cookies += len(a.header.Values("Set-Cookie"))
			}
			if len(d.got()) != 1 || cookies != 1 {
				t.Errorf("%d requests, %d cookies; want one of each", len(d.got()), cookies)
			}
		})
	}
}

func TestAWaiterOfAnotherProcess(t *testing.T) {
	arrived, release := make(chan struct{}), make(chan struct{})
	d := newTarget(t, func(w http.ResponseWriter, _ *http.Request) {
		close(arrived)
		<-release
		io.WriteString(w, "the answer")
	})
	path := databaseIn(t)
	here := forward(t, &Guard{Store: storetest.Open(t, path, store.Options{})}, routeTo(t, d.URL))
	there := forward(t, &Guard{Store: storetest.Open(t, path, store.Options{})}, routeTo(t, d.URL))
	var wg sync.WaitGroup
	wg.Go(func() { here.post(`{"a":1}`).is(t, 200, "completed", "the answer") })
	<-arrived
	there.post(`{"a":1}`, "Guard-Wait", "0").is(t, 409, "pending", "effect_in_progress")
	wg.Go(func() {
		a := there.post(`{"a":1}`)
		a.is(t, 200, "completed", "the answer")
		if a.header.Get("Idempotent-Replayed") != "true" {
			t.Error("it is not told as a replay")
		}
	})
	time.Sleep(50 * time.Millisecond)
	close(release)
	wg.Wait()
	if n := len(d.got()); n != 1 {
		t.Errorf("%d requests", n)
	}
}

// TestNothingIsSentThatIsNotStored lets the commit of a claim fail.
func TestNothingIsSentThatIsNotStored(t *testing.T) {
	for _, applied := range []bool{false, true} {
		var broken atomic.Bool
		broken.Store(true)
		g := &Guard{Store: storetest.Open(t, databaseIn(t), store.Options{AroundCommit: breaking(&broken, applied)})}
		d := newTarget(t, nil)
		f := forward(t, g, routeTo(t, d.URL))
		a := f.post(`{"a":1}`)
		if a.status != 503 || !strings.Contains(a.body, "guard_store_unavailable") || a.header.Get("Retry-After") != "5" {
			t.Errorf("applied=%v: got %d %s", applied, a.status, a.body)
		}
		if n := len(d.got()); n > 0 {
			t.Errorf("applied=%v: %d requests were sent without a stored claim", applied, n)
		}
		broken.Store(false)
		if !applied { // else the claim that nobody heard of has to lapse
			f.post(`{"a":1}`).is(t, 201, "completed", "r1")
		}
	}
}

// breaking makes commits fail while broken is set, before or after they are applied.
func breaking(broken *atomic.Bool, applied bool) func(func() error) error {
	return func(commit func() error) error {
		if !broken.Load() {
			return commit()
		}
		if applied {
			if err := commit(); err != nil {
				return err
			}
		}
		return errors.New("the disk is gone")
	}
}

// TestAnOutcomeIsStoredWhenTheStoreComesBack lets the store fail after the
// downstream has acted: the client hears of it once it is stored.
func TestAnOutcomeIsStoredWhenTheStoreComesBack(t *testing.T) {
	for _, applied := range []bool{false, true} {
		var broken atomic.Bool
		g := &Guard{Store: storetest.Open(t, databaseIn(t), store.Options{AroundCommit: breaking(&broken, applied)})}
		d := newTarget(t, func(w http.ResponseWriter, _ *http.Request) {
			broken.Store(true)
			io.WriteString(w, "done")
		})
		f := forward(t, g, routeTo(t, d.URL))
		var tries atomic.Int64
		f.Failpoint = func(point string) {
			if point == "before_commit_done" && tries.Add(1) == 3 {
				broken.Store(false)
			}
		}
		f.post(`{"a":1}`).is(t, 200, "completed", "done")
		if tries.Load() < 3 {
			t.Errorf("stored at try %d, want not before the third", tries.Load())
		}
		f.post(`{"a":1}`).is(t, 200, "completed", "done")
		if n := len(d.got()); n != 1 {
			t.Errorf("%d requests", n)
		}
	}
}

func TestADuplicateAfterAnUnknownAttempt(t *testing.T) {
	for _, declared := range []bool{false, true} {
		d := newTarget(t, statuses(500, 409))
		g := newGuard(t)
		g.Step = atOnce
		rt := routeTo(t, d.URL)
		rt.OnUnknown = Retry
		if declared {
			rt.DuplicateStatuses = []int{409}
		}
		f := forward(t, g, rt)
		first := f.post(`{"a":1}`)
		first.is(t, 500, "unknown", "answer 1")
		if first.header.Get("X-Should-Retry") != "true" {
			t.Error("a retry would go on, and is not told so")
		}
		state := map[bool]string{false: "unknown", true: "completed"}[declared]
		f.post(`{"a":1}`).is(t, 409, state, "answer 2")
		if r := f.record(first); len(r.Attempts) != 2 || (r.Attempts[1].Outcome == OutcomeDone) != declared || r.Attempts[0].Outcome != OutcomeUnknown {
			t.Errorf("attempts %+v", r.Attempts)
		}
	}
	d := newTarget(t, statuses(409, 201))
	f := forward(t, newGuard(t), routeTo(t, d.URL))
	f.post(`{"a":1}`).is(t, 409, "failed", "answer 1")
	f.post(`{"a":1}`).is(t, 201, "completed", "answer 2")
}

// TestAnEarlierAttemptStaysUnknown: what a later attempt says of itself says
// nothing of an earlier one.
func TestAnEarlierAttemptStaysUnknown(t *testing.T) {
	d := newTarget(t, statuses(500, 400))
	g := newGuard(t)
	g.Step = atOnce
	rt := routeTo(t, d.URL)
	rt.OnUnknown = Retry
	f := forward(t, g, rt)
	f.post(`{"a":1}`).is(t, 500, "unknown", "")
	f.post(`{"a":1}`).is(t, 400, "unknown", "answer 2")
}

func TestADownstreamForgetsItsKeys(t *testing.T) {
	d := newTarget(t, statuses(500))
	g := newGuard(t)
	g.Step = func(string) Step { return Step{Drain: time.Millisecond, MaxAttempts: 100} }
	rt := routeTo(t, d.URL)
	rt.Idempotency = &DownstreamIdempotency{Header: "Idempotency-Key", Retention: 6 * time.Hour}
	f := forward(t, g, rt)
	for i := range 3 {
		a := f.post(`{"a":1}`)
		a.is(t, 500, "unknown", fmt.Sprint("answer ", i+1))
		if a.header.Get("X-Should-Retry") != "true" {
			t.Errorf("attempt %d: x-should-retry %q", i+1, a.header.Get("X-Should-Retry"))
		}
	}
	pass(t, g, 6*time.Hour)
	a := f.post(`{"a":1}`)
	a.is(t, 409, "unknown", "effect_outcome_unknown")
	if a.header.Get("X-Should-Retry") != "false" || len(d.got()) != 3 {
		t.Errorf("x-should-retry %q after %d requests", a.header.Get("X-Should-Retry"), len(d.got()))
	}
	keys := map[string]bool{}
	for _, r := range d.got() {
		keys[r.header.Get("Idempotency-Key")] = true
	}
	if len(keys) != 1 {
		t.Errorf("the attempts had the keys %v", keys)
	}
}

func TestACallersPolicyIsHeeded(t *testing.T) {
	d := newTarget(t, statuses(500))
	g := newGuard(t)
	g.Step = atOnce
	f := forward(t, g, routeTo(t, d.URL))
	f.post(`{"a":1}`, "Guard-On-Unknown", "retry").is(t, 500, "unknown", "answer 1")
	f.post(`{"a":1}`, "Guard-On-Unknown", "retry").is(t, 500, "unknown", "answer 2")
	f.post(`{"a":1}`, "Guard-On-Unknown", "hold").is(t, 409, "unknown", "effect_outcome_unknown")
	f.post(`{"a":2}`, "Guard-On-Unknown", "hold").is(t, 500, "unknown", "answer 3")
	f.post(`{"a":2}`, "Guard-On-Unknown", "retry").is(t, 409, "unknown", "effect_outcome_unknown") // promised one grant
}

func TestALargeAnswer(t *testing.T) {
	for size, truncated := range map[int]bool{maxResult: false, maxResult + 1: true, maxForwardBody + 1: true} {
		body := strings.Repeat("x", size)
		d := newTarget(t, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, body) })
		f := forward(t, newGuard(t), routeTo(t, d.URL))
		first, second := f.post(`{"a":1}`), f.post(`{"a":1}`)
		first.is(t, 200, "completed", "")
		second.is(t, 200, "completed", "")
		if first.body != body[:min(size, maxForwardBody)] || (first.header.Get("Guard-Truncated") == "true") != (size > maxForwardBody) {
			t.Errorf("%d bytes: first %d bytes, %v", size, len(first.body), first.header)
		}
		if second.body != body[:min(size, maxResult)] || (second.header.Get("Guard-Truncated") == "true") != truncated {
			t.Errorf("%d bytes: replayed %d bytes, %v", size, len(second.body), second.header)
		}
	}
}

// TestAnswersThatAreNone covers what a server must not write as it came.
func TestAnswersThatAreNone(t *testing.T) {
	for text, state := range map[string]string{
		"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n": "unknown",
		"HTTP/1.1 099 Odd\r\nContent-Length: 0\r\n\r\n":                                 "unknown",
		"HTTP/1.1 000 Odd\r\nContent-Length: 0\r\n\r\n":                                 "unknown",
		"SSH-2.0-server\r\n": "unknown",
		"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 300<<10) + "\r\n\r\n":                                     "unknown",
		"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\n\r\nHTTP/1.1 204 No\r\nX-Request-Id: 1\r\n\r\n":      "completed",
		"HTTP/1.1 999 Odd\r\nContent-Length: 2\r\n\r\nno":                                                        "unknown",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\nbroken":                                 "completed",
		"HTTP/1.0 200 OK\r\n\r\nuntil the end":                                                                   "completed",
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: X-Hop\r\nX-Hop: 1\r\nTrailer: X-T\r\n\r\nhi, there": "completed",
	} {
		d := newTarget(t, func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			io.WriteString(conn, text)
		})
		f := forward(t, newGuard(t), routeTo(t, d.URL))
		first := f.post(`{"a":1}`)
		if first.header.Get("Guard-State") != state || first.header.Get("X-Hop") != "" {
			t.Errorf("%.60q: %d, %v", text, first.status, first.header)
		}
		second := f.post(`{"a":1}`)
		if state == "completed" && (second.status != first.status || second.body != first.body || second.header.Get("Idempotent-Replayed") == "") {
			t.Errorf("%.60q: replayed %d %q, first %d %q", text, second.status, second.body, first.status, first.body)
		}
		if n := len(d.got()); n != 1 {
			t.Errorf("%.60q: %d requests", text, n)
		}
	}
}

func TestARedirectIsNotFollowed(t *testing.T) {
	for status, state := range map[int]string{301: "failed", 302: "failed", 303: "completed", 307: "failed", 308: "failed"} {
		elsewhere := newTarget(t, nil)
		d := newTarget(t, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, elsewhere.URL, status) })
		f := forward(t, newGuard(t), routeTo(t, d.URL))
		a := f.post(`{"a":1}`)
		if a.status != status || a.header.Get("Location") != elsewhere.URL || a.header.Get("Guard-State") != state || len(elsewhere.got()) > 0 {
			t.Errorf("%d: got %d, %v; %d requests elsewhere", status, a.status, a.header, len(elsewhere.got()))
		}
	}
}

// TestAProbeDecides lets begins of an unknown effect ask the downstream.
func TestAProbeDecides(t *testing.T) {
	cases := map[string]struct {
		answer int // of the probe
		body   string
		status int
		state  string
		posts  int
		within string
	}{
		"done":       {200, `{"id":"r7"}`, 200, "completed", 1, `"resource_id":"r7"`},
		"not done":   {200, `{"id":null}`, 201, "completed", 2, "made"},
		"not found":  {404, `{}`, 201, "completed", 2, "made"},
		"can't tell": {503, `{}`, 409, "unknown", 1, "effect_outcome_unknown"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			posts := 0
			var probes []string
			d := newTarget(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodGet {
					probes = append(probes, r.RequestURI+" "+r.Header.Get("Authorization"))
					w.WriteHeader(c.answer)
					io.WriteString(w, c.body)
					return
				}
				if posts++; posts == 1 {
					w.WriteHeader(500)
					return
				}
				w.WriteHeader(201)
				io.WriteString(w, "made")
			})
			g := newGuard(t)
			g.Step = atOnce
			rt := routeTo(t, d.URL)
			rt.OnUnknown, rt.Select = Probe, []string{"/id"}
			rt.Probe = &DownstreamProbe{URL: d.URL + "/rows/{/id}?k={key}&q={/o/q}", Found: "/id"}
			rt.Idempotency = &DownstreamIdempotency{Header: "X-Key", Format: "uuid"}
			f := forward(t, g, rt)
			body := `{"id":"a/b&c=d","o":{"q":7},"text":"x"}`
			first := f.post(body, "Authorization", "Bearer downstream")
			first.is(t, 500, "unknown", "")
			if first.header.Get("X-Should-Retry") != "true" {
				t.Errorf("x-should-retry %q", first.header.Get("X-Should-Retry"))
			}
			f.post(body, "Authorization", "Bearer downstream").is(t, c.status, c.state, c.within)
			key, err := ParseKey(first.header.Get("Guard-Key"))
			if err != nil {
				t.Fatal(err)
			}
			if want := "/rows/a%2Fb%26c%3Dd?k=" + key.UUID() + "&q=7 Bearer downstream"; len(probes) != 1 || probes[0] != want {
				t.Errorf("probes %q, want %q", probes, want)
			}
			if posts != c.posts {
				t.Errorf("%d posts, want %d", posts, c.posts)
			}
		})
	}
}

// TestAProbeCannotBeLedAstray: a value of the input stays a value in the URL.
func TestAProbeCannotBeLedAstray(t *testing.T) {
	rt := prepared(t, Route{Step: "row", Target: routeTo(t, "https://api.example.com").Target,
		Probe: &DownstreamProbe{URL: "https://api.example.com/rows/{/id}/x?q={/id}"}})
	for body, want := range map[string]string{
		`{"id":"a b+c"}`:       "https://api.example.com/rows/a%20b%2Bc/x?q=a%20b%2Bc",
		`{"id":"../../admin"}`: "https://api.example.com/rows/..%2F..%2Fadmin/x?q=..%2F..%2Fadmin",
		`{"id":"?x#y"}`:        "https://api.example.com/rows/%3Fx%23y/x?q=%3Fx%23y",
		`{"id":"ü"}`:           "https://api.example.com/rows/%C3%BC/x?q=%C3%BC",
		`{"id":".."}`:          "",
		`{"id":"."}`:           "",
		`{"id":""}`:            "",
		`{"id":null}`:          "",
		`{"id":["a"]}`:         "",
		`{}`:                   "",
		`id=1`:                 "",
	} {
		c := &forwardCall{outbound: &outbound{route: rt, header: http.Header{}}, body: []byte(body)}
		req, err := c.probe(context.Background(), Key{})
		if want == "" {
			if err == nil {
				t.Errorf("%s: asks %s", body, req.URL)
			}
			continue
		}
		if err != nil || req.URL.String() != want {
			t.Errorf("%s: %v, %v; want %s", body, req, err, want)
		}
	}
}

// TestACallOfADeadProcess leaves a call where a killed process leaves it: its
// claim is stored, and nobody will report.
func TestACallOfADeadProcess(t *testing.T) {
	for _, point := range []string{"after_claim", "before_dial", "after_write", "before_commit_done", "after_commit_done"} {
		t.Run(point, func(t *testing.T) {
			path := databaseIn(t)
			first := storetest.Open(t, path, store.Options{})
			join := func(s *store.Store) (instance int64) {
				t.Helper()
				err := s.Update(t.Context(), func(tx *store.Tx) (err error) {
					var earlier []int64
					if instance, earlier, err = tx.Join("server", 30_000); err != nil {
						return err
					}
					for _, dead := range earlier {
						if err := tx.Bury(dead); err != nil {
							return err
						}
					}
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
				return instance
			}
			reached := make(chan struct{})
			d := newTarget(t, func(w http.ResponseWriter, _ *http.Request) {
				if point == "after_write" { // it ends before there is an answer
					<-reached
				}
				w.WriteHeader(201)
				io.WriteString(w, "made")
			})
			dying := forward(t, &Guard{Store: first}, routeTo(t, d.URL))
			dead := make(chan struct{})
			t.Cleanup(func() { close(dead) })
			var ended atomic.Bool
			instance := join(first)
			dying.Instance = func() int64 { return instance }
			dying.Failpoint = func(at string) {
				if at == point && !ended.Swap(true) {
					close(reached)
				}
				if ended.Load() { // what runs beside it gets no further than the next point
					<-dead
				}
			}
			ctx, kill := context.WithCancel(t.Context())
			gone := make(chan struct{})
			go func() {
				defer close(gone)
				if a, err := dying.do(ctx, "POST", forwardBase+"row", `{"a":1}`); err == nil {
					t.Errorf("a client of a dead process got %d", a.status)
				}
			}()
			<-reached
			kill()
			<-gone
			second := storetest.Open(t, path, store.Options{})
			again := forward(t, &Guard{Store: second}, routeTo(t, d.URL))
			renewed := join(second)
			again.Instance = func() int64 { return renewed }
			a := again.post(`{"a":1}`)
			sent := point != "after_claim" && point != "before_dial"
			if point == "after_commit_done" {
				a.is(t, 201, "completed", "made")
			} else {
				a.is(t, 409, "unknown", "effect_outcome_unknown")
			}
			if sent {
				for len(d.got()) == 0 { // it may still be on its way
					time.Sleep(time.Millisecond)
				}
			}
			if n := len(d.got()); sent != (n == 1) || n > 1 {
				t.Errorf("%d requests", n)
			}
		})
	}
}
