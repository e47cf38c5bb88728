package proxy

import (
	"context"
	"errors"
	"net/http"
	"time"

	"llmproxy/budget"
	"llmproxy/cache"
	"llmproxy/ledger"
	"llmproxy/store"
	"llmproxy/tokens"
)

// finish stores the answer if it may be stored, settles the budget, closes the
// row and frees the lease, in one transaction; only then do readers see the
// end. Where the store refuses, the write is repeated until it succeeds, and
// the answer is given all the same: it is paid for.
func (x *exchange) finish(a *answer) {
	s := x.server
	x.failpoint("answered")
	entry, whyNot := x.entry(a)
	x.close(a, entry)
	s.learn(x.row)
	begun := time.Now()
	var id int64
	err := s.Store.Update(context.WithoutCancel(x.ctx), func(tx *store.Tx) (err error) {
		id, err = x.settle(tx, entry)
		return err
	})
	s.metrics.finishing.Observe(time.Since(begun).Seconds())
	if err != nil {
		s.metrics.storeErrors.WithLabelValues("finish").Inc()
		s.Log.Error("a paid call cannot be written down yet; trying again", "call", ledger.Name(x.row.ID), "err", err)
		s.backlog.repeat(func(tx *store.Tx) error {
			_, err := x.settle(tx, entry)
			return err
		})
	}
	x.failpoint("finished")
	s.backlog.paid(x.row, id)
	if whyNot != "" {
		s.metrics.unstored.WithLabelValues(unstoredLabel(whyNot)).Inc()
	}
	s.metrics.count(x.row)
	origin := cache.Origin{Call: x.row.ID, Input: x.row.Input, Usage: (*cache.Usage)(x.row.Usage)}
	if x.row.Outcome == ledger.Failed {
		origin.Usage = &cache.Usage{} // those who share a failure have avoided nothing
	}
	kept := entry != nil && (id != 0 || err != nil) // in memory, where the store does not take it
	if kept {
		origin = entry.Origin
		origin.EntryID = id
	}
	x.release(a, origin, kept)
}

func (x *exchange) failpoint(point string) { x.server.failpoint(point) }

// entry is what of the answer is to be stored, nil and a reason where nothing
// is: only answers that are proven complete are kept.
func (x *exchange) entry(a *answer) (e *cache.Entry, whyNot string) {
	switch {
	case a.err != nil:
		return nil, "incomplete"
	case a.head.Status != http.StatusOK:
		return nil, "error status"
	case a.head.Form == cache.SSE && a.terminal == nil:
		return nil, "no end of stream"
	}
	rules := storeRules{FinishReasons: x.step.FinishReasons, LengthIsWanted: x.view.MaxOutput > 0, N: int(x.view.N)}
	if reason := a.completion.judge(rules); reason != "" {
		return nil, reason
	}
	if !x.keep {
		return nil, "no-store"
	}
	now := time.Now()
	e = &cache.Entry{Key: x.key, Head: a.head, Origin: cache.Origin{
		Call: x.row.ID, CreatedAt: now.UnixMilli(), ExpiresAt: now.Add(x.step.TTL).UnixMilli(),
		Input: x.row.Input, Basis: x.row.Basis, Fingerprint: x.fingerprint,
	}}
	events := x.rec.Events()
	if a.head.Form == cache.JSON {
		events = [][]byte{a.body}
	} else {
		events = append(events, a.terminal)
	}
	e.Body = cache.Pack(events)
	return e, ""
}

// close fills in the row: what was used and how it ended.
func (x *exchange) close(a *answer, entry *cache.Entry) {
	row := x.row
	row.Total = time.Since(x.begun)
	if !a.first.IsZero() {
		row.First = a.first.Sub(x.begun)
	}
	if x.flight.Unread() {
		row.Flags |= ledger.ClientLeft
	}
	row.Outcome, row.Status = ledger.Miss, a.head.Status
	if !x.keep {
		row.Outcome = ledger.Bypass
	}
	if a.completion != nil {
		row.Finish = a.completion.finish()
	}
	row.Usage = x.used(a)
	if r, ok := a.completion.(*modelResponse); ok && r.raw != nil {
		x.responseID = jsonText(jsonGet(r.raw, "id"))
	}
	switch {
	case errors.Is(context.Cause(x.ctx), errShutdown) && a.err != nil:
		row.Outcome, row.Finish, row.Status = ledger.Lost, "shutting_down", http.StatusServiceUnavailable
	case a.err != nil:
		e := toError(a.err)
		row.Outcome, row.Finish, row.Status = ledger.Failed, e.Code, e.Status
	case a.refusal != nil:
		row.Outcome, row.Finish = ledger.Failed, toError(a.refusal).Code
	case a.head.Status != http.StatusOK:
		row.Outcome = ledger.Failed
	}
	if entry != nil {
		row.Flags |= ledger.Stored
		entry.Origin.Usage = (*cache.Usage)(row.Usage)
		entry.Origin.Cost = row.Cost
	}
}

