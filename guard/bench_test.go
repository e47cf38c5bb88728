package guard

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// BenchmarkGuardPairs measures begin and complete of fresh work by 64 clients:
// two durable commits a pair, shared among those who wait for them.
func BenchmarkGuardPairs(b *testing.B) {
	handler := newGuard(b).Handler(everyone)
	var n atomic.Int64
	begun := cpuTime(b)
	b.SetParallelism(max(1, 64/runtime.GOMAXPROCS(0)))
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			w := &sink{header: http.Header{}}
			key := n.Add(1)
			ask(b, handler, w, "begin", fmt.Sprintf(`{"step":"mail","input":{"order_id":"%d","email":"a@x"}}`, key))
			answer := w.body.String()
			token, gotKey := cutOut(answer, `"token":"`), cutOut(answer, `"key":"`)
			w.body.Reset()
			ask(b, handler, w, "complete", `{"key":"`+gotKey+`","token":"`+token+`","resource_id":"m1","result":{"id":"m1"}}`)
			if !strings.Contains(w.body.String(), `"first":true`) {
				b.Errorf("%s %s", answer, w.body.String())
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pairs/s")
	b.ReportMetric(float64((cpuTime(b)-begun).Nanoseconds())/float64(b.N)/1000, "cpu-µs/op")
}

// BenchmarkGuardReplay measures what a replay costs beside net/http's own work,
// with inputs and results of the sizes of the proxy's BenchmarkHit.
func BenchmarkGuardReplay(b *testing.B) {
	const prose = `The invoice shows a \"small\" difference.\nThe last reply explains the reason for the delay. `
	for _, size := range []int{1 << 10, 32 << 10, 512 << 10} {
		b.Run(fmt.Sprintf("%dKB", size>>10), func(b *testing.B) {
			g := newGuard(b)
			handler := g.Handler(everyone)
			body := `{"step":"mail","input":{"text":"` + strings.Repeat(prose, size/len(prose)) + `"}}`
			w := &sink{header: http.Header{}}
			ask(b, handler, w, "begin", body)
			answer := w.body.String()
			ask(b, handler, w, "complete", `{"key":"`+cutOut(answer, `"key":"`)+`","token":"`+cutOut(answer, `"token":"`)+`","resource_id":"m1","result":{"answer":"a short answer"}}`)
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			begun := cpuTime(b)
			for b.Loop() {
				w.body.Reset()
				clear(w.header)
				ask(b, handler, w, "begin", body)
			}
			b.ReportMetric(float64((cpuTime(b)-begun).Nanoseconds())/float64(b.N)/1000, "cpu-µs/op")
			if w.header.Get("Idempotent-Replayed") != "true" {
				b.Fatalf("no replay: %s", w.body.String())
			}
		})
	}
}

func BenchmarkGuardKey(b *testing.B) {
	w := &Work{Tenant: "acme", Step: "mail", Input: []byte(`{"order_id":"A-1","customer":{"email":"a@x","name":"Ann"},"items":[{"sku":"x","n":2},{"sku":"y","n":1.5}]}`), Select: []string{"/order_id", "/customer/email"}}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := w.Derive(nil); err != nil {
			b.Fatal(err)
		}
	}
}

// cpuTime is what the process has used so far.
func cpuTime(b *testing.B) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func ask(b *testing.B, handler http.Handler, w *sink, path, body string) {
	r, err := http.NewRequestWithContext(context.Background(), http.MethodPost, base+path, io.NopCloser(strings.NewReader(body)))
	if err != nil {
		b.Fatal(err)
	}
	r.ContentLength = int64(len(body))
	r.Header["Authorization"] = []string{"Bearer acme"}
	handler.ServeHTTP(w, r)
}

func cutOut(text, from string) string {
	_, rest, _ := strings.Cut(text, from)
	value, _, _ := strings.Cut(rest, `"`)
	return value
}

// sink is a ResponseWriter that keeps the last answer.
type sink struct {
	header http.Header
	body   bytes.Buffer
}

func (s *sink) Header() http.Header         { return s.header }
func (s *sink) Write(p []byte) (int, error) { return s.body.Write(p) }
func (s *sink) WriteHeader(int)             {}
