package guard

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// maxBody leaves room for the other members beside the largest input or result.
const maxBody = maxInput + 64<<10

// fields reads the members of a request's body by their exact names. It keeps
// the first error, and at the end refuses members that nothing asked for: a
// misspelt "confirm" or "occurrence" must not go unnoticed.
type fields struct {
	object value
	asked  []string
	err    error
}

func readFields(w http.ResponseWriter, r *http.Request) (*fields, error) {
	var body bytes.Buffer
	body.Grow(int(min(max(r.ContentLength, 0), maxBody)) + bytes.MinRead)
	if _, err := body.ReadFrom(http.MaxBytesReader(w, r.Body, maxBody)); err != nil {
		if large, ok := errors.AsType[*http.MaxBytesError](err); ok {
			return nil, large
		}
		return nil, badInput("", "The body broke off while it was read; send it again")
	}
	f := &fields{asked: make([]string, 0, 20)}
	var err error
	if f.object, err = parseJSON(body.Bytes()); err != nil {
		return nil, err
	}
	if f.object.kind != kindObject {
		return nil, badInput("", "The body is %s; send a JSON object", f.object.kind)
	}
	return f, nil
}

// get finds a member of one of the kinds. Null is as good as absent.
func (f *fields) get(name string, kinds ...kind) *value {
	f.asked = append(f.asked, name)
	v, ok := f.object.member(name)
	if !ok || v.kind == kindNull {
		return nil
	}
	if len(kinds) > 0 && !slices.Contains(kinds, v.kind) {
		f.fail(name, "%s is %s; send %s", name, v.kind, kinds[0])
		return nil
	}
	return v
}

func (f *fields) fail(name, format string, args ...any) {
	if f.err == nil {
		f.err = badInput(name, format, args...)
	}
}

func (f *fields) text(name string) string {
	if v := f.get(name, kindString); v != nil {
		return v.text
	}
	return ""
}

func (f *fields) flag(name string) bool {
	v := f.get(name, kindBool)
	return v != nil && v.isTrue()
}

// raw is a member's JSON as it was written; nil where it is absent.
func (f *fields) raw(name string) []byte {
	if v := f.get(name); v != nil {
		return v.raw
	}
	return nil
}

func (f *fields) texts(name string) (list []string) {
	v := f.get(name, kindArray)
	if v == nil {
		return nil
	}
	for _, item := range v.items {
		if item.kind != kindString {
			f.fail(name, "%s holds %s; send strings", name, item.kind)
		}
		list = append(list, item.text)
	}
	return list
}

// seconds reads a span, at least a millisecond where it is not 0. Bounds of
// meaning are checked where the span is used.
func (f *fields) seconds(name string) time.Duration {
	v := f.get(name, kindNumber)
	if v == nil {
		return 0
	}
	const most = 100 * 365 * 86400
	n, err := strconv.ParseFloat(v.text, 64)
	if err != nil || n < 0 || n > most {
		f.fail(name, "%s is not a number of seconds from 0 to %d", name, most)
		return 0
	}
	d := time.Duration(n * float64(time.Second))
	if d > 0 && d < time.Millisecond {
		return time.Millisecond
	}
	return d
}

func (f *fields) integer(name string) int64 {
	v := f.get(name, kindNumber)
	if v == nil {
		return 0
	}
	n, err := strconv.ParseInt(v.text, 10, 64)
	if err != nil || n < 0 {
		f.fail(name, "%s is not a whole number from 0", name)
	}
	return n
}

func (f *fields) moment(name string) time.Time {
	text := f.text(name)
	if text == "" {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil || t.Unix() <= 0 {
		f.fail(name, "%s is not a time; send RFC 3339, as in 2026-01-31T09:30:00Z", name)
	}
	return t
}

// named reads a member by one of the Parse functions; absent is the zero value.
func named[T any](f *fields, name string, parse func(string) (T, error)) (v T) {
	text := f.text(name)
	if text == "" {
		return v
	}
	v, err := parse(text)
	if err != nil {
		f.fail(name, "%s", err.Error())
	}
	return v
}

// done returns the first error, that of a member nobody asked for included.
func (f *fields) done() error {
	if f.err != nil {
		return f.err
	}
	for _, m := range f.object.members {
		if !slices.Contains(f.asked, m.name) {
			return badInput(m.name, "%s", fmt.Sprintf("The member %.80q is not known here; the known ones are %s", m.name, strings.Join(f.asked, ", ")))
		}
	}
	return nil
}
