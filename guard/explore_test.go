package guard

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

// The exploration runs Apply itself through every interleaving of three
// attempts (two and a probe under Probe), a person and a probe, at any distance in time: replies are lost,
// processes vanish at any point, requests take effect late. The world keeps what
// Apply cannot see: how often the effect really happened.
//
// It assumes of a holder what the guarantees assume: it sends only while its
// lease, as far as it was told, lasts, and what it sent takes effect within the
// drain or never. Nobody lies.

const (
	worldLease = 2
	worldDrain = 2
	worldLimit = 5         // a holder can come back after the drain
	mostStates = 2_000_000 // more would be a mistake in the world
)

// phase is what an attempt's process has done.
type phase uint8

const (
	idle     phase = iota
	granted        // it was told to proceed
	sent           // its request is on the way
	landed         // it took effect, and the process knows
	refused_       // it certainly did not, and the process knows
	gone           // it vanished, or never heard that it may proceed
	adrift         // it vanished with its request on the way
)

type process struct {
	phase     phase
	until     int64 // the end of its lease, as it was told
	sentAt    int64
	confirmed bool
}

type world struct {
	record    Record
	now       int64
	processes [3]process
	effects   int
	asked     asked // a probe under way
}

type asked struct {
	fence, at int64
	done      bool
}

// machine is Apply or a broken variant of it.
type machine func(Record, Event, int64) (Record, Reply)

type exploration struct {
	apply   machine
	policy  OnUnknown
	confirm bool
	seen    map[string]bool
	next    []world
	edges   map[transition]bool
	most    int // effects
	broken  string
}

func explore(apply machine, policy OnUnknown, confirm bool) *exploration {
	x := &exploration{apply: apply, policy: policy, confirm: confirm, seen: map[string]bool{}, edges: map[transition]bool{}}
	x.add(world{})
	for len(x.next) > 0 && x.broken == "" {
		if len(x.seen) > mostStates {
			x.broken = fmt.Sprintf("more than %d states", mostStates)
		}
		frontier := x.next
		x.next = nil
		for i := range frontier {
			x.expand(&frontier[i])
		}
	}
	return x
}

func (x *exploration) add(w world) {
	key := w.key()
	if !x.seen[key] {
		x.seen[key] = true
		x.next = append(x.next, w)
	}
}

// key is all of a world that its future depends on: times count from now, and
// those that are long past count alike.
func (w *world) key() string {
	r := &w.record
	ago := func(at, most int64) byte { return byte(max(at-w.now, -most) + most) }
	flags := func(set ...bool) (b byte) {
		for _, s := range set {
			b <<= 1
			if s {
				b |= 1
			}
		}
		return b
	}
	b := make([]byte, 0, 40)
	for _, p := range w.processes {
		b = append(b, byte(p.phase))
		switch p.phase {
		case granted:
			b = append(b, ago(p.until, 0), flags(p.confirmed))
		case sent, adrift:
			b = append(b, ago(p.sentAt, worldDrain))
		}
	}
	b = append(b, byte(w.effects), byte(r.State), byte(r.Fence), byte(r.CompletedBy), byte(r.DuplicateEffects),
		flags(r.Confirm, r.Confirmed, r.ResolvedBy != "", w.asked.done))
	if r.State == Pending || r.State == Unknown {
		b = append(b, ago(r.LeaseUntil, worldDrain), ago(r.LeaseLimit, 0))
	}
	if w.asked.fence != 0 {
		b = append(b, byte(w.asked.fence), byte(w.asked.at-r.LeaseUntil+100))
	}
	for _, a := range r.Attempts {
		b = append(b, byte(a.Outcome), flags(a.Duplicate))
	}
	return string(b)
}

var tokens = [...]string{"a", "b", "c"}
var hashes = [...]TokenHash{HashToken("a"), HashToken("b"), HashToken("c")}

// do applies an event to a copy of the world, checks it, and lets then add what
// the processes make of the answer.
func (x *exploration) do(w *world, e Event, then func(*world, Reply)) {
	if x.broken != "" {
		return
	}
	n := *w
	var reply Reply
	n.record, reply = x.apply(w.record, e, w.now)
	x.check(w, &n, e, reply)
	if was := settle(w.record, w.now); was.State != n.record.State {
		x.edges[transition{was.State, n.record.State, nameOfEvent(e)}] = true
	}
	then(&n, reply)
}

