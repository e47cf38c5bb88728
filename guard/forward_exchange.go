package guard

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"time"
)

const (
	// patience is how long a client waits for the store to take an outcome, before
	// it is told what the downstream answered all the same.
	patience = 5 * time.Second
	// persistence is how long the store is tried.
	persistence = time.Hour
)

// exchange is a granted call under way: it sends once, judges and reports. No
// client's context reaches it.
type exchange struct {
	f     *Forwarder
	call  *forwardCall
	begin Begin
	grant Answer
	done  chan struct{} // closed when reply is there
	reply *forwardReply
}

// run is the whole life of a granted call.
func (x *exchange) run() {
	x.f.failpoint("after_claim")
	started := time.Now()
	n, _ := x.grant.Record.unsettled()
	o := x.send()
	outcome := x.call.route.judge(&o, n > 1)
	x.report(&o, outcome)
	x.f.log().Info("forwarded", "step", x.call.step, "key", x.grant.ID.Key.String(), "fence", x.grant.Reply.Fence,
		"outcome", outcome.String(), "note", o.note(), "duration", time.Since(started))
}

// send makes the one request of the grant.
func (x *exchange) send() (o observation) {
	// The lease is told in wall time; here it is measured from now on.
	left := time.Duration(x.grant.Reply.Until-time.Now().UnixMilli()) * time.Millisecond
	until := time.Now().Add(left - leaseMargin)
	ctx, cancel := context.WithDeadlineCause(context.Background(), until, errors.New("the time of the lease is over"))
	defer cancel()
	l := &line{f: x.f, private: x.call.route.AllowPrivate, until: until, wall: x.grant.Reply.Until}
	transport := l.transport
	if x.f.transport != nil {
		transport = func() http.RoundTripper { return x.f.transport(l) }
	}
	req, err := x.request(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { l.got.Store(true) },
	}))
	if err != nil {
		return observation{err: err}
	}
	resp, err := transport().RoundTrip(req)
	if err == nil && resp.StatusCode < 200 { // an upgrade nobody asked for, or no status at all
		resp.Body.Close()
		err = fmt.Errorf("the downstream answered with the status %d", resp.StatusCode)
	}
	if err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
		return observation{left: !l.nothingLeft(), err: err}
	}
	defer resp.Body.Close()
	o = observation{status: resp.StatusCode, header: resp.Header, left: true}
	o.body, o.err = io.ReadAll(io.LimitReader(resp.Body, maxForwardBody+1))
	if o.err == nil && len(o.body) > maxForwardBody {
		o.body, o.err = o.body[:maxForwardBody], errors.New("it is larger than 10 MiB")
	}
	o.cut = o.err != nil
	return o
}

// request is the downstream's request. It cannot be sent again: without GetBody
// its body cannot be read twice.
func (x *exchange) request(ctx context.Context) (*http.Request, error) {
	c := x.call
	req, err := http.NewRequestWithContext(ctx, c.method, c.target.String(), bytes.NewReader(c.body))
	if err != nil {
		return nil, err
	}
	req.GetBody = nil
	req.Header = c.header.Clone()
	if len(req.Header["User-Agent"]) == 0 {
		req.Header.Set("User-Agent", "") // or Go's would be sent
	}
	var own DownstreamIdempotency
	if c.route.Idempotency != nil {
		own = *c.route.Idempotency
	}
	for _, name := range []string{own.Header, c.keyHeader} {
		if name != "" {
			req.Header.Set(name, spelt(x.grant.Downstream, own.Format))
		}
	}
	req.Header.Set("Guard-Fence", fmt.Sprint(x.grant.Reply.Fence))
	return req, nil
}

// spelt is a key in the format of DownstreamIdempotency.
func spelt(k Key, format string) string {
	switch format {
	case "uuid":
		return k.UUID()
	case "sf":
		return `"` + k.String() + `"`
	}
	return k.String()
}

// report stores the outcome and then lets the clients have the answer. A store
// that does not take it is tried on: the downstream has acted, and nobody else
// knows.
func (x *exchange) report(o *observation, outcome Outcome) {
	event := o.event(outcome, HashToken(x.grant.Token))
	started, answered := time.Now(), false
	answer := x.grant
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, patience) {
		if outcome == OutcomeDone {
			x.f.failpoint("before_commit_done")
		}
		stored, err := x.f.Guard.Do(context.Background(), x.grant.ID, event)
		if err == nil {
			answer = stored
			break
		}
		tried := time.Since(started)
		if !errors.Is(err, ErrUnavailable) || tried > persistence {
			x.f.log().Error("the outcome of a forwarded call could not be stored; it is unknown when its lease ends",
				"step", x.call.step, "key", x.grant.ID.Key.String(), "outcome", outcome.String(), "note", o.note(), "err", err)
			break
		}
		if tried >= patience && !answered {
			x.f.log().Error("the store does not take the outcome of a forwarded call; it is tried on", "step", x.call.step,
				"key", x.grant.ID.Key.String(), "outcome", outcome.String(), "err", err)
			x.answer(o, outcome, &answer)
			answered = true
		}
		time.Sleep(pause)
	}
	if outcome == OutcomeDone {
		x.f.failpoint("after_commit_done")
	}
	if !answered {
		x.answer(o, outcome, &answer)
	}
}

func (x *exchange) answer(o *observation, outcome Outcome, a *Answer) {
	x.reply = x.replyTo(o, outcome, a)
	close(x.done)
}

// join waits for the reply of a call that another request has made; nil where
// it does not come in time.
func (x *exchange) join(ctx context.Context, deadline time.Time, drift bool) *forwardReply {
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case <-x.done:
		shared := *x.reply
		shared.drift = drift
		if shared.problem == nil {
			shared.header = storedHeader(shared.header)
			shared.replayed = shared.record.State == Completed
		}
		return &shared
	case <-timer.C:
	case <-ctx.Done():
	}
	return nil
}
