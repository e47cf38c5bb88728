package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/spf13/cobra"

	"llmproxy/cache"
	"llmproxy/guard"
	"llmproxy/proxy"
	"llmproxy/store"
	"llmproxy/tokens"
)

func newServeCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Start the proxy",
		Long: `Start the proxy. Point a client's OpenAI base URL at it:

  http://127.0.0.1:8484/v1                      the step is named "default"
  http://127.0.0.1:8484/steps/draft-mail/v1     the step is named "draft-mail"

With --replay-only it gives stored answers, however old, and calls no upstream: for
tests, with answers from "llmproxy cache import". What is not stored is 504, and the
message names the nearest stored answer and what differs.

The configuration is read again on SIGHUP and when its file changes. SIGTERM
ends the server after the calls under way (shutdown.drain); a second one at once.`,
		Example: `  llmproxy serve
  llmproxy serve --config /etc/llmproxy.yaml --listen 127.0.0.1:9000
  LLMPROXY_CACHE__TTL=1h llmproxy serve
  llmproxy serve --database test.db --tenant tests --replay-only`,
		Args: noArgs,
	}
	addConfigFlags(cmd, servingFlags()...)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		settings, err := a.loadSettings(cmd.Flags())
		if err != nil {
			return err
		}
		log, err := newLogger(settings.Log, cmd.ErrOrStderr())
		if err != nil {
			return err
		}
		defer flushLog(log)
		reload := func() (Settings, error) { return a.loadSettings(cmd.Flags()) }
		return serve(cmd.Context(), settings, a.env, log, reload)
	}
	return cmd
}

// serve runs the server until ctx ends, then lets calls finish. reload reads
// the configuration again.
func serve(ctx context.Context, settings Settings, env map[string]string, log *slog.Logger, reload func() (Settings, error)) error {
	s, err := open(ctx, settings, env, log)
	if err != nil {
		return err
	}
	go func() { // a first call should not wait for the vocabularies, nor the start
		tokens.Warm()
		debug.FreeOSMemory()
	}()
	log.Info("listening", "url", "http://"+s.listener.Addr().String()+"/v1", "database", settings.Database, "config", orDefault(settings.File, "built-in defaults"))
	if settings.File != "" {
		stop, err := s.watch(ctx, settings.File, reload)
		if err != nil {
			log.Warn("the configuration file cannot be watched; send SIGHUP after changing it", "err", err)
		} else {
			defer stop()
		}
	}
	return s.run(ctx)
}

// server is everything that serve opens, closed in reverse order by run.
type server struct {
	settings  Settings
	env       map[string]string
	log       *slog.Logger
	store     *store.Store
	proxy     *proxy.Server
	guard     *guard.Guard
	forwarder *guard.Forwarder
	webhooks  *webhooks
	http      *http.Server
	listener  net.Listener
}

