package proxy

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"time"

	"llmproxy/budget"
	"llmproxy/cache"
	"llmproxy/ledger"
	"llmproxy/store"
	"llmproxy/tokens"
)

// lead decides for all who join the flight: it resolves it to a recording, or
// withdraws it and returns why.
func (c *call) lead(flight *cache.Flight) (rec *cache.Recording, err error) {
	decided := false
	defer func() {
		if !decided { // an error, or a panic: nobody may wait for ever
			flight.Withdraw(cache.ErrWithdrawn)
		}
	}()
	settle := func(rec *cache.Recording, outcome ledger.Outcome) (*cache.Recording, error) {
		decided = true
		c.row.Outcome = outcome
		flight.Resolve(rec)
		return rec, nil
	}
	if rec, err := c.find(); err != nil {
		return nil, err
	} else if rec != nil {
		c.server.Cache.Remember(c.key, rec)
		defer flight.Land()
		return settle(rec, ledger.Hit)
	}
	if c.policy.ReplayOnly {
		return nil, c.notRecorded()
	}
	if c.again.onlyIfCached {
		return nil, &Error{Status: http.StatusGatewayTimeout, Type: "invalid_request_error", Code: "not_cached", Retry: &no,
			Message: "There is no stored answer to this request, and it asked for nothing else (only-if-cached); send it without that header to call the upstream"}
	}
	if err := c.admission(flight); err != nil {
		return nil, err
	}
	switch a := c.admitted; {
	case a.found:
		return nil, cache.ErrWithdrawn // stored meanwhile by another process: look again
	case a.standing != nil:
		rec := &cache.Recording{}
		go c.server.follow(c.key, flight, rec)
		return settle(rec, ledger.Collapsed)
	}
	x := c.exchange(flight)
	outcome := ledger.Miss
	if c.again.noStore {
		outcome = ledger.Bypass
	}
	rec, err = settle(x.rec, outcome)
	go x.run()
	return rec, err
}

// find looks the answer up in the store. A store that cannot be read is a miss.
func (c *call) find() (rec *cache.Recording, err error) {
	if c.again.fresh() {
		return nil, nil
	}
	err = c.server.Store.Look(context.Background(), func(tx *store.Tx) error {
		find := cache.Find
		if c.policy.ReplayOnly {
			find = cache.FindStale
		}
		if rec, err = find(tx, c.key); err != nil || rec == nil {
			return err
		}
		attempts, err := ledger.Attempts(tx, c.row.Key64)
		rec.Expect(attempts)
		return err
	})
	switch {
	case errors.Is(err, cache.ErrDamaged):
		c.server.Log.Error("a stored answer cannot be read and is dropped", "key", c.key.String(), "err", err)
		err = c.server.Store.Update(context.Background(), func(tx *store.Tx) error { return cache.Delete(tx, c.key) })
		rec = nil
	case rec != nil && !c.again.accepts(rec.Origin().CreatedAt, c.start):
		return nil, nil
	}
	if err != nil {
		c.blind = true
		c.server.metrics.storeErrors.WithLabelValues("lookup").Inc()
		c.server.Log.Error("the database cannot be read; treating the call as a miss", "err", err)
		return nil, nil
	}
	if rec != nil {
		return rec, c.sameWork(rec.Origin().Fingerprint)
	}
	return nil, nil
}

// admitted is what the admitting transaction found.
type admitted struct {
	found    bool         // another process has stored the answer
	standing *cache.Lease // another process calls upstream for the key
	verdict  budget.Verdict
}

// admission counts the call and runs the admitting transaction.
func (c *call) admission(flight *cache.Flight) error {
	s := c.server
	if err := c.count(); err != nil {
		return err
	}
	need := c.need()
	if err := c.policy.Budget.Fits(budget.Scope{StepName: c.row.Step, RunName: c.row.Run}, need); err != nil {
		return err
	}
	if c.r.Context().Err() != nil {
		return errClientLeft // nothing is spent yet
	}
	s.failpoint("counted")
	begun := time.Now()
	// The client may leave at any moment; the transaction must not.
	err := s.enter(context.WithoutCancel(c.r.Context()), func(tx *store.Tx) error {
		c.admitted = admitted{}
		return c.admit(tx, need)
	})
	s.metrics.admitting.Observe(time.Since(begun).Seconds())
	if errors.Is(err, store.ErrUnavailable) {
		err = c.withoutStore(err)
	}
	if err != nil {
		c.row.Flags &^= ledger.Refreshed | ledger.Rejected // wished for and not granted
		return err
	}
	s.failpoint("admitted")
	if c.admitted.found {
		return nil
	}
	if c.again.reject != "" {
		s.Cache.Forget(c.key)
	}
	c.verdict = c.admitted.verdict
	c.tellFlags()
	switch c.verdict.State {
	case budget.Over:
		c.row.Flags |= ledger.OverBudget
	case budget.Near:
		c.row.Flags |= ledger.NearBudget
	}
	return nil
}

