package guard

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// base is where the API is mounted.
const base = "/guard/v1/"

// Scopes of credentials. Whoever may begin may also read single effects;
// deciding, listing and forgetting are an administrator's.
const (
	ScopeUse   = "guard"
	ScopeAdmin = "admin"
)

// Caller is who sent a request.
type Caller struct {
	Tenant string
	Scopes []string
}

// api serves the HTTP API of a Guard.
type api struct {
	guard    *Guard
	identify func(*http.Request) (Caller, error)
}

// route is one method at one path of the API.
type route struct {
	method, path string
	scope        string
	serve        func(*api, http.ResponseWriter, *http.Request, Caller) (*response, error)
}

var routes = []route{
	{"POST", "begin", ScopeUse, (*api).begin},
	{"POST", "complete", ScopeUse, (*api).complete},
	{"POST", "fail", ScopeUse, (*api).fail},
	{"POST", "extend", ScopeUse, (*api).extend},
	{"POST", "key", ScopeUse, (*api).key},
	{"POST", "resolve", ScopeAdmin, (*api).resolve},
	{"GET", "effects", ScopeAdmin, (*api).list},
	{"GET", "effects/{key}", ScopeUse, (*api).find},
	{"DELETE", "effects/{key}", ScopeAdmin, (*api).purge},
}

// Handler serves the API below /guard/v1/. identify says who sent a request; an
// error of it that is a [*Problem] is answered as it is, any other with 500.
func (g *Guard) Handler(identify func(*http.Request) (Caller, error)) http.Handler {
	g.init()
	a := &api{g, identify}
	mux := http.NewServeMux()
	for _, rt := range routes {
		mux.HandleFunc(rt.method+" "+base+rt.path, func(w http.ResponseWriter, r *http.Request) { a.handle(w, r, rt) })
	}
	mux.HandleFunc("/", a.noRoute)
	return mux
}

func (a *api) handle(w http.ResponseWriter, r *http.Request, rt route) {
	answer, err := a.answer(w, r, rt)
	switch {
	case err == nil:
		answer.write(w)
	case r.Context().Err() != nil && errors.Is(err, context.Cause(r.Context())):
		// The client has left while it waited; nobody reads an answer.
	default:
		p := toProblem(err)
		if p.Status >= 500 {
			a.guard.log().Error("the guard could not answer", "path", r.URL.Path, "err", err)
		}
		p.write(w)
	}
}

func (a *api) answer(w http.ResponseWriter, r *http.Request, rt route) (*response, error) {
	caller, err := a.identify(r)
	if err != nil {
		return nil, err
	}
	if !slices.Contains(caller.Scopes, rt.scope) {
		return nil, &Problem{Status: http.StatusForbidden, Code: "forbidden", Retry: &no,
			Message: "This proxy key may not do that; add " + rt.scope + " to its scopes in the configuration"}
	}
	return rt.serve(a, w, r, caller)
}

// noRoute names what there is: a tool that asks in a wrong way shows its user
// nothing but this.
func (a *api) noRoute(w http.ResponseWriter, r *http.Request) {
	var methods, all []string
	for _, rt := range routes {
		all = append(all, rt.method+" "+base+rt.path)
		rest, deeper := strings.CutPrefix(r.URL.Path, base+strings.TrimSuffix(rt.path, "{key}"))
		if r.URL.Path == base+rt.path || strings.HasSuffix(rt.path, "{key}") && deeper && rest != "" && !strings.Contains(rest, "/") {
			methods = append(methods, rt.method)
		}
	}
	p := &Problem{Status: http.StatusNotFound, Code: "unknown_route", Retry: &no, Message: "The guard has no such path; it has " + strings.Join(all, ", ")}
	if len(methods) > 0 {
		p.Status, p.Code, p.Allow = http.StatusMethodNotAllowed, "method_not_allowed", strings.Join(methods, ", ")
		p.Message = "Use " + p.Allow + " for " + r.URL.Path
	}
	p.write(w)
}

