package guard

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestAForwardedCallIsReplayed(t *testing.T) {
	body := `{"id":"r1","n":1.0,"ü":"<&>"}` + "\n\x00\xff"
	d := newTarget(t, func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		h.Set("Content-Type", "application/x-thing")
		h.Set("Location", "/rows/1")
		h.Set("X-Request-Id", "req-1")
		h.Set("Set-Cookie", "session=1")
		h.Set("X-RateLimit-Remaining", "7")
		h.Set("Guard-Key", "forged")
		h.Set("Idempotent-Replayed", "true")
		w.WriteHeader(http.StatusCreated)
		io.WriteString(w, body)
	})
	f := forward(t, newGuard(t), routeTo(t, d.URL+"/v1?a=1"))
	send := func() *forwardedAnswer {
		a, err := f.do(t.Context(), http.MethodPut, forwardBase+"row/rows/a%2Fb?c=%20d", `{"x":1}`)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	first, second := send(), send()
	for name, a := range map[string]*forwardedAnswer{"first": first, "second": second} {
		a.is(t, 201, "completed", "")
		if a.body != body {
			t.Errorf("the %s body is %q", name, a.body)
		}
		for header, want := range map[string]string{"Content-Type": "application/x-thing", "Location": "/rows/1", "X-Request-Id": "req-1",
			"Guard-Fence": "1", "Guard-Truncated": "", "Guard-Drift": ""} {
			if got := a.header.Get(header); got != want {
				t.Errorf("%s: %s is %q, want %q", name, header, got, want)
			}
		}
		if at, err := time.Parse(time.RFC3339, a.header.Get("Guard-Completed-At")); err != nil || time.Since(at) > time.Hour {
			t.Errorf("%s: completed at %v, %v", name, at, err)
		}
		if _, err := ParseKey(a.header.Get("Guard-Key")); err != nil || len(a.header.Values("Guard-Key")) != 1 {
			t.Errorf("%s: keys %q", name, a.header.Values("Guard-Key"))
		}
	}
	if first.header.Get("Idempotent-Replayed") != "" || first.header.Get("Guard-Attempt") != "1" || first.header.Get("Set-Cookie") == "" || first.header.Get("X-Ratelimit-Remaining") != "7" {
		t.Errorf("the first answer did not come as received: %v", first.header)
	}
	if second.header.Get("Idempotent-Replayed") != "true" || second.header.Get("Set-Cookie") != "" || second.header.Get("X-Ratelimit-Remaining") != "" {
		t.Errorf("the replay has the headers %v", second.header)
	}
	got := d.got()
	if len(got) != 1 || got[0].method != "PUT" || got[0].uri != "/v1/rows/a%2Fb?a=1&c=%20d" || got[0].body != `{"x":1}` {
		t.Errorf("the downstream got %+v", got)
	}
}

func TestWhatTheDownstreamGets(t *testing.T) {
	for format, spelt := range map[string]func(Key) string{"": Key.String, "hex": Key.String, "uuid": Key.UUID,
		"sf": func(k Key) string { return `"` + k.String() + `"` }} {
		t.Run("format "+format, func(t *testing.T) {
			d := newTarget(t, nil)
			rt := routeTo(t, d.URL)
			rt.Idempotency = &DownstreamIdempotency{Header: "Idempotency-Key", Format: format}
			f := forward(t, newGuard(t), rt)
			a := f.post(`{"a":1}`, "Authorization", "Bearer downstream", "Content-Type", "application/json", "X-Thing", "1", "X-Thing", "2",
				"Cookie", "c=1", "Idempotency-Key", "mine", "Guard-Occurrence", "o", "Guard-Namespace", "n", "Guard-On-Unknown", "hold",
				"Guard-Lease", "20", "Guard-Wait", "5s", "Guard-Drift", "replay", "Guard-Retention", "24h", "Guard-Key-From", "/a",
				"Guard-Input", `{"z":1}`, "Guard-Downstream-Header", "X-Once", "Guard-Work", "w", "Guard-Fence", "99",
				"Connection", "X-Hop", "X-Hop", "1", "X-Forwarded-For", "10.0.0.1", "Accept-Encoding", "gzip", "Te", "trailers")
			a.is(t, 201, "completed", "r1")
			key, err := ParseKey(a.header.Get("Guard-Key"))
			if err != nil {
				t.Fatal(err)
			}
			got := d.got()[0].header
			want := http.Header{"Authorization": {"Bearer downstream"}, "Content-Type": {"application/json"}, "X-Thing": {"1", "2"}, "Cookie": {"c=1"},
				"Idempotency-Key": {spelt(key)}, "X-Once": {spelt(key)}, "Guard-Fence": {"1"}, "Content-Length": {"7"}, "Connection": {"close"},
				"User-Agent": {"Go-http-client/1.1"}} // of the test's client
			for name := range got {
				if !slices.Equal(got[name], want[name]) {
					t.Errorf("%s: %q, want %q", name, got[name], want[name])
				}
			}
			if len(got) != len(want) {
				t.Errorf("got %v, want %v", got, want)
			}
		})
	}
}

