package guard

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"llmproxy/store"
	"pgregory.net/rapid"
)

// inBubble runs f with a clock that only moves while everybody sleeps.
func inBubble(t *testing.T, f func(t *testing.T, g *Guard)) {
	synctest.Test(t, func(t *testing.T) {
		s, err := store.Open(t.Context(), databaseIn(t), store.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		f(t, &Guard{Store: s})
	})
}

func TestAHeartbeatHoldsALeaseUpToItsLimit(t *testing.T) {
	inBubble(t, func(t *testing.T, g *Guard) {
		a := mustBegin(t, g, work("k"))
		begun := time.Now()
		for {
			time.Sleep(20 * time.Second) // a third of the lease
			e := mustDo(t, g, a.ID, Extend{Token: HashToken(a.Token)})
			if e.Reply.Refusal == LeaseLost {
				break
			}
			if b := mustBegin(t, g, work("k")); b.Reply.Decision != Wait {
				t.Fatalf("after %v another is told to %s", time.Since(begun), b.Reply.Decision)
			}
		}
		if held := time.Since(begun); held != 6*time.Hour {
			t.Errorf("held for %v, want 6 h", held)
		}
		time.Sleep(10 * time.Second)
		if b := mustBegin(t, g, work("k")); b.Reply.Decision != Proceed || !b.Reply.Takeover {
			t.Errorf("after the limit and the drain: %+v", b.Reply)
		}
	})
}

func TestALapseADrainAndAWaitTakeTheirTime(t *testing.T) {
	inBubble(t, func(t *testing.T, g *Guard) {
		mustBegin(t, g, work("k"))
		begun := time.Now()
		req := work("k")
		req.Wait = 25 * time.Second
		if a := mustBegin(t, g, req); a.Reply.Decision != Wait || time.Since(begun) != 25*time.Second || a.RetryAfter() != 30 {
			t.Errorf("after %v: %+v, retry after %d", time.Since(begun), a.Reply, a.RetryAfter())
		}
		req.Wait = 55 * time.Second
		a := mustBegin(t, g, req)
		if passed := time.Since(begun); a.Reply.Decision != Proceed || !a.Reply.Takeover || passed != 70*time.Second {
			t.Errorf("after %v: %+v; want a takeover after the lease of 60 s and the drain of 10 s", passed, a.Reply)
		}
	})
}

func TestRunSweepsEachMinute(t *testing.T) {
	inBubble(t, func(t *testing.T, g *Guard) {
		go g.Run(t.Context())
		for i := range 250 { // more than two batches
			a := mustBegin(t, g, work(fmt.Sprint(i)))
			mustDo(t, g, a.ID, Fail{Token: HashToken(a.Token), None: true})
		}
		pass(t, g, failedRetention)
		time.Sleep(time.Minute + time.Second)
		if left, _, err := g.List(t.Context(), Query{NS: "acme/default"}); err != nil || len(left) > 0 {
			t.Errorf("%d effects are left, %v", len(left), err)
		}
	})
}

// The model of one effect is the evidence alone: which attempts there were, what
// is known of each, and until when the last one holds. Its state is derived from
// that at each look, so it shares no transition with Apply.
type modelEffect struct {
	policy     OnUnknown
	attempts   []modelAttempt
	lease      int64
	limit      int64
	owner      int // which process granted or extended last
	retryAt    int64
	completed  bool
	by         int // attempt, -1: resolved
	resource   string
	decided    bool // by a person, since the last grant
	duplicates int
}

type modelAttempt struct {
	token    string
	outcome  Outcome
	resource string
}

func (m *modelEffect) end(process int) int64 {
	if process != m.owner {
		return m.lease + restartGrace
	}
	return m.lease
}

// lapsed tells whether the last attempt's lease is over, as process sees it.
func (m *modelEffect) lapsed(now int64, process int) bool {
	return len(m.attempts) > 0 && m.attempts[len(m.attempts)-1].outcome == OutcomeRunning && now >= m.end(process)
}

// settle notes a lapse, as every event does: a clock that is set back later no
// longer undoes it.
func (m *modelEffect) settle(now int64, process int) State {
	if !m.completed && m.lapsed(now, process) {
		m.attempts[len(m.attempts)-1].outcome = OutcomeUnknown
	}
	return m.state(now, process)
}

// state derives the state at a time, as process sees it.
func (m *modelEffect) state(now int64, process int) State {
	if m.completed {
		return Completed
	}
	if len(m.attempts) == 0 {
		return Absent
	}
	if m.attempts[len(m.attempts)-1].outcome == OutcomeRunning && !m.lapsed(now, process) {
		return Pending
	}
	for _, a := range m.attempts {
		if a.outcome != OutcomeNone {
			return Unknown
		}
	}
	return Failed
}

func (m *modelEffect) begin(now int64, process int) Decision {
	switch m.settle(now, process) {
	case Completed:
		return Replay
	case Pending:
		return Wait
	case Failed:
		if now < m.retryAt {
			return Wait
		}
	case Unknown:
		open := 0
		for _, a := range m.attempts {
			if a.outcome != OutcomeNone {
				open++
			}
		}
		if m.policy == Hold || open >= 5 {
			return Held
		}
		if now < m.end(process)+10_000 {
			return Wait
		}
	}
	return Proceed
}

// fail notes a report of failure and tells whether it is refused.
func (m *modelEffect) fail(i int, none bool, now int64, process int) (refused bool) {
	state, a := m.settle(now, process), &m.attempts[i]
	switch {
	case a.outcome == OutcomeDone:
		return m.completed
	case state == Failed && (none || m.decided):
		return false
	}
	last := i == len(m.attempts)-1
	a.outcome = OutcomeUnknown
	if none {
		a.outcome = OutcomeNone
	}
	switch after := m.state(now, process); {
	case state == Pending && last && after == Unknown, state == Failed && after == Unknown:
		m.lease = now
	case state == Unknown && none && after == Unknown:
		m.lease = min(m.lease, now)
	case after == Failed:
		m.retryAt = 0
	}
	return false
}

// complete notes a completion and tells whether it is refused.
func (m *modelEffect) complete(i int, resource string) (refused bool) {
	a := &m.attempts[i]
	if !m.completed {
		m.completed, m.by, m.resource = true, i, resource
		a.outcome, a.resource = OutcomeDone, resource
		return false
	}
	others := false
	for j, other := range m.attempts {
		others = others || j != i && other.outcome == OutcomeDone
	}
	same := resource == m.resource
	switch {
	case m.by == i:
		refused = !same
	case m.by < 0 && !others:
		refused = !same && m.resource != "" && resource != ""
	default:
		refused = !same || resource == ""
	}
	if !refused && a.outcome != OutcomeDone {
		a.outcome, a.resource = OutcomeDone, resource
	}
	if refused && m.by != i {
		a.outcome = OutcomeDone
	}
	return refused
}

// effectMachine holds a guarded effect against its model.
type effectMachine struct {
	t       *testing.T
	guards  []*Guard
	process int
	req     Request
	id      ID
	model   modelEffect
	log     []string
}

func (x *effectMachine) note(format string, args ...any) {
	x.log = append(x.log, fmt.Sprintf(format, args...))
}

func (x *effectMachine) now() int64 { return time.Now().UnixMilli() }

// do lets an event happen and compares whether it was refused.
func (x *effectMachine) do(rt *rapid.T, e Event, refused bool) Answer {
	a, err := x.guards[x.process].Do(x.t.Context(), x.id, e)
	if err != nil {
		rt.Fatalf("%T: %v", e, err)
	}
	x.note("%T: %s", e, told(&a.Record, a.Reply))
	if (a.Reply.Refusal != "") != refused {
		rt.Fatalf("%T: refused is %v by the model\n%s", e, refused, strings.Join(x.log, "\n"))
	}
	return a
}

func (x *effectMachine) begin(rt *rapid.T) {
	want := x.model.begin(x.now(), x.process)
	a, err := x.guards[x.process].Begin(x.t.Context(), x.req)
	if err != nil {
		rt.Fatal(err)
	}
	x.id = a.ID
	x.note("begin by process %d: %s", x.process, told(&a.Record, a.Reply))
	if a.Reply.Decision != want {
		rt.Fatalf("told to %s, the model says %s\n%s", a.Reply.Decision, want, strings.Join(x.log, "\n"))
	}
	if want == Proceed {
		m := &x.model
		m.attempts = append(m.attempts, modelAttempt{token: a.Token, outcome: OutcomeRunning})
		m.lease, m.limit, m.owner, m.decided, m.retryAt = x.now()+60_000, x.now()+6*3600_000, x.process, false, 0
	}
}

// attempt draws one of the attempts, or -1 where there is none.
func (x *effectMachine) attempt(rt *rapid.T) int {
	if len(x.model.attempts) == 0 {
		return -1
	}
	n := len(x.model.attempts)
	return n - 1 - min(n-1, rapid.SampledFrom([]int{0, 0, 0, 1, 1, 2, 3}).Draw(rt, "attempts ago"))
}

func (x *effectMachine) extend(rt *rapid.T) {
	i := x.attempt(rt)
	if i < 0 {
		return
	}
	m := &x.model
	state := m.settle(x.now(), x.process)
	may := (state == Pending || state == Unknown) && i == len(m.attempts)-1 && m.attempts[i].outcome != OutcomeNone && x.now() < m.limit
	x.do(rt, Extend{Token: HashToken(m.attempts[i].token)}, !may)
	if may {
		m.lease, m.owner = min(x.now()+60_000, m.limit), x.process
		m.attempts[i].outcome = OutcomeRunning
	}
}

func (x *effectMachine) complete(rt *rapid.T) {
	i := x.attempt(rt)
	if i < 0 {
		return
	}
	x.model.settle(x.now(), x.process)
	resource := rapid.SampledFrom([]string{"", "m1", "m2"}).Draw(rt, "resource")
	a := x.do(rt, Complete{Token: HashToken(x.model.attempts[i].token), Result: Result{ResourceID: resource}}, x.model.complete(i, resource))
	if a.Record.Result.ResourceID != x.model.resource {
		rt.Fatalf("the result is %q, the model's %q\n%s", a.Record.Result.ResourceID, x.model.resource, strings.Join(x.log, "\n"))
	}
}

func (x *effectMachine) fail(rt *rapid.T) {
	i := x.attempt(rt)
	if i < 0 {
		return
	}
	f := Fail{Token: HashToken(x.model.attempts[i].token), None: rapid.Bool().Draw(rt, "none")}
	if f.None && rapid.Bool().Draw(rt, "later") {
		f.RetryAfter = 30_000
	}
	was := x.model.settle(x.now(), x.process)
	x.do(rt, f, x.model.fail(i, f.None, x.now(), x.process))
	if f.RetryAfter > 0 && was != Failed && x.model.state(x.now(), x.process) == Failed {
		x.model.retryAt = x.now() + f.RetryAfter
	}
}

func (x *effectMachine) resolve(rt *rapid.T) {
	m := &x.model
	force, done := rapid.Bool().Draw(rt, "force"), rapid.Bool().Draw(rt, "done")
	d := Resolve{By: "ann", Force: force, Verdict: VerdictNotDone}
	if x.id == (ID{}) {
		return
	}
	state := m.settle(x.now(), x.process)
	refused := state == Absent || state == Pending && !force
	if done {
		d.Verdict = VerdictDone
	} else {
		refused = refused || state == Completed || state == Unknown && !force && x.now() < m.end(x.process)+10_000
	}
	x.do(rt, d, refused)
	if refused || state == Completed {
		return
	}
	m.decided = m.decided || done || state != Failed || m.retryAt > 0
	m.retryAt = 0
	m.lease = min(m.lease, x.now())
	for i := range m.attempts {
		if done && m.attempts[i].outcome == OutcomeRunning {
			m.attempts[i].outcome = OutcomeUnknown
		} else if !done {
			m.attempts[i].outcome = OutcomeNone
		}
	}
	if done {
		m.completed, m.by, m.resource = true, -1, ""
	}
}

// setClock moves the wall clock by d for all processes: seen from it, what was
// stored and looked at lies d further back.
func (x *effectMachine) setClock(d time.Duration) {
	shift(x.t, x.guards[0].Store, d)
	for _, g := range x.guards {
		g.init()
		g.front.effects.InvalidateAll()
		g.clock.mu.Lock()
		if g.clock.wall != 0 {
			g.clock.wall -= d.Milliseconds()
		}
		g.clock.mu.Unlock()
	}
	x.note("the clock is set by %v", d)
}

func (x *effectMachine) check(rt *rapid.T) {
	if x.id == (ID{}) {
		return
	}
	a, err := x.guards[x.process].Find(x.t.Context(), x.id)
	if err != nil {
		rt.Fatal(err)
	}
	m := &x.model
	want := m.state(x.now(), x.process)
	if a.Record.State != want || a.Record.Fence != int64(len(m.attempts)) || a.Record.State == Completed && a.Record.Result.ResourceID != m.resource {
		rt.Fatalf("%s, fence %d, %q; the model has %s, %d, %q\n%s", a.Record.State, a.Record.Fence, a.Record.Result.ResourceID, want, len(m.attempts), m.resource, strings.Join(x.log, "\n"))
	}
	if want == Pending && a.Record.LeaseUntil != m.lease {
		rt.Fatalf("the lease ends at %d, the model's at %d\n%s", a.Record.LeaseUntil, m.lease, strings.Join(x.log, "\n"))
	}
}

func TestAgainstAModel(t *testing.T) {
	inBubble(t, func(t *testing.T, g *Guard) {
		runs, grants := 0, 0
		// A *testing.T has a deadline, which a bubble must not ask for.
		rapid.Check(struct{ rapid.TB }{t}, func(rt *rapid.T) {
			runs++
			x := &effectMachine{t: t, guards: []*Guard{{Store: g.Store}, {Store: g.Store}}, req: work(fmt.Sprint(runs))}
			x.model.policy = rapid.SampledFrom([]OnUnknown{Hold, Retry}).Draw(rt, "policy")
			x.req.OnUnknown = x.model.policy
			x.begin(rt)
			rt.Repeat(map[string]func(*rapid.T){
				"":      x.check,
				"begin": x.begin,
				"begin after the lease": func(rt *rapid.T) {
					time.Sleep(80 * time.Second)
					x.begin(rt)
				},
				"extend":   x.extend,
				"complete": x.complete,
				"fail":     x.fail,
				"resolve":  x.resolve,
				"elsewhere": func(*rapid.T) {
					x.process = 1 - x.process
				},
				"wait": func(rt *rapid.T) {
					time.Sleep(time.Duration(rapid.SampledFrom([]int{1, 4_000, 9_999, 20_000, 60_000, 70_000}).Draw(rt, "ms")) * time.Millisecond)
				},
				"clock forward": func(rt *rapid.T) {
					// Both processes look before and after, as running ones do.
					x.look(rt)
					x.setClock(time.Duration(rapid.IntRange(6, 3600).Draw(rt, "s")) * time.Second)
					x.look(rt)
					x.forward(rt)
				},
				"clock back": func(rt *rapid.T) {
					d := time.Duration(rapid.IntRange(1, 300).Draw(rt, "s")) * time.Second
					x.setClock(-d)
					x.model.lease += d.Milliseconds()
					x.model.limit += d.Milliseconds()
					if x.model.retryAt > 0 {
						x.model.retryAt += d.Milliseconds()
					}
				},
			})
			grants += len(x.model.attempts)
		})
		t.Logf("%d runs, %d grants", runs, grants)
		if runs < 50 || grants <= runs {
			t.Errorf("%d runs with %d grants prove little", runs, grants)
		}
	})
}

// look makes every process see the clock, by an event that does nothing.
func (x *effectMachine) look(rt *rapid.T) {
	for _, g := range x.guards {
		if _, err := g.Do(x.t.Context(), ID{NS: "acme/default"}, Purge{}); err != nil {
			rt.Fatal(err)
		}
	}
}

// forward takes what a jump may do from the database: the lease of a live or
// draining effect must have kept at least what it had, and no more than a whole
// lease; others may have moved nowhere.
func (x *effectMachine) forward(rt *rapid.T) {
	m := &x.model
	if x.id == (ID{}) {
		return
	}
	a, err := x.guards[x.process].Find(x.t.Context(), x.id)
	if err != nil {
		rt.Fatal(err)
	}
	r := &a.Record
	if had := m.lease - x.now(); had > 0 && !m.completed && m.state(x.now(), m.owner) == Pending && (r.LeaseUntil-x.now() < min(had, 60_000) || r.LeaseUntil-x.now() > max(had, 60_000)) {
		rt.Fatalf("a lease with %d ms left has %d after the jump\n%s", had, r.LeaseUntil-x.now(), strings.Join(x.log, "\n"))
	}
	m.lease, m.limit, m.retryAt = r.LeaseUntil, r.LeaseLimit, r.RetryAt
}