// used is what the call is charged with: the upstream's usage; without it our
// own count of the input and of the text that came. An upstream that was not
// reached, or that refused with an error status, has cost nothing.
func (x *exchange) used(a *answer) *ledger.Usage {
	switch {
	case !a.reached:
		return nil
	case a.head.Status != 0 && a.head.Status != http.StatusOK:
		return &ledger.Usage{}
	}
	counted := &ledger.Usage{Input: x.row.Input}
	if a.completion == nil {
		x.row.Flags |= ledger.UsageEstimated
		return counted
	}
	reported, odd, ok := a.completion.usage()
	if odd {
		x.row.Flags |= ledger.UsageOdd
	}
	usage := &ledger.Usage{Input: reported.Input, Cached: reported.Cached, Output: reported.Output, Reasoning: reported.Reasoning}
	if ok && !odd && reported.Input+reported.Output > 0 {
		return usage
	}
	text := a.completion.text()
	if ok && !odd && text == "" {
		return usage
	}
	x.row.Flags |= ledger.UsageEstimated
	counted.Output = int64(tokens.Text(x.view.Model, text))
	return counted
}

// settle is the finishing transaction. It may be applied twice, also while the
// exchange is released. It returns the id of what it stored, 0 for nothing: the
// call was taken for dead, and the answer of whoever took over stays.
func (x *exchange) settle(tx *store.Tx, entry *cache.Entry) (id int64, err error) {
	row := *x.row
	if entry != nil {
		if id, err = x.put(tx, *entry); err != nil {
			return 0, err
		}
		if id == 0 {
			row.Flags &^= ledger.Stored
		}
	}
	if x.uncounted {
		if err := countLate(tx, x.policy, &row); err != nil {
			return 0, err
		}
	}
	switch u := row.Usage; {
	case !x.policy.Budget.Holds(row.Step): // nothing was reserved
	case u != nil:
		err = budget.Settle(tx, row.ID, budget.Amounts{Input: u.Input, Output: u.Output, Calls: 1})
	default:
		err = budget.Release(tx, row.ID)
	}
	if err != nil {
		return 0, err
	}
	if err := ledger.CloseCall(tx, &row); err != nil {
		return 0, err
	}
	if u := row.Usage; u != nil && x.responseID != "" { // reasoning is not carried on
		if err := ledger.KeepResponse(tx, row.Tenant, x.responseID, row.ID, max(u.Input+u.Output-u.Reasoning-x.passing, 0)); err != nil {
			return 0, err
		}
	}
	return id, cache.Release(tx, x.key, row.ID)
}

// countLate enters a call into the budgets that the store could not admit, so
// that settling it finds them. Only flagging rules can be among them. Where the
// call has a row, its admission was applied although the answer was lost, or
// this was.
func countLate(tx *store.Tx, p *Policy, row *ledger.Call) error {
	known, err := ledger.Known(tx, row.ID)
	if err != nil || known {
		return err
	}
	scope, err := scopeOf(tx, row)
	if err != nil {
		return err
	}
	_, err = p.Budget.Reserve(tx, row.ID, scope, budget.Amounts{})
	return err
}

func (x *exchange) put(tx *store.Tx, entry cache.Entry) (id int64, err error) {
	if entry.Tenant, err = tx.Intern("tenant", x.row.Tenant); err != nil {
		return 0, err
	}
	if entry.Step, err = tx.Intern("step", x.row.Step); err != nil {
		return 0, err
	}
	if entry.Model, err = tx.Intern("model", x.row.Model); err != nil {
		return 0, err
	}
	return cache.Put(tx, &entry)
}

// release shows the end to the readers. Before that a stored answer is found in
// memory, and after that its flight is gone: no call slips in between and leads
// again, and what a reader sends next is a hit, or leads where nothing is kept.
func (x *exchange) release(a *answer, origin cache.Origin, kept bool) {
	if u := x.row.Usage; u != nil && u.Output > 0 {
		largest := x.server.largestAnswer(x.row)
		for {
			seen := largest.Load()
			if u.Output <= seen || largest.CompareAndSwap(seen, u.Output) {
				break
			}
		}
	}
	switch {
	case a.err != nil && a.terminal == nil:
		x.rec.Complete(origin)
	case a.head.Form == cache.JSON:
		x.rec.Start(a.head)
		x.rec.Complete(origin, a.body)
	default:
		x.rec.Complete(origin, a.terminal)
	}
	if kept {
		x.server.Cache.Remember(x.key, x.rec)
	}
	x.flight.Land()
	x.rec.End(a.err)
}
