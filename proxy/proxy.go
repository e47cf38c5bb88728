// Package proxy speaks HTTP: it names a call, counts it, admits it, and gives
// its client an answer, from the store or from an upstream.
//
// The life of a call:
//
//	name → key → memory ─┬─ hit       read a finished recording
//	             count   │
//	             admit ──┼─ hit       another process has stored the answer
//	                     ├─ collapsed read the recording that another call makes
//	                     ├─ refused   402
//	                     └─ lead      an exchange writes a recording
//
// Admit is one transaction: look the key up, take its lease, reserve the
// budget, open the ledger row. Finish is one transaction: store the answer,
// settle the budget, close the row, free the lease. No transaction is open
// while the upstream works, and there is no state in which money is spent and
// the answer lost.
//
// The exchange belongs to the process. Clients, the first one included, only
// read the recording it writes, so a client that hangs up ends nothing.
//
// The store may fail. Then the cache fails open: a look-up is a miss, and calls
// still share exchanges in memory. Money fails closed: a step with a hard
// budget is refused, never let through uncounted.
package proxy

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"llmproxy/budget"
	"llmproxy/cache"
	"llmproxy/ledger"
	"llmproxy/store"
	"llmproxy/tokens"
)

// Config is what a Server is made of.
type Config struct {
	Store    *store.Store
	Cache    *cache.Cache
	Policy   *Policy
	Log      *slog.Logger
	Instance string         // names this process: host and listening address
	Charges  tokens.Charges // for what cannot be counted
	// Flagged, if set, is called for each rule that an admitted call brings near
	// its limit or over it. It must not block.
	Flagged func(budget.Note)
	// Failpoint, if set, is called at each named point of a paid call's life.
	// Tests end the process there.
	Failpoint func(point string)
}

// Server is the proxy. Make it with [New], serve it, run [Server.Run], and end
// it with [Server.Drain] and the end of Run's context.
type Server struct {
	Config

	policy   atomic.Pointer[Policy]
	secret   []byte // makes tenants' names from credentials
	instance atomic.Int64
	joining  sync.Mutex // held to join anew
	ids      ledger.IDs
	contexts *ledger.Contexts
	counter  tokens.Counter
	counting chan struct{} // has a place for each count that may run
	largest  sync.Map      // tenant and step → *atomic.Int64, the largest answer in tokens
	backlog  *backlog
	metrics  *metrics
	metricsH http.Handler
	draining atomic.Bool
	sockets  sync.WaitGroup
	base     context.Context // of exchanges; ended by Abort
	abort    context.CancelCauseFunc
}

// errShutdown is the cause by which exchanges end that outlast the drain.
var errShutdown = errors.New("the proxy was stopped")

// countWorkers bounds how many requests are counted at once.
const countWorkers = 4

// New joins the database as an instance, settles what dead instances left, and
// returns a server that is ready to serve.
func New(ctx context.Context, cfg Config) (*Server, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{Config: cfg, contexts: ledger.NewContexts(), counting: make(chan struct{}, countWorkers)}
	s.counter.Charges = cfg.Charges
	s.base, s.abort = context.WithCancelCause(context.WithoutCancel(ctx))
	s.metrics = newMetrics(s)
	s.metricsH = s.metrics.handler()
	s.backlog = newBacklog(cfg.Store, cfg.Log, s.metrics)
	s.SetPolicy(cfg.Policy)
	if err := s.recallStore(ctx); err != nil {
		return nil, fmt.Errorf("reading the database: %w", err)
	}
	if err := s.recallFactors(ctx); err != nil {
		return nil, fmt.Errorf("reading the bills of earlier calls: %w", err)
	}
	if err := s.join(ctx); err != nil {
		return nil, fmt.Errorf("joining the database: %w", err)
	}
	return s, nil
}

// InstanceID is the store's instance that this process is, and keeps alive.
func (s *Server) InstanceID() int64 { return s.instance.Load() }

// SetPolicy replaces the policy; calls under way keep the one they began with.
func (s *Server) SetPolicy(p *Policy) {
	p.prepare()
	for _, u := range p.Upstreams {
		u.prepare()
	}
	if old := s.policy.Swap(p); old != nil {
		for _, u := range old.Upstreams {
			if t, ok := u.Transport.(interface{ CloseIdleConnections() }); ok {
				t.CloseIdleConnections()
			}
		}
	}
}

// recallStore reads what the store keeps for servers and mends what a dead one
// has not finished.
func (s *Server) recallStore(ctx context.Context) error {
	fresh := make([]byte, 32)
	rand.Read(fresh) //nolint:errcheck // never fails
	return s.Store.Update(ctx, func(tx *store.Tx) error {
		if _, err := tx.Exec(`INSERT INTO setting (name, value) VALUES ('secret', $1) ON CONFLICT (name) DO NOTHING`, fresh); err != nil {
			return err
		}
		if _, err := tx.Get(`SELECT value FROM setting WHERE name = 'secret'`, nil, &s.secret); err != nil {
			return err
		}
		return cache.MarkUnserved(tx)
	})
}

