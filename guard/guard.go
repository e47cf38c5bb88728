// Package guard makes a side effect happen at most once although the work that
// causes it is retried.
//
// The model is a record per unit of work, in two phases. [Guard.Begin] claims
// it: the record is pending under a lease, and the caller may act. A completion
// then stores what the effect returned, and every later begin gets that instead
// of a second effect. Three things are known of a record: it is done (completed),
// it certainly did not happen (failed), or nobody knows (unknown: the lease ended
// without a report). What a begin does with the unknown is the caller's policy,
// because no store can know it: hold until somebody decides, probe the
// downstream, or retry.
//
// The rules:
//
//   - [Apply] is the whole state machine, a pure function; this package stores
//     its records, one transaction an event, and answers after the commit.
//   - Nothing is granted that is not durably stored: where the database cannot be
//     written, the answer is an error and the caller must not act.
//   - A token is the right to report on one attempt, for ever; only the holder of
//     the latest one may extend. A fence counts the grants of a key.
//   - No transition waits for a sweeper: time is worked out at each access.
//   - A key is made of the work, never of the attempt ([Work.Derive]).
//
// The limits: under Hold an effect is granted once until somebody decides, under
// Retry once more after each unknown outcome, so a holder that acted and then
// vanished makes two effects. Both need that a holder does not begin to act when
// its lease is over, and that Policy.Drain is as long as a request on its way
// may still take effect. Exactly once is not promised by anything here.
package guard

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"time"

	"llmproxy/store"
)

// Guard guards the effects in a store. It is safe for concurrent use; its
// fields must not change once it is used.
type Guard struct {
	Store *store.Store
	Log   *slog.Logger // nil: none
	// Step tells how a step's effects are guarded; nil, or a zero Step: by default.
	Step func(name string) Step
	// KeySecret, if set, keys the hashes, so that keys of guessable inputs tell
	// nothing. Changing it makes every record unfindable.
	KeySecret []byte
	// Redact are JSON pointers to values of results that are not to be stored,
	// such as a token in an answer; see [CheckPointers].
	Redact []string
	// Observe, if set, is called after each commit, and for each begin that was
	// answered without one. It must not block.
	Observe func(Transition)

	once    sync.Once
	boot    int64 // names this process in leases
	clock   clock
	front   *front
	waiting waiters
	probing probes
	redact  []selector
	invalid error // of Redact
}

// Transition is one event and what it did. What time alone did has no event, and
// its ID no namespace.
type Transition struct {
	ID            ID
	Event         Event
	Before, After Record // Before as it was stored, not yet settled
	Reply         Reply
	Now           int64 // Unix ms
}

// Step is how the effects of one step are guarded. Zero values take the
// defaults of [DefaultStep].
type Step struct {
	OnUnknown   OnUnknown
	Lease       time.Duration // of a grant
	MaxLease    time.Duration // of a grant with all its extensions
	Drain       time.Duration // how long a request already sent may still take effect
	Retention   time.Duration // of a result
	Tombstone   time.Duration // of the bare fact, after that
	MaxAttempts int           // that may have acted, under Retry
	// RetryWithin makes Retry a Hold for effects whose first attempt is older:
	// the downstream has then forgotten our key. 0: never.
	RetryWithin time.Duration
	Idempotent  bool     // the downstream makes one effect of many requests with our key
	Select      []string // what of the input makes the key, where the caller does not say
	Drift       Drift
	// Probe asks the downstream whether an effect happened; its verdict is 0
	// where it can't tell. nil: OnUnknown Probe is Hold.
	Probe func(context.Context, Answer) (Verdict, Result, error)
}

// DefaultStep is a step that nothing was configured for.
func DefaultStep() Step {
	return Step{OnUnknown: Retry, Lease: time.Minute, MaxLease: 6 * time.Hour, Drain: 10 * time.Second,
		Retention: 30 * 24 * time.Hour, Tombstone: 400 * 24 * time.Hour, MaxAttempts: 5}
}

// Drift is what a begin does whose input is not the record's.
type Drift uint8

const (
	DriftDefault Drift = iota // reject with an explicit key, replay with a derived one
	DriftReplay
	DriftReject
)

var driftNames = [...]string{"", "replay", "reject"}

// ParseDrift reads a drift policy by name.
func ParseDrift(name string) (Drift, error) {
	i, err := indexOf(driftNames[:], "drift", name)
	return Drift(i), err
}

// Answer is what an event led to.
type Answer struct {
	ID     ID
	Record Record // of a replay without its attempts
	Reply  Reply
	Now    int64  // the event's time in Unix ms
	Token  string // of a grant; shown this once
	// Downstream is the key to give to the downstream.
	Downstream Key
}

