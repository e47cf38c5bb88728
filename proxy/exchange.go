package proxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"llmproxy/cache"
	"llmproxy/ledger"
)

// exchange is the upstream half of a leading call. It runs on its own: it reads
// the answer to its end, whoever is listening, and finishes it durably before
// any reader sees that end.
type exchange struct {
	server   *Server
	policy   *Policy
	step     *Step
	upstream *Upstream
	dialect  *dialect
	flight   *cache.Flight
	rec      *cache.Recording
	row      *ledger.Call
	messages []uint64

	key         cache.Key
	fingerprint *cache.Key
	keep        bool   // the answer may be stored
	uncounted   bool   // the store could not admit the call
	responseID  string // of the response that the upstream keeps
	passing     int64  // as in call
	view        view
	out         outbound
	begun       time.Time
	ctx         context.Context
	cancel      context.CancelCauseFunc
	stop        context.CancelFunc // frees the deadline's timer
}

// exchange prepares the upstream call that c has been admitted to. The request
// may end before it; nothing of it is used but copies.
func (c *call) exchange(flight *cache.Flight) *exchange {
	s := c.server
	c.paid = true
	x := &exchange{
		server: s, policy: c.policy, step: c.step, upstream: c.upstream, dialect: c.dialect,
		flight: flight, rec: &cache.Recording{}, row: c.row, messages: c.messages,
		key: c.key, fingerprint: c.fingerprint, keep: !c.again.noStore, uncounted: c.uncounted, passing: c.passing, view: c.view, begun: c.start,
		out: outbound{method: http.MethodPost, path: c.route.path, query: c.r.URL.RawQuery, header: c.r.Header,
			key: c.key.String(), credentialIsOurs: c.credential != nil},
	}
	x.rec.Expect(c.row.Attempt)
	x.rec.Announce(cache.Origin{Call: c.row.ID, Input: c.row.Input, Basis: c.row.Basis})
	x.ctx, x.cancel = context.WithCancelCause(s.base)
	x.ctx, x.stop = context.WithTimeoutCause(x.ctx, c.upstream.Total, errTotal)
	flight.Depart(x.cancel, c.step.CancelOnDisconnect)
	var err error
	if x.out.body, err = c.dialect.outgoing(c.doc, c.view); err != nil { // the members were read before: cannot fail
		panic(err)
	}
	c.buf = nil // the exchange keeps the body
	row := *c.row
	x.row = &row
	return x
}

// errTotal is the cause by which an exchange ends that took too long.
var errTotal = errors.New("upstream took longer than its total time-out")

// answer is what an exchange came to.
type answer struct {
	reached    bool // the upstream may have worked
	head       cache.Head
	body       []byte      // of the JSON form
	terminal   []byte      // the stream's last event, held back
	completion completion  // what could be read of it; nil for an error status
	refusal    *chunkError // the upstream's error object that is the whole of a 200
	first      time.Time
	err        error // why there is no complete answer
}

func (x *exchange) run() {
	defer x.stop()
	defer x.cancel(nil)
	x.server.contexts.Sent(ledger.RunKey{Tenant: x.row.Tenant, Step: x.row.Step, Run: x.row.Run}, x.messages)
	a := x.call()
	x.server.metrics.exchange(x.upstream.Name, a.head.Status, time.Since(x.begun))
	x.finish(a)
}

