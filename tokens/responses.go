package tokens

import (
	"errors"
	"fmt"
)

// responses counts the body of the Responses API. Its items are framed as
// chat messages are; instructions are one system message before them.
func (t *tally) responses(body map[string]node) error {
	input := body["input"]
	instructions := body["instructions"]
	var system node // content of the first system message
	if instructions.str() != "" {
		system = instructions
		t.charge("instructions", "message", Exact, frame+roleWord+t.text(instructions))
	}
	for _, state := range []string{"previous_response_id", "conversation", "prompt"} {
		if !body[state].isNull() {
			t.unknown(state) // kept by the upstream
		}
	}
	switch {
	case input.isString():
		t.charge("input", "message", Exact, frame+roleWord+t.text(input))
	case input.isArray():
		lastUser := -1
		for i, item := range t.doc.elements(input) {
			if item.get("role").str() == "user" {
				lastUser = i
			}
		}
		for i, item := range t.doc.elements(input) {
			if m := t.readMessage(item); system == nil && m.isSystem() {
				system = m.content
			}
			before := t.est.Tokens
			t.item(fmt.Sprintf("input[%d]", i), item, i > lastUser)
			t.est.Messages = append(t.est.Messages, t.est.Tokens-before)
		}
	case !input.isNull():
		return errors.New("reading request body: input is neither a string nor an array")
	}
	t.responsesTools(body, system)
	t.charge("input", "priming", Exact, t.model.priming)
	return nil
}

// item counts one element of input; current says that no user message follows.
func (t *tally) item(path string, item node, current bool) {
	kind := item.get("type").str()
	if kind == "" && !item.get("role").isNull() {
		kind = "message"
	}
	switch kind {
	case "message":
		t.message(path, t.readMessage(item))
	case "function_call", "custom_tool_call":
		arguments := item.get("arguments")
		if arguments == nil {
			arguments = item.get("input")
		}
		c := call{item.get("call_id").str(), item.get("name").str(), arguments}
		n := frame + roleWord + t.toolCall(c)
		switch {
		case t.model.reasoning:
			n += callChannels
		case item.get("id").isString():
			n += callOfID
		}
		t.charge(path, "tool-call", Rule, n)
	case "function_call_output", "custom_tool_call_output":
		t.toolResult(path, t.names[item.get("call_id").str()], item.get("output"))
	case "reasoning":
		t.reasoning(path, item, current)
	default:
		t.unknown(path)
	}
}

// reasoning counts a reasoning item. The upstream drops it once the user has
// spoken again. Until then it counts as many tokens as the model thought; of
// an encrypted one only the length is known, from which they are estimated:
// beyond the first 800 characters, 2 tokens for each 13.
func (t *tally) reasoning(path string, item node, current bool) {
	if !current {
		t.charge(path, "reasoning-dropped", Rule, 0)
		return
	}
	encrypted := item.get("encrypted_content")
	if !encrypted.isString() {
		t.unknown(path)
		return
	}
	t.charge(path, "reasoning-encrypted", Estimated, max(len(encrypted)-800, 0)*2/13)
}

// responsesTools charges the tool definitions and the text format; system is
// the first system message, or nil.
func (t *tally) responsesTools(body map[string]node, system node) {
	var functions []node
	for i, tool := range body["tools"].elements() {
		if kind := tool.get("type").str(); kind == "function" || kind == "custom" {
			functions = append(functions, tool)
		} else {
			t.unknown(fmt.Sprintf("tools[%d]", i)) // run by the upstream, with a hidden prompt
		}
	}
	if len(functions) > 0 {
		text := rendering{titles: !t.model.reasoning, refs: !t.model.reasoning, description: t.model.reasoning}.tools(functions)
		n := 0
		switch {
		case t.model.reasoning:
			n = frame + roleWord + t.count(text) - 1
			if functions[0].get("description").str() == "" {
				n--
			}
		case system != nil:
			n = t.joined(system, "\n\n"+text) - 3
		default:
			n = frame + roleWord + t.count(text) - 7
		}
		t.charge("tools", "tools", Rule, n)
	}
	format := body["text"].get("format")
	if format.get("type").str() != "json_schema" {
		return
	}
	n := t.count(renderFormat(format))
	if !t.model.reasoning {
		n++
	}
	t.charge("text.format", "json-schema", Rule, n)
}
