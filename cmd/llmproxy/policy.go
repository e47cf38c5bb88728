package main

import (
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"llmproxy/budget"
	"llmproxy/cache"
	"llmproxy/proxy"
	"llmproxy/sim"
)

// newPolicy turns a checked configuration into what the proxy decides by.
func newPolicy(cfg Config, env map[string]string) (*proxy.Policy, error) {
	location, err := time.LoadLocation(cfg.Timezone)
	if err != nil {
		return nil, err
	}
	p := &proxy.Policy{
		Budget:              &budget.Policy{Location: location, Steps: map[string][]budget.Rule{}},
		Tenant:              cfg.Tenant,
		ReplayOnly:          cfg.ReplayOnly,
		DeclaredOnly:        cfg.StepsDeclaredOnly,
		ServeHitsOverBudget: cfg.ServeHitsOverBudget,
		Exclude:             cfg.Cache.excluded(cache.DefaultExclude()),
		MaxBytes:            int64(cfg.Cache.MaxBytes),
		RequestBody:         int64(cfg.Limits.RequestBody),
		ResponseBody:        int64(cfg.Limits.ResponseBody),
		RefreshesPerKey:     cfg.Limits.RefreshesPerKey,
	}
	if p.Budget.Global, err = newRules(cfg.Budget); err != nil {
		return nil, err
	}
	fallback, err := newStep(defaultStep(cfg.Cache), cfg.Cache)
	if err != nil {
		return nil, err
	}
	p.Default = *fallback
	for _, sc := range cfg.Steps {
		step, err := newStep(sc, cfg.Cache)
		if err != nil {
			return nil, err
		}
		rules, err := newRules(sc.Budget)
		if err != nil {
			return nil, err
		}
		if sc.Name == "*" {
			p.Default, p.Budget.Default = *step, rules
			continue
		}
		p.Steps = append(p.Steps, step)
		if len(rules) > 0 {
			p.Budget.Steps[sc.Name] = rules
		}
	}
	for _, uc := range cfg.Upstreams {
		upstream, err := newUpstream(uc, env)
		if err != nil {
			return nil, err
		}
		p.Upstreams = append(p.Upstreams, upstream)
	}
	for _, kc := range cfg.Keys {
		hash, ok := parseKeyHash(kc.Hash)
		if !ok {
			return nil, fmt.Errorf("the hash of key %q is not usable", kc.Name)
		}
		p.Credentials = append(p.Credentials, proxy.Credential{Name: kc.Name, Hash: hash, Tenant: kc.Tenant, Step: kc.Step, Scopes: kc.Scopes})
	}
	return p, nil
}

func newStep(sc StepConfig, shared CacheConfig) (*proxy.Step, error) {
	step := &proxy.Step{
		Name: sc.Name, Aliases: sc.Aliases,
		TTL: time.Duration(sc.Cache.TTL), Shared: sc.Cache.Scope == "shared",
		Wait: time.Duration(sc.Wait), CancelOnDisconnect: sc.OnDisconnect == "cancel",
		DissatisfiedWithin: time.Duration(sc.DissatisfiedWithin), AssumeOutput: int64(sc.AssumeOutput),
		FinishReasons: shared.FinishReasons,
	}
	for _, n := range sc.Normalize {
		pattern, err := regexp.Compile(n.Pattern)
		if err != nil {
			return nil, err
		}
		step.Normalise = append(step.Normalise, cache.Normaliser{Pattern: pattern, Replace: n.Replace})
	}
	return step, nil
}

func newRules(rules []BudgetRule) (out []budget.Rule, err error) {
	for _, r := range rules {
		rule := budget.Rule{Limit: r.Limit, FlagAt: r.FlagAt}
		if rule.Unit, err = budget.ParseUnit(r.Unit); err != nil {
			return nil, err
		}
		if rule.Per, err = budget.ParsePeriod(r.Per); err != nil {
			return nil, err
		}
		if rule.Action, err = budget.ParseAction(r.Action); err != nil {
			return nil, err
		}
		out = append(out, rule)
	}
	return out, nil
}

func newUpstream(uc UpstreamConfig, env map[string]string) (*proxy.Upstream, error) {
	u := &proxy.Upstream{
		Name: uc.Name, APIKey: uc.key(env), Models: uc.Models, Header: http.Header{},
		IdempotencyHeader: uc.IdempotencyHeader, Retries: uc.Retries.Max,
		Idle: time.Duration(uc.Timeout.Idle), Total: time.Duration(uc.Timeout.Total),
	}
	for _, h := range uc.Headers {
		u.Header.Add(h.Name, h.Value)
	}
	for _, on := range uc.Retries.On {
		if on == "connect" {
			u.RetryConnect = true
			continue
		}
		status, err := strconv.Atoi(on)
		if err != nil {
			return nil, fmt.Errorf("upstream %s: %q is no status to retry", uc.Name, on)
		}
		u.RetryStatuses = append(u.RetryStatuses, status)
	}
	if uc.BaseURL == simURL {
		u.BaseURL = &url.URL{Scheme: "http", Host: "sim.builtin", Path: "/v1"}
		u.Transport = sim.Transport(&sim.Model{})
		return u, nil
	}
	base, err := url.Parse(uc.BaseURL)
	if err != nil {
		return nil, err
	}
	u.BaseURL, u.Transport = base, proxy.NewTransport(time.Duration(uc.Timeout.Connect))
	return u, nil
}

func folderOf(file string) string { return filepath.Dir(file) }

func sameFile(a, b string) bool { return filepath.Clean(a) == filepath.Clean(b) }

func orDefault(s, fallback string) string {
	if s == "" {
		return fallback
	}
	return s
}
