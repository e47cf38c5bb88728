package guard

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"strconv"
	"strings"
	"unicode/utf8"
)

// InputError says what is wrong with a request's content, and what mends it.
type InputError struct {
	Code    string // invalid_request, key_required, missing_key_field, unsafe_number, duplicate_member
	Param   string // the member or pointer concerned
	Message string
}

func (e *InputError) Error() string { return e.Message }

func badInput(param, format string, args ...any) *InputError {
	return &InputError{Code: "invalid_request", Param: param, Message: fmt.Sprintf(format, args...)}
}

const (
	defaultNamespace = "default"
	maxStepLength    = 128
	maxNameLength    = 64
	maxTextLength    = 255 // of an explicit key, an occurrence
	maxInput         = 1 << 20
)

// The domains of the hashes. Those of other keys of this program differ, so
// that none is taken for another.
const (
	domainKey         = "llmproxy.guard.key.v1\n"
	domainFingerprint = "llmproxy.guard.fp.v1\n"
	domainDownstream  = "llmproxy.guard.down.v1\n"
)

// Key is the identity of a unit of work within its namespace.
type Key [sha256.Size]byte

func (k Key) String() string { return hex.EncodeToString(k[:]) }

// ParseKey reads a key as String writes it.
func ParseKey(text string) (k Key, err error) {
	n, err := hex.Decode(k[:], []byte(text[:min(len(text), 2*len(k))]))
	if err != nil || n != len(k) || len(text) != 2*n || text != strings.ToLower(text) {
		return Key{}, badInput("key", "The key is not one: send the 64 lower-case hexadecimal digits that begin returned as \"key\"")
	}
	return k, nil
}

// ID names an effect: a key within the namespace of a tenant.
type ID struct {
	NS  string // tenant + "/" + namespace
	Key Key
}

// Namespace makes the NS of an ID. The namespace's name has no slash, so no two
// pairs share one.
func Namespace(tenant, name string) (string, error) {
	if name == "" {
		name = defaultNamespace
	}
	if len(name) > maxNameLength || !made(name, "._-") {
		return "", badInput("namespace", "The namespace %.80q is not usable: use 1 to %d of A–Z, a–z, 0–9, dot, underscore and hyphen", name, maxNameLength)
	}
	return tenant + "/" + name, nil
}

func checkStep(step string) error {
	if step == "" || len(step) > maxStepLength || !made(step, "._:/-") {
		return badInput("step", "The step %.140q is not usable: use 1 to %d of A–Z, a–z, 0–9 and . _ : / -", step, maxStepLength)
	}
	return nil
}

func made(name, extra string) bool {
	return !strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune(extra, r)
	})
}

// Work is what a key is made of: the step and either an input (JSON) or an
// explicit key.
type Work struct {
	Tenant     string
	Namespace  string // empty: default
	Step       string
	Input      []byte   // JSON; with Explicit only for the fingerprint
	Select     []string // of Input; none: all of it
	Explicit   string
	Occurrence string // tells a new repetition of the same work; empty: none
	// FingerprintInput, JSON, stands for Input in the fingerprint.
	FingerprintInput []byte

	parsed *value // Input, where it has been read already
}

// Derived is what a Work's content is hashed to.
type Derived struct {
	ID          ID
	Fingerprint []byte // nil without an input
	Preimage    []byte // of the key, without its domain
}

// Derive makes the key and the fingerprint of a unit of work:
//
//	key = SHA-256("llmproxy.guard.key.v1\n" + JCS({"in": input, "ns": ns, "occ": occurrence, "step": step}))
//	key = SHA-256("llmproxy.guard.key.v1\n" + JCS({"key": explicit, "ns": …, "occ": …, "step": …}))
//	fingerprint = SHA-256("llmproxy.guard.fp.v1\n" + JCS(input))
//
// with JCS of RFC 8785, and HMAC-SHA-256 where there is a secret. Its error is
// an [*InputError]: what cannot make a safe key makes none.
func (w *Work) Derive(secret []byte) (d Derived, err error) {
	if d.ID.NS, err = Namespace(w.Tenant, w.Namespace); err != nil {
		return d, err
	}
	if err := checkStep(w.Step); err != nil {
		return d, err
	}
	if w.Occurrence != "" && !printable(w.Occurrence, true) {
		return d, badInput("occurrence", "The occurrence is longer than %d bytes or has control characters; send an event id, a date or an index", maxTextLength)
	}
	preimage, input, err := w.content()
	if err != nil {
		return d, err
	}
	preimage = append(appendString(append(preimage, `,"ns":`...), d.ID.NS), `,"occ":`...)
	if w.Occurrence == "" {
		preimage = append(preimage, "null"...)
	} else {
		preimage = appendString(preimage, w.Occurrence)
	}
	d.Preimage = append(appendString(append(preimage, `,"step":`...), w.Step), '}')
	d.ID.Key = digest(secret, domainKey, d.Preimage)
	if w.FingerprintInput != nil {
		if input, err = canonicalInput("fingerprint_input", w.FingerprintInput); err != nil {
			return d, err
		}
	}
	if input != nil {
		fingerprint := digest(secret, domainFingerprint, input)
		d.Fingerprint = fingerprint[:]
	}
	return d, nil
}