// open binds the address before it touches the database: whoever holds the
// address may take what an earlier process of it has left.
func open(ctx context.Context, settings Settings, env map[string]string, log *slog.Logger) (_ *server, err error) {
	for _, warning := range settings.Warnings {
		log.Warn(warning)
	}
	s := &server{settings: settings, env: env, log: log}
	if s.listener, err = net.Listen("tcp", settings.Listen); err != nil {
		return nil, fmt.Errorf("listening on %s: %w (is another llmproxy running? change listen: or --listen)", settings.Listen, err)
	}
	defer func() {
		if err != nil {
			s.listener.Close()
			if s.store != nil {
				s.store.Close()
			}
		}
	}()
	if s.store, err = store.Open(ctx, settings.Database, store.Options{}); err != nil {
		return nil, err
	}
	policy, err := newPolicy(settings.Config, env)
	if err != nil {
		return nil, err
	}
	answers := cache.New(int64(settings.Cache.Memory))
	answers.Flights.DetachedLimit = settings.Limits.Detached
	if settings.Limits.Detached == 0 {
		answers.Flights.DetachedLimit = -1
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("naming this process: %w", err)
	}
	s.webhooks = newWebhooks(settings.Webhooks, env, log)
	s.proxy, err = proxy.New(ctx, proxy.Config{Store: s.store, Cache: answers, Policy: policy, Log: log, Flagged: s.webhooks.budgetFlagged,
		Charges:  tokens.Charges(settings.Charges),
		Instance: host + " " + s.listener.Addr().String()})
	if err != nil {
		return nil, err
	}
	s.guard = s.newGuard()
	if s.forwarder, err = s.newForwarder(s.guard); err != nil {
		return nil, err
	}
	s.http = &http.Server{
		Handler:           s.handler(),
		ReadHeaderTimeout: 30 * time.Second,
		IdleTimeout:       3 * time.Minute, // clients that reuse a connection must not race with its end
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	return s, nil
}

// run serves until ctx ends. A second signal ends the process at once (main).
func (s *server) run(ctx context.Context) error {
	work, stopWork := context.WithCancel(context.WithoutCancel(ctx))
	worked := make(chan struct{})
	go func() {
		defer close(worked)
		var tasks sync.WaitGroup
		tasks.Go(func() { s.proxy.Run(work) })
		tasks.Go(func() { s.guard.Run(work) })
		tasks.Go(func() { s.webhooks.run(work) })
		tasks.Wait()
	}()
	failed := make(chan error, 1)
	go func() { failed <- s.http.Serve(s.listener) }()
	var err error
	select {
	case err = <-failed:
	case <-ctx.Done():
		s.log.Info("shutting down; waiting for calls under way", "at most", time.Duration(s.settings.Shutdown.Drain))
	}
	s.drain()
	stopWork()
	<-worked
	if leave := s.proxy.Leave(context.WithoutCancel(ctx)); leave != nil {
		err = errors.Join(err, fmt.Errorf("leaving the database: %w", leave))
	}
	if errors.Is(err, http.ErrServerClosed) {
		err = nil
	}
	return errors.Join(err, s.store.Close())
}

// drain lets calls and their upstream exchanges finish, up to the limit.
func (s *server) drain() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(s.settings.Shutdown.Drain))
	defer cancel()
	done := make(chan struct{})
	go func() {
		s.proxy.Drain(ctx)
		close(done)
	}()
	if err := s.http.Shutdown(ctx); err != nil {
		<-done // what was ended is told to its clients before their connections are cut
		grace, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if s.http.Shutdown(grace) != nil {
			s.http.Close()
		}
		s.log.Warn("some calls did not finish in time and were ended; their input is charged as lost")
	}
	<-done
	if err := s.forwarder.Wait(ctx); err != nil {
		s.log.Warn("some forwarded calls did not finish in time; nobody knows whether they had an effect", "err", err)
	}
}

// watch applies the configuration again on SIGHUP and when its file changes. A
// bad file changes nothing and says so.
func (s *server) watch(ctx context.Context, file string, reload func() (Settings, error)) (stop func(), err error) {
	watcher, err := watchFile(file)
	if err != nil {
		return nil, err
	}
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer watcher.Close()
		defer signal.Stop(hangup)
		settle := time.NewTimer(time.Hour)
		settle.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-hangup:
				s.apply(reload)
			case event := <-watcher.Events:
				if sameFile(event.Name, file) {
					settle.Reset(100 * time.Millisecond) // editors write in several steps
				}
			case err := <-watcher.Errors:
				s.log.Warn("watching the configuration", "err", err)
			case <-settle.C:
				s.apply(reload)
			}
		}
	}()
	return cancel, nil
}

func (s *server) apply(reload func() (Settings, error)) {
	settings, err := reload()
	if err == nil {
		var policy *proxy.Policy
		if policy, err = newPolicy(settings.Config, s.env); err == nil {
			s.proxy.SetPolicy(policy)
			s.log.Info("configuration read again; listen, database, log, cache.memory, charges, webhooks and guard change only with a restart")
			return
		}
	}
	s.log.Error("the new configuration is not usable; the old one stays in force", "err", err)
}

// watchFile watches the file's folder: editors replace the file itself.
func watchFile(file string) (*fsnotify.Watcher, error) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	if err := watcher.Add(folderOf(file)); err != nil {
		watcher.Close()
		return nil, err
	}
	return watcher, nil
}
