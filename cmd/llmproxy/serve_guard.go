package main

import (
	"errors"
	"net/http"
	"strings"

	"llmproxy/guard"
	"llmproxy/proxy"
)

// Where the guard's API stands beside the OpenAI one.
const (
	guardPaths   = "/guard/v1/"
	forwardPaths = guardPaths + "forward/"
)

// newGuard makes the guard of a server, on the server's store.
func (s *server) newGuard() *guard.Guard {
	count := guardMetrics(s.proxy.Registry())
	observe := func(t guard.Transition) {
		count(t)
		s.webhooks.effectChanged(t)
	}
	return &guard.Guard{Store: s.store, Log: s.log, Observe: observe, Step: guardSteps(s.settings.Guard),
		Redact: s.settings.Guard.Redact, KeySecret: guardSecret(s.settings.Guard, s.env)}
}

// newForwarder makes the calls of the steps that are configured for it.
func (s *server) newForwarder(g *guard.Guard) (*guard.Forwarder, error) {
	routes, err := newRoutes(s.settings.Guard.Forward)
	if err != nil {
		return nil, err
	}
	f := &guard.Forwarder{Guard: g, Routes: routes, Identify: s.guardCaller, Log: s.log, Instance: s.proxy.InstanceID}
	return f, f.Check()
}

// handler serves the guard's paths and leaves every other to the proxy.
func (s *server) handler() http.Handler {
	effects := s.guard.Handler(s.guardCaller)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasPrefix(r.URL.Path, forwardPaths):
			s.forwarder.ServeHTTP(w, r)
		case strings.HasPrefix(r.URL.Path, guardPaths):
			effects.ServeHTTP(w, r)
		default:
			s.proxy.ServeHTTP(w, r)
		}
	})
}

// guardCaller says who sends a request to the guard: the same tenants, by the
// same keys, as of model calls. The scope admin includes the guard's.
func (s *server) guardCaller(r *http.Request) (guard.Caller, error) {
	caller, err := s.proxy.Caller(r.Header)
	var refusal *proxy.Error
	switch {
	case errors.As(err, &refusal):
		return guard.Caller{}, &guard.Problem{Status: refusal.Status, Code: refusal.Code, Message: refusal.Message, Retry: refusal.Retry}
	case err != nil:
		return guard.Caller{}, err
	}
	who := guard.Caller{Tenant: caller.Tenant}
	if caller.May(proxy.ScopeGuard) {
		who.Scopes = append(who.Scopes, guard.ScopeUse)
	}
	if caller.May(proxy.ScopeAdmin) {
		who.Scopes = append(who.Scopes, guard.ScopeUse, guard.ScopeAdmin)
	}
	return who, nil
}