// TestWhatAKeyIsMadeOf holds the precedence: the key, the given input, what is
// selected, everything.
func TestWhatAKeyIsMadeOf(t *testing.T) {
	d := newTarget(t, nil)
	g := newGuard(t)
	all := func(method, uri, body string) []byte {
		o := outbound{method: method, target: must(t)(url.Parse(d.URL + uri))}
		return (&forwardCall{outbound: &o, body: []byte(body)}).identity()
	}
	cases := []struct {
		name    string
		selects []string
		body    string
		headers []string
		work    Work
	}{
		{"everything", nil, `{"b": 2, "a":1}`, nil, Work{Input: all("POST", "", `{"a":1,"b":2}`)}},
		{"everything, not JSON", nil, `a=1&b=2`, nil, Work{Input: all("POST", "", `a=1&b=2`)}},
		{"everything, a number that JSON readers do not keep", nil, `{"id":9007199254740993}`, nil, Work{Input: all("POST", "", `{"id":9007199254740993}`)}},
		{"everything, empty", nil, ``, nil, Work{Input: all("POST", "", ``)}},
		{"select", []string{"/a", "/o/b|trim|lower"}, `{"a":1,"o":{"b":" X "},"text":"any"}`, nil, Work{Input: []byte(`{"/a":1,"/o/b":"x"}`)}},
		{"select as begin does", []string{"/a"}, `{"a":1,"text":"any"}`, nil, Work{Input: []byte(`{"a":1,"more":2}`), Select: []string{"/a"}}},
		{"key from", []string{"/a"}, `{"a":1,"c":"x","d":null}`, []string{"Guard-Key-From", "/c, /d", "Guard-Key-From", "/e?"}, Work{Input: []byte(`{"/c":"x","/d":null}`)}},
		{"input", []string{"/a"}, `{"a":1}`, []string{"Guard-Input", `{"order": "ü"}`, "Guard-Key-From", "/a"}, Work{Input: []byte(`{"order":"ü"}`)}},
		{"explicit", []string{"/a"}, `{"a":1}`, []string{"Idempotency-Key", `k-1`, "Guard-Input", `{"order":1}`}, Work{Explicit: "k-1"}},
		{"explicit, quoted", nil, `not JSON`, []string{"Idempotency-Key", `"k-1"`}, Work{Explicit: "k-1"}},
		{"occurrence and namespace", []string{"/a"}, `{"a":1}`, []string{"Guard-Occurrence", "2026-W05", "Guard-Namespace", "prod"},
			Work{Input: []byte(`{"/a":1}`), Occurrence: "2026-W05", Namespace: "prod"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			rt := routeTo(t, d.URL)
			rt.Select = c.selects
			f := forward(t, g, rt)
			c.work.Tenant, c.work.Step = "acme", "row"
			want, err := c.work.Derive(nil)
			if err != nil {
				t.Fatal(err)
			}
			if a := f.post(c.body, c.headers...); a.header.Get("Guard-Key") != want.ID.Key.String() || a.header.Get("Guard-State") != "completed" {
				t.Errorf("got %d, %s, key %s, want %s", a.status, a.body, a.header.Get("Guard-Key"), want.ID.Key)
			}
		})
	}
}

