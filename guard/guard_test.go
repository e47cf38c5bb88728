package guard

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"llmproxy/store"
	"llmproxy/store/storetest"
)

func work(explicit string) Request {
	return Request{Work: Work{Tenant: "acme", Step: "mail", Explicit: explicit}}
}

func mustBegin(t testing.TB, g *Guard, req Request) Answer {
	t.Helper()
	a, err := g.Begin(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func mustDo(t testing.TB, g *Guard, id ID, e Event) Answer {
	t.Helper()
	a, err := g.Do(t.Context(), id, e)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestTheStoreKeepsARecordWhole(t *testing.T) {
	g := newGuard(t)
	req := work("k")
	req.Input, req.Note, req.Confirm = []byte(`{"a":1}`), "exec 8812", true
	a := mustBegin(t, g, req)
	mustDo(t, g, a.ID, Extend{Token: HashToken(a.Token), Lease: 90_000})
	done := mustDo(t, g, a.ID, Complete{Token: HashToken(a.Token), Result: Result{ResourceID: "m1", Status: 201,
		Header: map[string][]string{"Content-Type": {"text/plain"}, "Link": {"<a>", "<b>"}}, Body: []byte("x\x00\xff"), Truncated: true}})
	found, err := g.Find(t.Context(), a.ID)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(found.Record, done.Record) {
		t.Errorf("stored\n%+v\nread\n%+v", done.Record, found.Record)
	}
	if a.Downstream != a.ID.Key {
		t.Error("the first downstream key is not the key itself")
	}
	reopened := mustDo(t, g, a.ID, Resolve{Verdict: VerdictReopen, Reason: "wrong address", By: "ann"})
	if found, _ = g.Find(t.Context(), a.ID); !reflect.DeepEqual(found.Record, reopened.Record) || found.Downstream == a.ID.Key {
		t.Errorf("stored\n%+v\nread\n%+v", reopened.Record, found.Record)
	}
}

// TestNothingIsGrantedThatIsNotStored lets commits fail before and after they
// were applied: whatever the caller is told, a grant it has heard of is on
// disk, and one it has not heard of is never acted on.
func TestNothingIsGrantedThatIsNotStored(t *testing.T) {
	for _, applied := range []bool{false, true} {
		t.Run(fmt.Sprintf("applied=%v", applied), func(t *testing.T) {
			var broken atomic.Bool
			path := databaseIn(t)
			s := storetest.Open(t, path, store.Options{AroundCommit: func(commit func() error) error {
				if !broken.Load() {
					return commit()
				}
				if applied {
					if err := commit(); err != nil {
						return err
					}
				}
				return errors.New("the disk is gone")
			}})
			g := &Guard{Store: s}
			broken.Store(true)
			a, err := g.Begin(t.Context(), work("k"))
			if !errors.Is(err, ErrUnavailable) || a.Token != "" {
				t.Fatalf("begin: %+v, %v; want no token and ErrUnavailable", a, err)
			}
			broken.Store(false)
			a = mustBegin(t, g, work("k"))
			if want := map[bool]Decision{false: Proceed, true: Wait}[applied]; a.Reply.Decision != want {
				t.Fatalf("begin again: %s, want %s", a.Reply.Decision, want)
			}
			if applied { // the lease of the lost grant has to end first
				shift(t, s, 75*time.Second)
				a = mustBegin(t, g, work("k"))
				if a.Reply.Decision != Proceed || !a.Reply.Takeover {
					t.Fatalf("after the lease: %+v", a.Reply)
				}
			}
			complete := Complete{Token: HashToken(a.Token), Result: Result{ResourceID: "m1"}}
			broken.Store(true)
			if _, err := g.Do(t.Context(), a.ID, complete); !errors.Is(err, ErrUnavailable) {
				t.Fatalf("complete: %v", err)
			}
			broken.Store(false)
			again := mustDo(t, g, a.ID, complete)
			if again.Record.State != Completed || again.Reply.Refusal != "" || again.Reply.First == applied {
				t.Errorf("complete again: %+v", again.Reply)
			}
			if a := mustBegin(t, g, work("k")); a.Reply.Decision != Replay || a.Record.Result.ResourceID != "m1" {
				t.Errorf("begin after completion: %+v", a.Reply)
			}
			broken.Store(true)
			if a := mustBegin(t, g, work("k")); a.Reply.Decision != Replay {
				t.Errorf("a replay needs no write: %+v", a.Reply)
			}
			broken.Store(false)
		})
	}
}

func TestATokenIsStoredOnlyAsItsHash(t *testing.T) {
	g := newGuard(t)
	a := mustBegin(t, g, work("k"))
	err := g.Store.View(t.Context(), func(tx *store.Tx) error {
		var token []byte
		if _, err := tx.Get("SELECT token FROM attempt", nil, &token); err != nil {
			return err
		}
		if hash := HashToken(a.Token); string(token) != string(hash[:]) {
			t.Errorf("stored %x, want the hash of the token", token)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(a.Token) != 22 {
		t.Errorf("token %q does not have 128 bits", a.Token)
	}
}

// A clock set forward must not end leases: their holders act on.
func TestTheWallClockIsSetForward(t *testing.T) {
	g := newGuard(t)
	req := work("k")
	a := mustBegin(t, g, req)
	// What was stored and seen an hour ago by the wall clock, and just now by
	// the monotonic one.
	pass(t, g, time.Hour)
	g.clock.mu.Lock()
	g.clock.wall -= time.Hour.Milliseconds()
	g.clock.mu.Unlock()
	if b := mustBegin(t, g, req); b.Reply.Decision != Wait {
		t.Fatalf("after the jump: %+v", b.Reply)
	}
	found, err := g.Find(t.Context(), a.ID)
	if err != nil {
		t.Fatal(err)
	}
	if left := found.Record.LeaseUntil - found.Now; left <= 0 || left > found.Record.Policy.Lease {
		t.Errorf("the lease has %d ms left", left)
	}
	if e := mustDo(t, g, a.ID, Extend{Token: HashToken(a.Token)}); e.Reply.Refusal != "" || e.Reply.Late {
		t.Errorf("extending after the jump: %+v", e.Reply)
	}
	pass(t, g, 75*time.Second) // time that does pass ends it
	if b := mustBegin(t, g, req); b.Reply.Decision != Proceed {
		t.Errorf("after the lease: %+v", b.Reply)
	}
}

func TestASecondJumpIsMadeUpForOnce(t *testing.T) {
	g := newGuard(t)
	a := mustBegin(t, g, work("k"))
	pass(t, g, 20*time.Second)
	g.clock.mu.Lock()
	g.clock.wall -= 20_000
	g.clock.mu.Unlock()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if _, err := g.Do(context.Background(), a.ID, Purge{}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	found, err := g.Find(t.Context(), a.ID)
	if err != nil {
		t.Fatal(err)
	}
	if moved := found.Record.LeaseUntil - a.Record.LeaseUntil; moved < -100 || moved > 100 {
		t.Errorf("the lease ends %d ms from where it was to end", moved)
	}
	if found.Record.LeaseLimit-a.Record.LeaseLimit > 100 {
		t.Error("the limit was moved more than once")
	}
}

func TestAnotherProcessGivesLeasesAGrace(t *testing.T) {
	g := newGuard(t)
	mustBegin(t, g, work("k"))
	pass(t, g, 62*time.Second)
	other := &Guard{Store: g.Store}
	if a := mustBegin(t, other, work("k")); a.Record.State != Pending {
		t.Errorf("2 s after the lease, elsewhere: %s", a.Record.State)
	}
	if a := mustBegin(t, g, work("k")); a.Record.State != Unknown {
		t.Errorf("2 s after the lease, here: %s", a.Record.State)
	}
}

func TestAForwardEndsWithItsInstance(t *testing.T) {
	g := newGuard(t)
	var instance int64
	err := g.Store.Update(t.Context(), func(tx *store.Tx) (err error) {
		instance, _, err = tx.Join("server", 30_000)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	req := work("k")
	req.Mode, req.Instance, req.OnUnknown = ModeForward, instance, Hold
	mustBegin(t, g, req)
	if a := mustBegin(t, &Guard{Store: g.Store}, req); a.Reply.Decision != Wait {
		t.Errorf("while its process lives: %+v", a.Reply)
	}
	err = g.Store.Update(t.Context(), func(tx *store.Tx) error { return tx.Bury(instance) })
	if err != nil {
		t.Fatal(err)
	}
	if a := mustBegin(t, &Guard{Store: g.Store}, req); a.Record.State != Unknown || a.Reply.Decision != Held {
		t.Errorf("after its process is gone: %s, %+v", a.Record.State, a.Reply)
	}
}

func TestSweepingKeepsWhatMustNotBeRepeated(t *testing.T) {
	g := newGuard(t)
	done, failed, unknown := mustBegin(t, g, work("done")), mustBegin(t, g, work("failed")), mustBegin(t, g, work("unknown"))
	mustDo(t, g, done.ID, Complete{Token: HashToken(done.Token), Result: Result{ResourceID: "m1", Body: []byte(`{"big":true}`)}})
	mustDo(t, g, failed.ID, Fail{Token: HashToken(failed.Token), None: true})
	mustDo(t, g, unknown.ID, Fail{Token: HashToken(unknown.Token)})
	count := func() (effects, attempts, bodies int) {
		t.Helper()
		err := g.Store.View(t.Context(), func(tx *store.Tx) error {
			_, err := tx.Get("SELECT (SELECT count(*) FROM effect), (SELECT count(*) FROM attempt), (SELECT count(body) FROM effect)", nil, &effects, &attempts, &bodies)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return effects, attempts, bodies
	}
	check := func(when string, passed time.Duration, swept, wantEffects, wantAttempts, wantBodies int) {
		t.Helper()
		pass(t, g, passed)
		n, err := g.Sweep(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		effects, attempts, bodies := count()
		if n != swept || effects != wantEffects || attempts != wantAttempts || bodies != wantBodies {
			t.Errorf("%s: swept %d, %d effects, %d attempts, %d bodies; want %d, %d, %d, %d", when, n, effects, attempts, bodies, swept, wantEffects, wantAttempts, wantBodies)
		}
	}
	const day = 24 * time.Hour
	check("at once", 0, 0, 3, 3, 1)
	check("after 8 days", 8*day, 1, 2, 2, 1)
	check("after 31 days", 23*day, 1, 2, 1, 0)
	if a := mustBegin(t, g, work("done")); a.Reply.Decision != Replay || a.Record.Result.ResourceID != "m1" || a.Record.Result.available() {
		t.Errorf("a tombstone: %+v, %+v", a.Reply, a.Record.Result)
	}
	check("after 429 days", 398*day, 0, 2, 1, 0)
	check("after 431 days", 2*day, 1, 1, 1, 0)
	if a := mustBegin(t, g, work("done")); a.Reply.Decision != Proceed || a.Record.Fence != 1 {
		t.Errorf("after everything: %+v", a.Reply)
	}
	if found, err := g.Find(t.Context(), unknown.ID); err != nil || found.Record.State != Unknown {
		t.Errorf("an unknown effect was swept: %+v, %v", found.Record, err)
	}
}

// No transition waits for the sweeper.
func TestRetentionHoldsWithoutSweeping(t *testing.T) {
	g := newGuard(t)
	a := mustBegin(t, g, work("k"))
	mustDo(t, g, a.ID, Complete{Token: HashToken(a.Token), Result: Result{ResourceID: "m1", Body: []byte(`1`)}})
	pass(t, g, 31*24*time.Hour)
	if b := mustBegin(t, g, work("k")); b.Reply.Decision != Replay || b.Record.Result.available() {
		t.Errorf("after the result's retention: %+v %+v", b.Reply, b.Record.Result)
	}
	pass(t, g, 400*24*time.Hour)
	b := mustBegin(t, g, work("k"))
	if b.Reply.Decision != Proceed || b.Record.Fence != 1 || len(b.Record.Attempts) != 1 {
		t.Errorf("after the tombstone: %+v, %d attempts", b.Reply, len(b.Record.Attempts))
	}
	if found, err := g.Find(t.Context(), a.ID); err != nil || !reflect.DeepEqual(found.Record, b.Record) {
		t.Errorf("stored %+v, %v; want %+v", found.Record, err, b.Record)
	}
}

func TestRunSweepsUntilItIsStopped(t *testing.T) {
	g := newGuard(t)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { g.Run(ctx) })
	cancel()
	running.Wait() // hangs if Run does not end
}

func TestWaitersGetTheResultAtOnce(t *testing.T) {
	g := newGuard(t)
	a := mustBegin(t, g, work("k"))
	req := work("k")
	req.Wait = maxWait
	answers := make(chan Answer)
	for range 5 {
		go func() {
			b, err := g.Begin(t.Context(), req)
			if err != nil {
				t.Error(err)
			}
			answers <- b
		}()
	}
	for waiting := 0; waiting < 5; time.Sleep(time.Millisecond) {
		g.waiting.mu.Lock()
		if w := g.waiting.of[a.ID]; w != nil {
			waiting = w.n
		}
		g.waiting.mu.Unlock()
	}
	mustDo(t, g, a.ID, Complete{Token: HashToken(a.Token), Result: Result{ResourceID: "m1"}})
	for range 5 {
		if b := <-answers; b.Reply.Decision != Replay || b.Record.Result.ResourceID != "m1" {
			t.Errorf("a waiter: %+v", b.Reply)
		}
	}
	g.waiting.mu.Lock()
	defer g.waiting.mu.Unlock()
	if len(g.waiting.of) > 0 {
		t.Errorf("%d keys still have waiters", len(g.waiting.of))
	}
}

func TestOneOfManyWaitersTakesOverAFailure(t *testing.T) {
	g := newGuard(t)
	a := mustBegin(t, g, work("k"))
	req := work("k")
	req.Wait = maxWait
	ctx, cancel := context.WithCancel(t.Context())
	answers := make(chan Answer)
	for range 5 {
		go func() {
			b, err := g.Begin(ctx, req)
			if err != nil && !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			answers <- b
		}()
	}
	mustDo(t, g, a.ID, Fail{Token: HashToken(a.Token), None: true})
	if b := <-answers; b.Reply.Decision != Proceed || b.Record.Fence != 2 {
		t.Errorf("the first to be answered: %+v", b.Reply)
	}
	cancel() // a waiter that leaves is dropped without an effect
	for range 4 {
		if b := <-answers; b.Reply.Decision != "" {
			t.Errorf("a waiter that left: %+v", b.Reply)
		}
	}
	if found, err := g.Find(t.Context(), a.ID); err != nil || found.Record.Fence != 2 {
		t.Errorf("fence %d, %v", found.Record.Fence, err)
	}
}

// Another process's completion is found by looking.
func TestAWaiterFindsWhatAnotherProcessDid(t *testing.T) {
	g := newGuard(t)
	a := mustBegin(t, g, work("k"))
	other := &Guard{Store: g.Store}
	answers := make(chan Answer)
	go func() {
		req := work("k")
		req.Wait = maxWait
		b, err := other.Begin(t.Context(), req)
		if err != nil {
			t.Error(err)
		}
		answers <- b
	}()
	mustDo(t, g, a.ID, Complete{Token: HashToken(a.Token)})
	if b := <-answers; b.Reply.Decision != Replay {
		t.Errorf("%+v", b.Reply)
	}
}

func TestAProbeIsSharedAndBelieved(t *testing.T) {
	var asked atomic.Int32
	release := make(chan struct{})
	g := newGuard(t)
	verdict := VerdictDone
	g.Step = func(string) Step {
		return Step{OnUnknown: Probe, Probe: func(_ context.Context, a Answer) (Verdict, Result, error) {
			asked.Add(1)
			<-release
			return verdict, Result{ResourceID: "found"}, nil
		}}
	}
	a := mustBegin(t, g, work("k"))
	pass(t, g, 75*time.Second)
	answers := make(chan Answer)
	for range 4 {
		go func() {
			b, err := g.Begin(t.Context(), work("k"))
			if err != nil {
				t.Error(err)
			}
			answers <- b
		}()
	}
	for asked.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	close(release)
	for range 4 {
		if b := <-answers; b.Reply.Decision != Replay || b.Record.Result.ResourceID != "found" || b.Record.ResolvedBy != "probe" {
			t.Errorf("%+v, %+v", b.Reply, b.Record.Result)
		}
	}
	if n := asked.Load(); n > 4 {
		t.Errorf("asked %d times", n)
	}
	if late := mustDo(t, g, a.ID, Complete{Token: HashToken(a.Token), Result: Result{ResourceID: "found"}}); late.Reply.Refusal != "" {
		t.Errorf("the holder's own report: %+v", late.Reply)
	}
	for _, c := range []struct {
		name    string
		verdict Verdict
		want    Decision
	}{{"not done", VerdictNotDone, Proceed}, {"can't tell", 0, Held}, {"nonsense", VerdictReopen, Held}} {
		verdict = c.verdict
		mustBegin(t, g, work(c.name))
		pass(t, g, 75*time.Second)
		if b := mustBegin(t, g, work(c.name)); b.Reply.Decision != c.want {
			t.Errorf("%s: %+v, want %s", c.name, b.Reply, c.want)
		}
	}
}

func TestProbeWithoutAProberHolds(t *testing.T) {
	g := newGuard(t)
	req := work("k")
	req.OnUnknown = Probe
	mustBegin(t, g, req)
	pass(t, g, 75*time.Second)
	if a := mustBegin(t, g, req); a.Reply.Decision != Held || a.Record.State != Unknown {
		t.Errorf("%+v", a.Reply)
	}
}

func TestListingFindsLapsedLeases(t *testing.T) {
	g := newGuard(t)
	for i := range 7 {
		mustBegin(t, g, work(fmt.Sprint(i)))
	}
	req := work("unconfirmed")
	req.Confirm = true
	mustBegin(t, g, req)
	pass(t, g, 61*time.Second)
	mustBegin(t, g, work("live"))
	count := func(state State) (n int) {
		t.Helper()
		for cursor := int64(0); ; {
			page, next, err := g.List(t.Context(), Query{NS: "acme/default", State: state, After: cursor, Limit: 3})
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range page {
				if state != Absent && l.Record.State != state {
					t.Errorf("asked for %s, got %s", state, l.Record.State)
				}
			}
			n += len(page)
			if next == 0 {
				return n
			}
			cursor = next
		}
	}
	for state, want := range map[State]int{Absent: 9, Unknown: 7, Failed: 1, Pending: 1, Completed: 0} {
		if got := count(state); got != want {
			t.Errorf("%d effects are %s, want %d", got, state, want)
		}
	}
	if page, _, err := g.List(t.Context(), Query{NS: "zeta/default"}); err != nil || len(page) > 0 {
		t.Errorf("another tenant sees %d effects, %v", len(page), err)
	}
	if page, _, err := g.List(t.Context(), Query{NS: "acme/default", Step: "other"}); err != nil || len(page) > 0 {
		t.Errorf("another step has %d effects, %v", len(page), err)
	}
}

// Replays come from memory; a reopening by another process ends that.
func TestAReopeningElsewhereIsSeenWithinASecond(t *testing.T) {
	inBubble(t, func(t *testing.T, g *Guard) {
		other := &Guard{Store: g.Store}
		a := mustBegin(t, g, work("k"))
		mustDo(t, g, a.ID, Complete{Token: HashToken(a.Token), Result: Result{Body: []byte("1")}})
		for _, each := range []*Guard{g, other} {
			if b := mustBegin(t, each, work("k")); b.Reply.Decision != Replay {
				t.Fatalf("%+v", b.Reply)
			}
			if _, remembered := each.front.effects.GetIfPresent(a.ID); !remembered {
				t.Fatal("the completed effect is not in memory")
			}
		}
		mustDo(t, other, a.ID, Resolve{Verdict: VerdictReopen, Reason: "again"})
		time.Sleep(lookEvery)
		if b := mustBegin(t, g, work("k")); b.Reply.Decision != Proceed || b.Record.Fence != 2 {
			t.Errorf("after a second: %+v", b.Reply)
		}
	})
}

func TestAReopeningHereIsSeenAtOnce(t *testing.T) {
	g := newGuard(t)
	a := mustBegin(t, g, work("k"))
	mustDo(t, g, a.ID, Complete{Token: HashToken(a.Token), Result: Result{Body: []byte("1")}})
	mustBegin(t, g, work("k"))
	mustDo(t, g, a.ID, Resolve{Verdict: VerdictReopen, Reason: "again"})
	if b := mustBegin(t, g, work("k")); b.Reply.Decision != Proceed {
		t.Errorf("after a reopening: %+v", b.Reply)
	}
}

func TestMemoryForgetsWhatIsPastItsRetention(t *testing.T) {
	inBubble(t, func(t *testing.T, g *Guard) {
		req := work("k")
		req.Retention = time.Minute
		a := mustBegin(t, g, req)
		mustDo(t, g, a.ID, Complete{Token: HashToken(a.Token), Result: Result{ResourceID: "m1", Body: []byte("1")}})
		if b := mustBegin(t, g, req); !b.Record.Result.available() {
			t.Error("the result is gone at once")
		}
		time.Sleep(time.Minute)
		if b := mustBegin(t, g, req); b.Reply.Decision != Replay || b.Record.Result.available() || b.Record.Result.ResourceID != "m1" {
			t.Errorf("%+v, %+v", b.Reply, b.Record.Result)
		}
	})
}

// What a process was told stays true after its death.
func TestAGrantSurvivesItsProcess(t *testing.T) {
	path := databaseIn(t)
	first, err := store.Open(t.Context(), path, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	a := mustBegin(t, &Guard{Store: first}, work("k"))
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	g := &Guard{Store: storetest.Open(t, path, store.Options{})}
	if b := mustBegin(t, g, work("k")); b.Reply.Decision != Wait || b.Record.Fence != 1 {
		t.Errorf("after a restart another is told to %s", b.Reply.Decision)
	}
	if c := mustDo(t, g, a.ID, Complete{Token: HashToken(a.Token), Result: Result{ResourceID: "m1"}}); !c.Reply.First || c.Reply.Late {
		t.Errorf("after a restart the holder's report: %+v", c.Reply)
	}
}

// SQLite numbers parameters by first appearance, PostgreSQL by their number.
func TestComposedSQLHasItsParametersInOrder(t *testing.T) {
	for _, query := range []string{loadSQL, loadIDSQL, listSQL, insertSQL, updateSQL, putAttemptSQL, moveLeasesSQL} {
		for i, m := range regexp.MustCompile(`\$(\d+)`).FindAllStringSubmatch(query, -1) {
			if m[1] != fmt.Sprint(i+1) {
				t.Errorf("parameter %d is $%s in %.60q", i+1, m[1], query)
			}
		}
	}
}

// A lease that ends without a report is noticed although nobody asks again, once,
// and the record stays for whoever decides.
func TestALapseIsNoticedBySweeping(t *testing.T) {
	g := newGuard(t)
	var seen []Transition
	g.Observe = func(tr Transition) { seen = append(seen, tr) }
	left, confirming := mustBegin(t, g, work("left")), work("unconfirmed")
	confirming.Confirm = true
	unconfirmed := mustBegin(t, g, confirming)
	seen = nil
	if n, err := g.Sweep(t.Context()); n != 0 || err != nil {
		t.Errorf("while the leases last: %d, %v", n, err)
	}
	pass(t, g, 2*time.Minute)
	for _, want := range []int{2, 0} {
		if n, err := g.Sweep(t.Context()); n != want || err != nil {
			t.Errorf("after the leases: %d, %v, want %d", n, err, want)
		}
	}
	states := map[State]int{}
	for _, tr := range seen {
		if tr.Before.State != Pending {
			t.Errorf("before, it is %v", tr.Before.State)
		}
		states[tr.After.State]++
	}
	if len(seen) != 2 || states[Unknown] != 1 || states[Failed] != 1 {
		t.Errorf("noticed %v", states)
	}
	for id, want := range map[ID]State{left.ID: Unknown, unconfirmed.ID: Failed} {
		if a, err := g.Find(t.Context(), id); err != nil || a.Record.State != want || len(a.Record.Attempts) != 1 {
			t.Errorf("%v, %v; want %v", a.Record.State, err, want)
		}
	}
}
