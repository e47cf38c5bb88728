package main

import (
	"fmt"
	"net/url"
	"time"

	"llmproxy/guard"
)

// ForwardConfig is how the calls of one guarded step are forwarded. What it
// leaves out takes the guard's defaults.
type ForwardConfig struct {
	Step              string                 `yaml:"step"`
	Target            string                 `yaml:"target"`                  // http(s) URL that the rest of the path is appended to
	AllowPrivate      bool                   `yaml:"allow_private,omitempty"` // the target may be a loopback or private address
	Methods           []string               `yaml:"methods,omitempty"`       // none: all
	Select            []string               `yaml:"select,omitempty"`        // JSON pointers of what the key is made of
	OnUnknown         string                 `yaml:"on_unknown,omitempty"`    // hold, retry or probe
	Lease             Duration               `yaml:"lease,omitempty"`
	Drift             string                 `yaml:"drift,omitempty"` // replay or reject
	DoneStatuses      []int                  `yaml:"done_statuses,omitempty"`
	NoneStatuses      []int                  `yaml:"none_statuses,omitempty"`
	UnknownStatuses   []int                  `yaml:"unknown_statuses,omitempty"`
	DuplicateStatuses []int                  `yaml:"duplicate_statuses,omitempty"`
	Headers           []HeaderTestConfig     `yaml:"headers,omitempty"`
	DoneIf            []BodyTestConfig       `yaml:"done_if,omitempty"`
	NoneIf            []BodyTestConfig       `yaml:"none_if,omitempty"`
	Idempotency       ForwardIdempotencyConf `yaml:"downstream_idempotency,omitempty"`
	Probe             ForwardProbeConfig     `yaml:"probe,omitempty"`
}

// HeaderTestConfig judges an answer by one of its headers.
type HeaderTestConfig struct {
	Name    string `yaml:"name"`
	Value   string `yaml:"value,omitempty"` // "": any
	Outcome string `yaml:"outcome"`         // done, none or unknown
}

// BodyTestConfig judges an answer by a value of its JSON body.
type BodyTestConfig struct {
	Pointer string `yaml:"pointer"` // RFC 6901
	Value   string `yaml:"value"`   // JSON text
}

// ForwardIdempotencyConf says that the downstream makes one effect of requests
// with the same key in a header.
type ForwardIdempotencyConf struct {
	Header    string   `yaml:"header,omitempty"`
	Retention Duration `yaml:"retention,omitempty"` // 0: for ever
	Format    string   `yaml:"format,omitempty"`    // hex, uuid or sf
}

// ForwardProbeConfig is a request that tells whether an effect happened.
type ForwardProbeConfig struct {
	Method string `yaml:"method,omitempty"`
	URL    string `yaml:"url,omitempty"`   // with {key} and {/pointer}
	Found  string `yaml:"found,omitempty"` // JSON pointer
}

// validateForward notes what is wrong with routes; the guard itself knows best.
func validateForward(r *reader, forward []ForwardConfig) {
	for i, fc := range forward {
		at := fmt.Sprintf("guard.forward[%d]", i)
		for _, missing := range []struct{ name, value string }{{"step", fc.Step}, {"target", fc.Target}} {
			if missing.value == "" {
				r.add(at+"."+missing.name, "is missing")
			}
		}
		route, err := newRoute(fc)
		if err == nil && fc.Step != "" && fc.Target != "" {
			err = (&guard.Forwarder{Guard: &guard.Guard{}, Routes: []guard.Route{route}}).Check()
		}
		if err != nil {
			r.add(at, "is not usable: %v", err)
		}
		for j, earlier := range forward[:i] {
			if earlier.Step == fc.Step && fc.Step != "" {
				r.add(at+".step", "is the same as guard.forward[%d].step; a step has one target", j)
			}
		}
	}
}

func newRoutes(forward []ForwardConfig) (routes []guard.Route, err error) {
	for _, fc := range forward {
		route, err := newRoute(fc)
		if err != nil {
			return nil, fmt.Errorf("forwarding step %q: %w", fc.Step, err)
		}
		routes = append(routes, route)
	}
	return routes, nil
}

var headerOutcomes = map[string]guard.Outcome{"done": guard.OutcomeDone, "none": guard.OutcomeNone, "unknown": guard.OutcomeUnknown}

func newRoute(fc ForwardConfig) (route guard.Route, err error) {
	route = guard.Route{
		Step: fc.Step, AllowPrivate: fc.AllowPrivate, Methods: fc.Methods, Select: fc.Select, Lease: time.Duration(fc.Lease),
		DoneStatuses: fc.DoneStatuses, NoneStatuses: fc.NoneStatuses, UnknownStatuses: fc.UnknownStatuses, DuplicateStatuses: fc.DuplicateStatuses,
	}
	if route.Target, err = url.Parse(fc.Target); err != nil {
		return route, fmt.Errorf("target: %w", err)
	}
	if fc.OnUnknown != "" {
		if route.OnUnknown, err = guard.ParseOnUnknown(fc.OnUnknown); err != nil {
			return route, err
		}
	}
	if fc.Drift != "" {
		if route.Drift, err = guard.ParseDrift(fc.Drift); err != nil {
			return route, err
		}
	}
	for _, h := range fc.Headers {
		outcome, ok := headerOutcomes[h.Outcome]
		if !ok {
			return route, fmt.Errorf("the outcome %q of the header %q is not known; use done, none or unknown", h.Outcome, h.Name)
		}
		route.Headers = append(route.Headers, guard.HeaderTest{Name: h.Name, Value: h.Value, Outcome: outcome})
	}
	for _, b := range fc.DoneIf {
		route.DoneIf = append(route.DoneIf, guard.BodyTest(b))
	}
	for _, b := range fc.NoneIf {
		route.NoneIf = append(route.NoneIf, guard.BodyTest(b))
	}
	if i := fc.Idempotency; i.Header != "" {
		route.Idempotency = &guard.DownstreamIdempotency{Header: i.Header, Retention: time.Duration(i.Retention), Format: i.Format}
	}
	if p := fc.Probe; p.URL != "" {
		route.Probe = &guard.DownstreamProbe{Method: p.Method, URL: p.URL, Found: p.Found}
	}
	return route, nil
}
