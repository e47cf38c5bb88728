package proxy

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"

	"llmproxy/cache"
)

// view is what the proxy needs to know of a chat request's body. It is read by
// exact names beside the raw bytes, which are what is sent on.
type view struct {
	Model        string
	Stream       bool
	IncludeUsage bool  // the client asked for the usage chunk
	MaxOutput    int64 // tokens; 0 where the request sets no limit
	N            int64
}

// maxChoices bounds n, which multiplies what is reserved.
const maxChoices = 128

func readView(doc *cache.Document) (v view, err error) {
	v.N = 1
	raw, ok := doc.Member("model")
	if !ok {
		return v, missing("model", "name the model to call")
	}
	if v.Model, ok = stringValue(raw); !ok || strings.TrimSpace(v.Model) == "" {
		return v, missing("model", "it must be a non-empty string")
	}
	if raw, ok := doc.Member("messages"); !ok || raw[0] != '[' {
		return v, missing("messages", "it must be an array of messages")
	}
	if v.Stream, err = boolMember(doc, "stream"); err != nil {
		return v, err
	}
	if raw, ok := doc.Member("stream_options"); ok && raw[0] == '{' {
		options, err := cache.Scan(raw)
		if err != nil {
			return v, err
		}
		if v.IncludeUsage, err = boolMember(options, "include_usage"); err != nil {
			return v, err
		}
	}
	for _, name := range []string{"max_tokens", "max_completion_tokens"} { // the second wins
		n, ok, err := countMember(doc, name, 1<<31)
		if err != nil {
			return v, err
		}
		if ok {
			v.MaxOutput = n
		}
	}
	if n, ok, err := countMember(doc, "n", maxChoices); err != nil {
		return v, err
	} else if ok {
		v.N = max(n, 1)
	}
	return v, nil
}

func missing(param, hint string) *Error {
	e := invalidRequest("The request needs a usable %q: %s", param, hint)
	e.Param = param
	return e
}

func isNull(raw []byte) bool { return string(raw) == "null" }

func boolMember(doc *cache.Document, name string) (bool, error) {
	raw, ok := doc.Member(name)
	switch {
	case !ok || isNull(raw) || string(raw) == "false":
		return false, nil
	case string(raw) == "true":
		return true, nil
	}
	return false, missing(name, "it must be true or false")
}

// countMember reads a non-negative integer up to limit; absent and null are not ok.
func countMember(doc *cache.Document, name string, limit int64) (n int64, ok bool, err error) {
	raw, ok := doc.Member(name)
	if !ok || isNull(raw) {
		return 0, false, nil
	}
	if n, err = strconv.ParseInt(string(raw), 10, 64); err != nil { // 1e3 is a number too
		err = json.Unmarshal(raw, &n)
	}
	if err != nil || n < 0 || n > limit {
		return 0, false, missing(name, "it must be a whole number from 0 to "+commas(limit))
	}
	return n, true, nil
}

func stringValue(raw []byte) (string, bool) {
	if len(raw) < 2 || raw[0] != '"' {
		return "", false
	}
	if inner := raw[1 : len(raw)-1]; bytes.IndexByte(inner, '\\') < 0 {
		return string(inner), true
	}
	var s string
	if json.Unmarshal(raw, &s) != nil {
		return "", false
	}
	return s, true
}

// outgoing is the body as it is sent: the document's bytes and, for a stream,
// the wish for the usage chunk, so that usage is always known.
func outgoing(doc *cache.Document, v view) ([]byte, error) {
	if !v.Stream || v.IncludeUsage {
		return doc.Raw, nil
	}
	options := []byte(`{"include_usage":true}`)
	if raw, ok := doc.Member("stream_options"); ok && raw[0] == '{' {
		inner, err := cache.Scan(raw)
		if err != nil {
			return nil, err
		}
		options = inner.Edit(cache.Edit{Name: "include_usage", Value: []byte("true")})
	}
	return doc.Edit(cache.Edit{Name: "stream_options", Value: options}), nil
}
