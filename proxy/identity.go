package proxy

import (
	"net/http"
	"slices"

	"llmproxy/cache"
	"llmproxy/ledger"
)

// Identity is how a server names a request that it would cache.
type Identity struct {
	Key     cache.Key
	Context cache.Context // what is in the key beside the body
	Step    string
	Model   string
	Tree    cache.Tree // what of the body is in the key, part by part
}

// Identify names a request as a server with this policy would, without serving
// it: to the endpoint of its path, or chat completions. The step and the sample are those of its headers and its body; the
// tenant is given as the ledger knows it, because a request shows only a
// credential. The error is what the server would answer.
func (p *Policy) Identify(r *http.Request, tenant string) (*Identity, *Error) {
	p.prepare()
	for _, u := range p.Upstreams {
		u.prepare()
	}
	c := &call{policy: p, r: r, row: &ledger.Call{Tenant: tenant, Step: r.Header.Get(headerStep)}}
	c.row.Endpoint = ledger.Chat
	if rt, err := parseRoute(r.URL.EscapedPath()); err == nil && dialectOf(endpointOf(rt.path)) != nil {
		c.row.Endpoint = endpointOf(rt.path)
	}
	c.route.path, c.dialect = c.row.Endpoint.String(), dialectOf(c.row.Endpoint)
	defer func() { giveBack(c.buf) }()
	if err := c.read(); err != nil {
		return nil, toError(err)
	}
	return &Identity{Key: c.key, Context: c.keyContext(r.Header.Get(headerSample)), Step: c.row.Step, Model: c.view.Model,
		Tree: c.doc.Fingerprint(c.keyOptions())}, nil
}

// Caller is who presents a credential.
type Caller struct {
	Tenant string
	scopes []string // nil: all, where no keys are configured
}

// May tells whether the caller's key has a scope.
func (c Caller) May(scope string) bool { return c.scopes == nil || slices.Contains(c.scopes, scope) }

// Caller says who sent a request to another API of this server, by the same keys
// and with the same tenants as model calls. An error is an [*Error].
func (s *Server) Caller(h http.Header) (Caller, error) {
	policy, secret := s.policy.Load(), presented(h)
	if len(policy.Credentials) == 0 {
		return Caller{Tenant: firstOf(policy.Tenant, s.anonymousTenant(secret))}, nil
	}
	credential := policy.credential(secret)
	if credential == nil {
		return Caller{}, noKey()
	}
	return Caller{firstOf(credential.Tenant, s.anonymousTenant(secret)), append([]string{}, credential.Scopes...)}, nil
}
