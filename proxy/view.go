package proxy

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"

	"llmproxy/cache"
)

// view is what the proxy needs to know of a request's body. It is read by exact
// names beside the raw bytes, which are what is sent on.
type view struct {
	Model        string
	Stream       bool
	IncludeUsage bool   // the client asked for the usage chunk
	MaxOutput    int64  // tokens; 0 where the request sets no limit
	NoOutput     bool   // the answer costs no output tokens
	N            int64  // answers asked for
	Stateful     string // the member that ties the call to the upstream's state, so that no stored answer will do
	Previous     string // the response that this one goes on from
	Base64       bool   // embeddings are wanted in base64
}

// maxChoices bounds n, which multiplies what is reserved.
const maxChoices = 128

// chatView reads a request to chat/completions.
func chatView(doc *cache.Document) (v view, err error) {
	if v.Model, err = modelMember(doc); err != nil {
		return v, err
	}
	if raw, ok := doc.Member("messages"); !ok || raw[0] != '[' {
		return v, missing("messages", "it must be an array of messages")
	}
	if err = v.chunked(doc); err != nil {
		return v, err
	}
	v.MaxOutput, err = limitMember(doc, "max_tokens", "max_completion_tokens")
	return v, err
}

// textView reads a request to the older completions endpoint.
func textView(doc *cache.Document) (v view, err error) {
	if v.Model, err = modelMember(doc); err != nil {
		return v, err
	}
	if raw, ok := doc.Member("prompt"); !ok || raw[0] != '[' && raw[0] != '"' {
		return v, missing("prompt", "it must be a text, or an array of texts or tokens")
	}
	if err = v.chunked(doc); err != nil {
		return v, err
	}
	best, ok, err := countMember(doc, "best_of", maxChoices)
	if err == nil && ok {
		v.N = max(v.N, best)
	}
	if err == nil {
		v.MaxOutput, err = limitMember(doc, "max_tokens")
	}
	return v, err
}

// responseView reads a request to the Responses endpoint.
func responseView(doc *cache.Document) (v view, err error) {
	v.N = 1
	elsewhere := false // the upstream knows more of the request than it says
	for _, name := range []string{"prompt", "previous_response_id", "conversation"} {
		raw, ok := doc.Member(name)
		elsewhere = elsewhere || ok && !isNull(raw)
	}
	template, ok := doc.Member("prompt") // kept upstream, and may name the model
	if _, named := doc.Member("model"); named || !ok || isNull(template) {
		if v.Model, err = modelMember(doc); err != nil {
			return v, err
		}
	}
	if raw, ok := doc.Member("input"); ok && raw[0] != '"' && raw[0] != '[' && !isNull(raw) || !ok && !elsewhere {
		return v, missing("input", "it must be a text or an array of items")
	}
	if v.Stream, err = boolMember(doc, "stream"); err != nil {
		return v, err
	}
	if background, err := boolMember(doc, "background"); err != nil {
		return v, err
	} else if background {
		v.Stateful = "background"
	}
	if raw, ok := doc.Member("previous_response_id"); ok {
		v.Previous, _ = stringValue(raw)
	}
	if raw, ok := doc.Member("conversation"); ok && !isNull(raw) {
		v.Stateful = "conversation"
	}
	v.MaxOutput, err = limitMember(doc, "max_output_tokens")
	return v, err
}

// embeddingView reads a request to the embeddings endpoint.
func embeddingView(doc *cache.Document) (v view, err error) {
	v.N, v.NoOutput = 1, true
	if v.Model, err = modelMember(doc); err != nil {
		return v, err
	}
	if raw, ok := doc.Member("input"); !ok || raw[0] != '[' && raw[0] != '"' {
		return v, missing("input", "it must be a text, or an array of texts or tokens")
	}
	if raw, ok := doc.Member("encoding_format"); ok && !isNull(raw) {
		format, _ := stringValue(raw)
		if format != "float" && format != "base64" {
			return v, missing("encoding_format", `it must be "float" or "base64"`)
		}
		v.Base64 = format == "base64"
	}
	return v, nil
}

func modelMember(doc *cache.Document) (string, error) {
	raw, ok := doc.Member("model")
	if !ok {
		return "", missing("model", "name the model to call")
	}
	model, ok := stringValue(raw)
	if !ok || strings.TrimSpace(model) == "" {
		return "", missing("model", "it must be a non-empty string")
	}
	return model, nil
}

// chunked reads what requests have in common whose streams are chunks of choices.
func (v *view) chunked(doc *cache.Document) (err error) {
	v.N = 1
	if v.Stream, err = boolMember(doc, "stream"); err != nil {
		return err
	}
	if raw, ok := doc.Member("stream_options"); ok && raw[0] == '{' {
		options, err := cache.Scan(raw)
		if err != nil {
			return err
		}
		if v.IncludeUsage, err = boolMember(options, "include_usage"); err != nil {
			return err
		}
	}
	if n, ok, err := countMember(doc, "n", maxChoices); err != nil {
		return err
	} else if ok {
		v.N = max(n, 1)
	}
	return nil
}

// limitMember reads the limit of output tokens; of several names the last wins.
func limitMember(doc *cache.Document, names ...string) (limit int64, err error) {
	for _, name := range names {
		n, ok, err := countMember(doc, name, 1<<31)
		if err != nil {
			return 0, err
		}
		if ok {
			limit = n
		}
	}
	return limit, nil
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

// withUsage is the body as it is sent: the document's bytes and, for a stream,
// the wish for the usage chunk, so that usage is always known.
func withUsage(doc *cache.Document, v view) ([]byte, error) {
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
