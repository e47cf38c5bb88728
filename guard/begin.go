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
	token := newToken()
	begin := req.event(&step, derived.Fingerprint, token)
	if err := begin.check(); err != nil {
		return Answer{}, err
	}
	return g.begin(ctx, derived.ID, begin, token, &step, time.Now().Add(req.Wait))
}

func (req *Request) event(step *Step, fingerprint []byte, token string) Begin {
	b := Begin{Step: req.Step, Mode: or(req.Mode, ModeAPI), Policy: step.policy(), Token: HashToken(token), Instance: req.Instance,
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
func (g *Guard) begin(ctx context.Context, id ID, b Begin, token string, step *Step, deadline time.Time) (Answer, error) {
	for {
		changed, leave := g.waiting.join(id)
		a, err := g.try(ctx, id, b)
		if err == nil {
			switch left := time.Until(deadline); {
			case a.Reply.Decision == Proceed:
				a.Token = token
			case a.Reply.Decision == Ask:
				var decided bool
				if decided, err = g.probe(ctx, step, a); err == nil && decided {
					leave()
					continue
				}
				a.Reply.Decision = Held
			case a.Reply.Decision == Wait && left > 0:
				until := time.Duration(max(a.Reply.Until-a.Now, 1)) * time.Millisecond
				if err = await(ctx, changed, min(left, until, pollEvery)); err == nil {
					leave()
					continue
				}
			}
		}
		leave()
		if err != nil {
			return Answer{}, err
		}
		return a, nil
	}
}

func await(ctx context.Context, changed <-chan struct{}, atMost time.Duration) error {
	timer := time.NewTimer(atMost)
	defer timer.Stop()
	select {
	case <-changed:
	case <-timer.C:
	case <-ctx.Done():
		return fmt.Errorf("waiting for an effect in progress: %w", context.Cause(ctx))
	}
	return nil
}

// try answers from a read where nothing changes: most begins of retried work
// are replays, and one must not wait for the writer to be told so.
func (g *Guard) try(ctx context.Context, id ID, b Begin) (Answer, error) {
	var t Transition
	err := g.Store.View(ctx, func(tx *store.Tx) error {
		stored, err := load(tx, id, g.boot)
		t = Transition{ID: id, Event: b, Before: stored.record, Now: tx.Now}
		t.After, t.Reply = Apply(stored.record, b, tx.Now)
		return err
	})
	if err != nil {
		return Answer{}, fmt.Errorf("guarding an effect: %w", err)
	}
	if t.Reply.Decision == Proceed || !reflect.DeepEqual(t.Before, t.After) {
		return g.Do(ctx, id, b)
	}
	return g.answer(t), nil
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
