package guard

import (
	"bytes"
	"slices"
	"strings"
)

// Event is something that happens to an effect: [Begin], [Complete], [Fail],
// [Extend], [Resolve] or [Purge].
type Event interface {
	// apply is the event's part of [Apply], on a record that time has settled.
	apply(r Record, now int64) (Record, Reply)
	// check tells what makes the event unusable, as an [*InputError].
	check() error
}

// Decision is what a begin may do.
type Decision string

const (
	Proceed  Decision = "proceed"  // act: the lease is yours
	Replay   Decision = "replay"   // it is done: here is the result
	Wait     Decision = "wait"     // somebody else is at it, until Reply.Until
	Held     Decision = "hold"     // it may have happened: somebody must decide
	Ask      Decision = "probe"    // ask the downstream, then resolve
	Mismatch Decision = "mismatch" // the key belongs to another input
	TooOld   Decision = "too_old"  // a record of it may have been forgotten
)

// Refusal says why an event did not do what it asked for. Empty: it did.
type Refusal string

const (
	InProgress       Refusal = "effect_in_progress"
	RetryLater       Refusal = "retry_later"
	Undecided        Refusal = "effect_outcome_unknown"
	InputMismatch    Refusal = "input_mismatch"
	WorkTooOld       Refusal = "too_old"
	LeaseLost        Refusal = "lease_lost"
	AlreadyCompleted Refusal = "already_completed"
	NotCompleted     Refusal = "not_completed"
	UnknownEffect    Refusal = "unknown_effect"
	BadToken         Refusal = "bad_token"
)

// Reply is the answer to an event. What else there is to tell stands in the
// record that Apply returns with it.
type Reply struct {
	Decision  Decision // of a Begin; empty for every other event
	Refusal   Refusal
	Fence     int64 // of the attempt that was granted or that reported
	Until     int64 // Unix ms: when the reason to wait may be over
	Takeover  bool  // granted although an earlier attempt may have acted
	Drift     bool  // the input is not the one the record was granted for
	First     bool  // this completion is the one that counts
	Late      bool  // the reporter no longer held the lease
	Duplicate bool  // the report tells of a second effect
}

// Apply is the whole state machine: the record and the answer after an event
// at a time in Unix ms. It is pure; a record that nothing happened to is
// returned as it came. What time alone does (a lease that is over, a result
// whose retention is) is worked out first, so no transition waits for a
// sweeper.
//
// It grants (Decision is Proceed) only where no record is, where the last word
// is that nothing happened, or where the policy says to retry an unknown
// outcome: never beside a live lease, never after a completion.
func Apply(r Record, e Event, now int64) (Record, Reply) {
	settled := settle(r, now)
	next, reply := e.apply(settled, now)
	return next, reply
}

// settle moves a record to where time alone has brought it.
func settle(r Record, now int64) Record {
	switch r.State {
	case Pending:
		if now < r.leaseEnd() && !r.HolderGone {
			return r
		}
		last := len(r.Attempts) - 1
		if r.Confirm && !r.Confirmed {
			// Its holder promised to extend before acting, and did not.
			r.end(last, OutcomeNone, r.LeaseUntil, "lapsed before it was confirmed")
			return r.afterNone(0, now)
		}
		r.end(last, OutcomeUnknown, min(r.LeaseUntil, now), noteLapsed)
		r.State, r.UpdatedAt = Unknown, now
	case Completed:
		if now >= r.TombstoneUntil {
			return Record{}
		}
		if now >= r.ExpiresAt && (r.Result.available() || r.Attempts != nil) {
			r.Result, r.Attempts, r.UpdatedAt = Result{ResourceID: r.Result.ResourceID}, nil, now
		}
	}
	return r
}

// afterNone is the state once one more attempt is known to have done nothing:
// failed if that is known of each, otherwise it is still unknown.
func (r Record) afterNone(retryAt, now int64) Record {
	r.UpdatedAt = now
	if n, _ := r.unsettled(); n > 0 {
		r.State, r.LeaseUntil = Unknown, min(r.LeaseUntil, now)
		return r
	}
	r.State, r.RetryAt = Failed, retryAt
	return r
}

// Begin asks for the right to act.
type Begin struct {
	Step     string
	Mode     Mode
	Policy   Policy
	Token    TokenHash // of the token that the caller gets if this is granted
	Instance int64     // the store's instance that will forward; 0 otherwise
	Confirm  bool
	Note     string
	// Fingerprint of the input; nil matches every input.
	Fingerprint []byte
	// RejectDrift refuses an input that is not the record's, in every state.
	RejectDrift bool
	// MaxAttempts bounds the attempts that may have acted, under Retry. 0: no bound.
	MaxAttempts int
	// RetryWithin makes Retry a Hold once the first attempt that may have acted
	// is older, in ms: the downstream has then forgotten our key. 0: never.
	RetryWithin int64
	// WorkCreatedAt is when the work came into being, Unix ms, 0 if not told: a
	// record of work older than all retention may have been forgotten.
	WorkCreatedAt int64
}

