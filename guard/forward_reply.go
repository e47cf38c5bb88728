package guard

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// forwardReply is what a client of a guarded call gets: the downstream's answer,
// or, where there is none, a problem.
type forwardReply struct {
	id       ID
	record   Record
	fence    int64 // of the attempt that made it; 0: none did
	drift    bool
	replayed bool

	problem   *Problem
	plain     *response // instead of an answer: what a begin would say
	status    int
	header    http.Header
	body      []byte
	truncated bool
	retry     *bool // X-Should-Retry
}

// replyTo makes the reply to an observation, after its report led to a.
func (x *exchange) replyTo(o *observation, outcome Outcome, a *Answer) *forwardReply {
	p := &forwardReply{id: a.ID, record: a.Record, fence: x.grant.Reply.Fence, drift: x.grant.Reply.Drift,
		status: o.status, header: o.header, body: o.body, truncated: o.cut}
	if outcome == OutcomeUnknown || a.Record.State == Unknown {
		p.retry = x.retriable(a)
	}
	switch {
	case o.status != 0:
		return p
	case outcome == OutcomeNone:
		p.problem = unreachable(o.err)
		if a.Record.State == Unknown && *p.problem.Retry { // an earlier attempt may have acted
			p.problem.Retry = p.retry
		}
	default:
		told := *a
		told.Reply = Reply{Decision: Held, Refusal: Undecided, Until: a.Record.drained()}
		p.problem = refused(&told, "begin")
		p.problem.Status, p.problem.Retry = http.StatusGatewayTimeout, p.retry
		delete(p.problem.Extra, "decision")
		if !*p.retry {
			p.problem.RetryAfter = 0
		}
	}
	p.problem.id, p.problem.state = &p.id, a.Record.State
	return p
}

// retriable tells whether a begin after the drain would go on by itself.
func (x *exchange) retriable(a *Answer) *bool {
	if a.Record.State != Unknown {
		return &no
	}
	record := a.Record
	switch x.begin.decide(&record, max(a.Now, record.drained())).Decision {
	case Proceed:
		return &yes
	case Ask:
		if x.call.route.Probe != nil {
			return &yes
		}
	}
	return &no
}

// replayed is the reply from a stored completion.
func replayed(a *Answer) *forwardReply {
	r := &a.Record
	p := &forwardReply{id: a.ID, record: *r, fence: r.CompletedBy, drift: a.Reply.Drift, replayed: true,
		status: r.Result.Status, header: r.Result.Header, body: r.Result.Body, truncated: r.Result.Truncated}
	switch {
	case a.Now >= r.ExpiresAt:
		p.replayed = false
		p.problem = &Problem{Status: http.StatusGone, Code: "result_expired", Retry: &no, id: &a.ID, state: r.State,
			Message: "It was done at " + stamp(r.CompletedAt).(string) + ", and its answer is no longer kept; it is not done again. For other work send another key or a Guard-Occurrence",
			Extra:   map[string]any{"completed_at": stamp(r.CompletedAt), "resource_id": r.Result.ResourceID}}
	case p.status == 0: // completed by the API, a person or a probe
		p.plain = replay(a)
	}
	return p
}

func (p *forwardReply) write(w http.ResponseWriter) {
	h := w.Header()
	p.guardHeaders(h)
	switch {
	case p.problem != nil:
		p.problem.write(w)
		return
	case p.plain != nil:
		p.plain.write(w)
		return
	}
	named := p.header.Values("Connection")
	for name, values := range p.header {
		if !connectionHeaders[name] && !strings.HasPrefix(name, "Guard-") && name != "Idempotent-Replayed" && !namedIn(named, name) {
			h[name] = slices.Clone(values)
		}
	}
	if p.retry != nil {
		h.Set("X-Should-Retry", strconv.FormatBool(*p.retry))
	}
	if _, typed := h["Content-Type"]; !typed {
		h["Content-Type"] = nil // as received: nothing is guessed
	}
	if p.status != http.StatusNoContent && p.status != http.StatusNotModified {
		h.Set("Content-Length", strconv.Itoa(len(p.body)))
	}
	w.WriteHeader(p.status)
	if len(p.body) > 0 {
		w.Write(p.body) //nolint:errcheck // a client that has left cannot be told
	}
}

// connectionHeaders are the downstream's words about its own connection.
var connectionHeaders = map[string]bool{
	"Connection": true, "Keep-Alive": true, "Proxy-Connection": true, "Proxy-Authenticate": true, "Te": true,
	"Trailer": true, "Transfer-Encoding": true, "Upgrade": true, "Content-Length": true, "Alt-Svc": true,
}

func (p *forwardReply) guardHeaders(h http.Header) {
	r := &p.record
	h.Set("Guard-Key", p.id.Key.String())
	h.Set("Guard-State", r.State.String())
	if p.fence > 0 {
		h.Set("Guard-Fence", strconv.FormatInt(p.fence, 10))
	}
	// The history is not read for a replay.
	if i := slices.IndexFunc(r.Attempts, func(a Attempt) bool { return a.Fence == p.fence }); i >= 0 {
		h.Set("Guard-Attempt", strconv.Itoa(i+1))
	}
	if r.State == Completed {
		h.Set("Guard-Completed-At", time.UnixMilli(r.CompletedAt).UTC().Format(time.RFC3339))
	}
	if p.drift {
		h.Set("Guard-Drift", "true")
	}
	if p.truncated {
		h.Set("Guard-Truncated", "true")
	}
	if p.replayed {
		h.Set("Idempotent-Replayed", "true")
	}
}
