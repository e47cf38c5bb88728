package guard

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Client speaks the API of a Guard, in another process or in this one
// ([Guard.Local]). It is safe for concurrent use.
//
// Its errors are a [*Problem] for what the guard refused, an [*InputError] for
// what was not sent because it can't be right, and otherwise that the guard
// could not be reached: then it is not known whether the request counts. No
// request is repeated by itself.
type Client struct {
	URL  string // of the server, such as http://127.0.0.1:8484
	Key  string // the proxy key; empty: none is sent
	HTTP *http.Client
}

// NewClient returns a client of the server at a URL. It follows no redirect: a
// begin that became a GET elsewhere would grant nothing.
func NewClient(server, key string) (*Client, error) {
	u, err := url.Parse(server)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.RawQuery != "" || u.Fragment != "" {
		return nil, badInput("server", "The server %.200q is no URL; write http://host:port", server)
	}
	return &Client{URL: strings.TrimSuffix(server, "/"), Key: key, HTTP: &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}, nil
}

// Local returns a client of g itself, without a network, that may do everything
// as a tenant. It answers as a server on the same database would.
func (g *Guard) Local(tenant string) *Client {
	handler := g.Handler(func(*http.Request) (Caller, error) {
		return Caller{Tenant: tenant, Scopes: []string{ScopeUse, ScopeAdmin}}, nil
	})
	return &Client{URL: "http://guard.local", HTTP: &http.Client{Transport: inProcess{handler}}}
}

// Claim names an attempt at an effect, with the right to report on it.
type Claim struct {
	Namespace, Key, Token string
}

// Effect is what an answer tells of an effect. What it does not tell is zero.
type Effect struct {
	Key           string `json:"key"`
	NS            string `json:"ns"`
	Step          string `json:"step"`
	State         string `json:"state"`
	Mode          string `json:"mode"`
	OnUnknown     string `json:"on_unknown"`
	Fence         int64  `json:"fence"`
	DownstreamKey string `json:"downstream_key"`

	Decision   Decision `json:"decision"` // of a begin
	Takeover   bool     `json:"takeover"`
	Drift      bool     `json:"drift"`
	Message    string   `json:"message"`     // why a begin was not granted
	RetryAfter int      `json:"retry_after"` // seconds
	AskedAt    string   `json:"asked_at"`    // of a hold that a probe may decide, for Resolve

	Token          string    `json:"token"` // of a grant
	LeaseSeconds   float64   `json:"lease_seconds"`
	LeaseExpiresAt time.Time `json:"lease_expires_at"`

	ResourceID      string          `json:"resource_id"`
	Result          json.RawMessage `json:"result"` // "null": none
	ResultAvailable bool            `json:"result_available"`
	First           bool            `json:"first"` // of a completion: it is the one that counts
	Late            bool            `json:"late"`  // of a report: the lease was over

	CreatedAt        time.Time `json:"created_at"`
	UpdatedAt        time.Time `json:"updated_at"`
	CompletedAt      time.Time `json:"completed_at"`
	DuplicateEffects int64     `json:"duplicate_effects"`
	ResolvedBy       string    `json:"resolved_by"`
	// Reason is why it was resolved; of a begin that was not granted, the Refusal.
	Reason   string      `json:"reason"`
	Attempts []Attempted `json:"attempts"`

	Raw json.RawMessage `json:"-"` // the answer as it came
}

// Attempted is what is known of one attempt.
type Attempted struct {
	Fence      int64     `json:"fence"`
	StartedAt  time.Time `json:"started_at"`
	EndedAt    time.Time `json:"ended_at"`
	Outcome    string    `json:"outcome"`
	ResourceID string    `json:"resource_id"`
	Note       string    `json:"note"`
}

// Preimage is what a key is made of.
type Preimage struct {
	Key      string `json:"key"`
	NS       string `json:"ns"`
	Preimage string `json:"preimage"`
}

