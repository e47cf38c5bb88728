package crash

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"llmproxy/proxy/proxytest"
	"llmproxy/store"
)

const (
	stormLasts = 4 * time.Second // how long servers are killed
	longestLet = 300 * time.Millisecond
	askers     = 4 // pairs of clients
)

// TestKilledAtRandom kills servers at random moments, again and again, while
// clients ask in pairs: both of a pair ask the same question at the same time,
// and each asks again until it has seen the end of an answer.
func TestKilledAtRandom(t *testing.T) {
	for name, servers := range map[string]int{"one server": 1, "two servers on one file": 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seed := uint64(time.Now().UnixNano())
			t.Logf("seed %d", seed)
			s := &storm{
				T: t, random: rand.New(rand.NewPCG(seed, 0)), path: newPath(t), upstream: newCounted(t),
				servers: make([]atomic.Pointer[process], servers), asked: map[string]*question{},
			}
			for i := range servers {
				s.start(i)
			}
			s.db = look(t, s.path)
			s.rage()
			s.judge()
		})
	}
}

// storm is a run of the test.
type storm struct {
	*testing.T
	random   *rand.Rand
	path     string
	upstream *counted
	db       *database
	servers  []atomic.Pointer[process]
	kills    int

	mu    sync.Mutex
	asked map[string]*question // by prompt
}

// question is one request that a pair of clients makes until both are answered.
type question struct {
	body     string
	failures int      // requests that reached a server and got no whole answer
	answers  []string // as clients saw them to their end
	key      string
	checked  bool // asked again since the answers came
}

func (s *storm) start(i int) *process {
	s.Helper()
	name := fmt.Sprintf("server %d", i)
	server := start(s.T, setup{Database: s.path, Instance: name, Upstream: s.upstream.URL, Memory: 1 << 20})
	s.servers[i].Store(server)
	return server
}

// rage kills servers while clients ask.
func (s *storm) rage() {
	ctx, cancel := context.WithCancel(s.Context())
	var clients sync.WaitGroup
	for n := range askers {
		clients.Go(func() { s.askAll(ctx, n) })
	}
	for until := time.Now().Add(stormLasts); time.Now().Before(until) && !s.Failed(); s.kills++ {
		time.Sleep(time.Duration(s.random.Int64N(int64(longestLet))))
		victim := s.random.IntN(len(s.servers))
		s.servers[victim].Load().kill()
		s.checkSeen(s.start(victim))
	}
	cancel()
	clients.Wait()
}

// askAll asks one question after the other, each by two clients at once.
func (s *storm) askAll(ctx context.Context, n int) {
	for i := 0; ctx.Err() == nil; i++ {
		prompt := fmt.Sprintf("client %d asks %d", n, i)
		q := &question{body: chat(prompt)}
		if (n+i)%2 == 0 {
			q.body = chat(prompt, stream)
		}
		s.mu.Lock()
		s.asked[prompt] = q
		s.mu.Unlock()
		var pair sync.WaitGroup
		for side := range 2 {
			pair.Go(func() { s.askUntilAnswered(q, side) })
		}
		pair.Wait()
	}
}

// askUntilAnswered asks the server of a side of the pair.
func (s *storm) askUntilAnswered(q *question, side int) {
	deadline := time.Now().Add(patience)
	for {
		server := s.servers[side%len(s.servers)].Load()
		r, err := server.post(context.Background(), q.body, inStep(hardStep)...)
		s.mu.Lock()
		switch {
		case r.whole() && (err == nil || strings.Contains(r.body, "[DONE]")):
			q.answers, q.key, q.checked = append(q.answers, r.body), r.header.Get("X-LLMProxy-Key"), false
			s.mu.Unlock()
			return
		case err == nil && r.status != http.StatusOK:
			s.Errorf("a client got %d %s", r.status, r.body)
		case time.Now().After(deadline):
			s.Errorf("no answer to %s: %v", q.body, err)
		case !errors.Is(err, syscall.ECONNREFUSED):
			q.failures++
		}
		failed := s.Failed()
		s.mu.Unlock()
		if failed {
			return
		}
		time.Sleep(5 * time.Millisecond) // the server is being started again
	}
}

