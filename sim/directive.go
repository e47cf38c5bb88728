package sim

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

const opening, closing = "[[sim:", "]]"

// Bounds of what a prompt may ask for.
const (
	maxWords = 100_000
	maxDelay = time.Hour
)

// howTo ends the message about a directive that cannot be read.
const howTo = `write directives as [[sim: delay=2s words=200]], out of delay=2s chunk_delay=50ms status=503 retry_after=2 cut_after=3 end_after=3 error_after=3 words=200 say="…" seed=7 chunks=5 tool=name:{"argument":1} finish=length no_usage cached=100 reasoning=64`

// plan is what the directives of a prompt ask for; see the package comment.
type plan struct {
	delay, chunkDelay              time.Duration
	status                         int    // 0: none
	retryAfter                     string // seconds; empty: none
	cutAfter, endAfter, errorAfter int    // events; negative: never
	words                          int    // negative: the model's choice
	say                            *string
	seed                           string
	chunks                         int // 0: the default
	tools                          []toolCall
	finish                         string // empty: the true one
	noUsage                        bool
	cached, reasoning              int // tokens

	given []string // the names of the directives
}

// toolCall is a call of a function; arguments is a JSON object.
type toolCall struct{ name, arguments string }

// parsePlan reads the directives in text and returns the text without them.
func parsePlan(text string) (p *plan, rest string, err error) {
	p = &plan{cutAfter: -1, endAfter: -1, errorAfter: -1, words: -1}
	var plain strings.Builder
	for {
		before, after, found := strings.Cut(text, opening)
		plain.WriteString(before)
		if !found {
			break
		}
		if text, err = p.parse(after); err != nil {
			return nil, "", badRequest("", "%v; %s", err, howTo)
		}
	}
	if p.retryAfter != "" && p.status == 0 {
		return nil, "", badRequest("", "retry_after stands without status; %s", howTo)
	}
	return p, strings.TrimSpace(plain.String()), nil
}

// parse reads the directives at the start of s up to their closing brackets
// and returns what follows.
func (p *plan) parse(s string) (rest string, err error) {
	for {
		s = strings.TrimLeft(s, " \t\r\n")
		if rest, ok := strings.CutPrefix(s, closing); ok {
			return rest, nil
		}
		n := 0
		for n < len(s) && (s[n] == '_' || 'a' <= s[n] && s[n] <= 'z') {
			n++
		}
		name := s[:n]
		var value string
		if value, s, err = cutValue(name, s[n:]); err != nil {
			return "", err
		}
		if err := p.set(name, value); err != nil {
			return "", err
		}
		p.given = append(p.given, name)
	}
}

// cutValue splits the value of a directive from what follows it. The value of
// say is a JSON string and that of tool ends in a JSON object, either of which
// may hold blanks and brackets; every other value ends before one of them.
func cutValue(name, s string) (value, rest string, err error) {
	s, ok := strings.CutPrefix(s, "=")
	end := len(s)
	if n := strings.IndexAny(s, " \t\r\n"); n >= 0 {
		end = n
	}
	if n := strings.Index(s[:end], closing); n >= 0 {
		end = n
	}
	start := -1
	switch {
	case !ok && end > 0:
		return "", "", fmt.Errorf("%q is not a directive", name+s[:end])
	case !ok && s == "":
		return "", "", fmt.Errorf("the closing %s is missing", closing)
	case name == "say":
		start = 0
	case name == "tool":
		start = strings.IndexByte(s[:end], '{')
	}
	if start < 0 {
		return s[:end], s[end:], nil
	}
	dec := json.NewDecoder(strings.NewReader(s[start:]))
	var raw json.RawMessage
	if err := dec.Decode(&raw); err != nil {
		return "", "", fmt.Errorf("the value of %s is not JSON: %v", name, err)
	}
	end = start + int(dec.InputOffset())
	return s[:end], s[end:], nil
}

// set takes one directive.
func (p *plan) set(name, value string) (err error) {
	switch name {
	case "delay":
		p.delay, err = parseDelay(value)
	case "chunk_delay":
		p.chunkDelay, err = parseDelay(value)
	case "status":
		p.status, err = parseInt(value, 400, 599)
	case "retry_after":
		p.retryAfter = value
		_, err = parseInt(value, 0, 1<<30)
	case "cut_after":
		p.cutAfter, err = parseInt(value, 0, 1<<30)
	case "end_after":
		p.endAfter, err = parseInt(value, 0, 1<<30)
	case "error_after":
		p.errorAfter, err = parseInt(value, 0, 1<<30)
	case "words":
		p.words, err = parseInt(value, 0, maxWords)
	case "say":
		if err = json.Unmarshal([]byte(value), &p.say); err == nil && p.say == nil {
			err = fmt.Errorf("it is not a string")
		}
	case "seed":
		p.seed = value
	case "chunks":
		p.chunks, err = parseInt(value, 1, maxWords)
	case "tool":
		err = p.addTool(value)
	case "finish":
		p.finish = value
	case "no_usage":
		if p.noUsage = true; value != "" {
			err = fmt.Errorf("it takes no value")
		}
		return wrapDirective(name, value, err)
	case "cached":
		p.cached, err = parseInt(value, 0, 1<<30)
	case "reasoning":
		p.reasoning, err = parseInt(value, 0, 1<<30)
	default:
		return fmt.Errorf("%q is not a directive", name)
	}
	if err == nil && value == "" {
		err = fmt.Errorf("the value is missing")
	}
	return wrapDirective(name, value, err)
}

func wrapDirective(name, value string, err error) error {
	if err != nil {
		return fmt.Errorf("reading the directive %s=%s: %w", name, value, err)
	}
	return nil
}

func (p *plan) addTool(value string) error {
	name, arguments, ok := strings.Cut(value, ":")
	if !ok {
		arguments = "{}"
	}
	if name == "" || !json.Valid([]byte(arguments)) || arguments[0] != '{' {
		return fmt.Errorf(`it is not name or name:{"argument":1}`)
	}
	p.tools = append(p.tools, toolCall{name, arguments})
	return nil
}

// refuse fails when a directive was given that means nothing to an endpoint.
func (p *plan) refuse(endpoint string, names ...string) error {
	for _, name := range p.given {
		if slices.Contains(names, name) {
			return badRequest("", "the directive %s means nothing to %s: leave it out", name, endpoint)
		}
	}
	return nil
}

func parseDelay(value string) (time.Duration, error) {
	d, err := time.ParseDuration(value)
	if err != nil || d < 0 || d > maxDelay {
		return 0, fmt.Errorf("it is not a duration from 0s to %v", maxDelay)
	}
	return d, nil
}

func parseInt(value string, low, high int) (int, error) {
	n, err := strconv.Atoi(value)
	if err != nil || n < low || n > high {
		return 0, fmt.Errorf("it is not a number from %d to %d", low, high)
	}
	return n, nil
}