// work reads the members that a key is made of.
func (f *fields) work(r *http.Request, c Caller) Work {
	w := Work{Tenant: c.Tenant, Namespace: f.namespace(r), Step: f.text("step"), Select: f.texts("select"),
		Explicit: f.text("key"), FingerprintInput: f.raw("fingerprint_input")}
	if v := f.get("input"); v != nil {
		w.Input, w.parsed = v.raw, v
	}
	if v := f.get("occurrence"); v != nil {
		if v.kind != kindString {
			f.fail("occurrence", "occurrence is %s; send it as a string, so that every tool makes the same key of it", v.kind)
		}
		w.Occurrence = v.text
	}
	return w
}

func (f *fields) namespace(r *http.Request) string {
	return or(f.text("namespace"), r.URL.Query().Get("namespace"))
}

func (a *api) begin(w http.ResponseWriter, r *http.Request, c Caller) (*response, error) {
	f, err := readFields(w, r)
	if err != nil {
		return nil, err
	}
	req := Request{Work: f.work(r, c), Mode: named(f, "mode", parseHolder),
		OnUnknown: named(f, "on_unknown", ParseOnUnknown), Drift: named(f, "drift", ParseDrift),
		Lease: f.seconds("lease_seconds"), Wait: f.seconds("wait_seconds"), Retention: f.seconds("retention_seconds"),
		Confirm: f.flag("confirm"), WorkCreatedAt: f.moment("work_created_at"), Note: f.text("note")}
	soft := f.flag("soft")
	if err := f.done(); err != nil {
		return nil, err
	}
	answer, err := a.guard.Begin(r.Context(), req)
	if err != nil {
		return nil, err
	}
	switch {
	case answer.Reply.Decision == Proceed:
		return proceed(&answer), nil
	case answer.Reply.Decision == Replay:
		return replay(&answer), nil
	case soft && refusals[answer.Reply.Refusal].soft:
		return refused(&answer, "begin").soft(), nil
	}
	return nil, refused(&answer, "begin")
}

func proceed(a *Answer) *response {
	r := &a.Record
	earlier := *r
	earlier.Attempts = r.Attempts[:len(r.Attempts)-1]
	return success(a, map[string]any{"decision": Proceed, "fence": r.Fence, "token": a.Token, "lease_expires_at": stamp(r.LeaseUntil),
		"lease_seconds": float64(r.LeaseUntil-a.Now) / 1000, "downstream_key": a.Downstream.String(),
		"takeover": a.Reply.Takeover, "drift": a.Reply.Drift, "attempts": attemptsOf(&earlier)})
}

func replay(a *Answer) *response {
	return &response{status: http.StatusOK, id: &a.ID, state: a.Record.State, replay: true, body: struct {
		Decision Decision `json:"decision"`
		Key      string   `json:"key"`
		State    string   `json:"state"`
		Drift    bool     `json:"drift"`
		result
	}{Replay, a.ID.Key.String(), a.Record.State.String(), a.Reply.Drift, resultOf(a)}}
}

// success adds to a body what every success tells.
func success(a *Answer, body map[string]any) *response {
	body["key"], body["state"] = a.ID.Key.String(), a.Record.State.String()
	return &response{status: http.StatusOK, body: body, id: &a.ID, state: a.Record.State}
}

// id reads the members that name an effect.
func (f *fields) id(r *http.Request, c Caller) (ID, error) {
	return effectID(c, f.namespace(r), f.text("key"))
}

func effectID(c Caller, namespace, key string) (id ID, err error) {
	if id.NS, err = Namespace(c.Tenant, namespace); err != nil {
		return id, err
	}
	id.Key, err = ParseKey(key)
	return id, err
}

// report lets an event happen that a body tells of.
func (a *api) report(ctx context.Context, f *fields, id ID, idErr error, e Event, name string) (Answer, error) {
	if err := f.done(); err != nil {
		return Answer{}, err
	}
	if idErr != nil {
		return Answer{}, idErr
	}
	answer, err := a.guard.Do(ctx, id, e)
	if err == nil && answer.Reply.Refusal != "" {
		err = refused(&answer, name)
	}
	return answer, err
}