// call makes the upstream call and records what comes, all but its end.
func (x *exchange) call() (a *answer) {
	a = &answer{}
	defer func() {
		if p := recover(); p != nil { // a fault of ours must not leave a flight that never lands
			a.err = fmt.Errorf("panic in an exchange: %v", p)
			x.server.Log.Error("an exchange failed inside the proxy", "call", ledger.Name(x.row.ID), "err", a.err)
		}
	}()
	r, err := x.upstream.send(x.ctx, &x.out)
	a.reached = r.reached
	x.server.metrics.retries.WithLabelValues(x.upstream.Name).Add(float64(r.retries))
	x.server.failpoint("sent")
	if err != nil {
		a.err = x.unreachable(err, r.reached)
		return a
	}
	defer r.Response.Body.Close()
	timer := time.AfterFunc(x.upstream.Idle, func() { x.cancel(errIdle) })
	defer timer.Stop()
	body := &idleReader{r: r.body, timer: timer, idle: x.upstream.Idle}
	a.head = cache.Head{Status: r.StatusCode, Form: cache.JSON}
	if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); r.StatusCode == http.StatusOK && kind == "text/event-stream" {
		a.head.Form, a.head.Header = cache.SSE, keptHeader(r.Header)
		x.readStream(a, body)
		return a
	}
	x.readWhole(a, r.Header, body)
	return a
}

// readWhole reads an answer that is no stream.
func (x *exchange) readWhole(a *answer, header http.Header, body io.Reader) {
	limit := x.policy.ResponseBody
	whole, err := io.ReadAll(io.LimitReader(body, limit+1))
	a.first = time.Now()
	switch {
	case err != nil:
		a.err = x.broken(err)
	case int64(len(whole)) > limit:
		a.err = tooLong(limit)
	case a.head.Status != http.StatusOK:
		a.body, a.head.Header = whole, errorHeader(header)
	default:
		a.body, a.head.Header = whole, keptHeader(header)
		a.completion = x.dialect.answer(x.view)
		err := a.completion.parse(whole)
		if errors.As(err, &a.refusal) { // an error object under status 200 is passed on as it is
			return
		}
		if err == nil {
			a.body, err = a.completion.body()
		}
		if err != nil {
			a.err = upstreamError(http.StatusBadGateway, "upstream_invalid",
				"The upstream answered 200 with a body that is no %s (%v); see whether base_url and model fit, or send the call again", x.dialect.name, err)
		}
	}
}

// readStream records events as they come. The terminal one is held until the
// answer is durable.
func (x *exchange) readStream(a *answer, body io.Reader) {
	a.completion = x.dialect.answer(x.view)
	events := newEventReader(body, int(x.policy.ResponseBody))
	var size int64
	for {
		event, err := events.next()
		if errors.Is(err, io.EOF) {
			x.endOpen(a)
			return
		}
		if err != nil {
			a.err = x.broken(err)
			return
		}
		if size += int64(len(event)); size > x.policy.ResponseBody {
			a.err = tooLong(x.policy.ResponseBody)
			return
		}
		last := false
		if data, ok := eventData(event); ok && len(data) > 0 {
			last, err = a.completion.event(data)
		}
		switch {
		case errors.Is(err, errNoAnswer):
			a.err = upstreamError(http.StatusBadGateway, "upstream_invalid", "The upstream's stream ended without an answer; send the call again")
			return
		case last:
			a.terminal = event
			return
		}
		if a.first.IsZero() {
			a.first = time.Now()
			x.server.metrics.firstByte.Observe(a.first.Sub(x.begun).Seconds())
			x.rec.Start(a.head)
		}
		if err != nil {
			x.streamFault(a, event, err)
			return
		}
		x.rec.Append(event)
		x.server.failpoint("streaming")
	}
}

// endOpen judges a stream that closed without saying that it ends.
func (x *exchange) endOpen(a *answer) {
	if a.terminal = a.completion.closing(); a.terminal == nil {
		a.err = upstreamError(http.StatusBadGateway, "upstream_invalid", "The upstream's stream ended before its answer did; nothing was stored. Send the call again")
	}
}

// streamFault ends a stream that carries an error or something unreadable. An
// error object is passed on as it came; it is the end of the answer, and held
// like any end, so that who retries on it does not join what has failed.
func (x *exchange) streamFault(a *answer, event []byte, err error) {
	var inBand *chunkError
	if errors.As(err, &inBand) {
		if x.dialect.reword != nil {
			event = x.dialect.reword(event, inBand.Body, len(x.rec.Events()))
		}
		a.err, a.terminal = &passedOn{err}, event
		return
	}
	x.rec.Append(event)
	a.err = upstreamError(http.StatusBadGateway, "upstream_invalid", "The upstream's stream carries an event that is no part of a %s (%v); send the call again", x.dialect.name, err)
}

