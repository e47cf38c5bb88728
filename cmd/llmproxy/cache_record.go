package main

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"llmproxy/cache"
	"llmproxy/ledger"
	"llmproxy/proxy"
	"llmproxy/tokens"
)

// recordJSON is a line of an export: a stored answer and what is known of its
// request. The answer stands last, as body or as events, in the spelling of the
// upstream; see bodyJSON and eventJSON.
type recordJSON struct {
	Key          string       `json:"key"`
	Tenant       string       `json:"tenant"`
	Step         string       `json:"step"`
	Model        string       `json:"model"`
	Form         string       `json:"form"` // json or sse
	Call         string       `json:"call"` // whose answer it is; a later one's is newer
	StoredAt     string       `json:"stored_at"`
	ExpiresAt    string       `json:"expires_at"` // where it was exported
	CountedInput int64        `json:"counted_input_tokens"`
	Basis        string       `json:"basis"`                    // of the count
	Usage        *usageJSON   `json:"usage"`                    // null where the upstream reported none
	Cost         *int64       `json:"cost_micro_usd,omitempty"` // absent where no price is known
	BodyKey      string       `json:"body_key,omitempty"`       // the body's own key, where key is of an Idempotency-Key
	Request      *requestJSON `json:"request"`                  // null where it is not kept any more
	Headers      http.Header  `json:"headers"`
	bodyJSON
	Events []json.RawMessage `json:"events,omitempty"`
}

// usageJSON is what the upstream said the call used, in tokens.
type usageJSON struct {
	Input     int64 `json:"input"`
	Cached    int64 `json:"cached"`
	Output    int64 `json:"output"`
	Reasoning int64 `json:"reasoning"`
}

// requestJSON is the fingerprint of a request: short hashes of its parts.
type requestJSON struct {
	Fields   []fieldJSON `json:"fields"`
	List     string      `json:"list,omitempty"` // the member that the messages are elements of
	Messages []string    `json:"messages,omitempty"`
}

type fieldJSON struct {
	Name string `json:"name"`
	Hash string `json:"hash"`
}

// timeForm is RFC 3339 to the millisecond.
const timeForm = "2006-01-02T15:04:05.000Z07:00"

// appendRecord appends a record as a line. tree is its request's fingerprint,
// nil where there is none.
func appendRecord(dst []byte, r *cache.Record, tree []byte) ([]byte, error) {
	events, err := r.Body.Events()
	if err != nil {
		return dst, err
	}
	at := func(ms int64) string { return time.UnixMilli(ms).UTC().Format(timeForm) }
	o := r.Origin
	line := recordJSON{
		Key: r.Key.String(), Tenant: r.Tenant, Step: r.Step, Model: r.Model, Form: "json", Call: ledger.Name(o.Call),
		StoredAt: at(o.CreatedAt), ExpiresAt: at(o.ExpiresAt), CountedInput: o.Input, Basis: tokens.Basis(o.Basis).String(),
		Usage: (*usageJSON)(o.Usage), Cost: o.Cost, Headers: r.Head.Header,
	}
	if o.Fingerprint != nil {
		line.BodyKey = o.Fingerprint.String()
	}
	if line.Request, err = newRequestJSON(tree); err != nil {
		return dst, err
	}
	var answer []byte
	switch {
	case r.Head.Form == cache.SSE:
		line.Form = "sse"
		answer = append(answer, `,"events":[`...)
		for i, event := range events {
			if i > 0 {
				answer = append(answer, ',')
			}
			answer = appendEvent(answer, event)
		}
		answer = append(answer, ']')
	case r.Head.Form == cache.JSON && len(events) == 1:
		answer = line.bodyJSON.fill(events[0])
	default:
		return dst, fmt.Errorf("%w: form %d of %d events", cache.ErrDamaged, r.Head.Form, len(events))
	}
	head, err := plainJSON(line)
	if err != nil {
		return dst, err
	}
	// The encoder would change the white space of the answer.
	dst = append(dst, bytes.TrimSuffix(head, []byte("}"))...)
	return append(append(dst, answer...), '}', '\n'), nil
}