func (x *exploration) expand(w *world) {
	later := *w
	later.now++
	x.add(later)
	begun := false
	for i := range w.processes {
		p := &w.processes[i]
		if p.phase == idle {
			if i == 2 && x.policy == Probe {
				break // two attempts and a probe make states enough
			}
			if !begun { // they are alike: which of them begins does not matter
				begun = true
				x.begin(w, i)
			}
			continue
		}
		x.work(w, i)
	}
	x.decide(w)
}

func (x *exploration) begin(w *world, i int) {
	b := Begin{Step: "mail", Mode: ModeAPI, Token: hashes[i], Confirm: x.confirm,
		Policy: Policy{OnUnknown: x.policy, Lease: worldLease, MaxLease: worldLimit, Drain: worldDrain, Retention: 1000, Tombstone: 1000}}
	x.do(w, b, func(n *world, reply Reply) {
		switch reply.Decision {
		case Proceed:
			lost := *n
			lost.processes[i].phase = gone
			x.add(lost)
			n.processes[i] = process{phase: granted, until: reply.Until}
		case Ask:
			if n.asked.fence == 0 {
				n.asked = asked{fence: n.record.Fence, at: n.now, done: n.effects > 0}
			}
		}
		x.add(*n)
	})
}

// work is all that a process which was granted may do next.
func (x *exploration) work(w *world, i int) {
	p := w.processes[i]
	to := func(change func(*world, *process)) {
		n := *w
		change(&n, &n.processes[i])
		x.add(n)
	}
	inTime := p.sentAt+worldDrain > w.now
	if (p.phase == sent || p.phase == adrift) && inTime {
		to(func(n *world, p *process) {
			n.effects++
			p.phase = map[phase]phase{sent: landed, adrift: gone}[p.phase]
		})
	}
	switch p.phase {
	case granted:
		to(func(_ *world, p *process) { p.phase = gone })
		to(func(_ *world, p *process) { p.phase = refused_ })
		if w.now < p.until && (p.confirmed || !x.confirm) {
			to(func(n *world, p *process) { p.phase, p.sentAt = sent, n.now })
		}
		x.do(w, Extend{Token: hashes[i]}, func(n *world, reply Reply) {
			x.add(*n) // the answer was lost
			if reply.Refusal == "" {
				n.processes[i].until, n.processes[i].confirmed = reply.Until, true
			} else {
				n.processes[i].phase = refused_ // it does not act
			}
			x.add(*n)
		})
	case sent:
		to(func(_ *world, p *process) { p.phase = adrift })
		if !inTime {
			to(func(_ *world, p *process) { p.phase = refused_ })
		}
		x.do(w, Fail{Token: hashes[i]}, func(n *world, _ Reply) { x.add(*n) })
	case landed:
		x.do(w, Complete{Token: hashes[i], Result: Result{ResourceID: tokens[i]}}, func(n *world, _ Reply) { x.add(*n) })
		to(func(_ *world, p *process) { p.phase = gone })
	case refused_:
		x.do(w, Fail{Token: hashes[i], None: true}, func(n *world, _ Reply) { x.add(*n) })
		to(func(_ *world, p *process) { p.phase = gone })
	}
}

// decide is what a person does, and the answer of a probe under way.
func (x *exploration) decide(w *world) {
	verdict := func(done bool) Resolve {
		if done {
			return say(VerdictDone)
		}
		return say(VerdictNotDone)
	}
	if w.asked.fence != 0 {
		d := verdict(w.asked.done)
		d.Probed, d.Fence, d.AskedAt = true, w.asked.fence, w.asked.at
		x.do(w, d, func(n *world, _ Reply) { n.asked = asked{}; x.add(*n) })
	}
	if w.record.State == Unknown || w.record.State == Pending {
		x.do(w, verdict(w.effects > 0), func(n *world, _ Reply) { x.add(*n) })
	}
}

