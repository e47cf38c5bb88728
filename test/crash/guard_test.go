package crash

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"llmproxy/guard"
	"llmproxy/proxy"
	"llmproxy/store"
)

// forwardPath is the step whose calls a server forwards to setup.Downstream.
const forwardPath = "/guard/v1/forward/row"

// handler serves the proxy and, where there is a downstream, the guard.
func (s *setup) handler(server *proxy.Server, db *store.Store) (http.Handler, error) {
	if s.Downstream == "" {
		return server, nil
	}
	target, err := url.Parse(s.Downstream)
	if err != nil {
		return nil, err
	}
	rt := guard.Route{Step: "row", Target: target, AllowPrivate: true, Select: []string{"/unit"}, Lease: 6 * time.Second}
	switch s.Policy {
	case "retry":
		rt.OnUnknown = guard.Retry
	case "idempotent":
		rt.Idempotency = &guard.DownstreamIdempotency{Header: "Idempotency-Key", Retention: time.Hour}
	case "probe":
		rt.OnUnknown, rt.Probe = guard.Probe, &guard.DownstreamProbe{URL: s.Downstream + "/made/{/unit}", Found: "/made"}
	}
	everyone := func(*http.Request) (guard.Caller, error) {
		return guard.Caller{Tenant: "acme", Scopes: []string{guard.ScopeUse, guard.ScopeAdmin}}, nil
	}
	g := &guard.Guard{Store: db, Step: func(string) guard.Step { return guard.Step{Drain: 100 * time.Millisecond} }}
	f := &guard.Forwarder{Guard: g, Routes: []guard.Route{rt}, Identify: everyone, Instance: server.InstanceID,
		Failpoint: s.failpoint(), Log: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, forwardPath) {
			f.ServeHTTP(w, r)
			return
		}
		server.ServeHTTP(w, r)
	}), f.Check()
}

// rows is a downstream that makes an effect of each POST, for the unit in its
// body, and tells about it at /made/{unit}.
type rows struct {
	*httptest.Server
	idempotent bool          // one effect for each Idempotency-Key
	answer     chan struct{} // not closed: every POST waits for its answer

	mu      sync.Mutex
	effects map[string]int
	keys    map[string]bool
}

func newRows(t *testing.T, idempotent bool) *rows {
	d := &rows{idempotent: idempotent, answer: make(chan struct{}), effects: map[string]int{}, keys: map[string]bool{}}
	d.Server = httptest.NewServer(d)
	t.Cleanup(d.Close)
	return d
}

func (d *rows) count(unit string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.effects[unit]
}

func (d *rows) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		json.NewEncoder(w).Encode(map[string]bool{"made": d.count(path.Base(r.URL.Path)) > 0})
		return
	}
	var sent struct{ Unit string }
	if err := json.NewDecoder(r.Body).Decode(&sent); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	d.mu.Lock()
	if key := r.Header.Get("Idempotency-Key"); !d.idempotent || !d.keys[key] {
		d.keys[key] = true
		d.effects[sent.Unit]++
	}
	n := len(d.effects)
	d.mu.Unlock()
	<-d.answer
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, `{"row":%d,"unit":%q}`, n, sent.Unit)
}

// forward sends a unit of work through the guard.
func (p *process) forward(unit, text string) (response, error) {
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	body := fmt.Sprintf(`{"unit":%q,"text":%q}`, unit, text)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url+forwardPath, strings.NewReader(body))
	if err != nil {
		return response{}, err
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return response{}, err
	}
	return read(resp)
}

// forwarded is forward where nothing may go wrong on the way.
func (p *process) forwarded(unit, text string) response {
	p.t.Helper()
	r, err := p.forward(unit, text)
	if err != nil {
		p.t.Fatalf("forwarding through %s: %v", p.name, err)
	}
	return r
}

