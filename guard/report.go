package guard

// Complete reports that the effect happened. Every attempt may, in every state
// but absent: a token is the right to report, not only while the lease lasts.
type Complete struct {
	Token  TokenHash
	Result Result
}

func (c Complete) apply(r Record, now int64) (Record, Reply) {
	i, refused := r.reporter(c.Token)
	if refused != "" {
		return r, Reply{Refusal: refused}
	}
	a := r.Attempts[i]
	reply := Reply{Fence: a.Fence, Late: r.State != Pending || i != len(r.Attempts)-1}
	switch {
	case a.Closed:
		// It belongs to the time before a reopening, whose effect is known.
		if a.Outcome != OutcomeDone {
			reply.Duplicate = true
			r.done(i, c.Result.ResourceID, true, now)
		}
		return r, reply
	case r.State == Completed:
		return c.again(r, i, now)
	}
	r.done(i, c.Result.ResourceID, false, now)
	reply.First = true
	return r.complete(c.Result, a.Fence, now), reply
}

// again judges a completion of what is completed already: the same told twice,
// or a second effect.
func (c Complete) again(r Record, i int, now int64) (Record, Reply) {
	a := r.Attempts[i]
	reply := Reply{Fence: a.Fence, Late: a.Fence != r.CompletedBy}
	if r.sameEffect(i, &c.Result) {
		if a.Outcome != OutcomeDone {
			r.done(i, c.Result.ResourceID, false, now)
		}
		return r, reply
	}
	reply.Refusal = AlreadyCompleted
	reply.Duplicate = a.Fence != r.CompletedBy || a.ResourceID != c.Result.ResourceID
	if reply.Duplicate && !a.Duplicate {
		id := c.Result.ResourceID
		if a.Fence == r.CompletedBy {
			id = a.ResourceID // stays what was reported first; the other id goes into the note
		}
		r.done(i, id, true, now)
		if a.Fence == r.CompletedBy {
			r.change(i, func(a *Attempt) { a.Note = "also reported " + c.Result.ResourceID })
		}
	}
	return r, reply
}

// sameEffect tells whether attempt i's report is of the effect that the record
// holds, rather than of another one.
func (r *Record) sameEffect(i int, reported *Result) bool {
	sameID := r.Result.ResourceID == reported.ResourceID
	switch {
	case r.CompletedBy == r.Attempts[i].Fence:
		return sameID && (!r.Result.available() || r.Result.equal(reported))
	case r.Policy.Idempotent:
		return true
	case r.CompletedBy == 0 && !r.reportedBeside(i):
		// A person said so first; the holder now says the same, unless the ids differ.
		return sameID || r.Result.ResourceID == "" || reported.ResourceID == ""
	}
	return sameID && reported.ResourceID != ""
}

// reportedBeside tells whether an attempt other than i has claimed to have acted.
func (r *Record) reportedBeside(i int) bool {
	for j, a := range r.Attempts {
		if j != i && !a.Closed && a.Outcome == OutcomeDone {
			return true
		}
	}
	return false
}

// done marks an attempt as having acted, duplicate as beside another.
func (r *Record) done(i int, resourceID string, duplicate bool, now int64) {
	r.change(i, func(a *Attempt) {
		a.Outcome, a.EndedAt, a.ResourceID, a.Duplicate = OutcomeDone, now, resourceID, duplicate
	})
	if duplicate {
		r.DuplicateEffects++
	}
	r.UpdatedAt = now
}

func (r Record) complete(result Result, by, now int64) Record {
	r.State, r.Result, r.CompletedAt, r.CompletedBy = Completed, result, now, by
	r.ExpiresAt = now + r.Policy.Retention
	r.TombstoneUntil = r.ExpiresAt + r.Policy.Tombstone
	r.RetryAt, r.UpdatedAt = 0, now
	return r
}

// Fail reports that an attempt ended without a success.
type Fail struct {
	Token TokenHash
	// None says that the effect definitely did not happen; otherwise it may have.
	None bool
	Note string
	// RetryAfter, ms, with None: no grant before it is over.
	RetryAfter int64
}

func (f Fail) apply(r Record, now int64) (Record, Reply) {
	i, refused := r.reporter(f.Token)
	if refused != "" {
		return r, Reply{Refusal: refused}
	}
	a := r.Attempts[i]
	holds := i == len(r.Attempts)-1 && r.State == Pending
	reply := Reply{Fence: a.Fence, Late: !holds}
	switch {
	case a.Outcome == OutcomeDone: // its own completion stands
		if r.State == Completed && !a.Closed {
			reply.Refusal = AlreadyCompleted
		}
		return r, reply
	case r.State == Failed && (f.None || r.ResolvedBy != ""): // nothing to add to what was decided
		return r, reply
	}
	outcome := OutcomeUnknown
	if f.None {
		outcome = OutcomeNone
	}
	r.end(i, outcome, now, f.Note)
	r.UpdatedAt = now
	switch {
	case a.Closed || r.State == Completed || r.State == Pending && !holds:
		return r, reply // evidence only: whoever holds the lease is undisturbed
	case f.None:
		var retryAt int64
		if f.RetryAfter > 0 {
			retryAt = now + f.RetryAfter
		}
		return r.afterNone(retryAt, now), reply
	case r.State != Unknown:
		r.State, r.LeaseUntil = Unknown, now
	}
	return r, reply
}