// passedOn is an upstream's own error that readers see as it came.
type passedOn struct{ err error }

func (e *passedOn) Error() string { return e.err.Error() }
func (e *passedOn) Unwrap() error { return e.err }

func tooLong(limit int64) error {
	return upstreamError(http.StatusBadGateway, "upstream_invalid",
		"The upstream's answer is longer than %s bytes and was cut off; ask for less, or raise limits.response_body", commas(limit))
}

// unreachable says why no answer began.
func (x *exchange) unreachable(err error, reached bool) error {
	if cause := x.cause(); cause != nil {
		return cause
	}
	if reached {
		return upstreamError(http.StatusBadGateway, "upstream_unreachable",
			"The upstream %q closed the connection without an answer; the call may have been billed and is charged with its input. Send it again", x.upstream.Name)
	}
	x.server.Log.Warn("an upstream cannot be reached", "upstream", x.upstream.Name, "err", err)
	return upstreamError(http.StatusBadGateway, "upstream_unreachable",
		"The upstream %q at %s cannot be reached (%s); see whether its base_url is right and the network is up, then send the call again", x.upstream.Name, x.upstream.BaseURL.Host, plainCause(err))
}

// broken says why an answer ended in the middle.
func (x *exchange) broken(err error) error {
	if cause := x.cause(); cause != nil {
		return cause
	}
	if errors.Is(err, errEventTooLarge) {
		return tooLong(x.policy.ResponseBody)
	}
	return upstreamError(http.StatusBadGateway, "upstream_invalid", "The upstream's answer broke off (%s); nothing was stored. Send the call again", plainCause(err))
}

// cause is why the proxy itself ended the exchange, nil where it did not.
func (x *exchange) cause() error {
	if x.ctx.Err() == nil {
		return nil
	}
	cause := context.Cause(x.ctx)
	switch {
	case errors.Is(cause, errIdle), errors.Is(cause, errTotal):
		return upstreamError(http.StatusGatewayTimeout, "upstream_timeout",
			"The upstream %q gave no answer in time (%v); send the call again, or raise its timeout: in the configuration", x.upstream.Name, cause)
	case errors.Is(cause, errShutdown):
		return unavailable("shutting_down", "The proxy was stopped before the answer was complete; send the call again", 5)
	}
	return cause
}

// plainCause is the innermost words of a network error, without our addresses.
func plainCause(err error) string {
	var lookup *net.DNSError
	if errors.As(err, &lookup) {
		return "looking up " + lookup.Name + ": " + lookup.Err
	}
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err.Error()
		}
		err = inner
	}
}

// keptHeader is what of an answer's header is shown to every reader and stored.
func keptHeader(h http.Header) http.Header {
	kept := http.Header{}
	for name, values := range h {
		if name == "Content-Type" || name == "X-Request-Id" || strings.HasPrefix(name, "Openai-") || name == "X-Simulated" {
			kept[name] = values
		}
	}
	return kept
}

// errorHeader is what of an error's header is passed on to those who wait.
func errorHeader(h http.Header) http.Header {
	kept := keptHeader(h)
	for name, values := range h {
		if name == "X-Should-Retry" || strings.HasPrefix(name, "X-Ratelimit-") {
			kept[name] = values
		}
	}
	if pause := retryAfter(h); pause > 0 {
		kept.Set("Retry-After", strconv.Itoa(int(min(pause, maxRetryAfter).Round(time.Second)/time.Second)))
	}
	return kept
}

// errorMember is the `error` member of an upstream's error body, as it came.
func errorMember(body []byte) ([]byte, bool) {
	doc, err := cache.Scan(bytes.TrimSpace(body))
	if err != nil {
		return nil, false
	}
	raw, ok := doc.Member("error")
	return raw, ok && len(raw) > 0 && raw[0] == '{'
}
