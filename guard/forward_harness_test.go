package guard

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"
)

// received is a request as a downstream got it.
type received struct {
	method, uri, host string
	header            http.Header
	body              string
	from              string // the client's address, which names its connection
	proto             int
}

// target is a downstream that answers by a handler and remembers what it got.
type target struct {
	*httptest.Server
	mu       sync.Mutex
	requests []received
	handler  http.HandlerFunc
}

// newTarget answers 201 {"id":"r1"} where handler is nil.
func newTarget(t testing.TB, handler http.HandlerFunc) *target {
	if handler == nil {
		handler = func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusCreated)
			io.WriteString(w, `{"id":"r1"}`)
		}
	}
	d := &target{handler: handler}
	d.Server = httptest.NewServer(d)
	t.Cleanup(d.Close)
	return d
}

func (d *target) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(err)
	}
	d.mu.Lock()
	d.requests = append(d.requests, received{r.Method, r.RequestURI, r.Host, r.Header, string(body), r.RemoteAddr, r.ProtoMajor})
	d.mu.Unlock()
	r.Body = io.NopCloser(bytes.NewReader(body))
	d.handler(w, r)
}

func (d *target) got() []received {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]received(nil), d.requests...)
}

// routeTo forwards step "row" to a URL on this machine.
func routeTo(t testing.TB, to string) Route {
	u, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	return Route{Step: "row", Target: u, AllowPrivate: true, Lease: 30 * time.Second}
}

// forwarder is a Forwarder over real HTTP.
type forwarder struct {
	*Forwarder
	t    testing.TB
	url  string
	http *http.Client
}

func forward(t testing.TB, g *Guard, routes ...Route) *forwarder {
	t.Helper()
	f := &Forwarder{Guard: g, Routes: routes, Identify: everyone}
	if err := f.Check(); err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(f)
	t.Cleanup(func() {
		s.Close()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := f.Wait(ctx); err != nil {
			t.Error(err)
		}
	})
	client := *s.Client()
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &forwarder{f, t, s.URL, &client}
}

// forwardedAnswer is what a client sees of a forwarded call.
type forwardedAnswer struct {
	status int
	header http.Header
	body   string
}

func (a *forwardedAnswer) is(t testing.TB, status int, state, inBody string) {
	t.Helper()
	if a.status != status || a.header.Get("Guard-State") != state || !strings.Contains(a.body, inBody) {
		t.Errorf("got %d, state %q, %.300s\nwant %d, state %q, %s", a.status, a.header.Get("Guard-State"), a.body, status, state, inBody)
	}
}

// do sends a request as the tenant acme; headers are name, value, name, value …
func (f *forwarder) do(ctx context.Context, method, path, body string, headers ...string) (*forwardedAnswer, error) {
	var reader io.Reader
	if body != "" {
		reader = strings.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, f.url+path, reader)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Guard-Authorization", "Bearer acme")
	for i := 0; i < len(headers); i += 2 {
		if headers[i+1] == "-" {
			req.Header.Del(headers[i])
			continue
		}
		req.Header.Add(headers[i], headers[i+1])
	}
	res, err := f.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return &forwardedAnswer{res.StatusCode, res.Header, string(text)}, err
}

// post sends a body to the step "row".
func (f *forwarder) post(body string, headers ...string) *forwardedAnswer {
	f.t.Helper()
	a, err := f.do(f.t.Context(), http.MethodPost, forwardBase+"row", body, headers...)
	if err != nil {
		f.t.Fatal(err)
	}
	return a
}

// record reads the effect of an answer.
func (f *forwarder) record(a *forwardedAnswer) Record {
	f.t.Helper()
	key, err := ParseKey(a.header.Get("Guard-Key"))
	if err != nil {
		f.t.Fatalf("%d %s: %v", a.status, a.body, err)
	}
	found, err := f.Guard.Find(f.t.Context(), ID{"acme/default", key})
	if err != nil {
		f.t.Fatal(err)
	}
	return found.Record
}

// logLines collects a log.
type logLines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logLines) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

func (l *logLines) count(part string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), part)
}
