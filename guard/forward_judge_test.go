package guard

import (
	"errors"
	"net/http"
	"testing"
	"time"
)

// prepared is a route whose texts have been read.
func prepared(t *testing.T, r Route) *forwardRoute {
	t.Helper()
	rt := &forwardRoute{Route: &r}
	if err := rt.prepare(); err != nil {
		t.Fatal(err)
	}
	return rt
}

// TestWhatAStatusMeans covers every status.
func TestWhatAStatusMeans(t *testing.T) {
	want := map[int]Outcome{303: OutcomeDone}
	for status := 200; status < 300; status++ {
		want[status] = OutcomeDone
	}
	for _, status := range []int{301, 302, 307, 308, 400, 401, 402, 403, 404, 405, 406, 409, 410, 411, 413, 414, 415, 417, 421, 422, 426, 428, 429, 431, 451, 501, 505} {
		want[status] = OutcomeNone
	}
	rt := prepared(t, routeTo(t, "https://api.example.com"))
	for status := 200; status < 1000; status++ {
		expected := or(want[status], OutcomeUnknown)
		if got := rt.judge(&observation{status: status, left: true}, false); got != expected {
			t.Errorf("%d is %s, want %s", status, got, expected)
		}
		if status == 409 {
			expected = OutcomeUnknown
		}
		if got := rt.judge(&observation{status: status, left: true}, true); got != expected {
			t.Errorf("%d after an unknown attempt is %s, want %s", status, got, expected)
		}
	}
}

