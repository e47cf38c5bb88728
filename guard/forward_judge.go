package guard

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// observation is what became of a request that may have left.
type observation struct {
	status int // 0: there was no answer
	header http.Header
	body   []byte
	cut    bool  // the body is not whole
	left   bool  // the request, or some of it, may have left
	err    error // why there is no answer, or why it is cut
}

// noneStatuses are those by which a downstream says that it did nothing.
var noneStatuses = []int{
	http.StatusMovedPermanently, http.StatusFound, http.StatusTemporaryRedirect, http.StatusPermanentRedirect,
	400, 401, 402, 403, 404, 405, 406, 410, 411, 413, 414, 415, 417, 421, 422, 426, 428, 429, 431, 451, 501, 505,
}

// statusOutcome is what a status means where nothing is configured for it.
// earlier says that an earlier attempt may have acted.
func statusOutcome(status int, earlier bool) Outcome {
	switch {
	case status >= 200 && status < 300 || status == http.StatusSeeOther:
		return OutcomeDone
	case slices.Contains(noneStatuses, status):
		return OutcomeNone
	case status == http.StatusConflict && !earlier:
		return OutcomeNone // with nothing before it, it can't be our own effect that is in the way
	}
	return OutcomeUnknown
}

func (rt *forwardRoute) statusOutcome(status int, earlier bool) Outcome {
	switch {
	case slices.Contains(rt.DuplicateStatuses, status), slices.Contains(rt.DoneStatuses, status):
		return OutcomeDone
	case slices.Contains(rt.NoneStatuses, status):
		return OutcomeNone
	case slices.Contains(rt.UnknownStatuses, status):
		return OutcomeUnknown
	}
	return statusOutcome(status, earlier)
}

// judge tells what an observation says of the effect.
func (rt *forwardRoute) judge(o *observation, earlier bool) Outcome {
	switch {
	case !o.left:
		return OutcomeNone
	case o.status == 0:
		return OutcomeUnknown
	}
	for _, t := range rt.Headers {
		if t.matches(o.header) {
			return t.Outcome
		}
	}
	by := rt.statusOutcome(o.status, earlier)
	if len(rt.noneIf)+len(rt.doneIf) == 0 {
		return by
	}
	if !o.cut {
		if body, err := parseJSON(o.body); err == nil {
			switch {
			case anyHolds(rt.noneIf, &body):
				return OutcomeNone
			case anyHolds(rt.doneIf, &body):
				return OutcomeDone
			}
		}
	}
	// Where success is told by the body, a status alone does not tell it.
	if by == OutcomeDone && (o.cut || len(rt.doneIf) > 0) {
		return OutcomeUnknown
	}
	return by
}

func (t *HeaderTest) matches(h http.Header) bool {
	return slices.ContainsFunc(h.Values(t.Name), func(v string) bool {
		return t.Value == "" || strings.EqualFold(strings.TrimSpace(v), t.Value)
	})
}

// bodyTest is a BodyTest whose texts have been read.
type bodyTest struct {
	at   selector
	want value
}

func parseBodyTests(tests []BodyTest) (parsed []bodyTest, err error) {
	for _, t := range tests {
		var b bodyTest
		if b.at, err = parsePointer(t.Pointer); err != nil {
			return nil, err
		}
		if b.want, err = parseJSON([]byte(t.Value)); err != nil {
			return nil, fmt.Errorf("the value to expect at %s, %.80q: %w", t.Pointer, t.Value, err)
		}
		parsed = append(parsed, b)
	}
	return parsed, nil
}

func parsePointer(text string) (selector, error) {
	s, err := parseSelector(text)
	if err == nil && (s.optional || len(s.transforms) > 0) {
		err = fmt.Errorf("%.80q is more than a JSON pointer", text)
	}
	return s, err
}

func anyHolds(tests []bodyTest, body *value) bool {
	return slices.ContainsFunc(tests, func(t bodyTest) bool {
		v, ok := t.at.find(body)
		return ok && sameJSON(v, &t.want)
	})
}

// sameJSON compares values, numbers by what they are and members in any order.
func sameJSON(a, b *value) bool {
	if a.kind != b.kind || len(a.items) != len(b.items) || len(a.members) != len(b.members) {
		return false
	}
	switch a.kind {
	case kindString:
		return a.text == b.text
	case kindNumber:
		return decimalOf(a.text) == decimalOf(b.text)
	case kindBool:
		return a.isTrue() == b.isTrue()
	}
	for i := range a.items {
		if !sameJSON(&a.items[i], &b.items[i]) {
			return false
		}
	}
	for i := range a.members {
		other, ok := b.member(a.members[i].name)
		if !ok || !sameJSON(&a.members[i].value, other) {
			return false
		}
	}
	return true
}

// note says for people how an attempt ended.
func (o *observation) note() string {
	switch {
	case o.status == 0:
		return cut(o.err.Error())
	case o.cut:
		return cut(fmt.Sprintf("HTTP %d, its body cut: %v", o.status, o.err))
	}
	return "HTTP " + strconv.Itoa(o.status)
}

// event is the report of an outcome.
func (o *observation) event(outcome Outcome, token TokenHash) Event {
	if outcome == OutcomeDone {
		body := o.body[:min(len(o.body), maxResult)]
		return Complete{Token: token, Result: Result{Status: o.status, Header: storedHeader(o.header), Body: body,
			Truncated: o.cut || len(body) < len(o.body)}}
	}
	e := Fail{Token: token, None: outcome == OutcomeNone, Note: o.note()}
	if e.None && (o.status == http.StatusTooManyRequests || o.status == http.StatusServiceUnavailable) {
		e.RetryAfter = min(retryAfter(o.header), maxRetryAfter).Milliseconds()
	}
	return e
}

// retryAfter reads how long a downstream asks to wait, 0 where it does not say.
func retryAfter(h http.Header) time.Duration {
	text := h.Get("Retry-After")
	if seconds, err := strconv.ParseFloat(text, 64); err == nil && seconds > 0 && seconds < 1e9 {
		return time.Duration(seconds * float64(time.Second))
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(time.Until(at), 0)
	}
	return 0
}

// storedHeaders are the response headers that are kept for replays: what
// describes the body or the resource. Cookies and the like are for one client.
var storedHeaders = map[string]bool{
	"Content-Type": true, "Content-Language": true, "Content-Encoding": true, "Content-Disposition": true,
	"Location": true, "Etag": true, "Last-Modified": true, "Link": true, "Retry-After": true,
}

func storedHeader(h http.Header) http.Header {
	kept := http.Header{}
	for name, values := range h {
		plain := strings.ReplaceAll(strings.ToLower(name), "-", "")
		if storedHeaders[name] || strings.HasSuffix(plain, "requestid") || strings.HasSuffix(plain, "correlationid") {
			kept[name] = values
		}
	}
	return kept
}
