package guard

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"llmproxy/store"
	"llmproxy/store/storetest"
)

// call is one request of a client: what it does, to which key, reporting on
// which fence, and whether its answer was 503, so that it may have counted.
type call struct {
	key, what string
	fence     int
}

type answer struct {
	said string // decision, refusal, or ok
	// fence that was granted, or whose result is replayed; of a refused
	// completion the resource that stays
	fence    int
	resource string
	lost     bool // 503: it may have counted or not
}

// linear is the state of one key as a sequence of single calls would leave it.
// outcomes has a letter an attempt: r running, n none, u unknown, d done.
type linear struct {
	outcomes string
	by       int // fence of the completion; 0: none
}

func (s linear) with(fence int, outcome byte) linear {
	b := []byte(s.outcomes)
	b[fence-1] = outcome
	s.outcomes = string(b)
	return s
}

func (s linear) granted() linear {
	s.outcomes += "r"
	return s
}

func (s linear) state() State {
	switch {
	case s.by > 0:
		return Completed
	case s.outcomes == "":
		return Absent
	case strings.HasSuffix(s.outcomes, "r"):
		return Pending
	case strings.Trim(s.outcomes, "n") == "":
		return Failed
	}
	return Unknown
}

// step is what the call may have done to a state, given its answer: nothing
// means that it cannot have been answered so. Leases outlast the test, so a
// lease only ends by a report; the drain is short, so whether it is over is
// left open.
func (s linear) step(c call, a answer) (next []linear) {
	if a.lost {
		return append(s.possible(c), s)
	}
	is := func(said string) bool { return a.said == said }
	switch c.what {
	case "begin":
		switch state := s.state(); {
		case state == Completed && is("replay") && a.resource == resourceOf(s.by),
			state == Pending && is("wait"),
			state == Unknown && is("wait"): // the drain
			return []linear{s}
		case (state == Absent || state == Failed || state == Unknown) && is("proceed") && a.fence == len(s.outcomes)+1:
			return []linear{s.granted()}
		}
	case "complete":
		switch {
		case s.by == 0 && is("ok first"), s.by == c.fence && is("ok"):
			return s.possible(c)
		case s.by > 0 && s.by != c.fence && is("already_completed") && a.resource == resourceOf(s.by):
			return s.possible(c)
		}
	case "extend":
		holds := (s.state() == Pending || s.state() == Unknown) && c.fence == len(s.outcomes) && s.outcomes[c.fence-1] != 'n'
		if holds && is("ok") || !holds && is("lease_lost") {
			return s.possible(c)
		}
	default:
		if s.outcomes[c.fence-1] == 'd' && s.by > 0 && is("already_completed") || (s.outcomes[c.fence-1] != 'd' || s.by == 0) && is("ok") {
			return s.possible(c)
		}
	}
	return nil
}

// possible is the state after a call that counted.
func (s linear) possible(c call) []linear {
	switch c.what {
	case "begin":
		if state := s.state(); state == Absent || state == Failed || state == Unknown {
			return []linear{s.granted()}
		}
		return []linear{s}
	case "complete":
		next := s.with(c.fence, 'd')
		if s.by == 0 {
			next.by = c.fence
		}
		return []linear{next}
	case "extend":
		if (s.state() == Pending || s.state() == Unknown) && c.fence == len(s.outcomes) && s.outcomes[c.fence-1] != 'n' {
			return []linear{s.with(c.fence, 'r')}
		}
		return []linear{s}
	}
	outcome := byte('u')
	if c.what == "fail none" {
		outcome = 'n'
	}
	if s.outcomes[c.fence-1] == 'd' || s.state() == Failed && outcome == 'n' {
		return []linear{s}
	}
	return []linear{s.with(c.fence, outcome)}
}

func resourceOf(fence int) string { return fmt.Sprint("m", fence) }

