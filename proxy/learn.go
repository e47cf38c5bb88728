package proxy

import (
	"context"

	"llmproxy/ledger"
	"llmproxy/store"
	"llmproxy/tokens"
)

// shapeFlags says in the ledger's flags what a request holds beside plain text.
func shapeFlags(s tokens.Shape) (flags int) {
	for _, f := range [...]struct {
		shape tokens.Shape
		flag  int
	}{
		{tokens.Tools, ledger.WithTools}, {tokens.ToolCalls, ledger.WithToolCalls}, {tokens.Images, ledger.WithImages},
		{tokens.Audio, ledger.WithAudio}, {tokens.Structured, ledger.WithStructured},
	} {
		if s&f.shape != 0 {
			flags |= f.flag
		}
	}
	return flags
}

// learn takes what an upstream charged a call into the factors of models that
// no rule is known for.
func (s *Server) learn(row *ledger.Call) {
	if b, ok := row.Bill(); ok && b.Teaches() {
		s.counter.Factors.Learn(b.Model, int(b.Counted), int(b.Billed))
	}
}

// recallFactors learns from what earlier processes have written down.
func (s *Server) recallFactors(ctx context.Context) error {
	s.counter.Factors = new(tokens.Factors)
	return s.Store.View(ctx, func(tx *store.Tx) error {
		return ledger.LatestBills(tx, func(b ledger.Bill) {
			if b.Teaches() {
				s.counter.Factors.Learn(b.Model, int(b.Counted), int(b.Billed))
			}
		})
	})
}