func must(t *testing.T) func(*url.URL, error) *url.URL {
	return func(u *url.URL, err error) *url.URL {
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
}

func TestDriftOfForwardedCalls(t *testing.T) {
	d := newTarget(t, nil)
	rt := routeTo(t, d.URL)
	rt.Select = []string{"/id"}
	f := forward(t, newGuard(t), rt)
	f.post(`{"id":1,"text":"hello"}`).is(t, 201, "completed", "r1")
	if a := f.post(`{"text":"hello","id":1}`); a.header.Get("Guard-Drift") != "" || a.header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("the same in another spelling: %v", a.header)
	}
	if a := f.post(`{"id":1,"text":"hi there"}`); a.header.Get("Guard-Drift") != "true" || a.header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("another text: %v", a.header)
	}
	f.post(`{"id":1,"text":"hi there"}`, "Guard-Drift", "reject").is(t, 422, "completed", "input_mismatch")
	f.post(`{"id":1}`, "Idempotency-Key", "k").is(t, 201, "completed", "r1")
	f.post(`{"id":2}`, "Idempotency-Key", "k").is(t, 422, "completed", "input_mismatch")
	if n := len(d.got()); n != 2 {
		t.Errorf("%d requests downstream, want 2", n)
	}
}

// TestRequestsThatAreRefused sends what must not reach the downstream.
func TestRequestsThatAreRefused(t *testing.T) {
	d := newTarget(t, nil)
	row := routeTo(t, d.URL+"/v1")
	row.Methods = []string{"POST", "GET"}
	selecting := routeTo(t, d.URL)
	selecting.Step, selecting.Select = "select", []string{"/id"}
	f := forward(t, newGuard(t), row, selecting)
	cases := []struct {
		name, method, path, body string
		headers                  []string
		status                   int
		code                     string
	}{
		{"no proxy key", "POST", "row", "{}", []string{"Guard-Authorization", "-", "Authorization", "Bearer acme"}, 401, "invalid_api_key"},
		{"the key in the query", "POST", "row?guard_key=acme", "{}", []string{"Guard-Authorization", "-"}, 401, "Guard-Authorization"},
		{"no scope", "POST", "row", "{}", []string{"Guard-Authorization", "-", "Guard-Authorization", "Bearer reader"}, 403, "forbidden"},
		{"no scope, reading", "GET", "row", "", []string{"Guard-Authorization", "-", "Guard-Authorization", "Bearer reader"}, 403, "forbidden"},
		{"unknown step", "POST", "rows", "{}", nil, 404, "unknown_step"},
		{"method", "DELETE", "row", "", nil, 405, "method_not_allowed"},
		{"TRACE", "TRACE", "select", "", nil, 405, "method_not_allowed"},
		{"misspelt header", "POST", "row", "{}", []string{"Guard-Occurence", "1"}, 400, "Guard-Occurence"},
		{"empty occurrence", "POST", "row", "{}", []string{"Guard-Occurrence", ""}, 400, "sent empty"},
		{"empty key", "POST", "row", "{}", []string{"Idempotency-Key", " "}, 400, "sent empty"},
		{"empty key from", "POST", "row", "{}", []string{"Guard-Key-From", ""}, 400, "invalid_request"},
		{"two keys", "POST", "row", "{}", []string{"Idempotency-Key", "a", "Idempotency-Key", "b"}, 400, "2 times"},
		{"lease too short", "POST", "row", "{}", []string{"Guard-Lease", "5"}, 400, "Guard-Lease"},
		{"lease too long", "POST", "row", "{}", []string{"Guard-Lease", "2h"}, 400, "lease"},
		{"lease", "POST", "row", "{}", []string{"Guard-Lease", "soon"}, 400, "Guard-Lease"},
		{"wait too long", "POST", "row", "{}", []string{"Guard-Wait", "56"}, 400, "Guard-Wait"},
		{"wait", "POST", "row", "{}", []string{"Guard-Wait", "-1"}, 400, "Guard-Wait"},
		{"retention", "POST", "row", "{}", []string{"Guard-Retention", "0.5"}, 400, "retention"},
		{"policy", "POST", "row", "{}", []string{"Guard-On-Unknown", "pray"}, 400, "Guard-On-Unknown"},
		{"drift", "POST", "row", "{}", []string{"Guard-Drift", "maybe"}, 400, "Guard-Drift"},
		{"namespace", "POST", "row", "{}", []string{"Guard-Namespace", "a/b"}, 400, "namespace"},
		{"downstream header", "POST", "row", "{}", []string{"Guard-Downstream-Header", "Content-Length"}, 400, "Guard-Downstream-Header"},
		{"downstream header, not one", "POST", "row", "{}", []string{"Guard-Downstream-Header", "a b"}, 400, "Guard-Downstream-Header"},
		{"downstream header, credential", "POST", "row", "{}", []string{"Guard-Downstream-Header", "authorization"}, 400, "Guard-Downstream-Header"},
		{"input", "POST", "row", "{}", []string{"Guard-Input", "{"}, 400, "invalid_request"},
		{"empty input", "POST", "row", "{}", []string{"Guard-Input", "{}"}, 400, "key_required"},
		{"input with an unsafe number", "POST", "row", "{}", []string{"Guard-Input", `{"id":9007199254740993}`}, 400, "unsafe_number"},
		{"selection missing", "POST", "select", `{"idd":1}`, nil, 400, "missing_key_field"},
		{"selection null", "POST", "select", `{"id":null}`, nil, 400, "missing_key_field"},
		{"selection unsafe", "POST", "select", `{"id":9007199254740993}`, nil, 400, "unsafe_number"},
		{"selection twice", "POST", "select", `{"id":1,"id":2}`, nil, 400, "duplicate_member"},
		{"selection from a form", "POST", "select", `id=1`, nil, 400, "Guard-Input or Idempotency-Key"},
		{"dots", "POST", "row/%2e%2e/admin", "{}", nil, 400, "invalid_request"},
		{"dots and slashes", "POST", "row/x%2f..%2f..%2fadmin", "{}", nil, 400, "invalid_request"},
		{"dots and backslashes", "POST", "row/x%5c..%5cadmin", "{}", nil, 400, "invalid_request"},
		{"dots encoded twice", "POST", "row/%252e%252e/admin", "{}", nil, 400, "invalid_request"},
		{"dots with a parameter", "POST", "row/..;x=1/admin", "{}", nil, 400, "invalid_request"},
		{"dots, reading", "GET", "row/%2e%2e/admin", "", nil, 400, "invalid_request"},
		{"large", "POST", "row", strings.Repeat("x", maxForwardBody+1), nil, 413, "body_too_large"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			a, err := f.do(t.Context(), c.method, forwardBase+c.path, c.body, c.headers...)
			if err != nil {
				t.Fatal(err)
			}
			if a.status != c.status || !strings.Contains(a.body, c.code) {
				t.Errorf("got %d %s, want %d %s", a.status, a.body, c.status, c.code)
			}
			if !strings.Contains(a.header.Get("Content-Type"), "problem+json") {
				t.Errorf("Content-Type: %s", a.header.Get("Content-Type"))
			}
		})
	}
	if got := d.got(); len(got) > 0 {
		t.Errorf("the downstream got %+v", got)
	}
	effects, _, err := f.Guard.List(t.Context(), Query{NS: "acme/default"})
	if err != nil || len(effects) > 0 {
		t.Errorf("there are records: %+v, %v", effects, err)
	}
}

