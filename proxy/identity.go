package proxy

import (
	"net/http"

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

// Identify names a chat request as a server with this policy would, without
// serving it. The step and the sample are those of its headers and its body; the
// tenant is given as the ledger knows it, because a request shows only a
// credential. The error is what the server would answer.
func (p *Policy) Identify(r *http.Request, tenant string) (*Identity, *Error) {
	p.prepare()
	for _, u := range p.Upstreams {
		u.prepare()
	}
	c := &call{policy: p, r: r, row: &ledger.Call{Tenant: tenant, Step: r.Header.Get(headerStep)}}
	c.route.path = "chat/completions"
	defer func() { giveBack(c.buf) }()
	if err := c.read(); err != nil {
		return nil, toError(err)
	}
	return &Identity{Key: c.key, Context: c.keyContext(r.Header.Get(headerSample)), Step: c.row.Step, Model: c.view.Model,
		Tree: c.doc.Fingerprint(c.keyOptions())}, nil
}
