package guard

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

// forwardBase is what the paths of forwarded requests begin with.
const forwardBase = base + "forward/"

const (
	maxForwardBody     = 10 << 20 // of a request, and of a response
	defaultForwardWait = 25 * time.Second
	// leaseMargin is how long before its lease ends a call is given up, so that
	// nothing is sent by a holder that no longer is one.
	leaseMargin     = 5 * time.Second
	minForwardLease = leaseMargin + time.Second
)

// Forwarder makes calls for those who cannot begin and complete by themselves:
// it takes a request for a downstream, begins, sends it once, judges the answer
// and completes or fails. It is an [http.Handler] for /guard/v1/forward/; mount
// it where nothing redirects or cleans paths. Its fields must not change once it
// is used: for other routes make another Forwarder, and let this one finish.
//
// The rules:
//
//   - The claim is committed before anything is dialled, and what the downstream
//     answered before the client is told.
//   - A grant is worth one fresh connection and one request on it. Nothing sends
//     again by itself: no connection is used twice, no redirect is followed.
//   - A call goes on when its client leaves, up to 5 s before its lease ends. The
//     lease is looked at where bytes are written, not before.
//   - Before there was a connection nothing can have happened; after it, only an
//     answer tells.
type Forwarder struct {
	Guard *Guard
	// Routes are the only places that requests go to.
	Routes []Route
	// Identify says who sent a request, as for [Guard.Handler]. Of the request's
	// header it sees Authorization alone, with what came in Guard-Authorization:
	// the rest belongs to the downstream.
	Identify func(*http.Request) (Caller, error)
	Log      *slog.Logger // nil: none
	// Instance, if set, is the store's instance that this process keeps alive. A
	// call whose instance is gone is unknown at once, not when its lease ends.
	Instance func() int64
	// KeyInQuery takes the proxy key from ?guard_key= too, for tools that cannot
	// set headers. It then stands in the logs of whatever is in between.
	KeyInQuery bool
	// Failpoint, if set, is called at each named point of a call's life:
	// after_claim, before_dial, after_write, before_commit_done, after_commit_done.
	Failpoint func(point string)

	resolve   func(ctx context.Context, host string) ([]netip.Addr, error) // nil: the system's resolver
	connect   func(context.Context, netip.AddrPort) (net.Conn, error)      // nil: TCP
	transport func(*line) http.RoundTripper                                // nil: line.transport
	tls       *tls.Config

	once    sync.Once
	invalid error
	routes  []forwardRoute

	mu      sync.Mutex
	flights map[ID]*exchange // of calls under way, the latest for each effect
	running int              // calls under way
	idle    chan struct{}    // closed when running becomes 0; nil where nobody waits
	warned  sync.Map         // step → nil; of those whose key is made of everything
}

// Route is how the calls of one step are forwarded. Zero values take defaults.
type Route struct {
	Step string
	// Target is a URL prefix that the rest of a request's path is appended to.
	Target *url.URL
	// AllowPrivate admits loopback and private addresses for Target.
	AllowPrivate bool
	Methods      []string // that are let through; none: all
	Select       []string // of a JSON body, what the key is made of; none: all of the request
	Lease        time.Duration
	// OnUnknown is Hold by default, and Retry with Idempotency.
	OnUnknown OnUnknown
	Drift     Drift

	// What is made of an answer, the first that says something: a header, the
	// body, the status, and [statusOutcome].
	Headers           []HeaderTest
	NoneIf, DoneIf    []BodyTest
	DuplicateStatuses []int // done: the downstream has the effect of an earlier attempt
	DoneStatuses      []int
	NoneStatuses      []int
	UnknownStatuses   []int

	Idempotency *DownstreamIdempotency
	Probe       *DownstreamProbe
}

// HeaderTest judges an answer by a header: Value, compared without case, or any
// value where it is empty, means Outcome (done, none or unknown).
type HeaderTest struct {
	Name, Value string
	Outcome     Outcome
}

// BodyTest judges an answer by its JSON body: the value at Pointer (RFC 6901)
// equals Value, a JSON text.
type BodyTest struct {
	Pointer string
	Value   string
}

// DownstreamIdempotency says that the downstream makes one effect of requests
// that carry the same key in Header, for as long as Retention. 0: for ever.
type DownstreamIdempotency struct {
	Header    string
	Retention time.Duration
	Format    string // hex (64 digits, the default), uuid, or sf: hex in double quotes
}

// DownstreamProbe asks the downstream whether an effect happened. In URL, {key}
// stands for the downstream key and {/pointer} for a value of the input. An
// answer of 404 or 410 says that it did not happen; one of 2xx that it did, or,
// with Found, that it did if there is anything but null, false or an empty value
// at that pointer of its JSON body. The value, if it is short text or a number,
// is taken for the resource's id.
type DownstreamProbe struct {
	Method string // GET by default
	URL    string
	Found  string
}

