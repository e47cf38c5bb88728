package guard

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"time"

	"llmproxy/store"
)

// pollEvery is how often a waiter looks for what another process did.
const pollEvery = 200 * time.Millisecond

// Request is a begin as a caller makes it. Zero values leave the choice to the
// step's configuration.
type Request struct {
	Work
	Mode          Mode // 0: ModeAPI
	Instance      int64
	OnUnknown     OnUnknown
	Lease         time.Duration
	Wait          time.Duration // how long to wait for an effect in progress; at most 55 s
	Retention     time.Duration
	Drift         Drift
	Confirm       bool
	WorkCreatedAt time.Time
	Note          string
}

// Begin asks for the right to cause an effect. Where the decision is Proceed,
// the claim is stored durably, Answer.Token is the right to report on it, and
// the caller may act until Answer.Reply.Until. In every other case it must not.
//
// Errors are an [*InputError], the store's ([ErrUnavailable]), or the context's.
func (g *Guard) Begin(ctx context.Context, req Request) (Answer, error) {
	g.init()
	step := g.step(req.Step)
	if req.Wait < 0 || req.Wait > maxWait {
		return Answer{}, badInput("wait_seconds", "The wait is not between 0 and %d seconds", int(maxWait.Seconds()))
	}
	if len(req.Select) == 0 {
		req.Select = step.Select
	}
	derived, err := req.Derive(g.KeySecret)
	if err != nil {
		return Answer{}, err
	}
	c := claim{Begin: req.event(&step, derived.Fingerprint)}
	if err := c.check(); err != nil {
		return Answer{}, err
	}
	return g.begin(ctx, derived.ID, &c, &step, time.Now().Add(req.Wait))
}

// claim is a begin with the token that its caller gets if it is granted.
type claim struct {
	Begin
	token string // made when it is first written
}

func (req *Request) event(step *Step, fingerprint []byte) Begin {
	b := Begin{Step: req.Step, Mode: or(req.Mode, ModeAPI), Policy: step.policy(), Instance: req.Instance,
		Confirm: req.Confirm, Note: cut(req.Note), Fingerprint: fingerprint, MaxAttempts: step.MaxAttempts, RetryWithin: step.RetryWithin.Milliseconds()}
	b.Policy.OnUnknown = or(req.OnUnknown, step.OnUnknown)
	b.Policy.Lease = or(req.Lease, step.Lease).Milliseconds()
	b.Policy.Retention = or(req.Retention, step.Retention).Milliseconds()
	if !req.WorkCreatedAt.IsZero() {
		b.WorkCreatedAt = req.WorkCreatedAt.UnixMilli()
	}
	switch or(req.Drift, step.Drift) {
	case DriftReject:
		b.RejectDrift = true
	case DriftDefault:
		b.RejectDrift = req.Explicit != ""
	}
	return b
}

// begin tries until there is an answer other than to wait, or the time is over.
func (g *Guard) begin(ctx context.Context, id ID, c *claim, step *Step, deadline time.Time) (a Answer, err error) {
	var changed <-chan struct{} // closed when the effect changes; nil until we wait
	leave := func() {}
	defer func() { leave() }()
	for {
		if a, err = g.try(ctx, id, c); err != nil {
			return Answer{}, err
		}
		switch left := time.Until(deadline); {
		case a.Reply.Decision == Proceed:
			a.Token = c.token
			return a, nil
		case a.Reply.Decision == Ask:
			if decided, err := g.probe(ctx, step, a); err != nil {
				return Answer{}, err
			} else if !decided {
				a.Reply.Decision = Held
				return a, nil
			}
		case a.Reply.Decision != Wait || left <= 0:
			return a, nil
		case changed == nil: // it may have changed before this, so look again
			changed, leave = g.waiting.join(id)
		default:
			until := time.Duration(max(a.Reply.Until-a.Now, 1)) * time.Millisecond
			woken, err := await(ctx, changed, min(left, until, pollEvery))
			if err != nil {
				return Answer{}, err
			}
			if woken {
				leave()
				changed, leave = nil, func() {}
			}
		}
	}
}

// await tells whether changed was closed before atMost was over.
func await(ctx context.Context, changed <-chan struct{}, atMost time.Duration) (woken bool, err error) {
	timer := time.NewTimer(atMost)
	defer timer.Stop()
	select {
	case <-changed:
		return true, nil
	case <-timer.C:
		return false, nil
	case <-ctx.Done():
		return false, fmt.Errorf("waiting for an effect in progress: %w", context.Cause(ctx))
	}
}

