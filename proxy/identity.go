package proxy

import (
	"net/http"

	"llmproxy/cache"
	"llmproxy/ledger"
)

// Identity is how a server names a request that it would cache.
type Identity struct {
	Key      cache.Key
	Tenant   string
	Step     string
	Model    string
	Upstream string
	Tree     cache.Tree // what the key is made of, field by field
}

// Identify names a chat request as a server with this policy would, without
// serving it. The step, the run and the sample are those of its headers and
// its body; the tenant is given as the ledger knows it, because a request shows
// only a credential.
func (p *Policy) Identify(r *http.Request, tenant string) (*Identity, error) {
	p.prepare()
	c := &call{policy: p, r: r, row: &ledger.Call{Tenant: tenant, Step: r.Header.Get(headerStep)}}
	c.route.path = "chat/completions"
	defer func() { giveBack(c.buf) }()
	if err := c.read(); err != nil {
		return nil, err
	}
	return &Identity{Key: c.key, Tenant: tenant, Step: c.row.Step, Model: c.view.Model, Upstream: c.upstream.Name,
		Tree: c.doc.Fingerprint(c.keyOptions())}, nil
}
