package proxy

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"llmproxy/budget"
	"llmproxy/cache"
	"llmproxy/ledger"
	"llmproxy/store"
)

// call is one client request while it is handled.
type call struct {
	server *Server
	policy *Policy
	w      http.ResponseWriter
	r      *http.Request
	start  time.Time

	route      route
	credential *Credential // nil where everybody may call
	step       *Step
	upstream   *Upstream
	dialect    *dialect // nil where the call is passed through
	again      again

	buf         *[]byte         // the pooled body; nil once an exchange keeps it
	doc         *cache.Document // the body as it will be sent, but for stream_options
	view        view
	key         cache.Key
	fingerprint *cache.Key // the body's own key, where key is explicit

	row       *ledger.Call
	messages  []uint64 // short hashes of the messages
	passing   int64    // input tokens that a call going on from this one's response does not carry
	admitted  admitted
	verdict   budget.Verdict
	paid      bool // an exchange writes the row
	uncounted bool // let through although the store could not admit it
	blind     bool // the store cannot be read
	recorded  bool // the call has names, so that a row makes sense
	served    *cache.Recording
	sent      int  // events of the stream
	committed bool // the response's head is sent
	first     time.Time
	failure   error
}

func (s *Server) newCall(w http.ResponseWriter, r *http.Request) *call {
	now := time.Now()
	row := &ledger.Call{ID: s.ids.Next(now, s.instance.Load())}
	if n, err := strconv.Atoi(r.Header.Get("X-Stainless-Retry-Count")); err == nil && n >= 0 {
		row.Retry = n
	}
	return &call{server: s, policy: s.policy.Load(), w: w, r: r, start: now, row: row}
}

func (c *call) serve() (err error) {
	if c.server.draining.Load() {
		return unavailable("shutting_down", "The proxy is shutting down; send the call again in a moment", 5)
	}
	if c.route, err = parseRoute(c.r.URL.EscapedPath()); err != nil {
		return err
	}
	if !c.route.ok {
		return &Error{Status: http.StatusNotFound, Type: "invalid_request_error", Code: "unknown_path",
			Message: "Nothing is served at " + c.r.URL.Path + "; the OpenAI API stands below /v1, or below /steps/{step}/v1 to name a step"}
	}
	if err := c.identify(c.route); err != nil {
		return err
	}
	c.row.Endpoint = endpointOf(c.route.path)
	c.dialect = dialectOf(c.row.Endpoint)
	post := c.r.Method == http.MethodPost
	switch {
	case isUpgrade(c.r) && !c.policy.ReplayOnly:
		return c.serveSocket()
	case c.dialect != nil && post:
		return c.serveCached()
	case c.route.path == "responses/input_tokens" && post:
		return c.serveInputTokens()
	case c.policy.ReplayOnly:
		return c.replayOther()
	case c.dialect == nil:
		return c.servePassthrough()
	case c.r.Method == http.MethodGet, c.r.Method == http.MethodHead, c.r.Method == http.MethodDelete: // what the vendor has stored
		c.dialect = nil
		return c.servePassthrough()
	}
	c.w.Header().Set("Allow", "POST, GET, HEAD, DELETE")
	return &Error{Status: http.StatusMethodNotAllowed, Type: "invalid_request_error", Code: "invalid_request",
		Message: c.r.Method + " is not served here; POST the request to " + c.r.URL.Path}
}

// serveCached serves an endpoint whose answers are counted, budgeted and kept.
func (c *call) serveCached() error {
	if err := c.read(); err != nil {
		return err
	}
	for {
		rec, leave, err := c.obtain()
		if err == nil {
			if err = c.mayBeServed(); err == nil {
				err = c.reply(rec)
			}
			leave()
		}
		if !errors.Is(err, cache.ErrWithdrawn) {
			return err
		}
	}
}

// read takes in the whole request and names it.
func (c *call) read() (err error) {
	if c.again, err = readAgain(c.r.Header); err != nil {
		return err
	}
	sample, err := sampleOf(c.r.Header)
	if err != nil {
		return err
	}
	if err := c.readDocument(); err != nil {
		return err
	}
	if c.view, err = c.dialect.view(c.doc); err != nil {
		return err
	}
	c.again.noStore = c.again.noStore || c.view.Stateful != ""
	if c.policy.ReplayOnly {
		c.again = again{maxAge: -1} // there is no other answer to wish for
	}
	c.row.Model = c.view.Model
	if c.view.Stream {
		c.row.Flags |= ledger.Streamed
	}
	if c.upstream = c.policy.upstream(c.view.Model); c.upstream == nil {
		e := invalidRequest("No upstream serves the model %q; add it to an upstream's models: in the configuration", c.view.Model)
		e.Param = "model"
		return e
	}
	c.recorded = true
	c.name(sample)
	return nil
}