func (b Begin) apply(r Record, now int64) (Record, Reply) {
	drift := r.State != Absent && r.Fingerprint != nil && b.Fingerprint != nil && !bytes.Equal(r.Fingerprint, b.Fingerprint)
	if drift && b.RejectDrift {
		return r, Reply{Decision: Mismatch, Refusal: InputMismatch, Drift: true}
	}
	switch r.State {
	case Absent:
		if b.WorkCreatedAt != 0 && b.WorkCreatedAt < now-b.Policy.Retention-b.Policy.Tombstone {
			return r, Reply{Decision: TooOld, Refusal: WorkTooOld}
		}
	case Failed:
		if now < r.RetryAt {
			return r, Reply{Decision: Wait, Refusal: RetryLater, Until: r.RetryAt, Drift: drift}
		}
	case Pending:
		return r, Reply{Decision: Wait, Refusal: InProgress, Until: r.leaseEnd(), Drift: drift}
	case Completed:
		return r, Reply{Decision: Replay, Fence: r.CompletedBy, Drift: drift}
	case Unknown:
		reply := b.decide(&r, now)
		reply.Drift = drift
		if reply.Decision != Proceed {
			return r, reply
		}
	}
	return b.grant(r, drift, now)
}

// decide is what the policies make of an unknown outcome. The stricter of the
// record's and the caller's holds: who began with Hold was promised one grant.
func (b Begin) decide(r *Record, now int64) Reply {
	policy := min(b.Policy.OnUnknown, r.Policy.OnUnknown)
	if n, first := r.unsettled(); policy == Retry {
		exhausted := b.MaxAttempts > 0 && n >= b.MaxAttempts
		forgotten := b.RetryWithin > 0 && now-first >= b.RetryWithin
		if exhausted || forgotten {
			policy = Hold
		}
	}
	switch {
	case policy == Hold:
		return Reply{Decision: Held, Refusal: Undecided}
	case now < r.drained():
		return Reply{Decision: Wait, Refusal: InProgress, Until: r.drained()}
	case policy == Probe:
		return Reply{Decision: Ask, Refusal: Undecided, Fence: r.Fence}
	}
	return Reply{Decision: Proceed}
}

func (b Begin) grant(r Record, drift bool, now int64) (Record, Reply) {
	takeover := r.State == Unknown
	policy := b.Policy
	if takeover {
		policy.OnUnknown = min(policy.OnUnknown, r.Policy.OnUnknown)
	}
	if r.State == Absent {
		r = Record{CreatedAt: now}
	}
	if b.Fingerprint != nil {
		r.Fingerprint = b.Fingerprint
	}
	r.Step, r.State, r.Mode, r.Policy = b.Step, Pending, b.Mode, policy
	r.Fence++
	r.LeaseLimit = now + policy.MaxLease
	r.LeaseUntil = min(now+policy.Lease, r.LeaseLimit)
	r.Confirm, r.Confirmed = b.Confirm, false
	r.Instance, r.Foreign, r.HolderGone = b.Instance, false, false
	r.RetryAt, r.ResolvedBy, r.Reason, r.UpdatedAt = 0, "", "", now
	r.Attempts = append(forgetNone(r.Attempts), Attempt{
		Fence: r.Fence, Token: b.Token, StartedAt: now, Outcome: OutcomeRunning, Note: b.Note})
	return r, Reply{Decision: Proceed, Fence: r.Fence, Until: r.LeaseUntil, Takeover: takeover, Drift: drift}
}

// forgetNone returns a copy with room for one more attempt, without the oldest
// ones that did nothing.
func forgetNone(attempts []Attempt) []Attempt {
	kept := slices.Grow(slices.Clone(attempts), 1)
	for surplus := len(kept) - maxAttemptsKept + 1; surplus > 0; surplus-- {
		i := slices.IndexFunc(kept, func(a Attempt) bool { return a.Outcome == OutcomeNone })
		if i < 0 {
			break
		}
		kept = slices.Delete(kept, i, i+1)
	}
	return kept
}

// Extend renews the lease of the attempt that holds it, and confirms it.
type Extend struct {
	Token TokenHash
	Lease int64 // ms; 0: as long as the last time
}

func (e Extend) apply(r Record, now int64) (Record, Reply) {
	i, refused := r.reporter(e.Token)
	if refused != "" {
		return r, Reply{Refusal: refused}
	}
	a := &r.Attempts[i]
	reply := Reply{Fence: a.Fence}
	superseded := i != len(r.Attempts)-1 || a.Closed || a.Outcome == OutcomeNone
	if r.State != Pending && r.State != Unknown || superseded || now >= r.LeaseLimit {
		reply.Refusal = LeaseLost
		return r, reply
	}
	if e.Lease > 0 {
		r.Policy.Lease = e.Lease
	}
	reply.Late = r.State == Unknown
	r.State, r.Confirmed, r.UpdatedAt = Pending, true, now
	r.Foreign, r.HolderGone = false, false
	r.LeaseUntil = min(now+r.Policy.Lease, r.LeaseLimit)
	reply.Until = r.LeaseUntil
	if a.Outcome != OutcomeRunning {
		r.change(i, func(a *Attempt) {
			a.Outcome, a.EndedAt = OutcomeRunning, 0
			a.Note = strings.TrimSuffix(strings.TrimSuffix(a.Note, noteLapsed), "; ")
		})
	}
	return r, reply
}

// reporter finds the attempt that a token may speak for.
func (r *Record) reporter(token TokenHash) (i int, refused Refusal) {
	if r.State == Absent {
		return -1, UnknownEffect
	}
	if i = r.attempt(token); i < 0 {
		return i, BadToken
	}
	return i, ""
}