// tellFlags tells others of the rules that the call comes near to or passes.
func (c *call) tellFlags() {
	if c.server.Flagged == nil {
		return
	}
	for _, note := range c.verdict.Notes {
		c.server.Flagged(note)
	}
}

// withoutStore decides what becomes of a call that the store could not admit:
// money fails closed, the cache fails open.
func (c *call) withoutStore(err error) error {
	s := c.server
	s.metrics.storeErrors.WithLabelValues("admit").Inc()
	s.Log.Error("the database cannot be written; the call is not admitted by it", "call", ledger.Name(c.row.ID), "err", err)
	if !c.policy.Budget.Hard(c.row.Step) {
		c.uncounted = true
		return nil // its finish writes what this transaction did not
	}
	// The commit may have been applied although its answer was lost.
	id, key := c.row.ID, c.key
	s.backlog.repeat(func(tx *store.Tx) error {
		if err := ledger.Withdraw(tx, id); err != nil {
			return err
		}
		if err := budget.Release(tx, id); err != nil {
			return err
		}
		return cache.Release(tx, key, id)
	})
	return err
}

// admit looks the key up, takes its lease, reserves the budget and opens the
// row. An error undoes all of it.
func (c *call) admit(tx *store.Tx, need budget.Amounts) (err error) {
	if !c.again.noStore {
		if c.admitted.found, err = c.foundIn(tx); err != nil || c.admitted.found {
			return err
		}
		mine := cache.Lease{Fence: c.row.ID, Instance: c.server.instance.Load(), Fingerprint: c.fingerprint}
		standing, err := cache.Acquire(tx, c.key, mine)
		if err != nil {
			return err
		}
		if standing != nil && !standing.Live {
			if err := c.server.bury(tx, []int64{standing.Instance}); err != nil {
				return err
			}
			c.outrank(standing.Fence, tx.Now)
			mine.Fence = c.row.ID
			standing, err = cache.Acquire(tx, c.key, mine)
			if err != nil {
				return err
			}
		}
		if standing != nil {
			c.admitted.standing = standing
			return c.sameWork(standing.Fingerprint)
		}
	}
	attempts, err := ledger.Attempts(tx, c.row.Key64)
	if err != nil {
		return err
	}
	scope, err := c.scope(tx)
	if err != nil {
		return err
	}
	if c.admitted.verdict, err = c.policy.Budget.Reserve(tx, c.row.ID, scope, need); err != nil {
		return err
	}
	c.row.Attempt = attempts + 1
	return ledger.OpenCall(tx, c.row, c.server.instance.Load())
}

// outrank gives the call a newer id than the fence of a call that it takes over
// from, where that began later: or else its late answer would be the newer one.
func (c *call) outrank(fence, now int64) {
	if fence >= c.row.ID {
		after := max(now, ledger.Time(fence).UnixMilli()+1)
		c.row.ID = c.server.ids.Next(time.UnixMilli(after), c.server.instance.Load())
	}
}

func (c *call) scope(tx *store.Tx) (budget.Scope, error) { return scopeOf(tx, c.row) }

func scopeOf(tx *store.Tx, row *ledger.Call) (s budget.Scope, err error) {
	s = budget.Scope{StepName: row.Step, RunName: row.Run}
	if s.Tenant, err = tx.Intern("tenant", row.Tenant); err != nil {
		return s, err
	}
	if s.Step, err = tx.Intern("step", row.Step); err != nil {
		return s, err
	}
	s.Run, err = tx.Intern("run", row.Run)
	return s, err
}

// foundIn tells whether the store has an answer that will do. A wish for a
// fresh one is granted only so many times an hour, or it would be a hole in the
// budget.
func (c *call) foundIn(tx *store.Tx) (bool, error) {
	createdAt, present, err := cache.Present(tx, c.key)
	if err != nil || !present || c.blind {
		return false, err
	}
	if c.again.accepts(createdAt, c.start) {
		return true, nil
	}
	hourAgo := ledger.FirstID(time.UnixMilli(tx.Now).Add(-time.Hour))
	done, err := ledger.Refreshes(tx, c.row.Key64, hourAgo)
	if err != nil {
		return false, err
	}
	if done >= int64(c.policy.RefreshesPerKey) {
		c.again = again{maxAge: -1, exhausted: true}
		return true, nil
	}
	if c.again.reject != "" {
		c.row.Flags |= ledger.Rejected
		return false, cache.Delete(tx, c.key)
	}
	c.row.Flags |= ledger.Refreshed
	return false, nil
}

