package proxy

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// storeRules say which answers are good enough to be given again.
type storeRules struct {
	FinishReasons  []string // that an answer may end with
	LengthIsWanted bool     // the request set the limit itself, so a cut answer is what it asked for
	N              int      // choices asked for; 0 is 1
}

// judge lets an answer be stored where every
// choice that was asked for is there, ended for a reason out of the rules, is not
// empty, and calls its tools with valid JSON. A client repeats a call because the
// answer was of no use to it, and would get that answer for ever. Whether the stream
// ended cleanly is the caller's to know.
func (c *chatCompletion) judge(rules storeRules) (reason string) {
	if c.fault != "" {
		return c.fault
	}
	if want := max(rules.N, 1); len(c.choices) < want {
		return fmt.Sprintf("choices missing: %d of %d", want-len(c.choices), want)
	}
	for _, ch := range c.sorted() {
		if reason := ch.judge(rules); reason != "" {
			return reason
		}
	}
	return ""
}

func (ch *choice) judge(rules storeRules) string {
	finish := ch.finish()
	switch {
	case finish == "":
		return "no finish reason"
	case finish == "length" && rules.LengthIsWanted:
	case !slices.Contains(rules.FinishReasons, finish):
		return "finish reason " + printable(finish)
	}
	if ch.empty() && blank(ch.members.get("text").bytes()) {
		return "empty"
	}
	for call := range jsonItems(ch.field("tool_calls")) {
		if !validArguments(jsonGet(call, "function")) {
			return "tool arguments are not JSON"
		}
	}
	if !validArguments(ch.field("function_call")) {
		return "tool arguments are not JSON"
	}
	return ""
}

// empty reports whether the choice gives its client nothing: no text but white
// space, no refusal, no call, no audio or picture. Reasoning alone is no answer.
func (ch *choice) empty() bool {
	for _, name := range []string{"tool_calls", "function_call", "audio", "images"} {
		if !jsonEmpty(ch.field(name)) {
			return false
		}
	}
	if !blank(ch.field("refusal")) {
		return false
	}
	content := ch.field("content")
	for part := range jsonItems(content) {
		switch jsonText(jsonGet(part, "type")) {
		case "thinking":
		case "text":
			if !blank(jsonGet(part, "text")) {
				return false
			}
		default: // a picture, a refusal, something newer
			return false
		}
	}
	return jsonKind(content) == '[' || blank(content)
}

func blank(raw []byte) bool {
	if len(raw) > 1 && raw[0] == '"' && raw[1] > ' ' && raw[1] != '"' && raw[1] != '\\' && raw[1] < utf8.RuneSelf {
		return false // what most answers begin with
	}
	return jsonEmpty(raw) || jsonKind(raw) == '"' && strings.TrimSpace(jsonText(raw)) == ""
}

// validArguments reports whether the arguments of a function are JSON: as a rule a
// string that holds it. A call without a function (a custom tool takes free text) has
// none to be judged.
func validArguments(function []byte) bool {
	switch arguments := jsonGet(function, "arguments"); jsonKind(arguments) {
	case '"':
		return json.Valid([]byte(jsonText(arguments)))
	case 0:
		return jsonKind(function) != '{'
	default:
		return jsonKind(arguments) != 'n'
	}
}

// printable makes a word of an upstream's that may stand in a log line.
func printable(word string) string {
	const enough = 40
	if len(word) > enough || strings.ContainsFunc(word, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "unknown"
	}
	return word
}