func (a *api) complete(w http.ResponseWriter, r *http.Request, c Caller) (*response, error) {
	f, err := readFields(w, r)
	if err != nil {
		return nil, err
	}
	id, idErr := f.id(r, c)
	e := Complete{Token: HashToken(f.text("token")), Result: f.result()}
	answer, err := a.report(r.Context(), f, id, idErr, e, "complete")
	if err != nil {
		return nil, err
	}
	return success(&answer, map[string]any{"late": answer.Reply.Late, "first": answer.Reply.First, "fence": answer.Reply.Fence}), nil
}

func (f *fields) result() (r Result) {
	r.ResourceID = f.text("resource_id")
	if v := f.get("result"); v != nil {
		r.Body = v.compact()
	}
	return r
}

func (a *api) fail(w http.ResponseWriter, r *http.Request, c Caller) (*response, error) {
	f, err := readFields(w, r)
	if err != nil {
		return nil, err
	}
	id, idErr := f.id(r, c)
	e := Fail{Token: HashToken(f.text("token")), Note: cut(f.text("reason")), RetryAfter: f.seconds("retry_after_seconds").Milliseconds()}
	switch effect := f.text("effect"); effect {
	case "none":
		e.None = true
	case "unknown", "":
	default:
		f.fail("effect", "effect is %.40q; send none if it certainly did not happen, else unknown", effect)
	}
	answer, err := a.report(r.Context(), f, id, idErr, e, "fail")
	if err != nil {
		return nil, err
	}
	return success(&answer, map[string]any{"late": answer.Reply.Late, "fence": answer.Reply.Fence}), nil
}

func (a *api) extend(w http.ResponseWriter, r *http.Request, c Caller) (*response, error) {
	f, err := readFields(w, r)
	if err != nil {
		return nil, err
	}
	id, idErr := f.id(r, c)
	e := Extend{Token: HashToken(f.text("token")), Lease: f.seconds("lease_seconds").Milliseconds()}
	answer, err := a.report(r.Context(), f, id, idErr, e, "extend")
	if err != nil {
		return nil, err
	}
	until := answer.Record.LeaseUntil
	return success(&answer, map[string]any{"lease_expires_at": stamp(until), "lease_seconds": float64(until-answer.Now) / 1000, "fence": answer.Reply.Fence}), nil
}

func (a *api) resolve(w http.ResponseWriter, r *http.Request, c Caller) (*response, error) {
	f, err := readFields(w, r)
	if err != nil {
		return nil, err
	}
	id, idErr := f.id(r, c)
	e := Resolve{Verdict: named(f, "outcome", ParseVerdict), Result: f.result(), By: cut(f.text("by")), Reason: cut(f.text("reason")),
		Force: f.flag("force"), Rotate: f.flag("rotate_downstream_key"), Step: f.text("step"), Fence: f.integer("fence")}
	if asked := f.moment("asked_at"); !asked.IsZero() { // the caller has probed the downstream
		e.Probed, e.AskedAt = true, asked.UnixMilli()
	}
	step := a.guard.step(e.Step)
	e.Policy = step.policy()
	answer, err := a.report(r.Context(), f, id, idErr, e, "resolve")
	if err != nil {
		return nil, err
	}
	return success(&answer, map[string]any{"downstream_key": answer.Downstream.String(), "resolved_by": answer.Record.ResolvedBy}), nil
}

// key only derives, so that a user can see what a key is made of.
func (a *api) key(w http.ResponseWriter, r *http.Request, c Caller) (*response, error) {
	f, err := readFields(w, r)
	if err != nil {
		return nil, err
	}
	work := f.work(r, c)
	if err := f.done(); err != nil {
		return nil, err
	}
	if len(work.Select) == 0 {
		step := a.guard.step(work.Step)
		work.Select = step.Select
	}
	d, err := work.Derive(a.guard.KeySecret)
	if err != nil {
		return nil, err
	}
	return &response{status: http.StatusOK, body: map[string]any{"key": d.ID.Key.String(), "ns": d.ID.NS, "preimage": string(d.Preimage)}}, nil
}

