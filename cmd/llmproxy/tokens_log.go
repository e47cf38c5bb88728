package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"llmproxy/cache"
	"llmproxy/proxy"
	"llmproxy/tokens"
)

// logLine is a request as a log holds it.
type logLine struct {
	body     *cache.Document
	endpoint tokens.Endpoint // "" where nothing tells it
	model    string
	step     string // as the log's writer named it, "" where it did not
	run      string
	header   http.Header
	path     string    // of the URL, escaped
	at       time.Time // zero where the line has none that can be read
	timed    bool      // it has a time, readable or not
}

// maxWrapped is how deep a body may stand in objects of a log.
const maxWrapped = 4

// readLogLine finds the request body in a line: the line itself, or what an
// object holds as body or request, as an object or as its text. Of what stands
// beside the body, the outermost counts.
func readLogLine(raw []byte) (l logLine, err error) {
	l.header = http.Header{}
	for depth := range maxWrapped {
		l.body, err = cache.Scan(raw)
		switch {
		case err != nil && depth > 0: // positions are of the text it holds
			return l, fmt.Errorf("the body in it: %s", err)
		case err != nil:
			return l, err
		}
		inner, wrapped := wrappedIn(l.body)
		if !wrapped {
			break
		}
		if err := l.readBeside(l.body); err != nil {
			return l, err
		}
		raw = inner
	}
	l.model = stringMember(l.body, "model")
	l.endpoint = endpointOfPath(l.path)
	if l.endpoint == "" {
		l.endpoint = guessEndpoint(l.body, l.model)
	}
	return l, nil
}

// wrappedIn is the body that an object of a log holds.
func wrappedIn(doc *cache.Document) (body []byte, ok bool) {
	for _, name := range []string{"body", "request"} {
		value, ok := doc.Member(name)
		switch {
		case !ok:
		case value[0] == '{':
			return value, true
		case value[0] == '"':
			var text string
			if json.Unmarshal(value, &text) == nil && strings.HasPrefix(strings.TrimSpace(text), "{") {
				return []byte(text), true
			}
		}
	}
	return nil, false
}

// readBeside reads what stands beside a body.
func (l *logLine) readBeside(doc *cache.Document) error {
	if l.step == "" {
		l.step = stringMember(doc, "step")
	}
	if l.run == "" {
		l.run = stringMember(doc, "run")
	}
	for _, name := range []string{"time", "timestamp"} {
		if value, ok := doc.Member(name); ok && !l.timed {
			l.timed, l.at = true, timeOf(value)
		}
	}
	for _, name := range []string{"url", "path"} {
		if text := stringMember(doc, name); text != "" && l.path == "" {
			u, err := url.Parse(text)
			if err != nil {
				return fmt.Errorf("%s is no URL: %w; correct it or leave it out", name, err)
			}
			l.path = u.EscapedPath()
		}
	}
	if value, ok := doc.Member("headers"); ok && value[0] == '{' {
		return l.readHeaders(value)
	}
	return nil
}

// readHeaders reads an object of headers whose values are strings, or arrays of
// strings of which the first counts.
func (l *logLine) readHeaders(raw []byte) error {
	var headers map[string]any
	if err := json.Unmarshal(raw, &headers); err != nil {
		return fmt.Errorf("headers: %w", err)
	}
	for name, value := range headers {
		if list, ok := value.([]any); ok && len(list) > 0 {
			value = list[0]
		}
		if text, ok := value.(string); ok && l.header.Get(name) == "" {
			l.header.Set(name, text)
		}
	}
	return nil
}

// names are the step and the run of the request: as the log's writer named
// them, else as a server would read them, else as plain members of metadata.
func (l *logLine) names() (proxy.Names, error) {
	if l.step != "" {
		l.header.Set("X-LLMProxy-Step", l.step)
	}
	if l.run != "" {
		l.header.Set("X-LLMProxy-Run", l.run)
	}
	n, err := proxy.NamesOf(l.header, l.path, l.body)
	if err != nil || n.Named && n.Run != "" {
		return n, plainly(err)
	}
	metadata, ok := l.body.Member("metadata")
	if !ok || metadata[0] != '{' {
		return n, nil
	}
	doc, err := cache.Scan(metadata)
	if err != nil {
		return n, err
	}
	if step := stringMember(doc, "step"); step != "" && !n.Named {
		l.header.Set("X-LLMProxy-Step", step)
	}
	if run := stringMember(doc, "run"); run != "" && n.Run == "" {
		l.header.Set("X-LLMProxy-Run", run)
	}
	n, err = proxy.NamesOf(l.header, l.path, l.body)
	return n, plainly(err)
}

// plainly is an error of the proxy without its code.
func plainly(err error) error {
	if refusal, ok := errors.AsType[*proxy.Error](err); ok {
		return errors.New(refusal.Message)
	}
	return err
}

// stringMember is a member that is a string, or a number as it is spelled.
func stringMember(doc *cache.Document, name string) string {
	value, ok := doc.Member(name)
	if !ok {
		return ""
	}
	if value[0] == '-' || '0' <= value[0] && value[0] <= '9' {
		return string(value)
	}
	var text string
	if value[0] != '"' || json.Unmarshal(value, &text) != nil {
		return ""
	}
	return text
}

// timeOf reads a time of a log: RFC 3339, with a space for the T, or Unix time
// in seconds or milliseconds. What is none of these is the zero time.
func timeOf(value []byte) time.Time {
	var text string
	if json.Unmarshal(value, &text) == nil {
		for _, layout := range []string{time.RFC3339, "2006-01-02 15:04:05Z07:00", time.DateTime} {
			if t, err := time.Parse(layout, text); err == nil {
				return t
			}
		}
		return time.Time{}
	}
	var n float64
	if json.Unmarshal(value, &n) != nil || n <= 0 {
		return time.Time{}
	}
	if n < 1e11 { // in seconds until the year 5138
		n *= 1e3
	}
	return time.UnixMilli(int64(n))
}

// endpointOfPath is the endpoint that a URL ends in, "" where it is none that
// is counted.
func endpointOfPath(path string) tokens.Endpoint {
	path = strings.TrimRight(path, "/")
	for _, e := range endpoints() { // chat/completions before completions
		if strings.HasSuffix("/"+path, "/"+string(e)) {
			return e
		}
	}
	return ""
}

// guessEndpoint tells a body's endpoint by its members, "" where none tells.
func guessEndpoint(doc *cache.Document, model string) tokens.Endpoint {
	has := func(name string) bool { value, ok := doc.Member(name); return ok && string(value) != "null" }
	input, hasInput := doc.Member("input")
	switch {
	case has("messages"):
		return tokens.ChatCompletions
	case hasInput && isEmbeddings(doc, model, input):
		return tokens.Embeddings
	case hasInput, has("instructions"), has("previous_response_id"), has("conversation"):
		return tokens.Responses
	case has("prompt"):
		return tokens.Completions
	}
	return ""
}

// isEmbeddings tells whether a body with input is for embeddings. The arrays of
// the Responses API hold objects, and models for embeddings are called so.
func isEmbeddings(doc *cache.Document, model string, input []byte) bool {
	_, formatted := doc.Member("encoding_format")
	_, sized := doc.Member("dimensions")
	list := strings.TrimLeft(strings.TrimPrefix(string(input[:min(len(input), 64)]), "["), " \t\r\n")
	return formatted || sized || strings.Contains(strings.ToLower(model), "embed") ||
		input[0] == '[' && list != "" && list[0] != '{' && list[0] != ']'
}