// Run does the server's standing work until ctx ends: it writes rows, keeps the
// instance alive, settles dead ones, sweeps the cache and heeds purges.
func (s *Server) Run(ctx context.Context) {
	var tasks sync.WaitGroup
	tasks.Go(func() { s.backlog.run(ctx) })
	tasks.Go(func() { every(ctx, renewEvery, s.renew) })
	tasks.Go(func() { every(ctx, sweepEvery, s.sweep) })
	tasks.Go(func() { every(ctx, tidyEvery, s.tidy) })
	tasks.Go(func() { every(ctx, heedEvery, s.heedPurges) })
	tasks.Wait()
}

const (
	sweepEvery = 30 * time.Second
	heedEvery  = time.Second // how long a purged answer may still be served from memory
)

func (s *Server) sweep(ctx context.Context) {
	if s.policy.Load().ReplayOnly {
		return // old answers are given, too
	}
	done, err := s.Cache.Sweep(ctx, s.Store, s.policy.Load().MaxBytes)
	s.metrics.evicted.WithLabelValues("expired").Add(float64(done.Expired))
	s.metrics.evicted.WithLabelValues("size").Add(float64(done.Oversize))
	if err != nil && ctx.Err() == nil {
		s.metrics.storeErrors.WithLabelValues("sweep").Inc()
		s.Log.Error("sweeping the cache", "err", err)
	}
}

func (s *Server) heedPurges(ctx context.Context) {
	if err := s.Cache.HeedPurges(ctx, s.Store); err != nil && ctx.Err() == nil {
		s.metrics.storeErrors.WithLabelValues("purge").Inc()
		s.Log.Error("the database cannot be read for purges; purged answers may still be served from memory", "err", err)
	}
}

// What has served its purpose is dropped in small steps.
const (
	tidyEvery   = time.Hour
	keepWindows = 7 * 24 * time.Hour  // counters of budget windows that are over
	keepTrees   = 30 * 24 * time.Hour // fingerprints of requests, and what responses carry on
	atATime     = 500                 // rows
)

func (s *Server) tidy(ctx context.Context) {
	if s.policy.Load().ReplayOnly {
		return // fingerprints of old requests say what is nearest
	}
	now := time.Now()
	err := s.Store.Update(ctx, func(tx *store.Tx) error { return budget.Prune(tx, now.Add(-keepWindows)) })
	for _, forget := range []func(*store.Tx, int64, int64) (int64, error){ledger.ForgetTrees, ledger.ForgetResponses} {
		for n := int64(atATime); err == nil && n == atATime; {
			err = s.Store.Update(ctx, func(tx *store.Tx) (err error) {
				n, err = forget(tx, ledger.FirstID(now.Add(-keepTrees)), atATime)
				return err
			})
		}
	}
	if err != nil && ctx.Err() == nil {
		s.metrics.storeErrors.WithLabelValues("tidy").Inc()
		s.Log.Error("tidying the database", "err", err)
	}
}

func every(ctx context.Context, period time.Duration, task func(context.Context)) {
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			task(ctx)
		}
	}
}

// Drain waits until the exchanges under way have finished. New calls are
// refused from now on. When ctx ends first, the rest is ended and settled as
// lost.
func (s *Server) Drain(ctx context.Context) {
	s.draining.Store(true)
	finished := make(chan struct{})
	go func() {
		s.Cache.Flights.Wait()
		close(finished)
	}()
	select {
	case <-finished:
	case <-ctx.Done():
		s.abort(errShutdown)
		<-finished
	}
	s.abort(errShutdown) // sockets have no end of their own
	s.sockets.Wait()
}

// ServeHTTP serves every path of the proxy.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/healthz":
		w.Write([]byte("ok\n")) //nolint:errcheck // a client that has left cannot be told
		return
	case "/readyz":
		s.serveReady(w, r)
		return
	case "/metrics":
		s.metricsH.ServeHTTP(w, r)
		return
	}
	c := s.newCall(w, r)
	defer c.end()
	c.fail(c.serve())
}

// serveReady tells whether calls can be served: the store takes writes and
// there is an upstream.
func (s *Server) serveReady(w http.ResponseWriter, r *http.Request) {
	var faults []string
	if err := s.Store.Update(r.Context(), func(*store.Tx) error { return nil }); err != nil {
		faults = append(faults, "the database takes no writes: "+err.Error())
	}
	if len(s.policy.Load().Upstreams) == 0 {
		faults = append(faults, "no upstream is configured; add one under upstreams:")
	}
	if s.draining.Load() {
		faults = append(faults, "the server is shutting down")
	}
	if len(faults) > 0 {
		w.WriteHeader(http.StatusServiceUnavailable)
	} else {
		faults = []string{"ready"}
	}
	w.Write([]byte(strings.Join(faults, "\n") + "\n")) //nolint:errcheck // a client that has left cannot be told
}

func (s *Server) failpoint(point string) {
	if s.Failpoint != nil {
		s.Failpoint(point)
	}
}
