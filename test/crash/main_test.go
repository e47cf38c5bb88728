// Package crash ends, stops and starves real server processes and looks at what
// is left: no money spent without a row in the ledger, nothing reserved that no
// call holds, and no answer lost whose end a client has seen.
//
// The test binary starts itself again as a server (see [serve]), so that a
// process can be killed at any point of a call's life while the upstream, the
// clients and the judge of the database live on in the test. Where the command
// itself matters, as for signals, the tests build and run it.
package crash

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"llmproxy/budget"
	"llmproxy/cache"
	"llmproxy/proxy"
	"llmproxy/store"
	"llmproxy/tokens"
)

// setupVariable is set in the environment of a server process.
const setupVariable = "LLMPROXY_CRASH_SETUP"

func TestMain(m *testing.M) {
	if text := os.Getenv(setupVariable); text != "" {
		if err := serve(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	m.Run()
}

// setup is what a server process is told, as JSON in its environment.
type setup struct {
	Database    string
	Instance    string        // what tells a restart from another process
	Upstream    string        // base URL
	BusyTimeout time.Duration // of writes; 0: as in production
	Memory      int64         // bytes of answers kept in memory
	KillAt      string        // the failpoint at which it kills itself; empty: never
	KillPass    int64         // at which pass of it, from 1
	Downstream  string        // base URL that guarded calls go to; empty: there is no guard
	Policy      string        // of guarded calls whose outcome is unknown: hold, retry, idempotent or probe
}

// Steps of the servers' policy. Every other step has no budget.
const (
	hardStep = "hard" // refused past its limits
	softStep = "soft" // only flagged
)

const plenty = 1 << 40 // tokens that no test uses up

// serve is a server process. It prints its address and ends when its standard
// input does, so when the test has gone.
func serve(text string) error {
	var s setup
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return err
	}
	ctx := context.Background()
	db, err := store.Open(ctx, s.Database, store.Options{BusyTimeout: s.BusyTimeout})
	if err != nil {
		return err
	}
	policy, err := s.policy()
	if err != nil {
		return err
	}
	server, err := proxy.New(ctx, proxy.Config{
		Store: db, Cache: cache.New(s.Memory), Policy: policy, Instance: s.Instance, Failpoint: s.failpoint(),
		Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err != nil {
		return err
	}
	handler, err := s.handler(server, db)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	if tokens.Text("gpt-4", "a vocabulary is loaded at its first use") == 0 {
		return errors.New("nothing is counted")
	}
	go server.Run(ctx)
	failed := make(chan error, 1)
	go func() { failed <- http.Serve(listener, handler) }()
	go func() {
		_, err := io.Copy(io.Discard, os.Stdin)
		failed <- err
	}()
	fmt.Println("http://" + listener.Addr().String())
	return <-failed
}

func (s *setup) policy() (*proxy.Policy, error) {
	base, err := url.Parse(s.Upstream)
	if err != nil {
		return nil, err
	}
	rules := func(action budget.Action) []budget.Rule {
		return []budget.Rule{
			{Unit: budget.InputTokens, Limit: plenty, Per: budget.PerTotal, Action: action},
			{Unit: budget.Tokens, Limit: plenty, Per: budget.PerTotal, Action: action},
			{Unit: budget.Calls, Limit: plenty, Per: budget.PerTotal, Action: action},
		}
	}
	return &proxy.Policy{
		Budget:  &budget.Policy{Steps: map[string][]budget.Rule{hardStep: rules(budget.Reject), softStep: rules(budget.Flag)}},
		Default: proxy.Step{TTL: time.Hour, FinishReasons: []string{"stop"}},
		Upstreams: []*proxy.Upstream{{Name: "test", BaseURL: base, Models: []string{"*"},
			Idle: time.Minute, Total: time.Minute, Transport: proxy.NewTransport(10 * time.Second)}},
		ServeHitsOverBudget: true,
		Exclude:             cache.DefaultExclude(),
		RequestBody:         1 << 20,
		ResponseBody:        8 << 20,
		RefreshesPerKey:     5,
	}, nil
}

// failpoint kills the process at the chosen pass of the chosen point.
func (s *setup) failpoint() func(string) {
	var passes atomic.Int64
	return func(point string) {
		if point == s.KillAt && passes.Add(1) == s.KillPass {
			syscall.Kill(os.Getpid(), syscall.SIGKILL) //nolint:errcheck // nobody survives to see it
			select {}
		}
	}
}