// workBody is a Work as the API takes it.
type workBody struct {
	Step             string          `json:"step"`
	Namespace        string          `json:"namespace,omitempty"`
	Input            json.RawMessage `json:"input,omitempty"`
	Select           []string        `json:"select,omitempty"`
	Explicit         string          `json:"key,omitempty"`
	Occurrence       string          `json:"occurrence,omitempty"`
	FingerprintInput json.RawMessage `json:"fingerprint_input,omitempty"`
}

func (w *Work) body() (b workBody, err error) {
	for name, text := range map[string][]byte{"input": w.Input, "fingerprint_input": w.FingerprintInput} {
		if text == nil {
			continue
		}
		if _, err := parseInput(name, text); err != nil {
			return b, err // in terms of the input, not of the body around it
		}
	}
	return workBody{w.Step, w.Namespace, w.Input, w.Select, w.Explicit, w.Occurrence, w.FingerprintInput}, nil
}

// Begin asks for the right to cause an effect, as [Guard.Begin] does. A begin
// that is not granted is an answer: look at Effect.Decision. The server, not
// the request, says whose tenant it is.
func (c *Client) Begin(ctx context.Context, req Request) (*Effect, error) {
	work, err := req.body()
	if err != nil {
		return nil, err
	}
	body := struct {
		workBody
		Mode      string     `json:"mode,omitempty"`
		Lease     float64    `json:"lease_seconds,omitempty"`
		Wait      float64    `json:"wait_seconds,omitempty"`
		Retention float64    `json:"retention_seconds,omitempty"`
		OnUnknown string     `json:"on_unknown,omitempty"`
		Drift     string     `json:"drift,omitempty"`
		Confirm   bool       `json:"confirm,omitempty"`
		CreatedAt *time.Time `json:"work_created_at,omitempty"`
		Note      string     `json:"note,omitempty"`
		Soft      bool       `json:"soft"`
	}{workBody: work, Lease: req.Lease.Seconds(), Wait: req.Wait.Seconds(), Retention: req.Retention.Seconds(),
		Drift: driftNames[req.Drift], Confirm: req.Confirm, Note: req.Note, Soft: true}
	if req.Mode != 0 {
		body.Mode = req.Mode.String()
	}
	if req.OnUnknown != 0 {
		body.OnUnknown = req.OnUnknown.String()
	}
	if !req.WorkCreatedAt.IsZero() {
		body.CreatedAt = &req.WorkCreatedAt
	}
	return c.effect(ctx, http.MethodPost, "begin", nil, body)
}

// reportBody names an attempt.
type reportBody struct {
	Namespace string `json:"namespace,omitempty"`
	Key       string `json:"key"`
	Token     string `json:"token,omitempty"`
}

// Complete reports that the effect happened. result is JSON; nil: none.
func (c *Client) Complete(ctx context.Context, claim Claim, resourceID string, result json.RawMessage) (*Effect, error) {
	return c.effect(ctx, http.MethodPost, "complete", nil, struct {
		reportBody
		ResourceID string          `json:"resource_id,omitempty"`
		Result     json.RawMessage `json:"result,omitempty"`
	}{reportBody(claim), resourceID, result})
}

// Fail reports that the attempt ended without a success; none says that the
// effect definitely did not happen.
func (c *Client) Fail(ctx context.Context, claim Claim, none bool, reason string, retryAfter time.Duration) (*Effect, error) {
	effect := OutcomeUnknown
	if none {
		effect = OutcomeNone
	}
	return c.effect(ctx, http.MethodPost, "fail", nil, struct {
		reportBody
		Effect     string  `json:"effect"`
		Reason     string  `json:"reason,omitempty"`
		RetryAfter float64 `json:"retry_after_seconds,omitempty"`
	}{reportBody(claim), effect.String(), reason, retryAfter.Seconds()})
}

// Extend renews the lease and confirms it. lease is 0 for as long as before.
func (c *Client) Extend(ctx context.Context, claim Claim, lease time.Duration) (*Effect, error) {
	return c.effect(ctx, http.MethodPost, "extend", nil, struct {
		reportBody
		Lease float64 `json:"lease_seconds,omitempty"`
	}{reportBody(claim), lease.Seconds()})
}

