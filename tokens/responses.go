package tokens

import (
	"errors"
	"strings"
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
	t.state(body)
	switch {
	case input.isString():
		t.charge("input", "message", Exact, frame+roleWord+t.text(input))
	case input.isArray():
		if s := t.items(input); system == nil {
			system = s
		}
	case !input.isNull():
		return errors.New("reading request body: input is neither a string nor an array")
	}
	tools := t.responsesFunctions(body)
	if len(tools) > 0 {
		t.charge("tools", "tools", Rule, t.responsesTools(tools, system))
		t.responsesChoice(body["tool_choice"], tools)
	}
	if format := body["text"].get("format"); format.get("type").str() == "json_schema" {
		t.charge("text.format", "json-schema", Rule, t.responsesFormat(format))
	}
	t.charge("input", "priming", Exact, t.model.priming)
	return nil
}

// state charges what the upstream keeps of earlier requests. What a response
// stands for are its input and its output, to which this request is added; a
// conversation or a prompt may hold anything.
func (t *tally) state(body map[string]node) {
	const previous = "previous_response_id"
	switch {
	case body[previous].isNull():
	case t.previous > 0:
		t.charge(previous, "previous-response", Rule, t.previous)
	default:
		t.estimate(previous, "state", t.charges.State)
	}
	for _, kept := range []string{"conversation", "prompt"} {
		if !body[kept].isNull() {
			t.estimate(kept, "state", t.charges.State)
		}
	}
}

// items counts the elements of input, and returns the content of the first
// system message among them, or nil. What stands before a compaction, the
// upstream drops: it is in there.
func (t *tally) items(input node) (system node) {
	lastUser, compaction := -1, -1
	for i, item := range t.doc.elements(input) {
		if item.get("role").str() == "user" {
			lastUser = i
		}
		if item.get("type").str() == "compaction" {
			compaction = i
		}
	}
	for i, item := range t.doc.elements(input) {
		if m := t.readMessage(item); system == nil && m.isSystem() {
			system = m.content
		}
		before := t.est.Tokens
		if path := t.at("input", i); i < compaction {
			t.charge(path, "compacted", Rule, 0)
		} else {
			t.item(path, item, i > lastUser)
		}
		t.est.Messages = append(t.est.Messages, t.est.Tokens-before)
	}
	return system
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
		t.itemCall(path, item)
	case "function_call_output", "custom_tool_call_output":
		t.toolResult(path, t.names[item.get("call_id").str()], item.get("output"))
	case "reasoning":
		if !current {
			t.charge(path, "reasoning-dropped", Rule, 0) // once the user has spoken again
			return
		}
		t.encrypted(path, item)
	case "compaction":
		t.encrypted(path, item)
	case "item_reference":
		t.estimate(path, "state", t.charges.State)
	default:
		t.otherItem(path, kind, item)
	}
}

// otherItem charges an item of a tool that the upstream runs: a call of it, its
// result, or the tools that it found. The item's JSON is read as text, which is
// near unless it holds a picture. What is large, or of a kind not known, is
// charged as an unknown part.
func (t *tally) otherItem(path, kind string, item node) {
	const largest = 16 << 10
	ofTool := kind == "additional_tools" || strings.HasPrefix(kind, "mcp_") ||
		strings.HasSuffix(kind, "_call") || strings.HasSuffix(kind, "_output")
	if !ofTool || len(item) > largest {
		t.unknown(path)
		return
	}
	t.estimate(path, "item-text", t.count(string(item)))
}

// itemCall counts a function call that is an item of its own.
func (t *tally) itemCall(path string, item node) {
	arguments := item.get("arguments")
	if arguments == nil {
		arguments = item.get("input")
	}
	n := frame + roleWord + t.toolCall(call{item.get("call_id").str(), item.get("name").str(), arguments})
	if t.model.reasoning {
		n += callThinks
	}
	if item.get("id").isString() {
		n += callOfID
	}
	t.charge(path, "tool-call", Rule, n)
}

// encrypted estimates what the upstream has encrypted for itself: a reasoning
// item, which counts as many tokens as the model thought, or a compaction. Only
// its length is known: beyond the first 1,000 characters, 2 tokens for each 13.
// In ten bills of 31 to 1,422 tokens that is 40 too few to 82 too many.
func (t *tally) encrypted(path string, item node) {
	content := item.get("encrypted_content")
	if !content.isString() {
		t.estimate(path, "state", t.charges.State)
		return
	}
	t.estimate(path, "encrypted", max(len(content)-1000, 0)*2/13)
}

// responsesFunctions returns the definitions of functions, and charges the
// tools that the upstream runs.
func (t *tally) responsesFunctions(body map[string]node) (functions []node) {
	for i, tool := range body["tools"].elements() {
		switch kind := tool.get("type").str(); kind {
		case "function", "custom":
			functions = append(functions, tool)
		default:
			t.hosted(t.at("tools", i), kind)
		}
	}
	return functions
}

// hosted charges a tool that the upstream runs. Web searches of models before
// the reasoning ones are billed without what they find.
func (t *tally) hosted(path, kind string) {
	if strings.HasPrefix(kind, "web_search") && t.model.reasoning {
		t.estimate(path, "tools-web-search", t.charges.WebSearch)
		return
	}
	t.estimate(path, "tools-hosted", t.charges.HostedTool)
}

// responsesTools counts the functions of a request; system is the first system
// message, or nil. Reasoning models read them in a message of their own. With
// the models before them they take 3 tokens less than their text, whether or
// not there is a system message that they end: exact in 29 of 34 bills, 1 or 3
// off in 2. The other 3 are of April 2025, when the API was new and added 216.
func (t *tally) responsesTools(tools []node, system node) int {
	text := renderTools(tools)
	switch {
	case t.model.reasoning:
		return t.ownTools(text, tools[0])
	case system != nil:
		return t.joined(system, "\n\n"+text) - 3
	}
	return t.count(text) - 3
}

// responsesChoice charges tool_choice as chatChoice does. Here, that some
// function must be called names the function if there is only one. Exact in 2 of
// 2 bills, and in a third but for what the API once added.
func (t *tally) responsesChoice(choice node, tools []node) {
	if t.model.reasoning {
		return
	}
	name := choice.get("name")
	if choice.str() == "required" && len(tools) == 1 {
		name = tools[0].get("name")
	}
	t.choice("tool_choice", choice, name, 7)
}

// responsesFormat counts a text format. Exact in 5 of 5 bills.
func (t *tally) responsesFormat(format node) int {
	n := t.count(renderFormat(format))
	if !t.model.reasoning {
		n++
	}
	return n
}