// TestAForwardKilledAtEachPoint kills the server at every named point of a
// forwarded call's life, starts it again on the same file, sends the same unit
// again until it is settled, and counts what the downstream did.
func TestAForwardKilledAtEachPoint(t *testing.T) {
	points := []struct {
		point  string
		acted  int  // effects made before the end
		stored bool // the outcome is stored
	}{
		{"after_claim", 0, false},
		{"before_dial", 0, false},
		{"after_write", 1, false},
		{"before_commit_done", 1, false},
		{"after_commit_done", 1, true},
	}
	// What must have happened in the end, of a call whose outcome is unknown.
	policies := map[string]func(acted int) (effects int, completed bool){
		"hold":       func(acted int) (int, bool) { return acted, false },
		"retry":      func(acted int) (int, bool) { return acted + 1, true }, // at least once, as promised
		"idempotent": func(int) (int, bool) { return 1, true },
		"probe":      func(int) (int, bool) { return 1, true },
	}
	for _, p := range points {
		for policy, want := range policies {
			t.Run(p.point+" "+policy, func(t *testing.T) {
				t.Parallel()
				d := newRows(t, policy == "idempotent")
				if p.point != "after_write" { // there it dies before there can be an answer
					close(d.answer)
				}
				s := setup{Database: newPath(t), Instance: "one", Upstream: d.URL, Downstream: d.URL, Policy: policy,
					Memory: 1 << 20, KillAt: p.point, KillPass: 1}
				server := start(t, s)
				if dead, err := server.forward("u1", "first"); err == nil {
					t.Fatalf("the client of a killed server got %d %s", dead.status, dead.body)
				}
				server.wait()
				if status := server.cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signal() != syscall.SIGKILL {
					t.Fatalf("the server ended by itself: %v", status)
				}
				eventually(t, "what was sent has arrived", func() bool { return d.count("u1") >= p.acted })
				if n := d.count("u1"); n != p.acted {
					t.Fatalf("%d effects before the end, want %d", n, p.acted)
				}
				if p.point == "after_write" {
					close(d.answer)
				}

				s.KillAt = ""
				server = start(t, s)
				if policy != "hold" { // which needs not wait for anything: the holder is known to be gone
					look(t, s.Database).write(`UPDATE effect SET lease_until = lease_until - 6000 WHERE state = 1`) // as 6 s would
				}
				effects, completed := want(p.acted)
				if p.stored {
					effects, completed = 1, true
				}
				last := server.forwarded("u1", "the model words it anew")
				for range 2 {
					if last.header.Get("Guard-State") != "completed" {
						last = server.forwarded("u1", "and again")
					}
				}
				if n := d.count("u1"); n != effects {
					t.Errorf("%d effects in the end, want %d", n, effects)
				}
				if !completed {
					if last.status != http.StatusConflict || !strings.Contains(last.body, "effect_outcome_unknown") || last.header.Get("X-Should-Retry") != "false" {
						t.Errorf("held, and told %d %s", last.status, last.body)
					}
					return
				}
				// Done is done: for every later caller, and after one more death.
				kept := server.forwarded("u1", "first")
				server.kill()
				server = start(t, s)
				after := server.forwarded("u1", "first")
				for _, r := range []response{kept, after} {
					if r.header.Get("Guard-State") != "completed" || r.header.Get("Idempotent-Replayed") != "true" || r.status != last.status || r.body != after.body {
						t.Errorf("replayed %d %q, %v; first %d %q", r.status, r.body, r.header, last.status, last.body)
					}
				}
				if p.stored && after.body != `{"row":1,"unit":"u1"}` {
					t.Errorf("replayed %q", after.body)
				}
				if n := d.count("u1"); n != effects {
					t.Errorf("%d effects after replays, want %d", n, effects)
				}
			})
		}
	}
}

// TestManyForwardsSurviveAKill kills a server while it forwards many units at
// once. Under hold no unit has two effects, and what a client was told is kept.
func TestManyForwardsSurviveAKill(t *testing.T) {
	const units = 40
	d := newRows(t, false)
	close(d.answer)
	s := setup{Database: newPath(t), Instance: "one", Upstream: d.URL, Downstream: d.URL, Memory: 1 << 20, KillAt: "after_write", KillPass: units / 2}
	server := start(t, s)
	told := make([]string, units)
	var wg sync.WaitGroup
	for i := range units {
		wg.Go(func() {
			if r, err := server.forward(fmt.Sprint("u", i), "first"); err == nil && r.status == http.StatusCreated {
				told[i] = r.body
			}
		})
	}
	wg.Wait()
	server.wait()
	s.KillAt = ""
	server = start(t, s)
	held, done := 0, 0
	for i := range units {
		unit := fmt.Sprint("u", i)
		r := server.forwarded(unit, "second")
		n := d.count(unit)
		switch {
		case told[i] != "" && (r.body != told[i] || n != 1):
			t.Errorf("%s: a client was told %s; now %d %s, %d effects", unit, told[i], r.status, r.body, n)
		case r.header.Get("Guard-State") == "completed" && n != 1:
			t.Errorf("%s: completed, with %d effects", unit, n)
		case n > 1:
			t.Errorf("%s: %d effects", unit, n)
		case r.header.Get("Guard-State") == "completed":
			done++
		case r.status == http.StatusConflict:
			held++
		default:
			t.Errorf("%s: %d %s", unit, r.status, r.body)
		}
	}
	if held == 0 || done == 0 {
		t.Errorf("%d units are held and %d done; the kill came too early or too late to show anything", held, done)
	}
}
