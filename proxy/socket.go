package proxy

import (
	"context"
	"errors"
	"net/http"
	"net/http/httputil"
	"net/url"

	"llmproxy/budget"
	"llmproxy/ledger"
)

// isUpgrade tells a request that wants its connection for another protocol:
// WebSockets, as the realtime and the Responses endpoints offer them.
func isUpgrade(r *http.Request) bool {
	return r.Header.Get("Upgrade") != "" && listed(r.Header.Values("Connection"), "Upgrade")
}

// serveSocket joins the client's connection with one to the upstream, for as
// long as both want. What goes over it is not read, so it is one call without
// tokens, and a step whose tokens are limited cannot have it.
func (c *call) serveSocket() error {
	if err := c.settleNames("", ""); err != nil {
		return err
	}
	c.row.Endpoint, c.dialect = ledger.Other, nil
	c.row.Model = c.r.URL.Query().Get("model")
	if c.upstream = c.policy.upstream(c.row.Model); c.upstream == nil {
		return invalidRequest("No upstream serves this path; add one under upstreams: in the configuration")
	}
	c.recorded, c.row.Outcome = true, ledger.Bypass
	if rule, metered := c.policy.Budget.Metered(c.row.Step); metered {
		return &Error{Status: http.StatusPaymentRequired, Type: "budget_error", Code: "uncounted_input", Retry: &no,
			Message: "Step \"" + c.row.Step + "\" has a budget of " + rule.Unit.String() + " per " + rule.Per.String() +
				" that refuses, and what goes over a WebSocket cannot be counted; use the HTTP endpoint, or let this budget flag instead of reject"}
	}
	if err := c.admitPassthrough(budget.Amounts{Calls: 1}); err != nil {
		return err
	}
	c.paid = true
	status, err := c.joinSockets()
	c.closePassthrough(&ledger.Usage{}, status, 1, err)
	return err
}

// joinSockets copies both ways until one side is done, the client leaves or the
// server stops. status is the upstream's, 0 where it had none.
func (c *call) joinSockets() (status int, err error) {
	s := c.server
	s.sockets.Add(1)
	defer s.sockets.Done()
	ctx, cancel := context.WithCancelCause(c.r.Context())
	defer cancel(nil)
	defer context.AfterFunc(s.base, func() { cancel(context.Cause(s.base)) })()
	target, err := url.Parse(c.upstream.url(c.route.path, c.r.URL.RawQuery))
	if err != nil {
		return 0, err
	}
	join := &httputil.ReverseProxy{
		Transport: c.upstream.Transport,
		Rewrite: func(r *httputil.ProxyRequest) {
			header := forwarded(r.In.Header)
			for _, name := range []string{"Connection", "Upgrade"} {
				header[name] = r.Out.Header[name]
			}
			c.upstream.authorise(header, c.credential != nil)
			r.Out.URL, r.Out.Host, r.Out.Header = target, "", header
		},
		ModifyResponse: func(r *http.Response) error {
			status = r.StatusCode
			r.Header.Del("Set-Cookie")
			c.describe(r.Header)
			c.committed, c.row.Status = true, status
			return nil
		},
		ErrorHandler: func(_ http.ResponseWriter, _ *http.Request, failure error) { err = failure },
	}
	join.ServeHTTP(c.w, c.r.WithContext(ctx))
	switch {
	case err == nil && errors.Is(context.Cause(ctx), errShutdown):
		return status, nil
	case err != nil:
		return status, c.noAnswer(ctx, err)
	}
	return status, nil
}
