package proxy

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// Upstream is a provider's endpoint.
type Upstream struct {
	Name              string
	BaseURL           *url.URL    // with or without /v1
	APIKey            string      // empty: the client's own credential goes through
	Models            []string    // globs; * stands for any text
	Header            http.Header // added to each request
	IdempotencyHeader string      // the header in which the call's key is sent, if any
	Retries           int         // further attempts before the first byte of an answer
	RetryConnect      bool        // retry where no connection could be made
	RetryStatuses     []int
	Idle              time.Duration // longest silence between bytes
	Total             time.Duration // longest call
	Transport         http.RoundTripper

	every bool // serves any model
	globs []*regexp.Regexp
}

// Defaults of an upstream's limits.
const (
	DefaultConnect = 10 * time.Second
	DefaultIdle    = 5 * time.Minute
	DefaultTotal   = 15 * time.Minute
)

const (
	maxRetryAfter   = 60 * time.Second // what is passed on to clients
	maxRetryPause   = 20 * time.Second // what a flight itself waits
	firstRetryPause = 250 * time.Millisecond
)

// NewTransport is the transport for real upstreams. It asks for no compression:
// compressed streams come in lumps, and stored bytes are decoded bytes.
func NewTransport(connect time.Duration) *http.Transport {
	dialer := &net.Dialer{Timeout: connect, KeepAlive: 30 * time.Second}
	return &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         dialer.DialContext,
		TLSHandshakeTimeout: connect,
		ForceAttemptHTTP2:   true,
		MaxIdleConns:        1024,
		MaxIdleConnsPerHost: 512,
		IdleConnTimeout:     90 * time.Second,
		DisableCompression:  true,
		WriteBufferSize:     16 << 10,
		ReadBufferSize:      16 << 10,
	}
}

func (u *Upstream) prepare() {
	u.globs, u.every = nil, slices.Contains(u.Models, "*")
	for _, glob := range u.Models {
		parts := strings.Split(glob, "*")
		for i := range parts {
			parts[i] = regexp.QuoteMeta(parts[i])
		}
		u.globs = append(u.globs, regexp.MustCompile("(?s)^"+strings.Join(parts, ".*")+"$"))
	}
}

func (u *Upstream) serves(model string) bool {
	return u.every || slices.ContainsFunc(u.globs, func(g *regexp.Regexp) bool { return g.MatchString(model) })
}

// url joins the base with an escaped path below /v1. A bare host gets /v1, as
// bases are written with and without it.
func (u *Upstream) url(path, query string) string {
	base := strings.TrimRight(u.BaseURL.EscapedPath(), "/")
	if base == "" {
		base = "/v1"
	}
	full := u.BaseURL.Scheme + "://" + u.BaseURL.Host + base + "/" + path
	switch {
	case u.BaseURL.RawQuery != "" && query != "":
		return full + "?" + u.BaseURL.RawQuery + "&" + query
	case u.BaseURL.RawQuery != "" || query != "":
		return full + "?" + u.BaseURL.RawQuery + query
	}
	return full
}

// outbound is one request to an upstream, which may be attempted several times.
type outbound struct {
	method, path, query string
	header              http.Header // the client's
	body                []byte
	stream              io.Reader // instead of body; it can be sent only once
	length              int64     // of stream, -1 where unknown
	key                 string    // sent in IdempotencyHeader
	credentialIsOurs    bool      // the client's credential is a proxy key and must not leave
}

// reply is what came of the attempts of an exchange.
type reply struct {
	*http.Response
	body    io.Reader // decoded
	reached bool      // some attempt had a connection, so the upstream may have worked
	retries int       // attempts after the first
}

// send makes attempts until one answers with anything but a status that may be
// retried. An error says why the last attempt had no answer at all.
func (u *Upstream) send(ctx context.Context, o *outbound) (r reply, err error) {
	for attempt := 0; ; attempt++ {
		r.retries = attempt
		var connected atomic.Bool
		r.Response, err = u.attempt(ctx, o, &connected)
		r.reached = r.reached || connected.Load()
		pause := firstRetryPause << attempt
		pause += time.Duration(rand.Int64N(int64(pause)))
		switch {
		case attempt >= u.Retries || ctx.Err() != nil:
		case err != nil && u.RetryConnect && !connected.Load():
			if wait(ctx, pause) {
				continue
			}
		case err == nil && slices.Contains(u.RetryStatuses, r.StatusCode):
			pause = max(pause, retryAfter(r.Header))
			if pause <= maxRetryPause {
				io.Copy(io.Discard, io.LimitReader(r.Body, 64<<10)) //nolint:errcheck // only to reuse the connection
				r.Body.Close()
				if wait(ctx, pause) {
					continue
				}
				err = context.Cause(ctx)
			}
		}
		break
	}
	if err != nil {
		return r, err
	}
	r.body = decoded(r.Response)
	return r, nil
}

func isGzip(r *http.Response) bool {
	return strings.EqualFold(r.Header.Get("Content-Encoding"), "gzip")
}

// decoded is an answer's body as it was before compression.
func decoded(r *http.Response) io.Reader {
	if isGzip(r) {
		return &gunzip{src: r.Body}
	}
	return r.Body
}

