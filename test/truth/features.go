package main

import (
	"encoding/json"
	"slices"
	"strings"
)

// The features of a request, in the order of the report.
var features = []string{
	"text only", "tools", "one call a turn", "parallel calls", "structured output", "images", "audio", "files",
	"reasoning items", "hosted tools", "server state", "other items",
}

// featuresOf returns what a request uses.
func featuresOf(body json.RawMessage) ([]string, error) {
	var request map[string]any
	if err := json.Unmarshal(body, &request); err != nil {
		return nil, err
	}
	found := map[string]bool{}
	for _, tool := range append(list(request["tools"]), list(request["functions"])...) {
		switch word(tool, "type") {
		case "function", "custom", "": // a legacy function has no type
			found["tools"] = true
		default:
			found["hosted tools"] = true
		}
	}
	format := member(request, "response_format")
	if format == nil {
		format = member(member(request, "text"), "format")
	}
	if word(format, "type") == "json_schema" {
		found["structured output"] = true
	}
	for _, state := range []string{"previous_response_id", "conversation"} {
		if request[state] != nil {
			found["server state"] = true
		}
	}
	if request["web_search_options"] != nil {
		found["hosted tools"] = true
	}
	calls := 0
	for _, item := range append(list(request["messages"]), list(request["input"])...) {
		calls = itemFeatures(found, item, calls)
	}
	if len(found) == 0 {
		found["text only"] = true
	}
	var names []string
	for _, f := range features {
		if found[f] {
			names = append(names, f)
		}
	}
	return names, nil
}

// itemFeatures adds what a message or item uses. calls is how many calls stand
// right before it; itemFeatures returns how many do after it.
func itemFeatures(found map[string]bool, item any, calls int) int {
	switch kind := word(item, "type"); {
	case kind == "function_call" || kind == "custom_tool_call":
		calls++
	case strings.HasSuffix(kind, "tool_call_output") || kind == "function_call_output" || word(item, "role") == "tool":
		found["one call a turn"] = true
		calls = 0
	case kind == "reasoning":
		found["reasoning items"] = true
	case kind != "" && kind != "message":
		found["other items"] = true
	default:
		calls = len(list(member(item, "tool_calls")))
		if member(item, "function_call") != nil {
			calls = 1
		}
		if calls == 1 {
			found["one call a turn"] = true
		}
	}
	if calls > 1 {
		found["parallel calls"] = true
	}
	for _, place := range []string{"content", "output"} {
		for _, part := range list(member(item, place)) {
			switch kind := word(part, "type"); {
			case strings.Contains(kind, "image"):
				found["images"] = true
			case strings.Contains(kind, "audio"):
				found["audio"] = true
			case strings.Contains(kind, "file"):
				found["files"] = true
			}
		}
	}
	return calls
}

func list(v any) []any {
	l, _ := v.([]any)
	return slices.Clip(l)
}

// member returns the member of an object, or nil of anything else.
func member(v any, name string) any {
	m, _ := v.(map[string]any)
	return m[name]
}

// word returns a member that is a string, or "".
func word(v any, name string) string {
	s, _ := member(v, name).(string)
	return s
}
