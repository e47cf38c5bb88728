package crash

import (
	"context"
	"strings"
	"syscall"
	"testing"

	"llmproxy/proxy/proxytest"
)

// pair is two servers on one file before one upstream.
type pair struct {
	*testing.T
	a, b     *process
	db       *database
	upstream *proxytest.Upstream
}

func newPair(t *testing.T) *pair {
	t.Helper()
	t.Parallel()
	p := &pair{T: t, upstream: proxytest.New(t)}
	s := setup{Database: newPath(t), Instance: "a", Upstream: p.upstream.URL, Memory: 1 << 20}
	p.a = start(t, s)
	s.Instance = "b"
	p.b = start(t, s)
	p.db = look(t, s.Database)
	return p
}

// background is a call that runs while the test goes on.
type background struct {
	response
	err  error
	done chan struct{} // closed when it has ended
}

func (b *background) wait(t *testing.T) response {
	t.Helper()
	proxytest.Wait(t, b.done, "the end of a call")
	if b.err != nil {
		t.Errorf("a call ended with %v", b.err)
	}
	return b.response
}

// begin sends a call in the background.
func (p *process) begin(body string, headers ...string) *background {
	b := &background{done: make(chan struct{})}
	go func() {
		defer close(b.done)
		b.response, b.err = p.post(context.Background(), body, headers...)
	}()
	return b
}

// calling waits until a server has so many exchanges, or follows those of others.
func (p *process) calling(n float64) {
	p.t.Helper()
	eventually(p.t, p.name+" takes part in a call", func() bool { return p.metric("llmproxy_flights") == n })
}

func TestTwoServersMakeOneCall(t *testing.T) {
	for form, more := range map[string]string{"json": "", "stream": stream} {
		t.Run(form, func(t *testing.T) {
			p := newPair(t)
			gate := proxytest.NewGate()
			reply := proxytest.JSON(200, proxytest.Completion("one answer"))
			if form == "stream" {
				reply = proxytest.Stream(proxytest.Chunks("one answer", 3)...)
			}
			p.upstream.Reply(reply.Hold(gate))
			var calls []*background
			for range 4 {
				calls = append(calls, p.a.begin(chat("same", more), inStep(hardStep)...), p.b.begin(chat("same", more), inStep(hardStep)...))
			}
			p.a.calling(1)
			p.b.calling(1)
			proxytest.Wait(t, gate.Reached(), "the upstream call")
			gate.Open()
			outcomes := map[string]int{}
			for _, call := range calls {
				r := call.wait(t)
				outcomes[r.cache()]++
				if !r.whole() || r.body != calls[0].body {
					t.Errorf("%d %s", r.status, r.body)
				}
			}
			if n := p.upstream.Count(); n != 1 || outcomes["miss"] != 1 || outcomes["collapsed"]+outcomes["hit"] != 7 {
				t.Errorf("%d upstream calls, %v", n, outcomes)
			}
			p.db.balanced()
		})
	}
}

func TestTheOtherServerTakesOver(t *testing.T) {
	for form, more := range map[string]string{"json": "", "stream": stream} {
		t.Run(form, func(t *testing.T) {
			p := newPair(t)
			gate := proxytest.NewGate()
			first, second := proxytest.JSON(200, proxytest.Completion("first")), proxytest.JSON(200, proxytest.Completion("second"))
			if form == "stream" {
				first, second = proxytest.Stream(proxytest.Chunks("first", 1)...), proxytest.Stream(proxytest.Chunks("second", 1)...)
			}
			p.upstream.Reply(first.Hold(gate), second)
			body := chat("work", more)
			dying := p.a.begin(body, inStep(hardStep)...)
			proxytest.Wait(t, gate.Reached(), "the upstream call")
			var following []*background
			for range 4 {
				following = append(following, p.b.begin(body, inStep(hardStep)...))
			}
			p.b.calling(1)
			p.a.kill()
			if <-dying.done; dying.err == nil {
				t.Error("the dead server's client saw nothing of it")
			}
			if n := p.upstream.Count(); n != 1 {
				t.Fatalf("%d upstream calls while the dead server's time runs", n)
			}
			p.db.lapse("a")
			for _, call := range following {
				if r := call.wait(t); !r.whole() || !strings.Contains(r.body, "second") {
					t.Errorf("%d %s %s", r.status, r.cache(), r.body)
				}
			}
			if rows := p.db.outcomes(); p.upstream.Count() != 2 || rows["lost"] != 1 || rows["miss"] != 1 {
				t.Errorf("%d upstream calls, rows %v", p.upstream.Count(), rows)
			}
			p.db.balanced()
		})
	}
}

