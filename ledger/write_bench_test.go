package ledger_test

import (
	"syscall"
	"testing"
	"time"

	"llmproxy/ledger"
	"llmproxy/store"
	"llmproxy/store/storetest"
)

// BenchmarkWriteHits measures what a hit's row costs in a group of 512.
func BenchmarkWriteHits(b *testing.B) {
	s := storetest.New(b)
	var ids ledger.IDs
	calls := make([]*ledger.Call, 512)
	b.ReportAllocs()
	rows, begun := 0, cpuTime(b)
	for b.Loop() {
		for i := range calls {
			calls[i] = &ledger.Call{ID: ids.Next(time.Now(), 1), Tenant: "t", Step: "draft", Model: "gpt-4o", Key64: int64(i%64 + 1),
				Endpoint: ledger.Chat, Outcome: ledger.Hit, Status: 200, Attempt: 2, Input: 500, AvoidedInput: 500, AvoidedOutput: 20,
				First: time.Millisecond, Total: time.Millisecond, Source: 12345}
		}
		if err := s.Update(b.Context(), func(tx *store.Tx) error { return ledger.Write(tx, calls) }); err != nil {
			b.Fatal(err)
		}
		rows += len(calls)
	}
	b.ReportMetric(float64((cpuTime(b)-begun).Nanoseconds())/float64(rows), "cpu-ns/row")
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
