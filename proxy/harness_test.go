package proxy

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
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
	commits  *commits
	handling *atomic.Int64 // requests that a handler is at work on
	stop     func()        // ends the proxy, as at the end of the test
}

// newHarness starts a proxy; change may alter its policy first.
func newHarness(t *testing.T, change func(*Policy)) *harness {
	t.Helper()
	h := &harness{T: t, upstream: proxytest.New(t), commits: &commits{}, handling: new(atomic.Int64)}
	h.policy = testPolicy(t, h.upstream.URL)
	if change != nil {
		change(h.policy)
	}
	h.start(storetest.Open(t, filepath.Join(t.TempDir(), "test.db"), store.Options{AroundCommit: h.commits.around}))
	return h
}

// commits stands around every commit of a harness's store.
type commits struct {
	hook atomic.Pointer[func(func() error) error]
}

func (c *commits) around(commit func() error) error {
	if hook := c.hook.Load(); hook != nil {
		return (*hook)(commit)
	}
	return commit()
}

// set changes what happens at commits from now on; nil lets them be.
func (c *commits) set(hook func(commit func() error) error) {
	if hook == nil {
		c.hook.Store(nil)
		return
	}
	c.hook.Store(&hook)
}

// fail lets every commit fail before it is made.
func (c *commits) fail() {
	c.set(func(func() error) error { return errors.New("disk full") })
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
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.handling.Add(1)
		defer h.handling.Add(-1)
		server.ServeHTTP(w, r)
	}))
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

// apiError is an error in OpenAI's shape.
type apiError struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Code    *string `json:"code"`
	Param   *string `json:"param"`
}

// errorIn reads an error out of a JSON body or a stream's last frame; anything
// but an object with the four members fails the test.
func (h *harness) errorIn(body string) (e apiError) {
	h.Helper()
	var outer struct{ Error map[string]json.RawMessage }
	if err := json.Unmarshal([]byte(body), &outer); err != nil {
		h.Errorf("no error in OpenAI's shape: %v in %.300s", err, body)
		return e
	}
	for _, member := range []string{"message", "type", "code", "param"} {
		if _, ok := outer.Error[member]; !ok {
			h.Errorf("the error has no %q: %.300s", member, body)
		}
	}
	inner, _ := json.Marshal(outer.Error)
	if err := json.Unmarshal(inner, &e); err != nil {
		h.Errorf("an error of odd members: %v in %.300s", err, body)
	}
	return e
}

// wantError checks that a client got an error of the proxy's own, with words
// that its message must hold.
func (h *harness) wantError(r response, status int, code string, words ...string) {
	h.Helper()
	if r.status != status || !strings.HasPrefix(r.header.Get("Content-Type"), "application/json") {
		h.Errorf("status %d (%s), want %d %s: %.300s", r.status, r.header.Get("Content-Type"), status, code, r.body)
		return
	}
	e := h.errorIn(r.body)
	if e.Code == nil || *e.Code != code || e.Type == "" || e.Message == "" {
		h.Errorf("want the code %s: %.300s", code, r.body)
	}
	for _, word := range words {
		if !strings.Contains(e.Message, word) {
			h.Errorf("the message lacks %q: %s", word, e.Message)
		}
	}
	if !strings.HasPrefix(r.header.Get("X-LLMProxy-Call"), "call_") {
		h.Errorf("the error names no call: %v", r.header)
	}
}

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

// eventually waits until a condition holds.
func (h *harness) eventually(what string, holds func() bool) {
	h.Helper()
	for deadline := time.Now().Add(20 * time.Second); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			h.Fatalf("waited in vain for this: %s", what)
		}
	}
}

// waiting waits until n calls wait for the next event of a recording.
func (h *harness) waiting(n int) {
	h.Helper()
	h.inside(n, "(*call).wait")
}

// inside waits until n goroutines are at work in a function of this package,
// such as "(*call).count".
func (h *harness) inside(n int, function string) {
	h.Helper()
	stacks := make([]byte, 4<<20)
	h.eventually(strconv.Itoa(n)+" calls inside "+function, func() bool {
		all := stacks[:runtime.Stack(stacks, true)]
		return bytes.Count(all, []byte("proxy."+function+"(")) == n
	})
}

// settle waits until every client's call and every exchange has finished and
// every row is written.
func (h *harness) settle() {
	h.Helper()
	h.eventually("the end of every client's call", func() bool { return h.handling.Load() == 0 })
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

// row is what the ledger says of a call.
type row struct {
	outcome       ledger.Outcome
	status, flags int
	attempt       int64
	input         int64    // counted
	used          [2]int64 // input and output paid for; -1 without an upstream
	avoided       [2]int64 // input and output
	finish        string
	step, run     string
}

// lastRow is the row of the latest call.
func (h *harness) lastRow() (r row) {
	h.Helper()
	rows := h.rows("ORDER BY c.id DESC LIMIT 1")
	if len(rows) == 0 {
		h.Fatal("the ledger is empty")
	}
	return rows[0]
}

// rows reads the ledger, in the order of the calls unless more says otherwise.
func (h *harness) rows(more string) (rows []row) {
	h.Helper()
	h.settle()
	h.view(func(tx *store.Tx) error {
		return tx.Each(`SELECT c.outcome, c.status, c.flags, c.attempt, c.input, coalesce(c.up_input, -1), coalesce(c.up_output, -1),
			c.avoided_input, c.avoided_output, coalesce(c.finish, ''), coalesce(s.name, ''), coalesce(r.name, '')
			FROM call c LEFT JOIN step s ON s.id = c.step_id LEFT JOIN run r ON r.id = c.run_id `+cmp.Or(more, "ORDER BY c.id"),
			nil, func(scan func(...any) error) error {
				var r row
				err := scan(&r.outcome, &r.status, &r.flags, &r.attempt, &r.input, &r.used[0], &r.used[1],
					&r.avoided[0], &r.avoided[1], &r.finish, &r.step, &r.run)
				rows = append(rows, r)
				return err
			})
	})
	return rows
}

// counting adds rules that only count: what a test has been charged can then be
// read by charged.
func counting(p *Policy) {
	for _, unit := range []budget.Unit{budget.InputTokens, budget.OutputTokens, budget.Calls} {
		p.Budget.Global = append(p.Budget.Global, budget.Rule{Unit: unit, Limit: 1 << 40, Per: budget.PerTotal, Action: budget.Flag})
	}
}

// charged is the input tokens, output tokens and calls that budgets were charged.
func (h *harness) charged() [3]int64 {
	h.Helper()
	return [3]int64{
		h.number(`SELECT coalesce(sum(used), 0) FROM counter WHERE unit = 1 AND step_id = 0`),
		h.number(`SELECT coalesce(sum(used), 0) FROM counter WHERE unit = 2 AND step_id = 0`),
		h.number(`SELECT coalesce(sum(used), 0) FROM counter WHERE unit = 4 AND step_id = 0`),
	}
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