func TestALineBreakInAHeader(t *testing.T) {
	f := &Forwarder{Guard: newGuard(t), Routes: []Route{routeTo(t, "http://127.0.0.1")}, Identify: everyone}
	if err := f.Check(); err != nil {
		t.Fatal(err)
	}
	for _, v := range []string{"a\r\nX: 1", "a\nb", "a\x00b", "\r"} {
		r, err := http.NewRequest(http.MethodPost, forwardBase+"row", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header["X-Thing"] = []string{"fine", v}
		if _, err := f.outbound(r); err == nil || !strings.Contains(err.Error(), "line break") {
			t.Errorf("%q: %v", v, err)
		}
	}
}

func TestTheKeyInTheQuery(t *testing.T) {
	d := newTarget(t, nil)
	f := forward(t, newGuard(t), routeTo(t, d.URL))
	f.KeyInQuery = true
	a, err := f.do(t.Context(), "POST", forwardBase+"row?a=%7e&guard_key=acme&b", "{}", "Guard-Authorization", "-")
	if err != nil {
		t.Fatal(err)
	}
	a.is(t, 201, "completed", "r1")
	if uri := d.got()[0].uri; uri != "/?a=%7e&b" {
		t.Errorf("the downstream got %s", uri)
	}
	if a, err = f.do(t.Context(), "POST", forwardBase+"row?guard%5Fkey=nobody", "{}", "Guard-Authorization", "-"); err != nil || a.status != 201 {
		t.Fatalf("another tenant: %v, %v", a, err)
	}
	if uri := d.got()[1].uri; uri != "/" {
		t.Errorf("the downstream got %s", uri)
	}
}

// TestGuardTarget holds that a client chooses among configured places only.
func TestGuardTarget(t *testing.T) {
	d := newTarget(t, nil)
	narrow, wide := routeTo(t, d.URL+"/v1/rows"), routeTo(t, d.URL+"/v1/")
	wide.Step = "any/thing"
	f := forward(t, newGuard(t), narrow, wide)
	host := strings.TrimPrefix(d.URL, "http://")
	_, port, _ := strings.Cut(host, ":")
	cases := []struct {
		step, target, query string
		uri                 string // that the downstream gets; empty: refused
		code                string
	}{
		{"row", d.URL + "/v1/rows", "", "/v1/rows", ""},
		{"row", d.URL + "/v1/rows/7?x=1", "?y=2", "/v1/rows/7?x=1&y=2", ""},
		{"row", d.URL + "/v1/users", "", "/v1/users", ""}, // allowed by the other step
		{"unnamed/step", d.URL + "/v1/users", "", "/v1/users", ""},
		{"any/thing", d.URL + "/v1/x", "", "/v1/x", ""},
		{"row", strings.ToUpper(d.URL[:4]) + d.URL[4:] + "/v1/rows", "", "/v1/rows", ""},
		{"row", d.URL + "/v2", "", "", "target_not_allowed"},
		{"row", d.URL, "", "", "target_not_allowed"},
		{"row", d.URL + "/v1x", "", "", "target_not_allowed"},
		{"row", d.URL + "/v1/rows/../../admin", "", "", "invalid_request"},
		{"row", d.URL + "/v1/rows/%2e%2e/%2E./admin", "", "", "invalid_request"},
		{"row", d.URL + "/v1/rows/..%2f..%2fadmin", "", "", "invalid_request"},
		{"row", "https://" + host + "/v1/rows", "", "", "target_not_allowed"},
		{"row", "http://localhost:" + port + "/v1/rows", "", "", "target_not_allowed"},
		{"row", "http://127.0.0.1/v1/rows", "", "", "target_not_allowed"},
		{"row", "http://" + host + ".evil.example/v1/rows", "", "", "invalid_request"},
		{"row", "http://evil@" + host + "/v1/rows", "", "", "invalid_request"},
		{"row", "http://" + host + "@evil.example/v1/rows", "", "", "invalid_request"},
		{"row", d.URL + "/v1/rows#x", "", "", "invalid_request"},
		{"row", "//" + host + "/v1/rows", "", "", "target_not_allowed"},
		{"row", "/v1/rows", "", "", "invalid_request"},
		{"row", "file:///etc/passwd", "", "", "invalid_request"},
		{"row", "gopher://" + host + "/v1/rows", "", "", "target_not_allowed"},
		{"row", "http://169.254.169.254/latest", "", "", "target_not_allowed"},
		{"row/7", d.URL + "/v1/rows", "", "", "Say the path once"},
		{"bad step", d.URL + "/v1/rows", "", "", "step"},
	}
	for i, c := range cases {
		for _, method := range []string{"POST", "GET"} {
			before := len(d.got())
			a, err := f.do(t.Context(), method, forwardBase+strings.ReplaceAll(c.step, " ", "%20")+c.query, fmt.Sprint(i), "Guard-Target", c.target)
			if err != nil {
				t.Fatal(err)
			}
			got := d.got()[before:]
			switch {
			case c.uri == "" && (len(got) > 0 || !strings.Contains(a.body, c.code)):
				t.Errorf("%s %s: %d %s, want %s; the downstream got %+v", method, c.target, a.status, a.body, c.code, got)
			case c.uri != "" && (len(got) != 1 || got[0].uri != c.uri):
				t.Errorf("%s %s: %d %s; the downstream got %+v, want %s", method, c.target, a.status, a.body, got, c.uri)
			}
		}
	}
}

func TestThePathAfterTheStep(t *testing.T) {
	d := newTarget(t, nil)
	f := forward(t, newGuard(t), routeTo(t, d.URL+"/v1/"), Route{Step: "row/deep", Target: must(t)(url.Parse(d.URL + "/deep?k=1")), AllowPrivate: true, Lease: 30 * time.Second})
	for path, want := range map[string]string{"row": "/v1/", "row/": "/v1/", "row/a//b": "/v1/a//b", "row/a%20b?q": "/v1/a%20b?q", "row/deep": "/deep?k=1",
		"row/deep/er?": "/deep/er?k=1", "row/deeper": "/v1/deeper", "row/a:b;c=1,d": "/v1/a:b;c=1,d", "row/%E2%82%AC": "/v1/%E2%82%AC"} {
		before := len(d.got())
		if _, err := f.do(t.Context(), "PATCH", forwardBase+path, `{"path":"`+path+`"}`); err != nil {
			t.Fatal(err)
		}
		if got := d.got()[before:]; len(got) != 1 || got[0].uri != want {
			t.Errorf("%s: %+v, want %s", path, got, want)
		}
	}
}

func TestReadingPassesThrough(t *testing.T) {
	release := make(chan struct{})
	d := newTarget(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Set-Cookie", "a=b")
		w.Header().Set("Guard-State", "forged")
		if r.Method == http.MethodGet {
			io.WriteString(w, "first ")
			w.(http.Flusher).Flush()
			<-release
			io.WriteString(w, "second")
		}
	})
	f := forward(t, newGuard(t), routeTo(t, d.URL))
	req, err := http.NewRequest(http.MethodGet, f.url+forwardBase+"row/x?y", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header = http.Header{"Guard-Authorization": {"Bearer acme"}, "Authorization": {"Bearer downstream"}, "X-Thing": {"1"}, "Connection": {"Upgrade"}, "Upgrade": {"websocket"}}
	res, err := f.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	part := make([]byte, 6)
	if _, err := io.ReadFull(res.Body, part); err != nil || string(part) != "first " {
		t.Fatalf("read %q, %v before the answer's end", part, err)
	}
	close(release)
	if rest, err := io.ReadAll(res.Body); err != nil || string(rest) != "second" {
		t.Errorf("read %q, %v", rest, err)
	}
	if res.Header.Get("Guard-Key") != "" || res.Header.Get("Guard-State") != "" || res.Header.Get("Set-Cookie") != "a=b" {
		t.Errorf("headers %v", res.Header)
	}
	got := d.got()[0]
	if got.uri != "/x?y" || got.header.Get("Authorization") != "Bearer downstream" || got.header.Get("X-Thing") != "1" ||
		got.header.Get("Guard-Authorization") != "" || got.header.Get("Upgrade") != "" || got.header.Get("Guard-Fence") != "" {
		t.Errorf("the downstream got %+v", got)
	}
	for _, method := range []string{http.MethodHead, http.MethodOptions} {
		for range 2 {
			if a, err := f.do(t.Context(), method, forwardBase+"row", ""); err != nil || a.status != 200 {
				t.Errorf("%s: %v, %v", method, a, err)
			}
		}
	}
	if n := len(d.got()); n != 5 {
		t.Errorf("%d requests downstream, want 5: none is replayed", n)
	}
	if effects, _, err := f.Guard.List(t.Context(), Query{NS: "acme/default"}); err != nil || len(effects) > 0 {
		t.Errorf("there are records: %+v, %v", effects, err)
	}
}

func TestRoutesThatAreWrong(t *testing.T) {
	good := func() Route { return routeTo(t, "https://api.example.com/v1") }
	cases := map[string]func(*Route){
		"no step":              func(r *Route) { r.Step = "" },
		"step":                 func(r *Route) { r.Step = "a b" },
		"no target":            func(r *Route) { r.Target = nil },
		"scheme":               func(r *Route) { r.Target = must(t)(url.Parse("ftp://api.example.com")) },
		"no host":              func(r *Route) { r.Target = must(t)(url.Parse("https:///v1")) },
		"password":             func(r *Route) { r.Target = must(t)(url.Parse("https://a:b@api.example.com")) },
		"dots":                 func(r *Route) { r.Target = must(t)(url.Parse("https://api.example.com/a/../b")) },
		"metadata":             func(r *Route) { r.Target = must(t)(url.Parse("http://169.254.169.254")) },
		"private":              func(r *Route) { r.Target, r.AllowPrivate = must(t)(url.Parse("http://10.0.0.1")), false },
		"lease":                func(r *Route) { r.Lease = 5 * time.Second },
		"policy":               func(r *Route) { r.OnUnknown = 9 },
		"probe without one":    func(r *Route) { r.OnUnknown = Probe },
		"select":               func(r *Route) { r.Select = []string{"id"} },
		"method":               func(r *Route) { r.Methods = []string{"post"} },
		"status":               func(r *Route) { r.DoneStatuses = []int{102} },
		"status twice":         func(r *Route) { r.DoneStatuses, r.NoneStatuses = []int{409}, []int{409} },
		"header test":          func(r *Route) { r.Headers = []HeaderTest{{Name: "transient error", Outcome: OutcomeNone}} },
		"header test, outcome": func(r *Route) { r.Headers = []HeaderTest{{Name: "X-A"}} },
		"body test":            func(r *Route) { r.DoneIf = []BodyTest{{"ok", "true"}} },
		"body test, value":     func(r *Route) { r.NoneIf = []BodyTest{{"/ok", "yes"}} },
		"idempotency":          func(r *Route) { r.Idempotency = &DownstreamIdempotency{Header: "Host"} },
		"idempotency, format":  func(r *Route) { r.Idempotency = &DownstreamIdempotency{Header: "X-Key", Format: "base64"} },
		"probe, no URL":        func(r *Route) { r.Probe = &DownstreamProbe{} },
		"probe, open":          func(r *Route) { r.Probe = &DownstreamProbe{URL: "https://api.example.com/{key"} },
		"probe, name":          func(r *Route) { r.Probe = &DownstreamProbe{URL: "https://api.example.com/{id}"} },
		"probe, host":          func(r *Route) { r.Probe = &DownstreamProbe{URL: "https://{/host}/x"} },
		"probe, host's end":    func(r *Route) { r.Probe = &DownstreamProbe{URL: "https://api.example.com{/host}/x"} },
		"probe, found":         func(r *Route) { r.Probe = &DownstreamProbe{URL: "https://api.example.com", Found: "id"} },
	}
	for name, spoil := range cases {
		rt := good()
		spoil(&rt)
		f := &Forwarder{Guard: newGuard(t), Routes: []Route{rt}, Identify: everyone}
		if err := f.Check(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if f := (&Forwarder{Guard: newGuard(t), Routes: []Route{good(), good()}}); f.Check() == nil {
		t.Error("a step with two routes: no error")
	}
	if f := (&Forwarder{Guard: newGuard(t), Routes: []Route{good()}}); f.Check() != nil {
		t.Error(f.Check())
	}
}

// TestAnAnswerThatIsNoneOfTheDownstreams covers completions that were not made by
// forwarding.
func TestAnAnswerThatIsNoneOfTheDownstreams(t *testing.T) {
	d := newTarget(t, nil)
	g := newGuard(t)
	f := forward(t, g, routeTo(t, d.URL))
	a := mustBegin(t, g, Request{Work: Work{Tenant: "acme", Step: "row", Explicit: "k"}})
	mustDo(t, g, a.ID, Complete{Token: HashToken(a.Token), Result: Result{ResourceID: "m1", Body: []byte(`{"error":null}`)}})
	got := f.post(`{}`, "Idempotency-Key", "k")
	got.is(t, 200, "completed", `"resource_id":"m1"`)
	var body map[string]any
	if err := json.Unmarshal([]byte(got.body), &body); err != nil || got.header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("%v: %v", err, got.header)
	}
	if _, there := body["error"]; there {
		t.Errorf("a success has a top-level error: %s", got.body)
	}

	f.post(`{}`, "Idempotency-Key", "old").is(t, 201, "completed", "r1")
	pass(t, g, 31*24*time.Hour)
	expired := f.post(`{}`, "Idempotency-Key", "old")
	expired.is(t, 410, "completed", "result_expired")
	if expired.header.Get("X-Should-Retry") != "false" || expired.header.Get("Guard-Completed-At") == "" {
		t.Errorf("headers %v", expired.header)
	}
	if n := len(d.got()); n != 1 {
		t.Errorf("%d requests downstream, want 1", n)
	}
	pass(t, g, 400*24*time.Hour)
	f.post(`{}`, "Idempotency-Key", "old").is(t, 201, "completed", "r1")
	if n := len(d.got()); n != 2 {
		t.Errorf("%d requests downstream after the tombstone, want 2", n)
	}
}

func TestOneLineIsLoggedForWholeRequestsAsKeys(t *testing.T) {
	d := newTarget(t, nil)
	f := forward(t, newGuard(t), routeTo(t, d.URL))
	var lines logLines
	f.Log = lines.logger()
	for i := range 3 {
		f.post(fmt.Sprint(i))
	}
	f.post("{}", "Idempotency-Key", "k")
	if err := f.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := lines.count("whole request"); n != 1 {
		t.Errorf("warned %d times, want once", n)
	}
	if n := lines.count("msg=forwarded"); n != 4 {
		t.Errorf("%d lines for 4 calls", n)
	}
}
