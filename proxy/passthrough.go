package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"llmproxy/budget"
	"llmproxy/ledger"
	"llmproxy/store"
)

// servePassthrough serves every path whose answers are not kept: it goes to the
// upstream and back as it is, under the same admission as every other call and
// with one row in the ledger. It belongs to its client: when that leaves, the
// upstream request ends.
func (c *call) servePassthrough() (err error) {
	body, err := c.readPassthrough()
	if err != nil {
		return err
	}
	if c.upstream == nil {
		return invalidRequest("No upstream serves this path; add one under upstreams: in the configuration")
	}
	c.recorded, c.row.Outcome = true, ledger.Bypass
	need := c.passthroughNeed()
	if err := c.policy.Budget.Fits(budget.Scope{StepName: c.row.Step, RunName: c.row.Run}, need); err != nil {
		return err
	}
	if err := c.admitPassthrough(need); err != nil {
		return err
	}
	c.paid = true
	used, status, err := c.passThrough(body)
	c.closePassthrough(used, status, need.Calls, err)
	if errors.Is(err, errBrokeOff) {
		c.failure, c.row.Finish = err, toError(err).Code
		panic(http.ErrAbortHandler) // the client must see that the answer is not whole
	}
	return err
}

// errBrokeOff ends a call whose answer broke off after it had begun.
var errBrokeOff = errors.New("the upstream's answer broke off")

// maxUsageBody is how much of an answer is kept to find its usage in.
const maxUsageBody = 1 << 20

// readPassthrough names the call. JSON bodies are read first, for their model
// and their count; anything else, such as an upload, streams through.
func (c *call) readPassthrough() (io.Reader, error) {
	kind, _, _ := mime.ParseMediaType(c.r.Header.Get("Content-Type"))
	if kind != "application/json" || c.r.ContentLength == 0 {
		if err := c.settleNames("", ""); err != nil {
			return nil, err
		}
		c.upstream = c.policy.fallback()
		return c.r.Body, nil
	}
	if err := c.readDocument(); err != nil {
		return nil, err
	}
	if raw, ok := c.doc.Member("model"); ok {
		c.row.Model, _ = stringValue(raw)
		c.upstream = c.policy.upstream(c.row.Model)
	} else {
		c.upstream = c.policy.fallback()
	}
	return nil, nil
}

// fallback is the upstream of requests that name no model.
func (p *Policy) fallback() *Upstream {
	if len(p.Upstreams) == 0 {
		return nil
	}
	return p.Upstreams[0]
}

// passthroughNeed is what the call may cost. Requests that only read need
// nothing, but a step over its budget is refused them too.
func (c *call) passthroughNeed() budget.Amounts {
	if c.r.Method != http.MethodPost {
		return budget.Amounts{}
	}
	return budget.Amounts{Calls: 1}
}

func (c *call) admitPassthrough(need budget.Amounts) error {
	s := c.server
	err := s.enter(context.WithoutCancel(c.r.Context()), func(tx *store.Tx) error {
		scope, err := c.scope(tx)
		if err != nil {
			return err
		}
		if c.verdict, err = c.policy.Budget.Reserve(tx, c.row.ID, scope, need); err != nil {
			return err
		}
		return ledger.OpenCall(tx, c.row, s.instance.Load())
	})
	if errors.Is(err, store.ErrUnavailable) {
		err = c.withoutStore(err)
	}
	c.row.Outcome = ledger.Bypass
	if err == nil {
		c.tellFlags()
	}
	return err
}

// passThrough makes the upstream call and copies its answer to the client.
func (c *call) passThrough(body io.Reader) (used *ledger.Usage, status int, err error) {
	ctx, cancel := context.WithTimeoutCause(c.r.Context(), c.upstream.Total, errTotal)
	defer cancel()
	out := outbound{method: c.r.Method, path: c.route.path, query: c.r.URL.RawQuery, header: c.r.Header,
		stream: body, length: c.r.ContentLength, credentialIsOurs: c.credential != nil}
	if c.doc != nil {
		out.body = c.doc.Raw
	}
	var r reply
	if body == nil {
		r, err = c.upstream.send(ctx, &out)
		c.server.metrics.retries.WithLabelValues(c.upstream.Name).Add(float64(r.retries))
	} else {
		var connected atomic.Bool
		r.Response, err = c.upstream.attempt(ctx, &out, &connected)
		r.reached = connected.Load()
		if err == nil {
			r.body = decoded(r.Response)
		}
	}
	if err != nil {
		if r.reached {
			used = &ledger.Usage{Input: c.row.Input}
		}
		return used, 0, c.noAnswer(ctx, err)
	}
	defer r.Response.Body.Close()
	if c.listsNoModels(r.StatusCode) {
		return &ledger.Usage{}, http.StatusOK, c.sendModels("")
	}
	c.sendHead(r.Response)
	kept, err := c.copyOut(r.body)
	return c.passthroughUsage(r.Response, kept), r.StatusCode, err
}