// content begins the preimage with its first member, and tells the canonical
// input, nil without one.
func (w *Work) content() (preimage, input []byte, err error) {
	if w.Explicit != "" && !printable(w.Explicit, false) {
		return nil, nil, badInput("key", "The key is not usable: use 1 to %d printable ASCII characters", maxTextLength)
	}
	explicit := func() []byte { return appendString([]byte(`{"key":`), w.Explicit) }
	if w.Input == nil {
		if w.Explicit == "" {
			return nil, nil, &InputError{Code: "key_required", Param: "input", Message: "Nothing tells this work from other work; send input (what the effect is made of) or key"}
		}
		return explicit(), nil, nil
	}
	parsed, err := w.parse()
	if err != nil {
		return nil, nil, err
	}
	const first, others = `{"in":`, 512 // what stands around the input, mostly
	preimage = append(make([]byte, 0, len(w.Input)+others), first...)
	if preimage, err = appendCanonical(preimage, parsed); err != nil {
		return nil, nil, err
	}
	input = preimage[len(first):]
	switch {
	case w.Explicit != "":
		return explicit(), input, nil
	case parsed.empty():
		return nil, nil, &InputError{Code: "key_required", Param: "input", Message: "The input is empty, so nothing tells this work from other work; send what the effect is made of, or key"}
	case len(w.Select) == 0:
		return preimage, input, nil
	}
	selectors, err := parseSelectors(w.Select)
	if err != nil {
		return nil, nil, err
	}
	object, err := selected(parsed, selectors)
	if err != nil {
		return nil, nil, err
	}
	preimage, err = appendCanonical([]byte(first), &object)
	return preimage, input, err
}

// parse reads the input, unless that was done already.
func (w *Work) parse() (*value, error) {
	if w.parsed != nil && len(w.Input) <= maxInput {
		return w.parsed, nil
	}
	parsed, err := parseInput("input", w.Input)
	return &parsed, err
}

func parseInput(what string, text []byte) (value, error) {
	if len(text) > maxInput {
		return value{}, badInput(what, "The %s is larger than 1 MiB; send the values that identify the work, or a hash of them", what)
	}
	return parseJSON(text)
}

func canonicalInput(what string, text []byte) ([]byte, error) {
	parsed, err := parseInput(what, text)
	if err != nil {
		return nil, err
	}
	return appendCanonical(nil, &parsed)
}

// printable tells whether text is of usable length and all printable, as ASCII
// or as Unicode.
func printable(text string, unicode bool) bool {
	return len(text) <= maxTextLength && !strings.ContainsFunc(text, func(r rune) bool {
		return r < ' ' || r == 0x7f || r == utf8.RuneError || !unicode && r > '~'
	})
}

// ParseIdempotencyKey reads the value of an Idempotency-Key header: bare, or as
// a string of RFC 9651 in double quotes, which names the same key.
func ParseIdempotencyKey(header string) (string, error) {
	text := strings.TrimSpace(header)
	if inner, quoted := strings.CutPrefix(text, `"`); quoted {
		var b strings.Builder
		inner, closed := strings.CutSuffix(inner, `"`)
		for i := 0; i < len(inner); i++ {
			if inner[i] == '\\' {
				if i++; i == len(inner) || inner[i] != '"' && inner[i] != '\\' {
					return "", badInput("Idempotency-Key", `In the Idempotency-Key, write " as \" and \ as \\`)
				}
			} else if inner[i] == '"' {
				closed = false
			}
			if i < len(inner) {
				b.WriteByte(inner[i])
			}
		}
		if !closed {
			return "", badInput("Idempotency-Key", "The Idempotency-Key begins with a quote and is no quoted string; send it bare or close it")
		}
		text = b.String()
	}
	if text == "" || !printable(text, false) {
		return "", badInput("Idempotency-Key", "The Idempotency-Key is not usable: use 1 to %d printable ASCII characters", maxTextLength)
	}
	return text, nil
}

// Downstream is the key to give to the downstream: the key itself, until a
// person has asked for another one.
func Downstream(k Key, epoch int64, secret []byte) Key {
	if epoch == 0 {
		return k
	}
	return digest(secret, domainDownstream, []byte(k.String()+"\n"+strconv.FormatInt(epoch, 10)))
}

// UUID spells the first 128 bits as a UUID of version 8 (RFC 9562), for
// downstreams that want 36 characters.
func (k Key) UUID() string {
	b := k
	b[6] = b[6]&0x0f | 0x80
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:16])
}

func digest(secret []byte, domain string, message []byte) (k Key) {
	var h hash.Hash
	if len(secret) > 0 {
		h = hmac.New(sha256.New, secret)
	} else {
		h = sha256.New()
	}
	h.Write([]byte(domain))
	h.Write(message)
	h.Sum(k[:0])
	return k
}