func (a *api) find(w http.ResponseWriter, r *http.Request, c Caller) (*response, error) {
	id, err := effectID(c, r.URL.Query().Get("namespace"), r.PathValue("key"))
	if err != nil {
		return nil, err
	}
	answer, err := a.guard.Find(r.Context(), id)
	if err != nil {
		return nil, err
	}
	if answer.Record.State == Absent {
		answer.Reply.Refusal = UnknownEffect
		return nil, refused(&answer, "find")
	}
	m := summary(&Listed{id, answer.Record})
	m["attempts"] = attemptsOf(&answer.Record)
	m["downstream_key"] = answer.Downstream.String()
	if answer.Record.State == Completed {
		resultOf(&answer).into(m)
	}
	return &response{status: http.StatusOK, body: m, id: &answer.ID, state: answer.Record.State}, nil
}

func summary(l *Listed) map[string]any {
	r := &l.Record
	m := map[string]any{"key": l.ID.Key.String(), "ns": l.ID.NS, "step": r.Step, "state": r.State.String(), "mode": r.Mode.String(),
		"fence": r.Fence, "on_unknown": r.Policy.OnUnknown.String(), "lease_expires_at": stamp(r.LeaseUntil), "created_at": stamp(r.CreatedAt),
		"updated_at": stamp(r.UpdatedAt), "completed_at": stamp(r.CompletedAt), "resource_id": nil, "duplicate_effects": r.DuplicateEffects}
	if r.Result.ResourceID != "" {
		m["resource_id"] = r.Result.ResourceID
	}
	if r.ResolvedBy != "" {
		m["resolved_by"], m["reason"] = r.ResolvedBy, r.Reason
	}
	return m
}

func (a *api) list(w http.ResponseWriter, r *http.Request, c Caller) (*response, error) {
	q := Query{Step: r.URL.Query().Get("step")}
	var err error
	if q.NS, err = Namespace(c.Tenant, r.URL.Query().Get("namespace")); err != nil {
		return nil, err
	}
	q.Prefix = r.URL.Query().Get("prefix")
	if state := r.URL.Query().Get("state"); state != "" {
		if q.State, err = ParseState(state); err != nil || q.State == Absent {
			return nil, badInput("state", "state is %.40q; use pending, completed, failed or unknown", state)
		}
	}
	if limit := r.URL.Query().Get("limit"); limit != "" {
		if q.Limit, err = strconv.Atoi(limit); err != nil || q.Limit < 1 || q.Limit > MaxListed {
			return nil, badInput("limit", "limit is not a number from 1 to %d", MaxListed)
		}
	}
	if cursor := r.URL.Query().Get("cursor"); cursor != "" {
		if q.After, err = strconv.ParseInt(cursor, 10, 64); err != nil || q.After < 1 {
			return nil, badInput("cursor", "The cursor is not one; send next_cursor of the page before")
		}
	}
	listed, next, err := a.guard.List(r.Context(), q)
	if err != nil {
		return nil, err
	}
	effects := make([]map[string]any, len(listed))
	for i := range listed {
		effects[i] = summary(&listed[i])
	}
	body := map[string]any{"effects": effects, "next_cursor": nil}
	if next != 0 {
		body["next_cursor"] = strconv.FormatInt(next, 10)
	}
	return &response{status: http.StatusOK, body: body}, nil
}

func (a *api) purge(w http.ResponseWriter, r *http.Request, c Caller) (*response, error) {
	id, err := effectID(c, r.URL.Query().Get("namespace"), r.PathValue("key"))
	if err != nil {
		return nil, err
	}
	force := false
	if text := r.URL.Query().Get("force"); text != "" {
		if force, err = strconv.ParseBool(text); err != nil {
			return nil, badInput("force", "force is %.40q; send true or false", text)
		}
	}
	answer, err := a.guard.Do(r.Context(), id, Purge{Force: force})
	if err != nil {
		return nil, err
	}
	if answer.Reply.Refusal != "" {
		return nil, refused(&answer, "purge")
	}
	return success(&answer, map[string]any{"result_available": false}), nil
}