// noAnswer says why no answer began.
func (c *call) noAnswer(ctx context.Context, err error) error {
	switch {
	case c.r.Context().Err() != nil:
		return errClientLeft
	case ctx.Err() != nil:
		return upstreamError(http.StatusGatewayTimeout, "upstream_timeout",
			"The upstream %q gave no answer in time (%v); send the call again, or raise its timeout: in the configuration", c.upstream.Name, context.Cause(ctx))
	}
	return upstreamError(http.StatusBadGateway, "upstream_unreachable",
		"The upstream %q cannot be reached (%s); see whether its base_url is right and the network is up, then send the call again", c.upstream.Name, plainCause(err))
}

func (c *call) sendHead(r *http.Response) {
	h := c.w.Header()
	for name, values := range r.Header {
		if !hopByHop[name] && name != "Set-Cookie" {
			h[name] = values
		}
	}
	if r.Uncompressed || isGzip(r) { // decoded on the way
		h.Del("Content-Encoding")
		h.Del("Content-Length")
	}
	if retryAfter(r.Header) > maxRetryAfter {
		h.Set("Retry-After", strconv.Itoa(int(maxRetryAfter/time.Second)))
	}
	c.describe(h)
	c.committed, c.first = true, time.Now()
	c.row.Status = r.StatusCode
	c.w.WriteHeader(r.StatusCode)
}

// copyOut copies the answer as it comes and keeps its beginning.
func (c *call) copyOut(body io.Reader) (kept []byte, err error) {
	buf := make([]byte, 32<<10)
	for {
		n, err := body.Read(buf)
		if n > 0 {
			if _, werr := c.w.Write(buf[:n]); werr != nil {
				return kept, errClientLeft
			}
			c.flush()
			if len(kept) <= maxUsageBody {
				kept = append(kept, buf[:n]...)
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return kept, nil
		case err != nil && c.r.Context().Err() != nil:
			return kept, errClientLeft
		case err != nil:
			return kept, errBrokeOff
		}
	}
}

var hopByHop = map[string]bool{
	"Connection": true, "Proxy-Connection": true, "Keep-Alive": true, "Te": true, "Trailer": true,
	"Transfer-Encoding": true, "Upgrade": true, "Proxy-Authenticate": true,
}

// passthroughUsage is what the call is charged with: the usage in a JSON answer.
func (c *call) passthroughUsage(r *http.Response, kept []byte) *ledger.Usage {
	if r.StatusCode != http.StatusOK || c.r.Method != http.MethodPost {
		return &ledger.Usage{}
	}
	used, odd := usageIn(kept)
	if odd {
		c.row.Flags |= ledger.UsageOdd
		return &ledger.Usage{}
	}
	return &used
}

// usageIn is the usage that a JSON body reports, under the names of either API;
// odd as in readUsage.
func usageIn(body []byte) (u ledger.Usage, odd bool) {
	if !json.Valid(body) {
		return u, false
	}
	reported := jsonGet(bytes.TrimSpace(body), "usage")
	figure := func(name, other string) int64 {
		a, _ := tokenCount(jsonGet(reported, name), &odd)
		b, _ := tokenCount(jsonGet(reported, other), &odd)
		return max(a, b)
	}
	return ledger.Usage{Input: figure("prompt_tokens", "input_tokens"), Output: figure("completion_tokens", "output_tokens")}, odd
}

// closePassthrough settles the budget and closes the row.
func (c *call) closePassthrough(used *ledger.Usage, status int, calls int64, err error) {
	s, row := c.server, *c.row
	row.Total, row.Usage, row.Status = time.Since(c.start), used, status
	if !c.first.IsZero() {
		row.First = c.first.Sub(c.start)
	}
	switch {
	case errors.Is(err, errClientLeft):
		row.Flags |= ledger.ClientLeft
		row.Finish = "client_left"
		if status == 0 {
			row.Status, row.Outcome = statusClientLeft, ledger.Failed
		}
	case err != nil:
		e := toError(err)
		row.Outcome, row.Finish, row.Status = ledger.Failed, e.Code, e.Status
	case status >= http.StatusBadRequest:
		row.Outcome, row.Finish = ledger.Failed, strconv.Itoa(status)
	}
	write := func(tx *store.Tx) error {
		if c.uncounted {
			if err := countLate(tx, c.policy, &row); err != nil {
				return err
			}
		}
		var err error
		if used == nil {
			err = budget.Release(tx, row.ID)
		} else {
			err = budget.Settle(tx, row.ID, budget.Amounts{Input: used.Input, Output: used.Output, Calls: calls})
		}
		if err != nil {
			return err
		}
		return ledger.CloseCall(tx, &row)
	}
	if err := s.Store.Update(context.WithoutCancel(c.r.Context()), write); err != nil {
		s.metrics.storeErrors.WithLabelValues("finish").Inc()
		s.Log.Error("a call cannot be written down yet; trying again", "call", ledger.Name(row.ID), "err", err)
		s.backlog.repeat(write)
	}
	s.metrics.count(&row)
}
