package guard

// Verdict is what a person or a probe found out.
type Verdict uint8

const (
	VerdictDone Verdict = iota + 1
	VerdictNotDone
	VerdictReopen // it was done, and is to be done again
)

var verdictNames = [...]string{"", "done", "not_done", "reopen"}

func (v Verdict) String() string { return nameOf(verdictNames[:], int(v)) }

// ParseVerdict reads a verdict as String writes it.
func ParseVerdict(name string) (Verdict, error) {
	i, err := indexOf(verdictNames[:], "outcome", name)
	return Verdict(i), err
}

// Resolve decides an effect from outside of its attempts.
type Resolve struct {
	Verdict Verdict
	Result  Result // of VerdictDone
	By      string // who says so
	Reason  string
	// Force decides although a holder is alive or may still act.
	Force bool
	// Rotate gives the downstream a new key, for one that repeats its answer to
	// the old one.
	Rotate bool
	// Step and Policy make a record where there is none, with VerdictDone.
	Step   string
	Policy Policy
	// Probed says that the downstream was asked: the verdict then counts only
	// for the grant Fence, and VerdictNotDone only if it was asked, at AskedAt
	// in Unix ms, when nothing of that grant could still take effect.
	Probed  bool
	Fence   int64
	AskedAt int64
}

func (d Resolve) apply(r Record, now int64) (Record, Reply) {
	reply := Reply{Fence: r.Fence}
	if d.Probed && (r.State != Unknown || r.Fence != d.Fence || d.Verdict == VerdictReopen) {
		reply.Refusal = LeaseLost // somebody else has moved the record meanwhile
		return r, reply
	}
	if r.State == Absent && !(d.Verdict == VerdictDone && d.Step != "") {
		return r, Reply{Refusal: UnknownEffect}
	}
	if r.State == Pending && !d.Force {
		return r, Reply{Refusal: InProgress, Fence: r.Fence, Until: r.leaseEnd()}
	}
	switch d.Verdict {
	case VerdictDone:
		return d.sayDone(r, now)
	case VerdictNotDone:
		return d.sayNotDone(r, now)
	}
	return d.reopen(r, now)
}

func (d Resolve) sayDone(r Record, now int64) (Record, Reply) {
	switch r.State {
	case Absent:
		r = Record{Step: d.Step, Mode: ModeAPI, Policy: d.Policy, CreatedAt: now}
	case Completed:
		if d.Result.ResourceID != "" && d.Result.ResourceID != r.Result.ResourceID {
			return r, Reply{Refusal: AlreadyCompleted, Fence: r.Fence}
		}
		return r, Reply{Fence: r.Fence}
	case Pending:
		r.end(len(r.Attempts)-1, OutcomeUnknown, now, "superseded")
		r.LeaseUntil = min(r.LeaseUntil, now)
	}
	return d.sign(r).complete(d.Result, 0, now), Reply{Fence: r.Fence, First: true}
}

func (d Resolve) sayNotDone(r Record, now int64) (Record, Reply) {
	reply := Reply{Fence: r.Fence}
	asked := now
	if d.Probed {
		asked = d.AskedAt
	}
	switch {
	case r.State == Completed:
		reply.Refusal = AlreadyCompleted
		return r, reply
	case r.State == Unknown && asked < r.drained() && !d.Force:
		reply.Refusal, reply.Until = InProgress, r.drained()
		return r, reply
	case r.State == Failed && !d.Rotate && r.RetryAt == 0:
		return r, reply
	}
	for i, a := range r.Attempts {
		if !a.Closed {
			r.end(i, OutcomeNone, now, "")
		}
	}
	if d.Rotate {
		r.Epoch++
	}
	r.State, r.RetryAt, r.UpdatedAt = Failed, 0, now
	r.LeaseUntil = min(r.LeaseUntil, now)
	return d.sign(r), reply
}

// reopen starts over: what earlier attempts still report is only written down,
// and the downstream gets a new key, or it would repeat its old answer.
func (d Resolve) reopen(r Record, now int64) (Record, Reply) {
	if r.State != Completed {
		return r, Reply{Refusal: NotCompleted, Fence: r.Fence}
	}
	for i := range r.Attempts {
		if !r.Attempts[i].Closed {
			r.change(i, func(a *Attempt) {
				a.Closed = true
				if a.EndedAt == 0 {
					a.EndedAt = now
				}
			})
		}
	}
	r.State, r.Result, r.UpdatedAt = Failed, Result{}, now
	r.CompletedAt, r.CompletedBy, r.ExpiresAt, r.TombstoneUntil = 0, 0, 0, 0
	r.Epoch++
	return d.sign(r), Reply{Fence: r.Fence}
}

func (d Resolve) sign(r Record) Record {
	r.ResolvedBy, r.Reason = d.By, d.Reason
	if r.ResolvedBy == "" {
		r.ResolvedBy = "unnamed"
	}
	return r
}

// Purge forgets: of a completed effect the result, so that it is still never
// repeated, of a failed one everything. Force forgets whatever there is, and
// with it that the effect must not be repeated.
type Purge struct {
	Force bool
}

func (p Purge) apply(r Record, now int64) (Record, Reply) {
	reply := Reply{Fence: r.Fence}
	switch {
	case r.State == Absent:
		reply.Refusal = UnknownEffect
	case p.Force || r.State == Failed:
		return Record{}, reply
	case r.State == Pending:
		reply.Refusal, reply.Until = InProgress, r.leaseEnd()
	case r.State == Unknown:
		reply.Refusal = Undecided
	default:
		r.ExpiresAt = min(r.ExpiresAt, now)
		return settle(r, now), reply
	}
	return r, reply
}