// Check tells what is wrong with the routes. Calls through wrong routes are
// answered with 500.
func (f *Forwarder) Check() error {
	f.once.Do(func() {
		f.Guard.init()
		f.routes = make([]forwardRoute, len(f.Routes))
		for i := range f.Routes {
			f.routes[i].Route = &f.Routes[i]
			if err := f.routes[i].prepare(); err != nil {
				f.invalid = fmt.Errorf("forwarding step %q: %w", f.Routes[i].Step, err)
				return
			}
			for _, earlier := range f.Routes[:i] {
				if earlier.Step == f.Routes[i].Step {
					f.invalid = fmt.Errorf("step %q has two routes", earlier.Step)
					return
				}
			}
		}
	})
	return f.invalid
}

// Wait returns when no call is under way, or when ctx ends. Call it when no more
// requests come in: calls go on when their clients have left.
func (f *Forwarder) Wait(ctx context.Context) error {
	f.mu.Lock()
	idle := f.idle
	switch {
	case f.running == 0:
		f.mu.Unlock()
		return nil
	case idle == nil:
		idle = make(chan struct{})
		f.idle = idle
	}
	f.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for forwarded calls: %w", context.Cause(ctx))
	}
}

func (f *Forwarder) log() *slog.Logger {
	if f.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return f.Log
}

func (f *Forwarder) failpoint(point string) {
	if f.Failpoint != nil {
		f.Failpoint(point)
	}
}

// ServeHTTP serves ANY /guard/v1/forward/{step}/….
func (f *Forwarder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	err := f.serve(w, r)
	if err == nil || r.Context().Err() != nil && errors.Is(err, context.Cause(r.Context())) {
		return // answered, or nobody is there to be
	}
	p := toProblem(err)
	if p.Status >= 500 {
		f.log().Error("a call could not be forwarded", "path", r.URL.Path, "err", err)
	}
	p.write(w)
}

func (f *Forwarder) serve(w http.ResponseWriter, r *http.Request) error {
	if err := f.Check(); err != nil {
		return err
	}
	caller, err := f.identify(r)
	if err != nil {
		return err
	}
	o, err := f.outbound(r)
	if err != nil {
		return err
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		f.pass(w, r, o)
		return nil
	}
	c := &forwardCall{outbound: o, tenant: caller.Tenant}
	if err := c.read(w, r); err != nil {
		return err
	}
	reply, err := f.guarded(r.Context(), c)
	if err != nil {
		return err
	}
	reply.write(w)
	return nil
}

func (f *Forwarder) identify(r *http.Request) (Caller, error) {
	key := r.Header.Get("Guard-Authorization")
	if key == "" && f.KeyInQuery {
		if key = r.URL.Query().Get("guard_key"); key != "" {
			key = "Bearer " + key
		}
	}
	asked := r.WithContext(r.Context())
	asked.Header = http.Header{}
	if key != "" {
		asked.Header.Set("Authorization", key)
	}
	caller, err := f.Identify(asked)
	if err == nil && !slices.Contains(caller.Scopes, ScopeUse) {
		err = &Problem{Status: http.StatusForbidden, Code: "forbidden", Retry: &no,
			Message: "This proxy key may not do that; add " + ScopeUse + " to its scopes in the configuration"}
	}
	if p, ok := errors.AsType[*Problem](err); ok && p.Status == http.StatusUnauthorized {
		told := *p
		told.Message += ". When forwarding, send the proxy key as Guard-Authorization: Authorization is the downstream's"
		err = &told
	}
	return caller, err
}