// gunzip decodes from its first Read on, so that nothing is read before.
type gunzip struct {
	src io.Reader
	zr  *gzip.Reader
}

func (g *gunzip) Read(p []byte) (n int, err error) {
	if g.zr == nil {
		if g.zr, err = gzip.NewReader(g.src); err != nil {
			return 0, err
		}
	}
	return g.zr.Read(p)
}

func (u *Upstream) attempt(ctx context.Context, o *outbound, connected *atomic.Bool) (*http.Response, error) {
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }}
	req, err := u.request(httptrace.WithClientTrace(ctx, trace), o)
	if err != nil {
		return nil, err
	}
	resp, err := u.Transport.RoundTrip(req)
	if err == nil {
		connected.Store(true) // an answer proves it, whether the transport reports connections or not
	}
	return resp, err
}

func (u *Upstream) request(ctx context.Context, o *outbound) (*http.Request, error) {
	body := o.stream
	if body == nil {
		body = bytes.NewReader(o.body)
	}
	req, err := http.NewRequestWithContext(ctx, o.method, u.url(o.path, o.query), body)
	if err != nil {
		return nil, err
	}
	if o.stream != nil {
		req.ContentLength = o.length
		if o.length == 0 {
			req.Body = http.NoBody
		}
	}
	req.Header = forwarded(o.header)
	if encoding := o.header.Get("Content-Encoding"); encoding != "" && o.stream != nil {
		req.Header.Set("Content-Encoding", encoding) // the body goes as it comes
	}
	u.authorise(req.Header, o.credentialIsOurs)
	if u.IdempotencyHeader != "" && o.key != "" {
		req.Header.Set(u.IdempotencyHeader, o.key)
		// Without GetBody the transport cannot send a request again by itself,
		// which it otherwise does where an idempotency header is set and a
		// reused connection dies without an answer.
		req.GetBody = nil
	}
	return req, nil
}

// authorise gives a request the upstream's credential, where one is configured,
// and takes the client's away then: it is for somebody else.
func (u *Upstream) authorise(h http.Header, credentialIsOurs bool) {
	if credentialIsOurs || u.APIKey != "" || u.Header.Get("Authorization") != "" || u.Header.Get("Api-Key") != "" {
		h.Del("Authorization")
		h.Del("Api-Key")
	}
	if u.APIKey != "" {
		h.Set("Authorization", "Bearer "+u.APIKey)
	}
	if u.BaseURL.Hostname() != "api.openai.com" {
		h.Del("Openai-Platform") // n8n's word to OpenAI, for nobody else
	}
	for name, values := range u.Header {
		h[http.CanonicalHeaderKey(name)] = slices.Clone(values)
	}
}

// notForwarded are the request headers that end here: hop-by-hop ones, those
// that describe the connection or the body as we received it, and our own.
var notForwarded = map[string]bool{
	"Connection": true, "Proxy-Connection": true, "Keep-Alive": true, "Te": true, "Trailer": true,
	"Transfer-Encoding": true, "Upgrade": true, "Proxy-Authenticate": true, "Proxy-Authorization": true,
	"Accept-Encoding": true, "Content-Encoding": true, "Content-Length": true, "Expect": true, "Host": true,
	"Cache-Control": true, "Pragma": true, "Idempotency-Key": true, "X-Idempotency-Key": true, "Cookie": true, "Forwarded": true,
	"X-Forwarded-For": true, "X-Forwarded-Host": true, "X-Forwarded-Proto": true, "X-Real-Ip": true,
}

func forwarded(h http.Header) http.Header {
	out := make(http.Header, len(h))
	named := h.Values("Connection")
	for name, values := range h {
		switch {
		case notForwarded[name] || name == headerWork || strings.HasPrefix(name, "X-Llmproxy-"):
		case len(values) == 1 && values[0] == "": // n8n sends an empty OpenAI-Organization
		case len(named) > 0 && listed(named, name):
		default:
			out[name] = slices.Clone(values)
		}
	}
	return out
}

func listed(lists []string, name string) bool {
	for _, list := range lists {
		for field := range strings.SplitSeq(list, ",") {
			if strings.EqualFold(strings.TrimSpace(field), name) {
				return true
			}
		}
	}
	return false
}

// retryAfter reads how long an upstream asks to wait, 0 where it does not say.
func retryAfter(h http.Header) time.Duration {
	if ms, err := strconv.ParseFloat(h.Get("Retry-After-Ms"), 64); err == nil && ms > 0 && ms < 1e9 {
		return time.Duration(ms * float64(time.Millisecond))
	}
	value := h.Get("Retry-After")
	if seconds, err := strconv.ParseFloat(value, 64); err == nil && seconds > 0 && seconds < 1e6 {
		return time.Duration(seconds * float64(time.Second))
	}
	if at, err := http.ParseTime(value); err == nil {
		return max(time.Until(at), 0)
	}
	return 0
}

// wait pauses; it is false where ctx ended first.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// errIdle is the cause by which an exchange ends that went silent.
var errIdle = errors.New("upstream was silent for too long")

// idleReader cancels an exchange in which no byte comes for a while.
type idleReader struct {
	r     io.Reader
	timer *time.Timer
	idle  time.Duration
}

func (r *idleReader) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	if n > 0 {
		r.timer.Reset(r.idle)
	}
	return n, err
}
