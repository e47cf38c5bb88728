package crash

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"llmproxy/proxy/proxytest"
)

// TestKilledAtEachPoint kills the server at every named point of a paid call's
// life and starts it again on the same file.
func TestKilledAtEachPoint(t *testing.T) {
	points := []struct {
		point    string
		pass     int64
		upstream int    // calls it made before it died
		outcome  string // of the call's row after the restart; empty: no row
	}{
		{"counted", 1, 0, ""},
		{"admitted", 1, 0, "lost"},
		{"sent", 1, 1, "lost"},
		{"streaming", 1, 1, "lost"},
		{"streaming", 4, 1, "lost"},
		{"answered", 1, 1, "lost"},
		{"finished", 1, 1, "miss"},
	}
	for form, more := range map[string]string{"json": "", "stream": stream} {
		for _, p := range points {
			if p.point == "streaming" && form == "json" {
				continue
			}
			t.Run(fmt.Sprintf("%s %s %d", form, p.point, p.pass), func(t *testing.T) {
				t.Parallel()
				upstream := proxytest.New(t)
				if form == "json" {
					upstream.Reply(proxytest.JSON(200, proxytest.Completion("a paid answer")))
				} else {
					upstream.Reply(proxytest.Stream(proxytest.Chunks("a paid answer", 4)...))
				}
				s := setup{Database: newPath(t), Instance: "one", Upstream: upstream.URL, Memory: 1 << 20, KillAt: p.point, KillPass: p.pass}
				server := start(t, s)
				dead, err := server.post(context.Background(), chat("work", more), inStep(hardStep)...)
				if err == nil || strings.Contains(dead.body, "[DONE]") || form == "json" && dead.body != "" {
					t.Fatalf("the client of a killed server got %q, %v", dead.body, err)
				}
				server.wait()
				if status := server.cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signal() != syscall.SIGKILL {
					t.Fatalf("the server ended by itself: %v", status)
				}
				if n := upstream.Count(); n != p.upstream {
					t.Fatalf("%d upstream calls before the end, want %d", n, p.upstream)
				}

				s.KillAt = ""
				server = start(t, s)
				db := look(t, s.Database)
				rows := db.outcomes()
				if want := min(1, len(p.outcome)); len(rows) != want || rows[p.outcome] != want {
					t.Errorf("rows after the restart: %v, want one %s", rows, p.outcome)
				}
				if n := db.number(`SELECT count(*) FROM call WHERE outcome = 7 AND (up_input <> input OR input = 0)`); n != 0 {
					t.Error("a lost call is not charged with its input")
				}
				db.balanced()

				retry := server.ask(chat("work", more), inStep(hardStep)...)
				stored := p.outcome == "miss"
				if !retry.whole() || retry.cache() != map[bool]string{true: "hit", false: "miss"}[stored] {
					t.Errorf("the retry got %d %s %s", retry.status, retry.cache(), retry.body)
				}
				if n, want := upstream.Count(), p.upstream+map[bool]int{false: 1}[stored]; n != want {
					t.Errorf("%d upstream calls in the end, want %d", n, want)
				}
				again := server.ask(chat("work", more), inStep(hardStep)...)
				if again.cache() != "hit" || again.body != retry.body {
					t.Errorf("a third call got %d %s %s", again.status, again.cache(), again.body)
				}
				db.balanced()
			})
		}
	}
}