// Resolve decides an effect. Of d, the policy is the server's; with Probed,
// askedAt is the AskedAt of the hold that made the caller ask.
func (c *Client) Resolve(ctx context.Context, namespace, key string, d Resolve, askedAt string) (*Effect, error) {
	body := struct {
		reportBody
		Step       string          `json:"step,omitempty"`
		Outcome    string          `json:"outcome"`
		ResourceID string          `json:"resource_id,omitempty"`
		Result     json.RawMessage `json:"result,omitempty"`
		By         string          `json:"by,omitempty"`
		Reason     string          `json:"reason,omitempty"`
		Force      bool            `json:"force,omitempty"`
		Rotate     bool            `json:"rotate_downstream_key,omitempty"`
		Fence      int64           `json:"fence,omitempty"`
		AskedAt    string          `json:"asked_at,omitempty"`
	}{reportBody: reportBody{Namespace: namespace, Key: key}, Step: d.Step, Outcome: d.Verdict.String(), ResourceID: d.Result.ResourceID,
		Result: d.Result.Body, By: d.By, Reason: d.Reason, Force: d.Force, Rotate: d.Rotate}
	if d.Probed {
		body.Fence, body.AskedAt = d.Fence, askedAt
	}
	return c.effect(ctx, http.MethodPost, "resolve", nil, body)
}

// Find reads an effect.
func (c *Client) Find(ctx context.Context, namespace, key string) (*Effect, error) {
	return c.effect(ctx, http.MethodGet, "effects/"+url.PathEscape(key), inNamespace(namespace), nil)
}

// Purge forgets an effect, as the event [Purge] does.
func (c *Client) Purge(ctx context.Context, namespace, key string, force bool) (*Effect, error) {
	query := inNamespace(namespace)
	query.Set("force", strconv.FormatBool(force))
	return c.effect(ctx, http.MethodDelete, "effects/"+url.PathEscape(key), query, nil)
}

// List reads effects of a namespace, the newest first, without their attempts.
// cursor is that of an earlier List, empty for the first; next is empty where
// there are no more. Of q, After is not used, nor is what stands before the
// slash in NS.
func (c *Client) List(ctx context.Context, namespace string, q Query, cursor string) (effects []Effect, next string, err error) {
	query := inNamespace(namespace)
	for name, value := range map[string]string{"step": q.Step, "cursor": cursor, "prefix": q.Prefix} {
		if value != "" {
			query.Set(name, value)
		}
	}
	if q.State != Absent {
		query.Set("state", q.State.String())
	}
	if q.Limit > 0 {
		query.Set("limit", strconv.Itoa(q.Limit))
	}
	raw, err := c.call(ctx, http.MethodGet, "effects", query, nil)
	if err != nil {
		return nil, "", err
	}
	var page struct {
		Effects []json.RawMessage `json:"effects"`
		Next    *string           `json:"next_cursor"`
	}
	if err := json.Unmarshal(raw, &page); err != nil {
		return nil, "", fmt.Errorf("reading the guard's answer: %w", err)
	}
	for _, text := range page.Effects {
		e, err := readEffect(text)
		if err != nil {
			return nil, "", err
		}
		effects = append(effects, *e)
	}
	if page.Next != nil {
		next = *page.Next
	}
	return effects, next, nil
}

// Derive tells the key of a unit of work. Nothing is stored.
func (c *Client) Derive(ctx context.Context, w Work) (p Preimage, err error) {
	body, err := w.body()
	if err != nil {
		return p, err
	}
	raw, err := c.call(ctx, http.MethodPost, "key", nil, body)
	if err != nil {
		return p, err
	}
	if err := json.Unmarshal(raw, &p); err != nil {
		return p, fmt.Errorf("reading the guard's answer: %w", err)
	}
	return p, nil
}

func inNamespace(name string) url.Values {
	if name == "" {
		return url.Values{}
	}
	return url.Values{"namespace": {name}}
}