// readDocument reads a JSON body, and the names that stand in it.
func (c *call) readDocument() (err error) {
	if c.buf, err = readBody(c.r, c.policy.RequestBody); err != nil {
		return err
	}
	doc, err := cache.Scan(*c.buf)
	if err != nil {
		return err
	}
	var step, run string
	if c.doc, step, run, err = takeOwnMetadata(doc); err != nil {
		return err
	}
	return c.settleNames(step, run)
}

// name makes the call's key.
func (c *call) name(sample string) {
	context := c.keyContext(sample)
	c.key = c.doc.Key(context, c.keyOptions())
	if explicit := c.r.Header.Get("Idempotency-Key"); explicit != "" {
		own := c.key
		c.fingerprint, c.key = &own, cache.ExplicitKey(context, explicit)
	}
	c.row.Key64 = c.key.Short()
}

func (c *call) keyOptions() cache.Options {
	return cache.Options{Exclude: c.policy.Exclude, Normalise: c.step.Normalise}
}

// obtain finds the recording that answers the call: a finished one, one that
// another call makes, or one that an exchange begun here makes. leave must be
// called when it has been read. ErrWithdrawn asks to try again.
func (c *call) obtain() (rec *cache.Recording, leave func(), err error) {
	flights := &c.server.Cache.Flights
	if c.again.noStore {
		flight := flights.Solo()
		rec, err = c.lead(flight)
		return rec, flight.Leave, err
	}
	if rec := c.recall(); rec != nil {
		if err := c.sameWork(rec.Origin().Fingerprint); err != nil {
			return nil, nil, err
		}
		c.row.Outcome = ledger.Hit
		return rec, func() {}, nil
	}
	flight, leads := flights.Join(c.key, c.fingerprint)
	if leads {
		rec, err = c.lead(flight)
	} else if err = c.sameWork(flight.Fingerprint); err == nil {
		c.row.Outcome = ledger.Collapsed
		rec, err = flight.Recording(c.r.Context())
	}
	if err != nil {
		flight.Leave()
		return nil, nil, err
	}
	return rec, flight.Leave, nil
}

// mayBeServed refuses what costs nothing to a step over its budget, where the
// configuration wants that.
func (c *call) mayBeServed() error {
	free := c.row.Outcome == ledger.Hit || c.row.Outcome == ledger.Collapsed
	if !free || c.policy.ServeHitsOverBudget || !c.policy.Budget.Hard(c.row.Step) {
		return nil
	}
	return c.server.Store.Update(context.WithoutCancel(c.r.Context()), func(tx *store.Tx) error {
		scope, err := c.scope(tx)
		if err != nil {
			return err
		}
		if _, err := c.policy.Budget.Reserve(tx, c.row.ID, scope, budget.Amounts{}); err != nil {
			return err
		}
		return budget.Release(tx, c.row.ID)
	})
}

// recall looks a finished recording up in memory.
func (c *call) recall() *cache.Recording {
	if c.policy.ReplayOnly {
		return c.server.Cache.Recall(c.key, time.Time{})
	}
	rec := c.server.Cache.Recall(c.key, c.start)
	if rec == nil {
		return nil
	}
	if d := c.step.DissatisfiedWithin; d > 0 && c.again.reject == "" && !c.again.exhausted && rec.DeliveredWithin(d, c.start) {
		c.again.reject = "repeated within " + d.String() + " of its delivery"
	}
	if !c.again.accepts(rec.Origin().CreatedAt, c.start) {
		return nil
	}
	return rec
}

// sameWork refuses an explicit key that was used for another body. Never by
// 409: SDKs would send it again.
func (c *call) sameWork(earlier *cache.Key) error {
	if c.fingerprint == nil || earlier == nil || *c.fingerprint == *earlier {
		return nil
	}
	return &Error{Status: http.StatusUnprocessableEntity, Type: "invalid_request_error", Code: "idempotency_key_reuse", Retry: &no,
		Message: "This Idempotency-Key was used for another request body; use a key that names the work, and a new one for new work"}
}

