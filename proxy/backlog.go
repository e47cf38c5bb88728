package proxy

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"llmproxy/cache"
	"llmproxy/ledger"
	"llmproxy/store"
)

const (
	// flushEvery is how long the row of a call that cost nothing may wait.
	flushEvery = 80 * time.Millisecond
	// flushRows is how many waiting rows are written without waiting longer.
	flushRows = 512
	// retryEvery is how often writes are tried again that the store refused.
	retryEvery = time.Second
	// maxRows bounds the rows kept while the store cannot be written.
	maxRows = 100_000
)

// backlog writes what need not be durable before its caller is answered: rows
// of calls that cost nothing, in groups, and writes of paid calls that failed
// and must be repeated until they succeed.
type backlog struct {
	store   *store.Store
	log     *slog.Logger
	metrics *metrics

	writing sync.Mutex // held by flush: when one has returned, what waited before is written

	mu     sync.Mutex
	rows   []*ledger.Call // of calls that cost nothing
	trees  []*ledger.Call // paid ones, written but for their fingerprints
	served []int64        // entries
	must   []func(*store.Tx) error
	full   chan struct{} // has room for one: the rows are many
}

func newBacklog(s *store.Store, log *slog.Logger, m *metrics) *backlog {
	return &backlog{store: s, log: log, metrics: m, full: make(chan struct{}, 1)}
}

// add queues the row of a call that cost nothing, and the entry it served (0:
// none).
func (b *backlog) add(row *ledger.Call, entryID int64) {
	b.mu.Lock()
	b.rows = append(b.rows, row)
	if entryID != 0 {
		b.served = append(b.served, entryID)
	}
	many := len(b.rows) >= flushRows
	b.mu.Unlock()
	if many {
		select {
		case b.full <- struct{}{}:
		default:
		}
	}
}

// paid queues what is still to be written of a paid call: its fingerprint and
// that its entry (0: none) was served.
func (b *backlog) paid(row *ledger.Call, entryID int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(row.Tree) > 0 {
		b.trees = append(b.trees, row)
	}
	if entryID != 0 {
		b.served = append(b.served, entryID)
	}
}

// repeat keeps a write until it succeeds. It must be safe to apply twice.
func (b *backlog) repeat(write func(*store.Tx) error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.must = append(b.must, write)
}

// run flushes until ctx ends, and then once more.
func (b *backlog) run(ctx context.Context) {
	for {
		pause, full := flushEvery, b.full
		if !b.flush() {
			pause, full = retryEvery, nil
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-full:
			timer.Stop()
		case <-ctx.Done():
			timer.Stop()
			b.flush()
			return
		}
	}
}

// flush writes what waits; it is false where the store refused.
func (b *backlog) flush() bool {
	b.writing.Lock()
	defer b.writing.Unlock()
	b.mu.Lock()
	rows, trees, served, must := b.rows, b.trees, b.served, b.must
	b.rows, b.trees, b.served, b.must = nil, nil, nil, nil
	b.mu.Unlock()
	ok := b.settle(must)
	if len(rows)+len(trees)+len(served) == 0 {
		return ok
	}
	err := b.store.Update(context.Background(), func(tx *store.Tx) error {
		if err := ledger.Write(tx, rows); err != nil {
			return err
		}
		for _, row := range trees {
			if err := ledger.KeepTree(tx, row); err != nil {
				return err
			}
		}
		return cache.MarkServed(tx, served)
	})
	if err == nil {
		return ok
	}
	b.failed("ledger rows", err)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rows, b.trees, b.served = append(rows, b.rows...), append(trees, b.trees...), append(served, b.served...)
	if over := len(b.rows) - maxRows; over > 0 {
		b.rows = b.rows[over:]
		b.metrics.rowsDropped.Add(float64(over))
	}
	return false
}

// settle applies the writes that must not be lost, each until it succeeds.
func (b *backlog) settle(must []func(*store.Tx) error) bool {
	for i, write := range must {
		if err := b.store.Update(context.Background(), write); err != nil {
			b.failed("a paid call's settlement", err)
			b.mu.Lock()
			b.must = append(b.must, must[i:]...)
			b.mu.Unlock()
			return false
		}
	}
	return true
}

func (b *backlog) failed(what string, err error) {
	b.metrics.storeErrors.WithLabelValues(what).Inc()
	b.log.Error("the database cannot be written; trying again", "what", what, "err", err)
}
