package guard

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// outbound is a request as it goes to the downstream, without its body.
type outbound struct {
	route  *forwardRoute
	step   string
	method string
	target *url.URL
	header http.Header // the client's, without what ends here
	asked  http.Header // the client's
}

// forwardCall is a guarded request and what the client said about it.
type forwardCall struct {
	*outbound
	tenant string
	body   []byte
	// Of the headers Guard-…; zero values leave the choice to the route.
	keyFrom   []string
	input     []byte
	explicit  string
	namespace string
	occurs    string
	onUnknown OnUnknown
	drift     Drift
	lease     time.Duration
	retention time.Duration
	wait      time.Duration
	keyHeader string // in which the downstream gets its key
}

// beginning is a begin made of a call.
type beginning struct {
	id    ID
	claim claim
	step  Step
}

// controlHeaders are the client's words to the guard. None is forwarded, and
// no other header of the name Guard-… is taken: a misspelt Guard-Occurrence must
// not go unnoticed. Those of value false are set by a guard that calls another.
var controlHeaders = map[string]bool{
	"Guard-Target": true, "Guard-Authorization": true, "Guard-Key-From": true, "Guard-Input": true,
	"Guard-Occurrence": true, "Guard-Namespace": true, "Guard-On-Unknown": true, "Guard-Lease": true,
	"Guard-Wait": true, "Guard-Drift": true, "Guard-Retention": true, "Guard-Downstream-Header": true,
	"Guard-Fence": false, "Guard-Work": false,
}

// notForwarded are further request headers that end here: they are about the
// connection, about where the client came from, or would make the stored answer
// readable for this client only.
var notForwarded = map[string]bool{
	"Connection": true, "Proxy-Connection": true, "Keep-Alive": true, "Te": true, "Trailer": true,
	"Transfer-Encoding": true, "Upgrade": true, "Proxy-Authenticate": true, "Proxy-Authorization": true,
	"Accept-Encoding": true, "Content-Length": true, "Expect": true, "Host": true, "Idempotency-Key": true,
	"Forwarded": true, "X-Forwarded-For": true, "X-Forwarded-Host": true, "X-Forwarded-Proto": true, "X-Real-Ip": true,
}

// outbound finds the route of a request and makes the downstream's of it.
func (f *Forwarder) outbound(r *http.Request) (*outbound, error) {
	o := &outbound{method: r.Method, asked: r.Header, header: http.Header{}}
	named := r.Header.Values("Connection")
	for name, values := range r.Header {
		if _, known := controlHeaders[name]; strings.HasPrefix(name, "Guard-") && !known {
			return nil, badInput(name, "The header %.80s is not known here; remove it or correct its name", name)
		}
		for _, v := range values {
			if strings.ContainsAny(v, "\r\n\x00") {
				return nil, badInput(name, "The header %s has a line break in it", name)
			}
		}
		if notForwarded[name] || strings.HasPrefix(name, "Guard-") || namedIn(named, name) {
			continue
		}
		o.header[name] = slices.Clone(values)
	}
	if err := f.target(o, r.URL); err != nil {
		return nil, err
	}
	never := r.Method == http.MethodConnect || r.Method == http.MethodTrace
	if never || len(o.route.Methods) > 0 && !slices.Contains(o.route.Methods, r.Method) {
		return nil, &Problem{Status: http.StatusMethodNotAllowed, Code: "method_not_allowed", Retry: &no, Allow: strings.Join(o.route.Methods, ", "),
			Message: fmt.Sprintf("Step %s lets no %.20s through; add it to methods in the configuration", o.step, r.Method)}
	}
	return o, nil
}

func namedIn(lists []string, name string) bool {
	for _, list := range lists {
		for field := range strings.SplitSeq(list, ",") {
			if strings.EqualFold(strings.TrimSpace(field), name) {
				return true
			}
		}
	}
	return false
}

