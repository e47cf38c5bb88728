package ledger

import (
	"sync"

	"github.com/maypok86/otter/v2"

	"llmproxy/store"
)

// Contexts remembers which messages each step has sent in each run, as short
// hashes, to tell how much of a growing context is sent again. Runs without a
// name count as one run of their step.
type Contexts struct {
	runs *otter.Cache[RunKey, *sent]
}

// RunKey names a run of a step.
type RunKey struct{ Tenant, Step, Run string }

type sent struct {
	mu     sync.Mutex
	hashes map[uint64]struct{}
}

const (
	contextHashes = 1 << 19 // hashes remembered over all runs
	runHashes     = 1 << 14 // of one run, after which it starts anew
)

// NewContexts returns an empty memory that holds some 500,000 messages.
func NewContexts() *Contexts {
	return &Contexts{runs: otter.Must(&otter.Options[RunKey, *sent]{
		MaximumWeight: contextHashes,
		Weigher: func(_ RunKey, s *sent) uint32 {
			s.mu.Lock()
			defer s.mu.Unlock()
			return uint32(len(s.hashes) + 8)
		},
	})}
}

// Known tells whether the run has been seen since the process started.
func (c *Contexts) Known(run RunKey) bool {
	_, ok := c.runs.GetIfPresent(run)
	return ok
}

// Resent sums the tokens of those messages that the run has sent before.
func (c *Contexts) Resent(run RunKey, hashes []uint64, tokens []int) (sum int64) {
	s, ok := c.runs.GetIfPresent(run)
	if !ok {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, h := range hashes {
		if _, again := s.hashes[h]; again && i < len(tokens) {
			sum += int64(tokens[i])
		}
	}
	return sum
}

// Sent notes that the run has sent these messages.
func (c *Contexts) Sent(run RunKey, hashes []uint64) {
	s, ok := c.runs.GetIfPresent(run)
	if !ok {
		s = &sent{hashes: make(map[uint64]struct{}, len(hashes))}
	}
	s.mu.Lock()
	if len(s.hashes) > runHashes {
		clear(s.hashes)
	}
	for _, h := range hashes {
		s.hashes[h] = struct{}{}
	}
	s.mu.Unlock()
	c.runs.Set(run, s) // anew, so that its weight is counted
}

// Tree returns the fingerprint tree of a call, nil where it is not kept.
func Tree(tx *store.Tx, callID int64) (tree []byte, err error) {
	_, err = tx.Get(`SELECT tree FROM fingerprint WHERE call_id = $1`, []any{callID}, &tree)
	return tree, err
}

// Trees returns the fingerprint trees of the latest calls of a named run, to
// fill the memory after a restart.
func Trees(tx *store.Tx, run RunKey) (trees [][]byte, err error) {
	const query = `SELECT f.tree FROM call c JOIN fingerprint f ON f.call_id = c.id
		WHERE c.run_id = (SELECT id FROM run WHERE name = $1) AND c.run_id <> 0
		AND c.step_id = (SELECT id FROM step WHERE name = $2)
		AND c.tenant_id = (SELECT id FROM tenant WHERE name = $3)
		ORDER BY c.id DESC LIMIT 100`
	err = tx.Each(query, []any{run.Run, run.Step, run.Tenant}, func(scan func(...any) error) error {
		var tree []byte
		if err := scan(&tree); err != nil {
			return err
		}
		trees = append(trees, tree)
		return nil
	})
	return trees, err
}