// check holds a transition to the invariants.
func (x *exploration) check(before, after *world, e Event, reply Reply) {
	r := &after.record
	was := settle(before.record, before.now)
	fail := func(format string, args ...any) {
		if x.broken == "" {
			x.broken = fmt.Sprintf(format, args...) + fmt.Sprintf("\n%T at %d: %+v\nwas %+v\nis  %+v", e, before.now, reply, before, after)
		}
	}
	x.most = max(x.most, after.effects)
	extendable := 0
	for _, a := range r.Attempts {
		if _, reply := x.apply(*r, Extend{Token: a.Token}, after.now); reply.Refusal == "" {
			extendable++
		}
	}
	if extendable > 1 {
		fail("two attempts may extend")
	}
	if reply.Decision == Proceed {
		allowed := was.State == Absent || was.State == Failed || was.State == Unknown && x.policy == Retry && after.now >= was.drained()
		if !allowed {
			fail("granted from %s", was.State)
		}
		if r.Fence != was.Fence+1 {
			fail("the fence goes from %d to %d", was.Fence, r.Fence)
		}
	} else if r.Fence != was.Fence {
		fail("the fence moves without a grant")
	}
	if was.State == Completed && (r.State != Completed || r.CompletedBy != was.CompletedBy || !r.Result.equal(&was.Result)) {
		fail("a completion changed")
	}
	if r.State == Completed && after.effects == 0 {
		fail("completed, and nothing happened")
	}
	if r.State == Failed && r.ResolvedBy == "" {
		for _, a := range r.Attempts {
			if a.Outcome != OutcomeNone {
				fail("failed, but attempt %d is %s", a.Fence, a.Outcome)
			}
		}
	}
	if c, ok := e.(Complete); ok && reply.Refusal == "" && r.State != Completed {
		fail("the completion by %x was not kept", c.Token[:2])
	}
	if e, ok := e.(Extend); ok && was.attempt(e.Token) != len(was.Attempts)-1 && (r.LeaseUntil != was.LeaseUntil || r.State != was.State) {
		fail("an older attempt moved the lease")
	}
	if x.policy != Retry && after.effects > 1 {
		fail("the effect happened %d times under %s", after.effects, x.policy)
	}
}

func TestEveryInterleavingKeepsTheInvariants(t *testing.T) {
	edges := map[transition]bool{}
	for _, c := range []struct {
		policy  OnUnknown
		confirm bool
	}{{Hold, false}, {Hold, true}, {Probe, false}, {Probe, true}, {Retry, false}, {Retry, true}} {
		x := explore(Apply, c.policy, c.confirm)
		if x.broken != "" {
			t.Fatalf("%s, confirm %v: %s", c.policy, c.confirm, x.broken)
		}
		t.Logf("%s, confirm %v: %d states, at most %d effects", c.policy, c.confirm, len(x.seen), x.most)
		if len(x.seen) < 1000 || x.most == 0 {
			t.Errorf("%d states with at most %d effects prove little", len(x.seen), x.most)
		}
		if c.policy == Retry && x.most < 2 {
			t.Error("retry is at least once: a second effect must be reachable, or the world is too tame")
		}
		maps.Copy(edges, x.edges)
	}
	checkDrawing(t, edges)
}

