package tokens

import (
	"errors"
	"fmt"
)

// responses counts the body of the Responses API. Its items are framed as
// chat messages are; instructions are one system message before them.
func (t *tally) responses(body node) error {
	input := body.get("input")
	instructions := body.get("instructions")
	var system node
	if instructions.isString() {
		system = node(fmt.Appendf(nil, `{"content":%s}`, instructions))
		t.charge("instructions", "message", Exact, frame+roleWord+t.text(instructions))
	}
	for _, state := range []string{"previous_response_id", "conversation", "prompt"} {
		if !body.get(state).isNull() {
			t.unknown(state) // kept by the upstream
		}
	}
	switch {
	case input.isString():
		t.charge("input", "message", Exact, frame+roleWord+t.text(input))
	case input.isArray():
		for i, item := range input.elements() {
			if system == nil && isSystem(item.get("role").str()) {
				system = item
			}
			before := t.est.Tokens
			t.item(fmt.Sprintf("input[%d]", i), item)
			t.est.Messages = append(t.est.Messages, t.est.Tokens-before)
		}
	case !input.isNull():
		return errors.New("reading request body: input is neither a string nor an array")
	}
	t.responsesTools(body, system)
	t.charge("input", "priming", Exact, t.model.priming)
	return nil
}

// item counts one element of input.
func (t *tally) item(path string, item node) {
	kind := item.get("type").str()
	if kind == "" && !item.get("role").isNull() {
		kind = "message"
	}
	switch kind {
	case "message":
		t.message(path, item)
	case "function_call", "custom_tool_call":
		arguments := item.get("arguments")
		if arguments == nil {
			arguments = item.get("input")
		}
		c := call{item.get("call_id").str(), item.get("name").str(), arguments}
		t.charge(path, "tool-call", Rule, frame+roleWord+t.toolCalls([]call{c}))
	case "function_call_output", "custom_tool_call_output":
		t.toolResult(path, t.names[item.get("call_id").str()], item.get("output"))
	case "reasoning":
		// Dropped by the upstream, unless it belongs to a running tool loop;
		// its length is hidden then.
		t.charge(path, "reasoning", Rule, 0)
	default:
		t.unknown(path)
	}
}

// responsesTools charges the tool definitions and the text format; system is
// the first system message, or nil.
func (t *tally) responsesTools(body, system node) {
	var functions []node
	for i, tool := range body.get("tools").elements() {
		if kind := tool.get("type").str(); kind == "function" || kind == "custom" {
			functions = append(functions, tool)
		} else {
			t.unknown(fmt.Sprintf("tools[%d]", i)) // run by the upstream, with a hidden prompt
		}
	}
	if len(functions) > 0 {
		text := renderTools(functions)
		n := 0
		switch {
		case t.model.reasoning:
			n = frame + roleWord + t.count(text) - 1
			if functions[0].get("description").str() == "" {
				n--
			}
		case system != nil:
			n = t.joined(system, "\n\n"+text) - 4
		default:
			n = frame + roleWord + t.count(text) - 7
		}
		t.charge("tools", "tools", Rule, n)
	}
	format := body.get("text").get("format")
	if format.get("type").str() != "json_schema" {
		return
	}
	n := t.count(renderFormat(format))
	if !t.model.reasoning {
		n++
	}
	t.charge("text.format", "json-schema", Rule, n)
}
