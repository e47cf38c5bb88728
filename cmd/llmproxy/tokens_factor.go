package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"llmproxy/ledger"
	"llmproxy/store"
	"llmproxy/tokens"
)

// inputCounter counts requests as a server with the same database would.
type inputCounter struct {
	tokens.Counter
	learned func() (*tokens.Factors, error) // reads the factors
}

func (a *app) inputCounter(cmd *cobra.Command) (*inputCounter, error) {
	settings, err := a.loadSettings(cmd.Flags())
	if err != nil {
		return nil, err
	}
	return &inputCounter{tokens.Counter{Charges: tokens.Charges(settings.Charges)},
		func() (*tokens.Factors, error) { return learnedFactors(cmd, settings) }}, nil
}

// prepare reads the factors before the first model that may have one is
// counted. Its error is of the database, not of the request.
func (c *inputCounter) prepare(model string) (err error) {
	if c.Factors == nil && tokens.Learnable(model) {
		c.Factors, err = c.learned()
	}
	return err
}

// learnedFactors are the factors that a server which starts now would use.
// There are none where no database is, unless it was asked for by name.
func learnedFactors(cmd *cobra.Command, settings Settings) (*tokens.Factors, error) {
	factors := new(tokens.Factors)
	err := view(cmd.Context(), settings, func(tx *store.Tx) error {
		_, err := learnFrom(tx, factors)
		return err
	})
	if errors.Is(err, fs.ErrNotExist) && !cmd.Flags().Changed("database") {
		return factors, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading learned factors: %w", err)
	}
	return factors, nil
}

// learnFrom teaches factors the latest bills of the ledger, and returns the
// models that they are of.
func learnFrom(tx *store.Tx, factors *tokens.Factors) (models []string, err error) {
	seen := map[string]bool{}
	err = ledger.LatestBills(tx, func(b ledger.Bill) {
		if !b.Teaches() || !tokens.Learnable(b.Model) {
			return
		}
		factors.Learn(b.Model, int(b.Counted), int(b.Billed))
		seen[b.Model] = true
	})
	return slices.Sorted(maps.Keys(seen)), err
}
