package cache

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"regexp"
	"strconv"
)

// domain begins what every key is a digest of. It changes whenever a change to
// the canonical form or the framing would give some request another key.
const domain = "llmproxy.llm.v1\n"

// A Key is the digest of a request: requests with equal keys are the same piece
// of work and get the same answer.
//
// It is the SHA-256 of these bytes, one after the other:
//
//   - "llmproxy.llm.v1" and a line feed;
//   - the nine fields of the [Context] in the order of the struct, each as its
//     length in bytes (8 bytes, big-endian) and its UTF-8 bytes;
//   - the canonical form of the body, or instead of it, for an explicit key, the
//     length of the caller's idempotency key (8 bytes, big-endian) and its bytes.
//
// The canonical form is JSON without white space. Of the body's members those
// that are excluded or null are left out. Members stand in the bytewise order of
// their names in UTF-8, except within JSON Schemas, where they stand as sent;
// schemas are tools[].function.parameters, tools[].parameters,
// functions[].parameters, and the member schema of response_format, of text, and
// of json_schema and format in these. Strings hold every character as itself in
// UTF-8, but \" \\ \b \f \n \r \t, and \u00xx in lower case for the other
// characters below U+0020. Numbers are spelled as appendNumber says, and ids made
// by machines as canonical_ids.go says. Nothing else is changed.
type Key [32]byte

// Context is what counts for the key beside the body.
type Context struct {
	Tenant       string // whom the answer belongs to
	Scope        string // the step, unless the steps of a tenant share answers
	Upstream     string
	Endpoint     string // path, such as "/v1/chat/completions"
	Sample       string // asks for another answer to the same request
	Organization string
	Project      string
	Beta         string // value of the header that turns on beta features
	Query        string
}

// Options are the settings that the key depends on.
type Options struct {
	Exclude   []string // names of the body's members that do not count; see [DefaultExclude]
	Normalise []Normaliser
}

// A Normaliser replaces parts of the text of messages for the key alone, such as
// the time of day. Text of messages is: string content and text parts of chat
// messages and input items, output of input items, and input, instructions and
// prompt where they are strings.
type Normaliser struct {
	Pattern *regexp.Regexp
	Replace string // as in [regexp.Regexp.ReplaceAllString]
}

// DefaultExclude returns the names of the body's members that by default do not
// count, because they do not change what the model writes.
func DefaultExclude() []string {
	return []string{
		"stream", "stream_options", "metadata", "client_metadata", "store", "user",
		"safety_identifier", "prompt_cache_key", "prompt_cache_retention", "service_tier",
	}
}

// Key returns the key of the request that d is the body of.
func (d *Document) Key(c Context, o Options) Key {
	f := newForm(d, o)
	f.buf = c.append(f.buf)
	if f.renaming {
		f.flush()
		f.whole()
		f.replace(f.spare, 0, len(f.spare), f.spans)
	} else {
		f.streaming = true
		f.body()
	}
	k := f.digest()
	f.release()
	return k
}

// ExplicitKey returns the key of a request that the caller has named by an
// idempotency key, whatever its body. It differs from the key of every body: its
// digest goes on with a length, whose first byte is 0, and theirs with {.
func ExplicitKey(c Context, idempotencyKey string) Key {
	return sha256.Sum256(appendFramed(c.append(nil), idempotencyKey))
}

// append appends what every key begins with.
func (c *Context) append(dst []byte) []byte {
	dst = append(dst, domain...)
	for _, field := range [...]string{
		c.Tenant, c.Scope, c.Upstream, c.Endpoint, c.Sample,
		c.Organization, c.Project, c.Beta, c.Query,
	} {
		dst = appendFramed(dst, field)
	}
	return dst
}

// appendFramed appends a length and as many bytes.
func appendFramed(dst []byte, s string) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(len(s)))
	if s == "" {
		return dst
	}
	return append(dst, s...)
}

// String returns the key as 64 lower-case hexadecimal digits.
func (k Key) String() string { return hex.EncodeToString(k[:]) }

// Short returns the first 8 bytes of the key, big-endian. It may be negative.
func (k Key) Short() int64 { return int64(binary.BigEndian.Uint64(k[:])) }

// KeyRange returns the first and the last of the keys whose String begins with
// prefix, hexadecimal digits in either case.
func KeyRange(prefix string) (first, last Key, err error) {
	for i := range last {
		last[i] = 0xff
	}
	if len(prefix) > hex.EncodedLen(len(first)) {
		return Key{}, Key{}, fmt.Errorf("key %.80q is too long: a key has %d hexadecimal digits", prefix, hex.EncodedLen(len(first)))
	}
	for i := range len(prefix) {
		digit, err := strconv.ParseUint(prefix[i:i+1], 16, 4)
		if err != nil {
			return Key{}, Key{}, fmt.Errorf("key %q holds %q: a key is made of hexadecimal digits", prefix, prefix[i])
		}
		shift := 4 * (1 - i%2)
		first[i/2] |= byte(digit) << shift
		last[i/2] &^= byte(^digit&15) << shift
	}
	return first, last, nil
}