// RetryAfter is when to ask again, in seconds from 1 to 30; clients do not
// honour more. 0: there is no sense in it.
func (a *Answer) RetryAfter() int {
	if a.Reply.Until == 0 || a.Reply.Refusal == "" {
		return 0
	}
	return int(min(max((a.Reply.Until-a.Now+999)/1000, 1), 30))
}

// ErrUnavailable is in every error that means: nothing was granted, because the
// database could not be written. Of an event other than a begin it is not known
// whether it counts; send it again.
var ErrUnavailable = store.ErrUnavailable

func (g *Guard) init() {
	g.once.Do(func() {
		g.redact, g.invalid = parseSelectors(g.Redact)
		g.boot, g.front = randomID(), newFront()
		g.clock.started = time.Now()
	})
}

func (g *Guard) log() *slog.Logger {
	if g.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return g.Log
}

// step is a step's configuration without gaps.
func (g *Guard) step(name string) Step {
	s, d := Step{}, DefaultStep()
	if g.Step != nil {
		s = g.Step(name)
	}
	s.OnUnknown = or(s.OnUnknown, d.OnUnknown)
	s.Lease, s.MaxLease = or(s.Lease, d.Lease), or(s.MaxLease, d.MaxLease)
	s.Drain, s.Retention, s.Tombstone = or(s.Drain, d.Drain), or(s.Retention, d.Retention), or(s.Tombstone, d.Tombstone)
	s.MaxAttempts = or(s.MaxAttempts, d.MaxAttempts)
	return s
}

func or[T comparable](v, fallback T) T {
	var zero T
	if v == zero {
		return fallback
	}
	return v
}

func (s *Step) policy() Policy {
	return Policy{OnUnknown: s.OnUnknown, Lease: s.Lease.Milliseconds(), MaxLease: s.MaxLease.Milliseconds(), Drain: s.Drain.Milliseconds(),
		Retention: s.Retention.Milliseconds(), Tombstone: s.Tombstone.Milliseconds(), Idempotent: s.Idempotent}
}

// Do lets an event happen to an effect, durably, and tells what it led to. A
// refusal is an answer, not an error: errors are an [*InputError] for an event
// that can't be, and the store's ([ErrUnavailable]). Begin has a method of its
// own.
func (g *Guard) Do(ctx context.Context, id ID, e Event) (Answer, error) {
	g.init()
	if err := e.check(); err != nil {
		return Answer{}, err
	}
	if e = g.clean(e); g.invalid != nil {
		return Answer{}, g.invalid
	}
	for {
		seen := g.front.undone.Load()
		t, err := g.transact(ctx, id, e)
		if errors.Is(err, errJumped) {
			if err = g.moveLeases(ctx); err == nil {
				continue
			}
		}
		if err != nil {
			return Answer{}, fmt.Errorf("guarding an effect: %w", err)
		}
		if t.undoes() {
			g.front.drop(id)
		} else {
			g.front.keep(id, t.After, t.Now, seen)
		}
		if t.Before.State != t.After.State || t.Before.LeaseUntil != t.After.LeaseUntil {
			g.waiting.wake(id)
		}
		return g.answer(t), nil
	}
}

func (g *Guard) transact(ctx context.Context, id ID, e Event) (t Transition, err error) {
	err = g.Store.Update(ctx, func(tx *store.Tx) error {
		if g.clock.jump(tx.Now) > 0 {
			return errJumped
		}
		stored, err := load(tx, id, g.boot)
		if err != nil {
			return err
		}
		t = Transition{ID: id, Event: e, Before: stored.record, Now: tx.Now}
		t.After, t.Reply = Apply(stored.record, e, tx.Now)
		if reflect.DeepEqual(t.Before, t.After) {
			return nil
		}
		if t.undoes() {
			if err := markUndone(tx); err != nil {
				return err
			}
		}
		return stored.save(tx, &t.After, g.boot)
	})
	return t, err
}

func (g *Guard) answer(t Transition) Answer {
	if g.Observe != nil {
		g.Observe(t)
	}
	return Answer{ID: t.ID, Record: t.After, Reply: t.Reply, Now: t.Now, Downstream: Downstream(t.ID.Key, t.After.Epoch, g.KeySecret)}
}

// Find reads an effect as it stands now; its State is Absent where there is none.
func (g *Guard) Find(ctx context.Context, id ID) (Answer, error) {
	g.init()
	stored := row{effect: id}
	now, err := g.see(ctx, &stored)
	if err != nil {
		return Answer{}, fmt.Errorf("looking for an effect: %w", err)
	}
	r := settle(stored.record, now)
	return Answer{ID: id, Record: r, Now: now, Downstream: Downstream(id.Key, r.Epoch, g.KeySecret)}, nil
}

func newToken() string {
	var b [16]byte
	rand.Read(b[:]) //nolint:errcheck // it never fails
	return base64.RawURLEncoding.EncodeToString(b[:])
}