// checkSeen asks a server that has just started for all that was seen to its
// end, and was not asked for since: it must be there.
func (s *storm) checkSeen(server *process) {
	s.Helper()
	s.mu.Lock()
	var seen []*question
	for _, q := range s.asked {
		if len(q.answers) > 0 && !q.checked {
			q.checked = true
			seen = append(seen, q)
		}
	}
	s.mu.Unlock()
	for _, q := range seen {
		r := server.ask(q.body, "X-LLMProxy-Step", hardStep, "Cache-Control", "only-if-cached")
		s.mu.Lock()
		for _, answer := range q.answers {
			if r.body != answer {
				s.Errorf("a client has seen the answer %q, now there is %d %q", answer, r.status, r.body)
			}
		}
		s.mu.Unlock()
	}
}

// judge looks at what is left when all clients have their answers.
func (s *storm) judge() {
	for i := range s.servers { // a last restart settles what is open
		s.servers[i].Load().kill()
		s.start(i)
	}
	for _, q := range s.asked {
		q.checked = false
	}
	s.checkSeen(s.servers[0].Load())
	s.db.balanced()
	paid := s.paidRows()
	failures, lost := 0, 0
	for prompt, q := range s.asked {
		rows, calls := paid[q.key[:16]], s.upstream.calls(prompt)
		failures, lost = failures+q.failures, lost+rows["lost"]
		switch {
		case rows["miss"] != 1 || len(rows) > 2 || rows["miss"]+rows["lost"] < calls:
			s.Errorf("%q: %d upstream calls, rows %v", prompt, calls, rows)
		case calls > 1+q.failures:
			s.Errorf("%q: %d upstream calls although only %d requests died", prompt, calls, q.failures)
		}
	}
	s.Logf("%d kills survived; %d questions asked twice, %d upstream calls (%d lost), %d requests died",
		s.kills, len(s.asked), s.upstream.total(), lost, failures)
	if s.kills == 0 || failures == 0 || len(s.asked) <= askers {
		s.Errorf("the storm was a calm")
	}
}

// paidRows counts the rows of calls that went upstream: key's first 16 digits →
// outcome → rows.
func (s *storm) paidRows() map[string]map[string]int {
	s.Helper()
	rows := map[string]map[string]int{}
	err := s.db.reader.View(s.Context(), func(tx *store.Tx) error {
		const query = `SELECT key, outcome, count(*) FROM v_calls WHERE upstream OR outcome NOT IN ('hit', 'collapsed') GROUP BY key, outcome`
		return tx.Each(query, nil, func(scan func(...any) error) error {
			var key, outcome string
			var n int
			err := scan(&key, &outcome, &n)
			if rows[key] == nil {
				rows[key] = map[string]int{}
			}
			rows[key][outcome] = n
			return err
		})
	})
	if err != nil {
		s.Fatal(err)
	}
	return rows
}

// counted is an upstream that answers each call differently, some time later,
// and counts the calls of each prompt.
type counted struct {
	URL string

	mu      sync.Mutex
	prompts map[string]int
}

func newCounted(t *testing.T) *counted {
	c := &counted{prompts: map[string]int{}}
	server := httptest.NewServer(c)
	t.Cleanup(server.Close)
	c.URL = server.URL + "/v1"
	return c
}

func (c *counted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Stream   bool
		Messages []struct{ Content string }
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	prompt := body.Messages[0].Content
	c.mu.Lock()
	c.prompts[prompt]++
	answer := fmt.Sprintf("answer %d to %s", c.prompts[prompt], prompt)
	c.mu.Unlock()
	pause := func() { time.Sleep(rand.N(4 * time.Millisecond)) }
	pause()
	if !body.Stream {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, proxytest.Completion(answer))
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for _, event := range proxytest.Chunks(answer, 4) {
		fmt.Fprint(w, event)
		w.(http.Flusher).Flush()
		pause()
	}
}

func (c *counted) calls(prompt string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.prompts[prompt]
}

func (c *counted) total() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, calls := range c.prompts {
		n += calls
	}
	return n
}