// guarded answers a call by what is stored of it, by the call under way, or by
// making it.
func (f *Forwarder) guarded(ctx context.Context, c *forwardCall) (*forwardReply, error) {
	deadline := time.Now().Add(c.wait)
	b, err := f.beginning(c)
	if err != nil {
		return nil, err
	}
	answer, err := f.Guard.begin(ctx, b.id, &b.claim, &b.step, time.Now())
	if err == nil && answer.Reply.Decision == Wait && c.wait > 0 {
		if x := f.flight(b.id); x != nil {
			if reply := x.join(ctx, deadline, answer.Reply.Drift); reply != nil {
				return reply, nil
			}
		}
		answer, err = f.Guard.begin(ctx, b.id, &b.claim, &b.step, deadline)
	}
	switch {
	case err != nil:
		return nil, err
	case answer.Reply.Decision == Replay:
		return replayed(&answer), nil
	case answer.Reply.Decision != Proceed:
		return nil, refused(&answer, "begin")
	}
	x := f.launch(c, b, answer)
	select {
	case <-x.done:
		return x.reply, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// flight is the call under way for an effect in this process, or nil.
func (f *Forwarder) flight(id ID) *exchange {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.flights[id]
}

// launch makes the call that was granted, in a goroutine that no client's
// context reaches.
func (f *Forwarder) launch(c *forwardCall, b *beginning, grant Answer) *exchange {
	x := &exchange{f: f, call: c, begin: b.claim.Begin, grant: grant, done: make(chan struct{})}
	f.mu.Lock()
	if f.flights == nil {
		f.flights = map[ID]*exchange{}
	}
	f.flights[grant.ID] = x
	f.running++
	f.mu.Unlock()
	go func() {
		defer f.land(x)
		x.run()
	}()
	return x
}

// land takes a call that has ended out of those under way.
func (f *Forwarder) land(x *exchange) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.flights[x.grant.ID] == x {
		delete(f.flights, x.grant.ID)
	}
	if f.running--; f.running == 0 && f.idle != nil {
		close(f.idle)
		f.idle = nil
	}
}

// forwardRoute is a Route whose texts have been read.
type forwardRoute struct {
	*Route
	noneIf, doneIf []bodyTest
	found          *selector
	probe          []probePart
}

func (rt *forwardRoute) prepare() (err error) {
	if err := checkStep(rt.Step); err != nil {
		return err
	}
	if err := rt.checkTarget(); err != nil {
		return err
	}
	if rt.Lease != 0 && (rt.Lease < minForwardLease || rt.Lease > maxLease) {
		return fmt.Errorf("the lease is not between %s and %s", minForwardLease, maxLease)
	}
	if rt.OnUnknown > Retry {
		return errors.New("on_unknown is not one of hold, probe and retry")
	}
	if rt.OnUnknown == Probe && rt.Probe == nil {
		return errors.New("on_unknown is probe, and there is no probe")
	}
	if _, err := parseSelectors(rt.Select); err != nil {
		return err
	}
	for _, m := range rt.Methods {
		if !isToken(m) || m != strings.ToUpper(m) {
			return fmt.Errorf("%q is no method; write it in capitals", m)
		}
	}
	if err := rt.prepareTests(); err != nil {
		return err
	}
	if i := rt.Idempotency; i != nil {
		if err := checkDownstreamHeader(i.Header); err != nil {
			return err
		}
		if !slices.Contains([]string{"", "hex", "uuid", "sf"}, i.Format) || i.Retention < 0 {
			return fmt.Errorf("the format %q or the retention %s of the downstream's idempotency is not usable; formats are hex, uuid and sf", i.Format, i.Retention)
		}
	}
	return rt.prepareProbe()
}

func (rt *forwardRoute) checkTarget() error {
	u := rt.Target
	switch {
	case u == nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.Opaque != "":
		return errors.New("the target is no URL; write one like https://api.example.com/v1")
	case u.User != nil || u.Fragment != "":
		return errors.New("the target has a password or a fragment; only scheme, host, path and query are used")
	case escapes(u.Path):
		return errors.New("the target's path has . or .. in it; write it out")
	}
	if addr, err := netip.ParseAddr(u.Hostname()); err == nil {
		return admitted(addr, rt.AllowPrivate)
	}
	return nil
}

func (rt *forwardRoute) prepareTests() (err error) {
	for _, t := range rt.Headers {
		if !isToken(t.Name) || t.Outcome < OutcomeDone || t.Outcome > OutcomeUnknown {
			return fmt.Errorf("the test of header %q needs a name and one of done, none and unknown", t.Name)
		}
	}
	if rt.noneIf, err = parseBodyTests(rt.NoneIf); err != nil {
		return err
	}
	if rt.doneIf, err = parseBodyTests(rt.DoneIf); err != nil {
		return err
	}
	seen := map[int]bool{}
	for _, status := range slices.Concat(rt.DuplicateStatuses, rt.DoneStatuses, rt.NoneStatuses, rt.UnknownStatuses) {
		if status < 200 || status > 599 {
			return fmt.Errorf("%d is no status of an answer", status)
		}
		if seen[status] {
			return fmt.Errorf("status %d is listed twice", status)
		}
		seen[status] = true
	}
	return nil
}

// step is how the guard treats a call through the route.
func (f *Forwarder) step(rt *forwardRoute, name string) Step {
	s := f.Guard.step(name)
	s.OnUnknown, s.RetryWithin, s.Idempotent = Hold, 0, false
	s.Lease = or(rt.Lease, s.Lease)
	if i := rt.Idempotency; i != nil {
		s.OnUnknown, s.Idempotent = Retry, true
		if i.Retention > 0 { // what is granted must also arrive while the downstream remembers
			s.RetryWithin = max(i.Retention-s.Lease, time.Millisecond)
		}
	}
	s.OnUnknown = or(rt.OnUnknown, s.OnUnknown)
	s.Drift = or(rt.Drift, s.Drift)
	return s
}