// The broken variants. Each must violate an invariant somewhere, or the
// exploration would not notice the mistake in Apply either.
var mutants = map[string]struct {
	policy  OnUnknown
	confirm bool
	apply   machine
}{
	"extends whoever asks": {Retry, false, func(r Record, e Event, now int64) (Record, Reply) {
		if e, ok := e.(Extend); ok && r.State == Pending && r.attempt(e.Token) >= 0 {
			r.LeaseUntil = now + worldLease
			return r, Reply{Until: r.LeaseUntil}
		}
		return Apply(r, e, now)
	}},
	"takes an error for nothing happened": {Hold, false, func(r Record, e Event, now int64) (Record, Reply) {
		if f, ok := e.(Fail); ok {
			f.None = true
			return Apply(r, f, now)
		}
		return Apply(r, e, now)
	}},
	"probes without waiting for the drain": {Probe, false, func(r Record, e Event, now int64) (Record, Reply) {
		r.Policy.Drain = 0
		if b, ok := e.(Begin); ok {
			b.Policy.Drain = 0
			return Apply(r, b, now)
		}
		return Apply(r, e, now)
	}},
	"believes a probe that asked before the holder came back": {Probe, false, func(r Record, e Event, now int64) (Record, Reply) {
		if d, ok := e.(Resolve); ok {
			d.AskedAt = now
			return Apply(r, d, now)
		}
		return Apply(r, e, now)
	}},
	"takes a lapsed lease for nothing happened": {Hold, false, func(r Record, e Event, now int64) (Record, Reply) {
		if r.State == Pending && now >= r.LeaseUntil {
			r.end(len(r.Attempts)-1, OutcomeNone, now, "")
			r.State = Failed
		}
		return Apply(r, e, now)
	}},
	"takes a confirmed lapse for an unconfirmed one": {Hold, true, func(r Record, e Event, now int64) (Record, Reply) {
		r.Confirmed = false
		return Apply(r, e, now)
	}},
	"grants beside a live lease": {Hold, false, func(r Record, e Event, now int64) (Record, Reply) {
		if b, ok := e.(Begin); ok && r.State == Pending {
			return b.grant(r, false, now)
		}
		return Apply(r, e, now)
	}},
	"forgets what a late completion tells": {Hold, false, func(r Record, e Event, now int64) (Record, Reply) {
		if _, ok := e.(Complete); ok && r.State == Unknown {
			return r, Reply{Late: true}
		}
		return Apply(r, e, now)
	}},
	"lets the last completion win": {Retry, false, func(r Record, e Event, now int64) (Record, Reply) {
		if c, ok := e.(Complete); ok && r.State == Completed {
			if i := r.attempt(c.Token); i >= 0 {
				return r.complete(c.Result, r.Attempts[i].Fence, now), Reply{First: true}
			}
		}
		return Apply(r, e, now)
	}},
	"takes the takeover's word for the first attempt": {Retry, false, func(r Record, e Event, now int64) (Record, Reply) {
		next, reply := Apply(r, e, now)
		if f, ok := e.(Fail); ok && f.None && next.State == Unknown {
			next.State = Failed
		}
		return next, reply
	}},
	"repeats what is completed": {Retry, false, func(r Record, e Event, now int64) (Record, Reply) {
		if b, ok := e.(Begin); ok && r.State == Completed {
			return b.grant(r, false, now)
		}
		return Apply(r, e, now)
	}},
	"starts the fence anew after a failure": {Retry, false, func(r Record, e Event, now int64) (Record, Reply) {
		if _, ok := e.(Begin); ok && r.State == Failed {
			r.Fence = 0
		}
		return Apply(r, e, now)
	}},
	"retries without waiting for the drain": {Retry, false, func(r Record, e Event, now int64) (Record, Reply) {
		if b, ok := e.(Begin); ok && settle(r, now).State == Unknown {
			return b.grant(settle(r, now), false, now)
		}
		return Apply(r, e, now)
	}},
}

func TestTheExplorationCatchesBrokenVariants(t *testing.T) {
	for name, m := range mutants {
		t.Run(name, func(t *testing.T) {
			x := explore(m.apply, m.policy, m.confirm)
			if x.broken == "" {
				t.Fatalf("%d states and no invariant broken", len(x.seen))
			}
			what, _, _ := strings.Cut(x.broken, "\n")
			t.Log(what)
		})
	}
}

// transition is a change of state that an event makes, with what time did
// before it apart.
type transition struct {
	from, to State
	event    string
}

func (t transition) String() string { return fmt.Sprintf("%s --> %s: %s", t.from, t.to, t.event) }

func nameOfEvent(e Event) string {
	switch e := e.(type) {
	case Begin:
		return "begin"
	case Complete:
		return "complete"
	case Fail:
		if e.None {
			return "fail none"
		}
		return "fail unknown"
	case Extend:
		return "extend"
	case Resolve:
		return e.Verdict.String()
	}
	return "purge"
}

// checkDrawing holds the drawing of the states in the documentation to the
// transitions that the exploration has seen; those it does not play end in
// parentheses.
func checkDrawing(t *testing.T, edges map[transition]bool) {
	t.Helper()
	text, err := os.ReadFile("../docs/guarantees.md")
	if err != nil {
		t.Fatal(err)
	}
	var drawn []string
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); strings.Contains(line, " --> ") && !strings.HasSuffix(line, ")") {
			drawn = append(drawn, line)
		}
	}
	var seen []string
	for e := range edges {
		seen = append(seen, e.String())
	}
	slices.Sort(seen)
	slices.Sort(drawn)
	if !slices.Equal(seen, drawn) {
		t.Errorf("the drawing in docs/guarantees.md has\n%s\nthe exploration saw\n%s", strings.Join(drawn, "\n"), strings.Join(seen, "\n"))
	}
}