// plainJSON encodes a value on one line, < > and & as themselves.
func plainJSON(value any) ([]byte, error) {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(value)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

func newRequestJSON(raw []byte) (*requestJSON, error) {
	if raw == nil {
		return nil, nil
	}
	var tree cache.Tree
	if err := tree.UnmarshalBinary(raw); err != nil {
		return nil, err
	}
	request := &requestJSON{List: tree.List, Fields: []fieldJSON{}}
	for _, f := range tree.Fields {
		request.Fields = append(request.Fields, fieldJSON{f.Name, hash(f.Hash)})
	}
	for _, h := range tree.Messages {
		request.Messages = append(request.Messages, hash(h))
	}
	return request, nil
}

func hash(h uint64) string { return fmt.Sprintf("%016x", h) }

// tree is the fingerprint in the form in which it is stored.
func (q *requestJSON) tree() ([]byte, error) {
	tree := cache.Tree{List: q.List}
	for _, f := range q.Fields {
		h, err := strconv.ParseUint(f.Hash, 16, 64)
		if err != nil {
			return nil, fmt.Errorf("request: %q is no hash of %q; it has 16 hexadecimal digits", f.Hash, f.Name)
		}
		tree.Fields = append(tree.Fields, cache.Field{Name: f.Name, Hash: h})
	}
	for _, text := range q.Messages {
		h, err := strconv.ParseUint(text, 16, 64)
		if err != nil {
			return nil, fmt.Errorf("request: %q is no hash of a message; it has 16 hexadecimal digits", text)
		}
		tree.Messages = append(tree.Messages, h)
	}
	byName := func(a, b cache.Field) int { return strings.Compare(a.Name, b.Name) }
	if !slices.IsSortedFunc(tree.Fields, byName) {
		return nil, errors.New("request: the fields are not in the order of their names; export the answer again")
	}
	return tree.AppendBinary(nil)
}

// parseRecord reads a line of an export. tree is nil where the line has none. The
// error says what is wrong and what mends it.
func parseRecord(line []byte, now time.Time) (r *cache.Record, tree []byte, err error) {
	var j recordJSON
	decoder := json.NewDecoder(bytes.NewReader(line))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&j); err != nil {
		return nil, nil, fmt.Errorf("is no line of an export: %w; export it again", err)
	}
	if decoder.More() {
		return nil, nil, errors.New("has more than one JSON object; write each on a line of its own")
	}
	r = &cache.Record{Tenant: j.Tenant, Step: j.Step, Model: j.Model, Head: cache.Head{Status: http.StatusOK, Header: j.Headers}}
	if r.Key, err = parseKey("key", j.Key); err != nil {
		return nil, nil, err
	}
	if err := labelError(j.Tenant); err != nil {
		return nil, nil, fmt.Errorf("tenant: %q %w", j.Tenant, err)
	}
	if err := labelError(j.Step); err != nil {
		return nil, nil, fmt.Errorf("step: %q %w", j.Step, err)
	}
	if strings.ContainsFunc(j.Model, unicode.IsControl) || !utf8.ValidString(j.Model) {
		return nil, nil, fmt.Errorf("model: %q has a control character; leave it out", j.Model)
	}
	if r.Origin, err = j.origin(now); err != nil {
		return nil, nil, err
	}
	if err := checkHeaders(j.Headers); err != nil {
		return nil, nil, err
	}
	if j.Request != nil {
		if tree, err = j.Request.tree(); err != nil {
			return nil, nil, err
		}
	}
	var events [][]byte
	if r.Head.Form, events, err = j.answer(); err != nil {
		return nil, nil, err
	}
	r.Body = cache.Pack(events)
	return r, tree, nil
}

func parseKey(member, text string) (key cache.Key, err error) {
	b, err := hex.DecodeString(text)
	if err != nil || len(b) != len(key) {
		return key, fmt.Errorf("%s: %.80q is no key; it has %d hexadecimal digits", member, text, 2*len(key))
	}
	return cache.Key(b), nil
}

// clockSkew is how far the clocks of two machines may differ. What is newer than
// that would count as newer than what is stored later.
const clockSkew = 5 * time.Minute

func (j *recordJSON) origin(now time.Time) (o cache.Origin, err error) {
	call, ok := ledger.ParseName(j.Call)
	if !ok {
		return o, fmt.Errorf("call: %q is no call's id; it is call_ and letters and digits", j.Call)
	}
	stored, err := time.Parse(time.RFC3339Nano, j.StoredAt)
	if err != nil {
		return o, fmt.Errorf("stored_at: %q is no time; write one such as %s", j.StoredAt, now.UTC().Format(timeForm))
	}
	if ledger.Time(call).After(now.Add(clockSkew)) || stored.After(now.Add(clockSkew)) {
		return o, fmt.Errorf("stored_at: %s is in the future; see whether the clock is right", ledger.Time(call).UTC().Format(timeForm))
	}
	o = cache.Origin{Call: call, CreatedAt: stored.UnixMilli(), Input: j.CountedInput, Cost: j.Cost, Usage: (*cache.Usage)(j.Usage)}
	basis, ok := parseBasis(j.Basis)
	if !ok {
		return o, fmt.Errorf("basis: %q is none; use exact, rule, estimate or fallback-encoding", j.Basis)
	}
	o.Basis = uint8(basis)
	if j.CountedInput < 0 || j.Cost != nil && *j.Cost < 0 {
		return o, errors.New("counted_input_tokens or cost_micro_usd is negative; write 0 or more")
	}
	if u := j.Usage; u != nil && min(u.Input, u.Cached, u.Output, u.Reasoning) < 0 {
		return o, errors.New("usage is negative; write 0 or more, or null")
	}
	if j.BodyKey != "" {
		own, err := parseKey("body_key", j.BodyKey)
		if err != nil {
			return o, err
		}
		o.Fingerprint = &own
	}
	return o, nil
}

func parseBasis(name string) (tokens.Basis, bool) {
	for b := tokens.Exact; b <= tokens.FallbackEncoding; b++ {
		if b.String() == name {
			return b, true
		}
	}
	return 0, false
}

// checkHeaders refuses what no server stores: clients would be misled by it.
func checkHeaders(h http.Header) error {
	kept := proxy.Kept(h)
	for name, values := range h {
		if _, ok := kept[name]; !ok {
			return fmt.Errorf("headers: %q is not kept with an answer; remove it", name)
		}
		for _, v := range values {
			if strings.ContainsFunc(v, func(c rune) bool { return c != '\t' && unicode.IsControl(c) }) {
				return fmt.Errorf("headers: the value of %s holds a control character; remove it", name)
			}
		}
	}
	return nil
}

// answer is the line's answer as it was served.
func (j *recordJSON) answer() (form cache.Form, events [][]byte, err error) {
	hasBody := j.Body != nil || j.Base64 != nil
	switch {
	case j.Form == "json" && hasBody && j.Events == nil:
		body, err := j.bodyJSON.raw()
		return cache.JSON, [][]byte{body}, err
	case j.Form == "sse" && !hasBody && len(j.Events) > 0:
		for i, e := range j.Events {
			event, err := parseEvent(e)
			if err != nil {
				return 0, nil, fmt.Errorf("events[%d] %w", i, err)
			}
			events = append(events, event)
		}
		return cache.SSE, events, nil
	}
	return 0, nil, fmt.Errorf("form: %q does not fit; it is json beside a body, or sse beside events", j.Form)
}