// try answers from a read where nothing changes: most begins of retried work
// are replays, and one must not wait for the writer to be told so.
func (g *Guard) try(ctx context.Context, id ID, c *claim) (Answer, error) {
	if t, ok, err := g.front.recall(ctx, g, id, c.Begin); err != nil {
		return Answer{}, err
	} else if ok {
		return g.answer(t), nil
	}
	seen := g.front.undone.Load()
	stored, now, err := g.glance(ctx, id) // a replay needs the effect's row alone
	if err == nil && stored.record.State != Absent && stored.record.State != Completed {
		now, err = g.see(ctx, &stored)
	}
	if err != nil {
		return Answer{}, fmt.Errorf("guarding an effect: %w", err)
	}
	t := Transition{ID: id, Event: c.Begin, Before: stored.record, Now: now}
	t.After, t.Reply = Apply(stored.record, c.Begin, now)
	if t.Reply.Decision == Proceed || !reflect.DeepEqual(t.Before, t.After) {
		if c.token == "" {
			c.token = newToken()
			c.Token = HashToken(c.token)
		}
		return g.Do(ctx, id, c.Begin)
	}
	g.front.keep(id, t.After, t.Now, seen)
	return g.answer(t), nil
}

// glance reads an effect's row without its attempts.
func (g *Guard) glance(ctx context.Context, id ID) (stored row, now int64, err error) {
	err = g.Store.Look(ctx, func(tx *store.Tx) error {
		stored, now = row{effect: id}, tx.Now
		return stored.read(tx, g.boot, loadSQL, tx.Now, id.NS, id.Key[:])
	})
	return stored, now, err
}

// see reads an effect whole, as it was at one moment.
func (g *Guard) see(ctx context.Context, stored *row) (now int64, err error) {
	err = g.Store.View(ctx, func(tx *store.Tx) (err error) {
		now = tx.Now
		*stored, err = load(tx, stored.effect, g.boot)
		return err
	})
	return now, err
}

// probe asks the downstream about an unknown effect and stores its verdict.
// decided is false where it can't tell. Begins at the same time share one probe.
func (g *Guard) probe(ctx context.Context, step *Step, a Answer) (decided bool, err error) {
	if step.Probe == nil {
		return false, nil
	}
	return g.probing.share(ctx, a.ID, func() (bool, error) {
		ctx := context.WithoutCancel(ctx) // the others wait for it, whoever leaves
		verdict, result, err := step.Probe(ctx, a)
		if err != nil {
			g.log().Warn("a probe could not tell whether an effect happened", "step", a.Record.Step, "key", a.ID.Key.String(), "err", err)
			return false, nil
		}
		if verdict != VerdictDone && verdict != VerdictNotDone {
			return false, nil
		}
		// It was asked after a.Now, at which the drain was over.
		_, err = g.Do(ctx, a.ID, Resolve{Verdict: verdict, Result: result, By: "probe", Probed: true, Fence: a.Record.Fence, AskedAt: a.Now})
		return true, err
	})
}

// waiters are those who wait for effects in progress in this process.
type waiters struct {
	mu sync.Mutex
	of map[ID]*waiter
}

type waiter struct {
	changed chan struct{}
	n       int
}

// join returns a channel that is closed when the effect changes; leave must be called.
func (w *waiters) join(id ID) (changed <-chan struct{}, leave func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.of == nil {
		w.of = map[ID]*waiter{}
	}
	this := w.of[id]
	if this == nil {
		this = &waiter{changed: make(chan struct{})}
		w.of[id] = this
	}
	this.n++
	return this.changed, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if this.n--; this.n == 0 && w.of[id] == this {
			delete(w.of, id)
		}
	}
}

func (w *waiters) wake(id ID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if this := w.of[id]; this != nil {
		close(this.changed)
		delete(w.of, id)
	}
}

// probes are those under way in this process.
type probes struct {
	mu sync.Mutex
	of map[ID]*probing
}

type probing struct {
	done    chan struct{}
	decided bool
	err     error
}

// share runs ask, or waits for one that already runs for the same effect.
func (p *probes) share(ctx context.Context, id ID, ask func() (bool, error)) (bool, error) {
	p.mu.Lock()
	if p.of == nil {
		p.of = map[ID]*probing{}
	}
	this, running := p.of[id]
	if !running {
		this = &probing{done: make(chan struct{})}
		p.of[id] = this
	}
	p.mu.Unlock()
	if running {
		select {
		case <-this.done:
			return this.decided, this.err
		case <-ctx.Done():
			return false, fmt.Errorf("waiting for a probe: %w", context.Cause(ctx))
		}
	}
	defer func() {
		p.mu.Lock()
		delete(p.of, id)
		p.mu.Unlock()
		close(this.done)
	}()
	this.decided, this.err = ask()
	return this.decided, this.err
}