func TestWhatAnAnswerMeans(t *testing.T) {
	slack := Route{NoneIf: []BodyTest{{"/ok", "false"}}}
	strict := Route{DoneIf: []BodyTest{{"/status", `"sent"`}, {"/n", "1"}}, NoneIf: []BodyTest{{"/error", `{"a":[1,null],"b":"x"}`}}}
	listed := Route{DoneStatuses: []int{404}, NoneStatuses: []int{500, 200}, UnknownStatuses: []int{400}, DuplicateStatuses: []int{409}}
	adyen := Route{Headers: []HeaderTest{{"transient-error", "true", OutcomeNone}, {"X-Done", "", OutcomeDone}, {"X-Unsure", "", OutcomeUnknown}}}
	transient := http.Header{"Transient-Error": {"TRUE "}}
	cases := map[string]struct {
		route Route
		o     observation
		want  Outcome
	}{
		"nothing left":                   {Route{}, observation{err: errors.New("refused")}, OutcomeNone},
		"no answer":                      {Route{}, observation{left: true, err: errors.New("EOF")}, OutcomeUnknown},
		"body cut":                       {Route{}, observation{left: true, status: 201, cut: true}, OutcomeDone},
		"slack, not ok":                  {slack, observation{left: true, status: 200, body: []byte(`{"ok":false,"error":"x"}`)}, OutcomeNone},
		"slack, ok":                      {slack, observation{left: true, status: 200, body: []byte(`{"ok":true}`)}, OutcomeDone},
		"slack, plain text":              {slack, observation{left: true, status: 200, body: []byte("ok")}, OutcomeDone},
		"slack, no content":              {slack, observation{left: true, status: 204}, OutcomeDone},
		"slack, cut":                     {slack, observation{left: true, status: 200, body: []byte(`{"ok":`), cut: true}, OutcomeUnknown},
		"slack, an error":                {slack, observation{left: true, status: 500, body: []byte(`{"ok":true}`)}, OutcomeUnknown},
		"strict, done":                   {strict, observation{left: true, status: 200, body: []byte(`{"status":"sent"}`)}, OutcomeDone},
		"strict, a number":               {strict, observation{left: true, status: 200, body: []byte(`{"n":1.0e0}`)}, OutcomeDone},
		"strict, done although an error": {strict, observation{left: true, status: 500, body: []byte(`{"n":1}`)}, OutcomeDone},
		"strict, neither":                {strict, observation{left: true, status: 200, body: []byte(`{"status":"queued"}`)}, OutcomeUnknown},
		"strict, another kind":           {strict, observation{left: true, status: 200, body: []byte(`{"n":"1"}`)}, OutcomeUnknown},
		"strict, not JSON":               {strict, observation{left: true, status: 200, body: []byte(`<html>`)}, OutcomeUnknown},
		"strict, ambiguous JSON":         {strict, observation{left: true, status: 200, body: []byte(`{"n":1,"n":1}`)}, OutcomeUnknown},
		"strict, none":                   {strict, observation{left: true, status: 200, body: []byte(`{"error":{"b":"x","a":[1,null]},"n":1}`)}, OutcomeNone},
		"strict, nearly none":            {strict, observation{left: true, status: 400, body: []byte(`{"error":{"b":"x","a":[1]}}`)}, OutcomeNone}, // by its status
		"listed, done":                   {listed, observation{left: true, status: 404}, OutcomeDone},
		"listed, none":                   {listed, observation{left: true, status: 500}, OutcomeNone},
		"listed, none though a success":  {listed, observation{left: true, status: 200}, OutcomeNone},
		"listed, unknown":                {listed, observation{left: true, status: 400}, OutcomeUnknown},
		"listed, duplicate":              {listed, observation{left: true, status: 409}, OutcomeDone},
		"header, none":                   {adyen, observation{left: true, status: 500, header: transient}, OutcomeNone},
		"header, another value":          {adyen, observation{left: true, status: 500, header: http.Header{"Transient-Error": {"false"}}}, OutcomeUnknown},
		"header, any value":              {adyen, observation{left: true, status: 500, header: http.Header{"X-Done": {""}}}, OutcomeDone},
		"header, unknown":                {adyen, observation{left: true, status: 200, header: http.Header{"X-Unsure": {"1"}}}, OutcomeUnknown},
		"header, absent":                 {adyen, observation{left: true, status: 200}, OutcomeDone},
	}
	for name, c := range cases {
		c.route.Step, c.route.Target = "row", routeTo(t, "https://api.example.com").Target
		if got := prepared(t, c.route).judge(&c.o, false); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

func TestRetryAfterOfADownstream(t *testing.T) {
	cases := map[string]time.Duration{"": 0, "0": 0, "-5": 0, "7": 7 * time.Second, "1.5": 1500 * time.Millisecond, "soon": 0, "NaN": 0,
		"Thu, 01 Jan 2015 00:00:00 GMT": 0, "999999": maxRetryAfter, "1e300": 0}
	for text, want := range cases {
		o := observation{left: true, status: 429, header: http.Header{"Retry-After": {text}}}
		e := o.event(OutcomeNone, TokenHash{}).(Fail)
		if err := e.check(); err != nil || e.RetryAfter != want.Milliseconds() || !e.None {
			t.Errorf("%q: %+v, %v, want %v", text, e, err, want)
		}
	}
	at := time.Now().Add(time.Hour).UTC().Format(http.TimeFormat)
	o := observation{left: true, status: 429, header: http.Header{"Retry-After": {at}}}
	if e := o.event(OutcomeNone, TokenHash{}).(Fail); e.RetryAfter < 3_590_000 || e.RetryAfter > 3_600_000 {
		t.Errorf("%s: %d ms", at, e.RetryAfter)
	}
}

func TestAProbesAnswer(t *testing.T) {
	plain, found := Route{Probe: &DownstreamProbe{URL: "https://api.example.com/{key}"}}, Route{Probe: &DownstreamProbe{URL: "https://api.example.com/{key}", Found: "/rows/0/id"}}
	cases := []struct {
		route  Route
		status int
		body   string
		want   Verdict
		id     string
	}{
		{plain, 200, "", VerdictDone, ""},
		{plain, 404, "", VerdictNotDone, ""},
		{plain, 410, "", VerdictNotDone, ""},
		{plain, 500, "", 0, ""},
		{plain, 401, "", 0, ""},
		{plain, 302, "", 0, ""},
		{found, 200, `{"rows":[{"id":"r7"}]}`, VerdictDone, "r7"},
		{found, 200, `{"rows":[{"id":7}]}`, VerdictDone, "7"},
		{found, 200, `{"rows":[{"id":true}]}`, VerdictDone, ""},
		{found, 200, `{"rows":[{"id":"line\nbreak"}]}`, VerdictDone, ""},
		{found, 200, `{"rows":[]}`, VerdictNotDone, ""},
		{found, 200, `{"rows":[{"id":null}]}`, VerdictNotDone, ""},
		{found, 200, `{"rows":[{"id":false}]}`, VerdictNotDone, ""},
		{found, 200, `{"rows":[{"id":""}]}`, VerdictNotDone, ""},
		{found, 200, `<html>`, 0, ""},
		{found, 404, `{}`, VerdictNotDone, ""},
	}
	for _, c := range cases {
		c.route.Step, c.route.Target = "row", routeTo(t, "https://api.example.com").Target
		verdict, result, err := prepared(t, c.route).verdict(c.status, []byte(c.body))
		if verdict != c.want || result.ResourceID != c.id || (err != nil) != (c.want == 0) {
			t.Errorf("%d %s: %s, %q, %v; want %s, %q", c.status, c.body, verdict, result.ResourceID, err, c.want, c.id)
		}
	}
}
