package proxy

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"llmproxy/proxy/proxytest"
)

// BenchmarkMiss measures what a paid call costs beside the network: counting,
// both durable commits, and everything between.
func BenchmarkMiss(b *testing.B) {
	for _, clients := range []int{1, 16, 256} {
		b.Run(fmt.Sprintf("clients=%d", clients), func(b *testing.B) {
			s, ctx := benchServer(b)
			s.policy.Load().Upstreams[0].Transport = instantUpstream(proxytest.Completion("a short answer"))
			s.policy.Load().Upstreams[0].Total = time.Minute
			s.policy.Load().Upstreams[0].Idle = time.Minute
			var next atomic.Int64
			begun := cpuTime(b)
			b.SetParallelism((clients + 1) / 2)
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				w := &discard{header: http.Header{}}
				for pb.Next() {
					body := chat(fmt.Sprint(next.Add(1), strings.Repeat(" The invoice shows a small difference.", 25)))
					serveBench(b, s, ctx, w, body)
				}
			})
			b.ReportMetric(float64((cpuTime(b)-begun).Microseconds())/float64(b.N), "cpu-µs/op")
		})
	}
}

func serveBench(b *testing.B, s *Server, ctx context.Context, w *discard, body string) {
	clear(w.header)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		b.Error(err)
		return
	}
	s.ServeHTTP(w, r)
	if w.header["X-LLMProxy-Cache"][0] != "miss" {
		b.Errorf("no miss: %v", w.header)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func instantUpstream(body string) http.RoundTripper {
	return roundTripper(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"application/json"}},
			Body: io.NopCloser(bytes.NewReader([]byte(body)))}, nil
	})
}

// cpuTime is what the process has used so far; unlike the clock it does not
// count what other programs do.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
