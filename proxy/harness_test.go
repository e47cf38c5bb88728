package proxy

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"llmproxy/budget"
	"llmproxy/cache"
	"llmproxy/ledger"
	"llmproxy/proxy/proxytest"
	"llmproxy/store"
	"llmproxy/store/storetest"
)

// harness is a proxy on a real listener and a real database, before a
// scriptable upstream.
type harness struct {
	*testing.T
	server   *Server
	store    *store.Store
	upstream *proxytest.Upstream
	policy   *Policy
	url      string
	logs     *syncBuffer
	stop     func() // ends the proxy, as at the end of the test
}

// newHarness starts a proxy; change may alter its policy first.
func newHarness(t *testing.T, change func(*Policy)) *harness {
	t.Helper()
	h := &harness{T: t, upstream: proxytest.New(t)}
	h.policy = testPolicy(t, h.upstream.URL)
	if change != nil {
		change(h.policy)
	}
	h.start(storetest.New(t))
	return h
}

func testPolicy(t *testing.T, upstreamURL string) *Policy {
	t.Helper()
	return &Policy{
		Budget:              &budget.Policy{Steps: map[string][]budget.Rule{}},
		Default:             Step{TTL: time.Hour, FinishReasons: []string{"stop", "tool_calls", "function_call"}},
		Upstreams:           []*Upstream{testUpstream(t, upstreamURL)},
		ServeHitsOverBudget: true,
		Exclude:             cache.DefaultExclude(),
		RequestBody:         1 << 20,
		ResponseBody:        1 << 20,
		RefreshesPerKey:     5,
	}
}

func testUpstream(t *testing.T, base string) *Upstream {
	t.Helper()
	u, err := url.Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	transport := NewTransport(2 * time.Second)
	t.Cleanup(transport.CloseIdleConnections)
	return &Upstream{Name: "test", BaseURL: u, Models: []string{"*"}, Idle: time.Minute, Total: time.Minute, Transport: transport}
}

func (h *harness) start(s *store.Store) {
	h.Helper()
	h.store, h.logs = s, &syncBuffer{}
	ctx, cancel := context.WithCancel(context.Background())
	server, err := New(ctx, Config{Store: s, Cache: cache.New(1 << 20), Policy: h.policy, Instance: filepath.Base(h.Name()),
		Log: slog.New(slog.NewTextHandler(h.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	if err != nil {
		h.Fatal(err)
	}
	h.server = server
	web := httptest.NewServer(server)
	h.url = web.URL
	var running sync.WaitGroup
	running.Go(func() { server.Run(ctx) })
	h.stop = sync.OnceFunc(func() {
		web.CloseClientConnections()
		drain, done := context.WithTimeout(context.Background(), 10*time.Second)
		defer done()
		server.Drain(drain)
		web.Close()
		cancel()
		running.Wait()
	})
	h.Cleanup(h.stop)
}

// response is what a client got.
type response struct {
	status int
	header http.Header
	body   string
}

func (r response) cache() string { return r.header.Get("X-LLMProxy-Cache") }

// request builds a chat request; headers are name, value, name, value …
func (h *harness) request(ctx context.Context, path, body string, headers ...string) *http.Request {
	h.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, h.url+path, strings.NewReader(body))
	if err != nil {
		h.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	return req
}

func (h *harness) do(req *http.Request) response {
	h.Helper()
	r, err := http.DefaultClient.Do(req)
	if err != nil {
		h.Errorf("%s %s: %v", req.Method, req.URL.Path, err)
		return response{header: http.Header{}}
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		h.Errorf("reading the answer: %v", err)
	}
	return response{r.StatusCode, r.Header, string(body)}
}

func (h *harness) post(body string, headers ...string) response {
	h.Helper()
	return h.do(h.request(h.Context(), "/v1/chat/completions", body, headers...))
}

// chat is a small request whose content is text.
func chat(text string, more ...string) string {
	return `{"model":"gpt-4o","messages":[{"role":"user","content":"` + text + `"}]` + strings.Join(more, "") + `}`
}

const stream = `,"stream":true`

// settle waits until every exchange has finished and every row is written.
func (h *harness) settle() {
	h.Helper()
	h.server.Cache.Flights.Wait()
	if !h.server.backlog.flush() {
		h.Error("the backlog cannot be written")
	}
}

// outcomes counts the ledger's rows by outcome.
func (h *harness) outcomes() map[ledger.Outcome]int {
	h.Helper()
	h.settle()
	counts := map[ledger.Outcome]int{}
	h.view(func(tx *store.Tx) error {
		return tx.Each(`SELECT outcome, count(*) FROM call GROUP BY outcome`, nil, func(scan func(...any) error) error {
			var o ledger.Outcome
			var n int
			err := scan(&o, &n)
			counts[o] = n
			return err
		})
	})
	return counts
}

// number is the single integer that a query yields.
func (h *harness) number(query string) (n int64) {
	h.Helper()
	h.settle()
	h.view(func(tx *store.Tx) error {
		_, err := tx.Get(query, nil, &n)
		return err
	})
	return n
}

func (h *harness) view(fn func(*store.Tx) error) {
	h.Helper()
	if err := h.store.View(context.Background(), fn); err != nil {
		h.Fatal(err)
	}
}

// nothingHeld checks what must hold when no call runs.
func (h *harness) nothingHeld() {
	h.Helper()
	for what, query := range map[string]string{
		"tokens reserved": `SELECT coalesce(sum(reserved), 0) FROM counter`,
		"reservations":    `SELECT count(*) FROM reservation`,
		"leases":          `SELECT count(*) FROM lease`,
		"open calls":      `SELECT count(*) FROM open_call`,
		"open rows":       `SELECT count(*) FROM call WHERE outcome = 0`,
	} {
		if n := h.number(query); n != 0 {
			h.Errorf("%d %s are left although no call runs", n, what)
		}
	}
}

type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