// target finds where a request goes: to the target of the step in its path, or
// to Guard-Target, where a route's target is a prefix of that.
func (f *Forwarder) target(o *outbound, asked *url.URL) error {
	path, ok := strings.CutPrefix(asked.EscapedPath(), forwardBase)
	if !ok {
		return &Problem{Status: http.StatusNotFound, Code: "unknown_route", Retry: &no, Message: "Calls are forwarded below " + forwardBase + "{step}"}
	}
	query := asked.RawQuery
	if f.KeyInQuery {
		query = withoutParameter(query, "guard_key")
	}
	rest := ""
	for i := range f.routes { // steps may have slashes in them: the longest that fits
		step := f.routes[i].Step
		if after, ok := strings.CutPrefix(path, step); ok && (after == "" || after[0] == '/') && len(step) > len(o.step) {
			o.route, o.step, rest = &f.routes[i], step, after
		}
	}
	text, err := one(o.asked, "Guard-Target")
	switch {
	case err != nil:
		return err
	case text != "":
		return f.chosen(o, path, rest, text, query)
	case o.route == nil:
		return &Problem{Status: http.StatusNotFound, Code: "unknown_step", Retry: &no,
			Message: fmt.Sprintf("No step fits the path %.140q; add one to guard.forward in the configuration, or send Guard-Target", asked.Path)}
	}
	if decoded, err := url.PathUnescape(rest); err != nil || escapes(decoded) {
		return badInput("", "The path has . or .. in it; write it out")
	}
	u := *o.route.Target
	if rest != "" {
		u.Path, u.RawPath = joined(u.Path, asked.Path[len(forwardBase)+len(o.step):]), joined(u.EscapedPath(), rest)
	}
	u.RawQuery = joinedQuery(u.RawQuery, query)
	o.target = &u
	return nil
}

// chosen heeds Guard-Target: any URL below the target of some route, the step's
// own first.
func (f *Forwarder) chosen(o *outbound, path, rest, text, query string) error {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.User != nil || u.Fragment != "" || escapes(u.Path) {
		return badInput("Guard-Target", "Guard-Target is not usable: send an absolute URL without a password, a fragment, . and ..")
	}
	u.Host = strings.ToLower(u.Host)
	own := o.route
	if own != nil && rest != "" {
		return badInput("Guard-Target", "Say the path once: after the step, or in Guard-Target")
	}
	if own == nil || !below(own.Target, u) {
		o.route = nil
		for i := range f.routes {
			if rt := &f.routes[i]; below(rt.Target, u) && (o.route == nil || len(rt.Target.Path) > len(o.route.Target.Path)) {
				o.route = rt
			}
		}
	}
	if o.route == nil {
		return &Problem{Status: http.StatusForbidden, Code: "target_not_allowed", Param: "Guard-Target", Retry: &no,
			Message: "Guard-Target is below the target of no step; add a step with such a target to guard.forward in the configuration"}
	}
	if o.step = path; own != nil {
		o.step = own.Step
	}
	u.RawQuery = joinedQuery(u.RawQuery, query)
	o.target = u
	return checkStep(o.step)
}

// below tells whether u has prefix for a prefix, up to the end of a segment.
func below(prefix, u *url.URL) bool {
	if prefix.Scheme != u.Scheme || !strings.EqualFold(prefix.Hostname(), u.Hostname()) || portOf(prefix) != portOf(u) {
		return false
	}
	rest, ok := strings.CutPrefix(u.EscapedPath(), strings.TrimSuffix(prefix.EscapedPath(), "/"))
	return ok && (rest == "" || rest[0] == '/')
}

func portOf(u *url.URL) string {
	if port := u.Port(); port != "" || u.Scheme != "https" {
		return or(port, "80")
	}
	return "443"
}

