package crash

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"llmproxy/proxy/proxytest"
	"llmproxy/report"
)

const (
	bulk    = 1 << 20   // bytes of each answer, which cannot be compressed by much
	again   = 4         // of so many questions one is asked twice
	written = 104 << 20 // bytes of answers that are stored, at least
	mostWAL = 96 << 20  // bytes that the write-ahead log may have
)

// TestReportsWhileServing reads reports of every kind without a pause while the
// server stores more than the write-ahead log may ever hold.
func TestReportsWhileServing(t *testing.T) {
	t.Parallel()
	upstream := newBulky(t)
	s := setup{Database: newPath(t), Instance: "one", Upstream: upstream.URL, Memory: 1 << 20}
	server := start(t, s)
	server.ask(chat("first"), inStep(hardStep)...)
	db := look(t, s.Database)

	var reading, load sync.WaitGroup
	var reports, largest atomic.Int64
	stop := make(chan struct{})
	during := func(task func()) {
		reading.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					task()
				}
			}
		})
	}
	for _, dimensions := range [][]report.Dimension{report.Dimensions(), {report.ByRun, report.ByKey}} {
		during(func() {
			for _, by := range dimensions {
				if _, err := report.Run(t.Context(), db.reader, report.Query{By: by}); err != nil {
					t.Errorf("a report by %s: %v", by, err)
				}
				reports.Add(1)
				time.Sleep(2 * time.Millisecond)
			}
		})
	}
	during(func() {
		if wal, err := os.Stat(s.Database + "-wal"); err == nil {
			largest.Store(max(largest.Load(), wal.Size()))
		}
		time.Sleep(2 * time.Millisecond)
	})
	var asked atomic.Int64
	for range 4 {
		load.Go(func() {
			for n := asked.Add(1); n*bulk < written && !t.Failed(); n = asked.Add(1) {
				outcomes := []string{"miss"}
				if n%again == 0 {
					outcomes = append(outcomes, "hit")
				}
				for _, outcome := range outcomes {
					r := server.ask(chat(fmt.Sprintf("question %d", n)), "X-LLMProxy-Step", hardStep, "X-LLMProxy-Run", fmt.Sprint(n%10))
					if !r.whole() || r.cache() != outcome {
						t.Errorf("question %d: %d %s, want a %s", n, r.status, r.cache(), outcome)
					}
				}
			}
		})
	}
	load.Wait()
	close(stop)
	reading.Wait()

	t.Logf("%d reports beside %d questions; the write-ahead log had at most %d MiB, %d MiB of answers are stored",
		reports.Load(), asked.Load(), largest.Load()>>20, db.number(`SELECT sum(size) FROM entry`)>>20)
	if stored := db.number(`SELECT sum(size) FROM entry`); stored < mostWAL {
		t.Errorf("only %d bytes are stored: no log could have grown too large", stored)
	}
	if largest.Load() > mostWAL {
		t.Errorf("the write-ahead log had %d bytes", largest.Load())
	}
	questions := db.number(`SELECT count(*) FROM entry`) - 1 // numbered from 1
	eventually(t, "the rows of all hits", func() bool { return int64(db.outcomes()["hit"]) == questions/again })
	db.balanced()
	whole, err := report.Run(t.Context(), db.reader, report.Query{})
	if err != nil {
		t.Fatal(err)
	}
	if calls := db.number(`SELECT count(*) FROM call`); whole.Total.Calls != calls || whole.Running != 0 {
		t.Errorf("the report tells of %d calls and %d running ones, there are %d", whole.Total.Calls, whole.Running, calls)
	}
}

// newBulky is an upstream with long answers that say nothing twice.
func newBulky(t *testing.T) *httptest.Server {
	text := make([]byte, bulk)
	for i := range text {
		text[i] = ' ' + 3 + byte(rand.N(56)) // neither a quote nor a backslash
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct{ Messages []struct{ Content string } }
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, proxytest.Completion(body.Messages[0].Content+string(text)))
	}))
	t.Cleanup(server.Close)
	server.URL += "/v1"
	return server
}
