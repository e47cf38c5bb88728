package proxy

import (
	"context"

	"llmproxy/ledger"
	"llmproxy/store"
	"llmproxy/tokens"
)

// previousTokens is how many tokens the response stands for that the request goes
// on from, 0 where this database has not seen it.
func (c *call) previousTokens() (n int64) {
	if c.view.Previous == "" {
		return 0
	}
	err := c.server.Store.Look(context.WithoutCancel(c.r.Context()), func(tx *store.Tx) (err error) {
		n, _, err = ledger.ResponseTokens(tx, c.row.Tenant, c.view.Previous)
		return err
	})
	if err != nil { // charged as unknown
		c.server.metrics.storeErrors.WithLabelValues("response").Inc()
		c.server.Log.Error("what an earlier response used cannot be read; its tokens are estimated", "call", ledger.Name(c.row.ID), "err", err)
	}
	return n
}

// passing is how many of the estimate's tokens are of this call alone and not
// carried into one that goes on from its response.
func passing(estimate tokens.Estimate) (n int64) {
	for _, part := range estimate.Parts {
		if part.Path == "instructions" {
			n += int64(part.Tokens)
		}
	}
	return n
}
