package crash

import (
	"bufio"
	"database/sql"
	"io"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"llmproxy/proxy/proxytest"
)

// hold takes the database's write lock, as somebody at a sqlite3 shell does who
// begins a transaction, and returns how to give it back.
func hold(t *testing.T, path string) (release func()) {
	t.Helper()
	shell, err := exec.LookPath("sqlite3")
	if err != nil {
		t.Log("THERE IS NO sqlite3 SHELL: a second connection of this process holds the lock instead; apt-get install sqlite3")
		return holdHere(t, path)
	}
	t.Log("the lock is held by " + shell)
	cmd := exec.Command(shell, "-batch", path)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var complaints output
	cmd.Stderr = &complaints
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	release = sync.OnceFunc(func() {
		io.WriteString(in, "COMMIT;\n") //nolint:errcheck // seen by Wait
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the sqlite3 shell: %v %s", err, &complaints)
		}
	})
	t.Cleanup(release)
	// The shell keeps its own output back until it ends, so a child speaks for it.
	if _, err := io.WriteString(in, ".timeout 5000\n.bail on\nBEGIN IMMEDIATE;\n.shell echo held\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "held\n" {
		t.Fatalf("the sqlite3 shell said %q, %v %s", line, err, &complaints)
	}
	return release
}

func holdHere(t *testing.T, path string) (release func()) {
	t.Helper()
	db, err := sql.Open("sqlite3", path+"?_txlock=immediate&_busy_timeout=5000")
	if err != nil {
		t.Fatal(err)
	}
	lock, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	release = sync.OnceFunc(func() {
		if err := lock.Commit(); err != nil {
			t.Error(err)
		}
		db.Close()
	})
	t.Cleanup(release)
	return release
}

// TestCallsWaitForALock holds the lock for less than the server's patience.
func TestCallsWaitForALock(t *testing.T) {
	t.Parallel()
	upstream := proxytest.New(t)
	upstream.Reply(proxytest.JSON(200, proxytest.Completion("worth waiting for")))
	s := setup{Database: newPath(t), Instance: "one", Upstream: upstream.URL, Memory: 1 << 20}
	server := start(t, s)
	db := look(t, s.Database)
	stored := server.ask(chat("stored before"), inStep(hardStep)...)
	release := hold(t, s.Database)
	var calls []*background
	for _, step := range []string{"plain", softStep, hardStep} {
		calls = append(calls, server.begin(chat("work"), inStep(step)...), server.begin(chat("other work", stream), inStep(step)...))
	}
	if hit := server.ask(chat("stored before"), inStep(hardStep)...); hit.cache() != "hit" || hit.body != stored.body {
		t.Errorf("a hit during the lock: %d %s", hit.status, hit.cache())
	}
	time.Sleep(2 * time.Second)
	if n := upstream.Count(); n != 1 {
		t.Errorf("%d upstream calls during the lock, beside the one before: a call must be admitted first", n-1)
	}
	release()
	for _, call := range calls {
		if r := call.wait(t); !r.whole() || r.cache() != "miss" {
			t.Errorf("%d %s %s", r.status, r.cache(), r.body)
		}
	}
	if n := upstream.Count(); n != 7 {
		t.Errorf("%d upstream calls, want 7", n)
	}
	eventually(t, "the row of the hit", func() bool { return db.outcomes()["hit"] == 1 })
	db.balanced()
}

// TestALockHeldTooLong holds the lock for longer than the server waits: the
// cache fails open, money fails closed, and nothing is forgotten.
func TestALockHeldTooLong(t *testing.T) {
	t.Parallel()
	upstream := proxytest.New(t)
	upstream.Reply(proxytest.JSON(200, proxytest.Completion("served all the same")))
	s := setup{Database: newPath(t), Instance: "one", Upstream: upstream.URL, Memory: 1 << 20, BusyTimeout: 200 * time.Millisecond}
	server := start(t, s)
	db := look(t, s.Database)
	server.ask(chat("stored before"), inStep(hardStep)...)
	release := hold(t, s.Database)
	starved(t, server, upstream)
	release()
	recovered(t, server, db, upstream)
}

// starved checks what a server does that cannot write. "stored before" was
// asked in the step with a hard budget.
func starved(t *testing.T, server *process, upstream *proxytest.Upstream) {
	t.Helper()
	before := upstream.Count()
	var calls []*background
	for range 4 {
		calls = append(calls, server.begin(chat("work"), inStep(softStep)...))
	}
	calls = append(calls, server.begin(chat("work", stream), inStep("plain")...), server.begin(chat("work")))
	for _, call := range calls {
		if r := call.wait(t); !r.whole() {
			t.Errorf("without a hard budget: %d %s", r.status, r.body)
		}
	}
	if n := upstream.Count() - before; n != 3 {
		t.Errorf("%d upstream calls for three pieces of work", n)
	}
	for _, more := range []string{"", stream} {
		r := server.ask(chat("work", more), inStep(hardStep)...)
		if r.status != 503 || !strings.Contains(r.body, `"code":"store_unavailable"`) || r.header.Get("Retry-After") == "" {
			t.Errorf("with a hard budget: %d %s", r.status, r.body)
		}
	}
	if hit := server.ask(chat("stored before"), inStep(hardStep)...); hit.cache() != "hit" {
		t.Errorf("what is stored: %d %s", hit.status, hit.cache())
	}
	if n := upstream.Count() - before; n != 3 {
		t.Errorf("%d upstream calls after the refusals and the hit", n)
	}
}

// recovered checks that a server which can write again catches up with what
// happened in starved.
func recovered(t *testing.T, server *process, db *database, upstream *proxytest.Upstream) {
	t.Helper()
	want := map[string]int{"miss": 4, "hit": 1, "refused": 2, "collapsed": 3}
	eventually(t, "all rows", func() bool {
		rows := db.outcomes()
		served := rows["collapsed"] + rows["hit"] // those that came late found the answer in memory
		return rows["miss"] == want["miss"] && rows["refused"] == want["refused"] && served == want["collapsed"]+want["hit"]
	})
	db.balanced()
	if n := int64(upstream.Count()); db.number(`SELECT count(up_input) FROM call`) != n {
		t.Errorf("%d rows of paid calls, %d upstream calls", db.number(`SELECT count(up_input) FROM call`), n)
	}
	if n := db.number(`SELECT count(*) FROM entry`); n != 4 {
		t.Errorf("%d answers are stored, want 4", n)
	}
	before := upstream.Count()
	if r := server.ask(chat("work"), inStep(hardStep)...); r.cache() != "miss" || upstream.Count() != before+1 {
		t.Errorf("the refused call, sent again: %d %s", r.status, r.cache())
	}
	if r := server.ask(chat("work"), inStep(softStep)...); r.cache() != "hit" {
		t.Errorf("the call served meanwhile, sent again: %d %s", r.status, r.cache())
	}
	db.balanced()
}