// count counts the request's input and how much of it was sent before.
func (c *call) count() error {
	s := c.server
	estimate, err := c.estimate()
	if err != nil {
		return err
	}
	tree := c.doc.Fingerprint(c.keyOptions())
	if c.row.Tree, err = tree.AppendBinary(nil); err != nil {
		return err
	}
	c.messages = tree.Messages
	run := c.runKey()
	if run.Run != "" && !s.contexts.Known(run) {
		s.rememberRun(run)
	}
	c.row.Resent = s.contexts.Resent(run, tree.Messages, estimate.Messages)
	return nil
}

// estimate counts the request's input, as one of a few at a time.
func (c *call) estimate() (estimate tokens.Estimate, err error) {
	s, previous := c.server, c.previousTokens()
	select {
	case s.counting <- struct{}{}:
		defer func() { <-s.counting }()
	case <-c.r.Context().Done():
		return estimate, errClientLeft
	}
	begun := time.Now()
	estimate, err = s.counter.Count(tokens.Request{Endpoint: tokens.Endpoint(c.row.Endpoint.String()), Model: c.view.Model, Body: c.doc.Raw, Previous: int(previous)})
	s.metrics.counting.Observe(time.Since(begun).Seconds())
	if err != nil {
		return estimate, invalidRequest("The request cannot be counted: %v", err)
	}
	c.row.Input, c.row.Basis, c.row.Correction = int64(estimate.Tokens), uint8(estimate.Basis), int64(estimate.Tokens-estimate.Raw)
	c.passing = passing(estimate)
	c.row.Flags |= shapeFlags(estimate.Shape())
	if len(estimate.Uncounted()) > 0 {
		c.row.Flags |= ledger.Uncounted
	}
	return estimate, nil
}

func (c *call) runKey() ledger.RunKey {
	return ledger.RunKey{Tenant: c.row.Tenant, Step: c.row.Step, Run: c.row.Run}
}

// rememberRun reads what a run has sent before this process started.
func (s *Server) rememberRun(run ledger.RunKey) {
	var trees [][]byte
	err := s.Store.View(context.Background(), func(tx *store.Tx) (err error) {
		trees, err = ledger.Trees(tx, run)
		return err
	})
	if err != nil {
		s.metrics.storeErrors.WithLabelValues("context").Inc()
		s.Log.Error("the messages that a run has sent cannot be read; its re-sent tokens will be too few", "run", run.Run, "err", err)
		return
	}
	for _, raw := range trees {
		var tree cache.Tree
		if err := tree.UnmarshalBinary(raw); err != nil {
			s.Log.Error("a fingerprint in the ledger is damaged", "run", run.Run, "err", err)
			continue
		}
		s.contexts.Sent(run, tree.Messages)
	}
}

// need is what the call can cost: its input exactly, its output as the request
// or the step limits it, else as the step's largest answer so far.
func (c *call) need() budget.Amounts {
	output := c.view.MaxOutput
	if c.view.NoOutput {
		return budget.Amounts{Input: c.row.Input, Calls: 1}
	}
	if output == 0 {
		output = c.step.AssumeOutput
	}
	if output == 0 {
		output = c.server.largestAnswer(c.row).Load()
	}
	return budget.Amounts{Input: c.row.Input, Output: output * c.view.N, Calls: 1}
}

// firstAssumption is the output reserved for a step that has never answered.
const firstAssumption = 1024 // tokens

func (s *Server) largestAnswer(row *ledger.Call) *atomic.Int64 {
	key := [2]string{row.Tenant, row.Step}
	if largest, ok := s.largest.Load(key); ok {
		return largest.(*atomic.Int64)
	}
	fresh := new(atomic.Int64)
	fresh.Store(firstAssumption)
	largest, _ := s.largest.LoadOrStore(key, fresh)
	return largest.(*atomic.Int64)
}

// pollEvery is how often a call looks for the answer that another process makes.
const pollEvery = 150 * time.Millisecond

// follow waits for the answer that another process is making for a key and
// copies it into rec. Where that process ends without one, those who wait
// decide anew.
func (s *Server) follow(key cache.Key, flight *cache.Flight, rec *cache.Recording) {
	ctx, cancel := context.WithCancelCause(s.base)
	defer cancel(nil)
	flight.Depart(cancel, true)
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for {
		var stored *cache.Recording
		var holder *cache.Lease
		err := s.Store.View(context.Background(), func(tx *store.Tx) (err error) {
			if holder, err = cache.Holder(tx, key); err == nil && (holder == nil || !holder.Live) {
				stored, err = cache.Find(tx, key)
			}
			return err
		})
		switch {
		case err != nil || ((holder == nil || !holder.Live) && stored == nil):
			flight.Land()
			rec.Finish(cache.Origin{}, cache.ErrWithdrawn)
			return
		case stored != nil:
			rec.Start(*stored.At(0).Head)
			rec.Finish(stored.Origin(), nil, stored.Events()...)
			s.Cache.Remember(key, rec)
			flight.Land()
			return
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			flight.Land()
			rec.Finish(cache.Origin{}, context.Cause(ctx))
			return
		}
	}
}