// errClientLeft ends a call whose client is gone: there is nobody to tell.
var errClientLeft = errors.New("the client left")

// statusClientLeft is what is logged for a client that left (as nginx does).
const statusClientLeft = 499

// fail sends the client what went wrong, if anything did.
func (c *call) fail(err error) {
	if err == nil {
		return
	}
	c.failure = err
	if errors.Is(err, errClientLeft) || errors.Is(err, context.Canceled) {
		c.row.Status, c.row.Finish = statusClientLeft, "client_left"
		c.row.Flags |= ledger.ClientLeft
		return
	}
	e := toError(err)
	c.row.Finish = e.Code
	if e.Code == "internal_error" {
		c.server.Log.Error("a call failed inside the proxy", "call", ledger.Name(c.row.ID), "err", err)
	}
	if e.Status == http.StatusPaymentRequired || (e.Code == "store_unavailable" && !c.paid) {
		c.row.Outcome = ledger.Refused
	}
	if c.committed && c.dialect != nil {
		c.w.Write(c.dialect.failure(e.body(), c.sent)) //nolint:errcheck // a client that has left cannot be told
		return
	}
	if e.Status == http.StatusPaymentRequired && retriesPaymentRequired(c.r.Header) {
		e.Status = http.StatusBadRequest
	}
	c.row.Status = e.Status
	c.describe(c.w.Header())
	e.write(c.w)
}

// retriesPaymentRequired names the one client that sends a 402 again and again,
// whatever the headers say.
func retriesPaymentRequired(h http.Header) bool {
	originator := h.Get("Originator")
	return len(originator) >= 5 && originator[:5] == "codex"
}

// end writes the call down and gives its body back.
func (c *call) end() {
	giveBack(c.buf)
	now := time.Now()
	if !c.paid {
		c.row.Total = now.Sub(c.start)
		if !c.first.IsZero() {
			c.row.First = c.first.Sub(c.start)
		}
		if c.recorded && c.row.Outcome != ledger.Open {
			c.account(now)
		}
	}
	c.log(now)
}

// account queues the row of a call that cost nothing.
func (c *call) account(now time.Time) {
	var entryID int64
	if rec := c.served; rec != nil && c.failure == nil {
		origin := rec.Origin()
		c.row.Source, c.row.Input, c.row.Basis = origin.Call, origin.Input, origin.Basis
		c.row.AvoidedInput = origin.Input
		if u := origin.Usage; u != nil {
			c.row.AvoidedInput, c.row.AvoidedOutput = u.Input, u.Output
		}
		if origin.Cost != nil {
			c.row.AvoidedCost = *origin.Cost
		}
		if id, write := rec.Touch(now.UnixMilli()); write {
			entryID = id
		}
	}
	c.server.metrics.count(c.row)
	c.server.backlog.add(c.row, entryID)
}

func (c *call) log(now time.Time) {
	level := slog.LevelInfo
	if c.row.Status >= http.StatusInternalServerError {
		level = slog.LevelWarn
	}
	log, ctx := c.server.Log, c.r.Context()
	if !log.Enabled(ctx, level) {
		return
	}
	// The line is always from here: finding out the caller would cost a tenth of it.
	line := slog.NewRecord(now, level, "call", 0)
	line.AddAttrs(
		slog.String("call", ledger.Name(c.row.ID)),
		slog.String("step", c.row.Step),
		slog.String("outcome", c.outcome()),
		slog.Int("status", c.row.Status),
		slog.Int64("us", now.Sub(c.start).Microseconds()),
	)
	if c.row.Model != "" {
		line.AddAttrs(slog.String("model", c.row.Model), slog.Int64("input", c.row.Input))
	}
	if c.row.Run != "" {
		line.AddAttrs(slog.String("run", c.row.Run))
	}
	if c.row.Endpoint != ledger.Chat {
		line.AddAttrs(slog.String("path", c.route.path))
	}
	if c.failure != nil && c.row.Finish != "" {
		line.AddAttrs(slog.String("error", c.row.Finish))
	}
	log.Handler().Handle(ctx, line) //nolint:errcheck // the log has nowhere to report to
}

// outcome is the call's outcome as clients are told.
func (c *call) outcome() string {
	if c.row.Outcome == ledger.Open {
		return "none"
	}
	return c.row.Outcome.String()
}
