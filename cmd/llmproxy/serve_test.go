package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// serving is `llmproxy serve` in this process, as a user starts it.
type serving struct {
	t    *testing.T
	url  string
	file string
	log  lockedBuffer
	stop func() int // ends it and returns the exit code
}

const servingConfig = `
listen: %s
database: %s
upstreams: [{name: sim, base_url: "builtin:sim", models: ["*"]}]
`

func startServing(t *testing.T, more string) *serving {
	t.Helper()
	dir := t.TempDir()
	s := &serving{t: t, file: filepath.Join(dir, "config.yaml")}
	address := freeAddress(t)
	s.url = "http://" + address
	s.write(fmt.Sprintf(servingConfig, address, filepath.Join(dir, "test.db")) + more)
	ctx, cancel := context.WithCancel(context.Background())
	exit := make(chan int, 1)
	go func() { exit <- run(ctx, []string{"serve", "--config", s.file}, nil, io.Discard, &s.log) }()
	s.stop = sync.OnceValue(func() int { cancel(); return <-exit })
	t.Cleanup(func() { s.stop() })
	s.eventually("the server listens", func() bool {
		r, err := http.Get(s.url + "/readyz")
		if err == nil {
			r.Body.Close()
		}
		return err == nil && r.StatusCode == http.StatusOK
	})
	return s
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func (s *serving) write(config string) {
	s.t.Helper()
	if err := os.WriteFile(s.file, []byte(config), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

func (s *serving) append(more string) {
	s.t.Helper()
	config, err := os.ReadFile(s.file)
	if err != nil {
		s.t.Fatal(err)
	}
	s.write(string(config) + more)
}

// eventually waits for what another goroutine does in its own time.
func (s *serving) eventually(what string, ok func() bool) {
	s.t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("waited in vain: %s\n%s", what, s.log.String())
		}
	}
}

func (s *serving) status() int {
	s.t.Helper()
	r, err := http.Post(s.url+"/steps/draft/v1/chat/completions", "application/json",
		strings.NewReader(`{"model":"sim","messages":[{"role":"user","content":"hello"}]}`))
	if err != nil {
		s.t.Fatal(err)
	}
	defer r.Body.Close()
	io.Copy(io.Discard, r.Body) //nolint:errcheck // only the status matters
	return r.StatusCode
}

type lockedBuffer struct {
	mu  sync.Mutex
	buf strings.Builder
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func TestAChangedConfigurationIsTakenAtOnce(t *testing.T) {
	s := startServing(t, "")
	if got := s.status(); got != 200 {
		t.Fatalf("status %d", got)
	}
	s.append("steps_declared_only: true\n")
	s.eventually("an undeclared step is refused", func() bool { return s.status() == 400 })
	if code := s.stop(); code != exitDone {
		t.Errorf("exit code %d\n%s", code, s.log.String())
	}
}

func TestABadConfigurationChangesNothingAndSaysSo(t *testing.T) {
	s := startServing(t, "")
	s.append("steps_declared_only: perhaps\n")
	s.eventually("the mistake is logged with its line", func() bool {
		return strings.Contains(s.log.String(), "config.yaml:5") && strings.Contains(s.log.String(), "the old one stays in force")
	})
	if got := s.status(); got != 200 {
		t.Errorf("status %d under the old configuration", got)
	}
}

func TestAHangupReadsTheConfigurationAgain(t *testing.T) {
	s := startServing(t, "")
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	s.eventually("it was read again", func() bool { return strings.Contains(s.log.String(), "configuration read again") })
}

func TestAnAddressInUseIsNamed(t *testing.T) {
	s := startServing(t, "")
	var out lockedBuffer
	if code := run(t.Context(), []string{"serve", "--config", s.file}, nil, io.Discard, &out); code != exitFailed {
		t.Errorf("exit code %d", code)
	}
	if !strings.Contains(out.String(), "is another llmproxy running?") {
		t.Errorf("the message helps nobody: %s", out.String())
	}
}