// A call that reports on a fence whose grant its client heard of.
var linearModel = porcupine.NondeterministicModel{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		of := map[string][]porcupine.Operation{}
		for _, op := range history {
			key := op.Input.(call).key
			of[key] = append(of[key], op)
		}
		var parts [][]porcupine.Operation
		for _, part := range of {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() []any { return []any{linear{}} },
	Step: func(state, input, output any) (next []any) {
		s, c := state.(linear), input.(call)
		if c.fence > len(s.outcomes) {
			return nil // its grant comes before it
		}
		for _, n := range s.step(c, output.(answer)) {
			next = append(next, n)
		}
		return next
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v → %+v", input, output) },
}

// flaky fails some commits, half of them after they were applied.
func flaky(seed uint64) func(func() error) error {
	r := rand.New(rand.NewPCG(seed, 1)) // only the writer uses it
	return func(commit func() error) error {
		switch r.IntN(16) {
		case 0:
			return errors.New("failed before the commit")
		case 1:
			if err := commit(); err != nil {
				return err
			}
			return errors.New("failed after the commit")
		}
		return commit()
	}
}

func TestHistoriesOverHTTPAreLinearizable(t *testing.T) {
	for _, broken := range []bool{false, true} {
		t.Run(fmt.Sprintf("commits fail=%v", broken), func(t *testing.T) {
			seed := uint64(time.Now().UnixNano())
			opts := store.Options{}
			if broken {
				opts.AroundCommit = flaky(seed)
			}
			g := &Guard{Store: storetest.Open(t, databaseIn(t), opts),
				Step: func(string) Step { return Step{Lease: time.Hour, Drain: time.Millisecond, MaxAttempts: 1000} }}
			history := record(t, serve(t, g), seed)
			model := linearModel.ToModel()
			result, info := porcupine.CheckOperationsVerbose(model, history, time.Minute)
			if result != porcupine.Ok {
				path := t.TempDir() + "/history.html"
				if err := porcupine.VisualizePath(model, info, path); err != nil {
					t.Error(err)
				}
				t.Fatalf("seed %d: %s; the history is drawn in %s", seed, result, path)
			}
			counts := map[string]int{}
			for _, op := range history {
				counts[op.Output.(answer).said]++
			}
			t.Logf("seed %d: %d calls, answered %v", seed, len(history), counts)
			if counts["proceed"] < 10 || counts["replay"] < 10 || counts["ok first"] < 3 || counts["already_completed"]+counts["lease_lost"] == 0 || broken != (counts[""] > 0) {
				t.Errorf("the history proves little: %v", counts)
			}
			// The check must be able to fail: a grant turned into another's is noticed.
			for i, op := range history {
				if a := op.Output.(answer); a.said == "proceed" {
					a.fence++
					history[i].Output = a
					break
				}
			}
			if porcupine.CheckOperationsTimeout(model, history, time.Minute) == porcupine.Ok {
				t.Error("a history with a fence that was never given is taken for linearizable")
			}
		})
	}
}

// record lets eight clients work on a few keys at once, each key retried until
// it is used up, and returns what they did and saw.
func record(t *testing.T, s *server, seed uint64) (history []porcupine.Operation) {
	const clients, calls = 8, 150
	var mu sync.Mutex
	var wg sync.WaitGroup
	grants := map[string][]grant{} // key → what any client was granted
	begun := time.Now()
	for client := range clients {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(client)))
			for i := range calls {
				c := call{key: fmt.Sprint(i * 10 / calls * 2 % 20), what: "begin"} // ten rounds of a few keys
				if r.IntN(2) == 0 {
					c.key += "b"
				}
				mu.Lock()
				known := grants[c.key]
				mu.Unlock()
				var of grant
				if len(known) > 0 && r.IntN(5) > 0 {
					of = known[len(known)-1-min(len(known)-1, int(r.ExpFloat64()))]
					c.what, c.fence = []string{"complete", "extend", "fail none", "fail none", "fail unknown", "fail unknown"}[r.IntN(6)], of.fence
					if c.what == "complete" && r.IntN(3) > 0 {
						c.what = "begin"
						c.fence = 0
					}
				}
				called := time.Since(begun).Nanoseconds()
				a, granted := perform(t, s, c, of)
				returned := time.Since(begun).Nanoseconds()
				mu.Lock()
				if granted.token != "" {
					grants[c.key] = append(grants[c.key], granted)
				}
				history = append(history, porcupine.Operation{ClientId: client, Input: c, Call: called, Output: a, Return: returned})
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return history
}

type grant struct {
	key, token string
	fence      int
}

func perform(t *testing.T, s *server, c call, of grant) (answer, grant) {
	var body object
	path, ok := c.what, "ok"
	switch c.what {
	case "begin":
		body = object{"step": "mail", "key": c.key}
	case "complete":
		body = object{"key": of.key, "token": of.token, "resource_id": resourceOf(c.fence)}
	case "extend":
		body = object{"key": of.key, "token": of.token}
	default:
		path = "fail"
		body = object{"key": of.key, "token": of.token, "effect": strings.TrimPrefix(c.what, "fail ")}
	}
	r, err := s.try("acme", http.MethodPost, base+path, body)
	if err != nil {
		t.Error(err)
		return answer{lost: true}, grant{}
	}
	a := answer{said: r.str("decision"), resource: r.str("resource_id")}
	if r.status == http.StatusServiceUnavailable {
		return answer{lost: true}, grant{}
	}
	if c.what != "begin" {
		if r.body["first"] == true {
			ok = "ok first"
		}
		a.said = or(r.code(), ok)
		return a, grant{}
	}
	fence, _ := r.body["fence"].(float64)
	a.fence = int(fence)
	return a, grant{r.str("key"), r.str("token"), a.fence}
}

// TestOneGrantOfManyBeginsAtOnce: the plainest race there is.
func TestOneGrantOfManyBeginsAtOnce(t *testing.T) {
	g := newGuard(t)
	for round := range 50 {
		var wg sync.WaitGroup
		var mu sync.Mutex
		decisions := map[Decision]int{}
		for range 8 {
			wg.Go(func() {
				a, err := g.Begin(context.Background(), work(fmt.Sprint(round)))
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				decisions[a.Reply.Decision]++
				mu.Unlock()
			})
		}
		wg.Wait()
		if decisions[Proceed] != 1 || decisions[Wait] != 7 {
			t.Fatalf("round %d: %v", round, decisions)
		}
	}
}
