package proxy

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"

	"llmproxy/cache"
	"llmproxy/proxy/proxytest"
	"llmproxy/store/storetest"
)

// BenchmarkHit measures what a hit from memory costs beside net/http's own
// work: everything from the parsed request to the written answer, with its
// ledger row, its log line and its metrics.
func BenchmarkHit(b *testing.B) {
	const prose = `The invoice shows a \"small\" difference.\nThe last reply explains the reason for the delay. `
	for _, size := range []int{1 << 10, 32 << 10, 512 << 10} {
		b.Run(fmt.Sprintf("%dKB", size>>10), func(b *testing.B) {
			s, ctx := benchServer(b)
			body := []byte(chat(strings.Repeat(prose, size/len(prose))))
			remember(b, s, body)
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			w := &discard{header: http.Header{}}
			reader := bytes.NewReader(nil)
			begun := cpuTime(b)
			for b.Loop() {
				reader.Reset(body)
				clear(w.header)
				r, err := http.NewRequestWithContext(ctx, http.MethodPost, "/v1/chat/completions", io.NopCloser(reader))
				if err != nil {
					b.Fatal(err)
				}
				r.ContentLength = int64(len(body))
				s.ServeHTTP(w, r)
			}
			b.ReportMetric(float64((cpuTime(b)-begun).Nanoseconds())/float64(b.N)/1000, "cpu-µs/op")
			if w.header["X-LLMProxy-Cache"][0] != "hit" {
				b.Fatalf("no hit: %v", w.header)
			}
		})
	}
}

func benchServer(b *testing.B) (*Server, context.Context) {
	policy := &Policy{Default: Step{TTL: 1 << 40, FinishReasons: []string{"stop"}}, Exclude: cache.DefaultExclude(), RequestBody: 1 << 20, ResponseBody: 1 << 20,
		Upstreams: []*Upstream{{Name: "none", BaseURL: &url.URL{Scheme: "http", Host: "none"}, Models: []string{"*"}}}}
	ctx, cancel := context.WithCancel(context.Background())
	s, err := New(ctx, Config{Store: storetest.New(b), Cache: cache.New(1 << 20), Policy: policy, Instance: b.Name(),
		Log: slog.New(slog.NewJSONHandler(io.Discard, nil))})
	if err != nil {
		b.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() { s.Run(ctx) })
	b.Cleanup(func() { cancel(); running.Wait() })
	return s, ctx
}

// remember puts an answer to body into memory, as if a call had led.
func remember(b *testing.B, s *Server, body []byte) {
	r, err := http.NewRequest(http.MethodPost, "/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		b.Fatal(err)
	}
	identity, failed := s.policy.Load().Identify(r, s.anonymousTenant(""))
	if failed != nil {
		b.Fatal(failed)
	}
	rec := &cache.Recording{}
	rec.Start(cache.Head{Status: 200, Form: cache.JSON, Header: http.Header{"Content-Type": {"application/json"}}})
	rec.Append([]byte(proxytest.Completion("a short answer")))
	rec.Finish(cache.Origin{Call: 1, ExpiresAt: 1 << 60, Usage: &cache.Usage{Input: 11, Output: 7}}, nil)
	s.Cache.Remember(identity.Key, rec)
}

type discard struct{ header http.Header }

func (w *discard) Header() http.Header         { return w.header }
func (w *discard) Write(p []byte) (int, error) { return len(p), nil }
func (w *discard) WriteHeader(int)             {}