// TestALateAnswerDoesNotReplaceANewerOne stops a server in the middle of a call
// for so long that another one takes over, and then lets it go on.
func TestALateAnswerDoesNotReplaceANewerOne(t *testing.T) {
	p := newPair(t)
	gate := proxytest.NewGate()
	p.upstream.Reply(proxytest.JSON(200, proxytest.Completion("first", proxytest.Usage(20, 5))).Hold(gate),
		proxytest.JSON(200, proxytest.Completion("second", proxytest.Usage(30, 9))))
	sleeping := p.a.begin(chat("work"), inStep(hardStep)...)
	proxytest.Wait(t, gate.Reached(), "the upstream call")
	p.db.freeze(p.a)
	p.db.lapse("a")
	newer := p.b.ask(chat("work"), inStep(hardStep)...)
	if newer.cache() != "miss" || !strings.Contains(newer.body, "second") {
		t.Fatalf("the other server answered %d %s %s", newer.status, newer.cache(), newer.body)
	}
	if rows := p.db.outcomes(); rows["lost"] != 1 || rows["miss"] != 1 {
		t.Errorf("rows while the first server sleeps: %v", rows)
	}
	p.db.balanced()

	p.a.signal(syscall.SIGCONT)
	gate.Open()
	if late := sleeping.wait(t); !strings.Contains(late.body, "first") {
		t.Errorf("the client of the sleeping server got %d %s", late.status, late.body)
	}
	for _, server := range []*process{p.a, p.b} {
		if r := server.ask(chat("work"), inStep(hardStep)...); r.cache() != "hit" || r.body != newer.body {
			t.Errorf("server %s now answers %s %s", server.name, r.cache(), r.body)
		}
	}
	if rows := p.db.outcomes(); p.upstream.Count() != 2 || rows["miss"] != 2 || rows["lost"] != 0 {
		t.Errorf("%d upstream calls, rows %v", p.upstream.Count(), rows)
	}
	if n := p.db.number(`SELECT sum(stored) FROM v_calls WHERE outcome = 'miss'`); n != 1 {
		t.Errorf("%d rows say that their answer was stored", n)
	}
	if n := p.db.number(`SELECT sum(up_input) FROM call WHERE outcome = 1`); n != 50 {
		t.Errorf("%d input tokens of both calls, want 20 + 30", n)
	}
	p.db.balanced()
}

// TestTheFenceOfATakeoverIsTheNewest has a call take over that began before the
// one that it takes over from.
func TestTheFenceOfATakeoverIsTheNewest(t *testing.T) {
	p := newPair(t)
	gates := []*proxytest.Gate{proxytest.NewGate(), proxytest.NewGate()}
	p.upstream.Reply(proxytest.Error(500, "not yet").Hold(gates[0]),
		proxytest.JSON(200, proxytest.Completion("first")).Hold(gates[1]), proxytest.JSON(200, proxytest.Completion("second")))
	failing := p.a.begin(chat("work"))
	proxytest.Wait(t, gates[0].Reached(), "the first upstream call")
	early := p.b.begin(chat("work")) // waits for a's call, and then decides anew
	p.b.calling(1)
	p.db.freeze(p.b)
	gates[0].Open()
	failing.wait(t)
	sleeping := p.a.begin(chat("work"))
	proxytest.Wait(t, gates[1].Reached(), "the second upstream call")
	p.db.freeze(p.a)
	p.db.lapse("a")
	p.b.signal(syscall.SIGCONT)
	newer := early.wait(t)
	if !strings.Contains(newer.body, "second") {
		t.Fatalf("the early call got %d %s", newer.status, newer.body)
	}
	p.a.signal(syscall.SIGCONT)
	gates[1].Open()
	sleeping.wait(t)
	for _, server := range []*process{p.a, p.b} {
		if r := server.ask(chat("work")); r.cache() != "hit" || r.body != newer.body {
			t.Errorf("server %s now answers %s %s", server.name, r.cache(), r.body)
		}
	}
	p.db.balanced()
}

// TestAServerThatWasTakenForDeadIsOneAgain wakes a server that was buried: what
// it leads from then on must count for others, and be settled if it dies.
func TestAServerThatWasTakenForDeadIsOneAgain(t *testing.T) {
	p := newPair(t)
	gate := proxytest.NewGate()
	p.upstream.Reply(proxytest.Stream(proxytest.Chunks("held", 1)...).Hold(gate), proxytest.Stream(proxytest.Chunks("after", 1)...))
	p.db.freeze(p.a)
	p.db.write(`DELETE FROM instance WHERE name = 'a'`) // as another server does when it buries
	p.a.signal(syscall.SIGCONT)
	dying := p.a.begin(chat("work", stream), inStep(hardStep)...)
	proxytest.Wait(t, gate.Reached(), "the upstream call")
	following, err := p.b.send(t.Context(), chat("work", stream), inStep(hardStep)...)
	if err != nil {
		t.Fatal(err)
	}
	if how := following.Header.Get("X-LLMProxy-Cache"); how != "collapsed" {
		t.Errorf("the other server makes a call of its own: %s", how)
	}
	p.a.kill()
	<-dying.done
	p.db.lapse("a")
	if r, err := read(following); err != nil || !r.whole() || !strings.Contains(r.body, "after") {
		t.Errorf("the other server answered %s, %v", r.body, err)
	}
	if rows := p.db.outcomes(); p.upstream.Count() != 2 || rows["lost"] != 1 || rows["miss"] != 1 {
		t.Errorf("%d upstream calls, rows %v", p.upstream.Count(), rows)
	}
	p.db.balanced()
}

// TestAnInstanceIsNumberedOnce buries the server that joined last. The next one
// must not get its number: the buried one may only sleep.
func TestAnInstanceIsNumberedOnce(t *testing.T) {
	p := newPair(t)
	sleeping := p.db.number(`SELECT id FROM instance WHERE name = 'b'`)
	p.db.freeze(p.b)
	p.db.write(`DELETE FROM instance WHERE name = 'b'`) // as another server does when it buries
	start(t, setup{Database: p.db.path, Instance: "c", Upstream: p.upstream.URL})
	if fresh := p.db.number(`SELECT id FROM instance WHERE name = 'c'`); fresh == sleeping {
		t.Errorf("a new server is number %d, as a sleeping one is", fresh)
	}
}