// escapes tells whether some server may take a decoded path for one that leads
// out of where it begins.
func escapes(path string) bool {
	path = strings.ReplaceAll(path, `\`, "/")
	if strings.Contains(strings.ToLower(path), "%2e") {
		return true
	}
	for segment := range strings.SplitSeq(path, "/") {
		segment, _, _ = strings.Cut(segment, ";") // some servers cut parameters off first
		if segment == "." || segment == ".." {
			return true
		}
	}
	return strings.ContainsFunc(path, func(r rune) bool { return r < ' ' || r == 0x7f })
}

func joined(prefix, rest string) string { return strings.TrimSuffix(prefix, "/") + rest }

func joinedQuery(a, b string) string {
	if a != "" && b != "" {
		return a + "&" + b
	}
	return a + b
}

// withoutParameter leaves the rest of a query as it was written.
func withoutParameter(query, name string) string {
	parts := strings.Split(query, "&")
	return strings.Join(slices.DeleteFunc(parts, func(part string) bool {
		key, _, _ := strings.Cut(part, "=")
		decoded, err := url.QueryUnescape(key)
		return err == nil && decoded == name
	}), "&")
}

// read reads the whole body and the headers for the guard.
func (c *forwardCall) read(w http.ResponseWriter, r *http.Request) (err error) {
	c.body, err = io.ReadAll(http.MaxBytesReader(w, r.Body, maxForwardBody))
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		return &Problem{Status: http.StatusRequestEntityTooLarge, Code: "body_too_large", Retry: &no,
			Message: "The body is larger than 10 MiB, more than is forwarded; nothing was sent"}
	}
	if err != nil {
		return badInput("", "The body broke off while it was read, and nothing was sent; send it again")
	}
	h := controls{header: r.Header}
	c.input = []byte(h.text("Guard-Input"))
	c.occurs, c.namespace = h.text("Guard-Occurrence"), h.text("Guard-Namespace")
	c.onUnknown = parsed(&h, "Guard-On-Unknown", ParseOnUnknown)
	c.drift = parsed(&h, "Guard-Drift", ParseDrift)
	c.explicit = parsed(&h, "Idempotency-Key", ParseIdempotencyKey)
	c.lease, c.retention, c.wait = parsed(&h, "Guard-Lease", parseSpan), parsed(&h, "Guard-Retention", parseSpan), defaultForwardWait
	if h.text("Guard-Wait") != "" {
		c.wait = parsed(&h, "Guard-Wait", parseSpan)
	}
	if c.keyHeader = h.text("Guard-Downstream-Header"); c.keyHeader != "" {
		h.fail("Guard-Downstream-Header", checkDownstreamHeader(c.keyHeader))
	}
	for _, line := range r.Header.Values("Guard-Key-From") {
		for pointer := range strings.SplitSeq(line, ",") {
			c.keyFrom = append(c.keyFrom, strings.TrimSpace(pointer))
		}
	}
	if c.wait > maxWait {
		h.fail("Guard-Wait", fmt.Errorf("it is more than %d seconds", int(maxWait.Seconds())))
	}
	return h.err
}

// controls reads headers and keeps the first error.
type controls struct {
	header http.Header
	err    error
}

func (h *controls) fail(name string, err error) {
	if h.err == nil && err != nil {
		h.err = badInput(name, "The header %s is not usable: %s", name, err)
	}
}

func (h *controls) text(name string) string {
	v, err := one(h.header, name)
	if h.err == nil {
		h.err = err
	}
	return v
}

func parsed[T any](h *controls, name string, parse func(string) (T, error)) (v T) {
	text := h.text(name)
	if text == "" {
		return v
	}
	v, err := parse(text)
	h.fail(name, err)
	return v
}

// one is the value of a header that may be sent once. Sent empty, it is what is
// left of an expression that found nothing: without its key or occurrence, other
// work would be taken for the same.
func one(h http.Header, name string) (string, error) {
	values := h.Values(name)
	switch {
	case len(values) == 0:
		return "", nil
	case len(values) > 1:
		return "", badInput(name, "The header %s is sent %d times; send it once", name, len(values))
	}
	text := strings.TrimSpace(values[0])
	if text == "" {
		return "", badInput(name, "The header %s is sent empty; send a value or leave it out", name)
	}
	return text, nil
}

// parseSpan reads seconds, or a number with a unit: 90, 1.5, 90s, 5m, 720h.
func parseSpan(text string) (time.Duration, error) {
	if n, err := strconv.ParseFloat(text, 64); err == nil && n >= 0 && n < 1e9 {
		return time.Duration(n * float64(time.Second)), nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, errors.New("send seconds, or a number with s, m or h")
	}
	return d, nil
}

// isToken tells whether text can be a header's or a method's name.
func isToken(text string) bool {
	return text != "" && len(text) <= maxTextLength && made(text, "!#$%&'*+-.^_`|~")
}

// checkDownstreamHeader tells why a key can't be sent in a header.
func checkDownstreamHeader(name string) error {
	canonical := http.CanonicalHeaderKey(name)
	taken := canonical != "Idempotency-Key" && notForwarded[canonical] || strings.HasPrefix(canonical, "Guard-") ||
		slices.Contains([]string{"Authorization", "Cookie", "Content-Type", "Content-Encoding"}, canonical)
	if !isToken(name) || taken {
		return fmt.Errorf("%.80q is no header to send a key in; name one like Idempotency-Key", name)
	}
	return nil
}

// beginning makes the begin of a call. Its error is an [*InputError].
func (f *Forwarder) beginning(c *forwardCall) (*beginning, error) {
	b := &beginning{step: f.step(c.route, c.step)}
	work, err := f.work(c)
	if err != nil {
		return nil, err
	}
	derived, err := work.Derive(f.Guard.KeySecret)
	if err != nil {
		return nil, err
	}
	if c.route.Probe != nil {
		b.step.Probe = f.prober(c)
	}
	req := Request{Work: work, Mode: ModeForward, OnUnknown: c.onUnknown, Lease: c.lease, Retention: c.retention, Drift: c.drift}
	if f.Instance != nil {
		req.Instance = f.Instance()
	}
	b.id, b.claim.Begin = derived.ID, req.event(&b.step, derived.Fingerprint)
	if b.claim.Policy.Lease < minForwardLease.Milliseconds() {
		return nil, badInput("Guard-Lease", "The lease is shorter than %d s, of which the last %d are kept free; give the call the time it needs",
			int(minForwardLease.Seconds()), int(leaseMargin.Seconds()))
	}
	return b, b.claim.check()
}

// work says what the key of a call is made of.
func (f *Forwarder) work(c *forwardCall) (Work, error) {
	w := Work{Tenant: c.tenant, Namespace: c.namespace, Step: c.step, Occurrence: c.occurs, Explicit: c.explicit}
	w.FingerprintInput = c.identity()
	pointers := c.keyFrom
	if len(pointers) == 0 {
		pointers = c.route.Select
	}
	switch {
	case c.explicit != "":
	case len(c.input) > 0:
		w.Input = c.input
	case len(pointers) > 0:
		var err error
		if w.Input, err = selectedFrom(c.body, pointers); err != nil {
			return w, err
		}
	default:
		w.Input = w.FingerprintInput
		if _, told := f.warned.LoadOrStore(c.step, nil); !told {
			f.log().Warn("the key of a forwarded call is made of the whole request: a text that a model words anew makes it other work. Configure select, or send Guard-Key-From, Guard-Input or Idempotency-Key", "step", c.step)
		}
	}
	return w, nil
}

// identity is a call's method, URL and body as JSON of bounded size. The body
// stands there as its hash: in canonical form where it is JSON that has one, so
// that its spelling does not matter, else as it is.
func (c *forwardCall) identity() []byte {
	kind, canonical := "json", c.body
	text, err := canonicalInput("body", c.body)
	if canonical = text; err != nil {
		kind, canonical = "bytes", c.body
	}
	sum := sha256.Sum256(canonical)
	b := append(appendString([]byte(`{"body":`), kind+":"+hex.EncodeToString(sum[:])), `,"method":`...)
	b = append(appendString(b, c.method), `,"target":`...)
	return append(appendString(b, c.target.String()), '}')
}

// selectedFrom is the canonical JSON of the object that pointers select from a
// body. It makes the key that a begin with the same select makes.
func selectedFrom(body []byte, pointers []string) ([]byte, error) {
	selectors, err := parseSelectors(pointers)
	if err != nil {
		return nil, err
	}
	v, err := parseJSON(body)
	if err != nil {
		if input, ok := errors.AsType[*InputError](err); ok {
			input.Message += ". The key is selected from the body, which must be JSON; for other bodies send Guard-Input or Idempotency-Key"
		}
		return nil, err
	}
	object, err := selected(&v, selectors)
	if err != nil {
		return nil, err
	}
	return appendCanonical(nil, &object)
}