func (c *Client) effect(ctx context.Context, method, path string, query url.Values, body any) (*Effect, error) {
	raw, err := c.call(ctx, method, path, query, body)
	if err != nil {
		return nil, err
	}
	return readEffect(raw)
}

func readEffect(raw []byte) (*Effect, error) {
	e := &Effect{Raw: raw}
	if err := json.Unmarshal(raw, e); err != nil {
		return nil, fmt.Errorf("reading the guard's answer: %w", err)
	}
	return e, nil
}

// maxAnswer is more than the largest stored result with its escapes.
const maxAnswer = 16 << 20

// call sends one request and returns the body of a success.
func (c *Client) call(ctx context.Context, method, path string, query url.Values, body any) ([]byte, error) {
	var text io.Reader
	if body != nil {
		encoded := &bytes.Buffer{}
		encoder := json.NewEncoder(encoded)
		encoder.SetEscapeHTML(false) // a result is stored as it is sent
		if err := encoder.Encode(body); err != nil {
			return nil, fmt.Errorf("writing a request to the guard: %w", err)
		}
		text = encoded
	}
	target := c.URL + base + path
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, target, text)
	if err != nil {
		return nil, fmt.Errorf("asking the guard: %w", err)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.Key != "" {
		req.Header.Set("Authorization", "Bearer "+c.Key)
	}
	res, err := c.HTTP.Do(req)
	if err != nil {
		return nil, fmt.Errorf("asking the guard: %w", err)
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("reading the guard's answer: %w", err)
	}
	if res.StatusCode != http.StatusOK {
		return nil, readProblem(res, answer)
	}
	return answer, nil
}

// readProblem turns an answer that is no success into an error. What is not in
// the guard's shape comes from something else at this address.
func readProblem(res *http.Response, answer []byte) error {
	var shape struct {
		Error struct {
			Code    string `json:"code"`
			Message string `json:"message"`
			Param   string `json:"param"`
		} `json:"error"`
	}
	p := &Problem{Status: res.StatusCode}
	if json.Unmarshal(answer, &p.Extra) != nil || json.Unmarshal(answer, &shape) != nil || shape.Error.Code == "" {
		return &Problem{Status: res.StatusCode, Code: "no_guard",
			Message: fmt.Sprintf("%s answers %s, and not as a guard does; is it the address of an llmproxy server?", res.Request.URL.Host, res.Status)}
	}
	p.Code, p.Message, p.Param = shape.Error.Code, shape.Error.Message, shape.Error.Param
	if after, ok := p.Extra["retry_after"].(float64); ok {
		p.RetryAfter = int(after)
	}
	return p
}

// inProcess serves requests by a handler, without a network.
type inProcess struct{ handler http.Handler }

func (t inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body == nil {
		r = r.Clone(r.Context())
		r.Body = http.NoBody // as a server has it
	}
	defer r.Body.Close()
	w := &written{header: http.Header{}}
	t.handler.ServeHTTP(w, r)
	if w.status == 0 { // it saw its client leave
		return nil, cmp.Or(context.Cause(r.Context()), errors.New("the guard gave no answer"))
	}
	return &http.Response{Status: http.StatusText(w.status), StatusCode: w.status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: w.header, Body: io.NopCloser(&w.body), ContentLength: int64(w.body.Len()), Request: r}, nil
}

// written is a response in memory.
type written struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (w *written) Header() http.Header { return w.header }

func (w *written) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
}

func (w *written) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(b)
}

// TextAt reads the string or number that a JSON pointer finds in a JSON text.
func TextAt(text []byte, pointer string) (string, error) {
	s, err := parseSelector(pointer)
	if err != nil {
		return "", err
	}
	root, err := parseJSON(text)
	if err != nil {
		return "", err
	}
	v, ok := s.find(&root)
	if !ok {
		return "", badInput(pointer, "There is nothing at %s", pointer)
	}
	if v.kind != kindString && v.kind != kindNumber {
		return "", badInput(pointer, "At %s is %s, not a string or a number", pointer, v.kind)
	}
	return v.text, nil
}
