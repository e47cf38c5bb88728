package tokens

// A call is one function call in the history.
type call struct {
	id, name  string
	arguments node // a string that holds JSON
}

// calls returns the calls of a chat message, in either notation.
func (m *message) calls() []call {
	var calls []call
	for _, c := range m.toolCalls.elements() {
		f, arguments := c.get("function"), "arguments"
		if f == nil { // a custom tool takes free text
			f, arguments = c.get("custom"), "input"
		}
		calls = append(calls, call{c.get("id").str(), f.get("name").str(), f.get(arguments)})
	}
	if f := m.functionCall; f.isObject() {
		calls = append(calls, call{"", f.get("name").str(), f.get("arguments")})
	}
	return calls
}

// What a tool call adds beyond its text, its result included, fitted on bills.
const (
	callExtra    = 2 // chat completions, once for the calls of one message: exact in 16 of 16
	callChannels = 8 // chat completions, models whose messages name their channel: exact in 5 of 5
	callThinks   = 6 // responses, reasoning models: exact in 4 of 7, 3 too few in 3
	callOfID     = 3 // responses, for a call that carries the id of its item: exact in 8 of 9, 3 too many in 1
)

// toolCalls counts the calls of one chat message, without its frame, and
// remembers their names. Several at once are written as one call to
// multi_tool_use.parallel, but by models with channels one by one. Ids are
// not counted. Several at once: exact in 9 of 13 bills, 2 too many in 4.
func (t *tally) toolCalls(calls []call) int {
	if t.model.harmony {
		n := -(frame + roleWord)
		for _, c := range calls {
			n += frame + roleWord + t.toolCall(c) + callChannels
		}
		return n
	}
	if len(calls) == 1 {
		return t.toolCall(calls[0]) + callExtra
	}
	b := []byte(`{"tool_uses":[`)
	for i, c := range calls {
		t.remember(c)
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"recipient_name":"functions.`...)
		b = append(b, c.name...)
		b = append(b, `","parameters":`...)
		b = append(b, compacted(c.arguments.appendStr(nil))...)
		b = append(b, '}')
	}
	b = append(b, `]}`...)
	return t.count(" to=multi_tool_use.parallel") + t.count(string(b)) + callExtra
}

// toolCall counts the text of one call and remembers its name.
func (t *tally) toolCall(c call) int {
	t.remember(c)
	return t.count(" to=functions."+c.name) + t.arguments(c.arguments)
}

// arguments counts the arguments of a call. The upstream reads them as JSON and
// writes them again without white space: ten of ten bills with such.
func (t *tally) arguments(n node) int {
	text := n.appendStr(nil)
	if short := compacted(text); len(short) < len(text) {
		return t.count(string(short))
	}
	return t.text(n)
}

// compacted returns JSON without the white space between its tokens, and text
// that is not JSON as it is.
func compacted(text []byte) []byte {
	value, err := parse(text)
	if err != nil {
		return text
	}
	short := make([]byte, 0, len(value))
	for i := 0; i < len(value); {
		end := i + 1
		if value[i] == '"' {
			end = stringEnd(value, i)
		}
		if value[i] > ' ' {
			short = append(short, value[i:end]...)
		}
		i = end
	}
	return short
}

func (t *tally) remember(c call) {
	if t.names == nil {
		t.names = map[string]string{}
	}
	t.names[c.id] = c.name
}

// toolResult counts the answer of the function called name. The name stands
// in place of the role.
func (t *tally) toolResult(path, name string, content node) {
	n := frame + t.count("functions."+name) + t.content(path+".content", content)
	t.charge(path, "tool-result", Rule, n)
}

// chatTools counts the functions of a chat completion; system is the content of
// its first system message, or nil. Of the models:
//
//   - up to gpt-4.5 the text of the functions ends the first system message, or
//     is one of its own; 1 less. Exact in 26 of 28 bills, 1 off in 2.
//   - from gpt-5 on it is a message of its own, beside a preamble of 82 tokens,
//     1 less if the first function has no description. Exact in 17 of 17.
func (t *tally) chatTools(tools []node, system node) int {
	const preamble = 82
	text := renderTools(tools)
	switch {
	case t.model.harmony:
		return t.ownTools(text, tools[0]) + preamble
	case system != nil:
		return t.joined(system, "\n\n"+text) - 1
	}
	return frame + roleWord + t.count(text) - 1
}

// ownTools counts the functions' text as a message of its own, as reasoning
// models read it: 1 less than it would be, and 2 if the first function has no
// description. Exact in 19 of 19 bills of responses.
func (t *tally) ownTools(text string, first node) int {
	n := frame + roleWord + t.count(text) - 1
	if first.get("description").str() == "" {
		n--
	}
	return n
}

// chatChoice charges what tool_choice, or function_call before it, tells models
// before the reasoning ones: none is 1 token, a function 7 and its name, in the
// older notation 4 and its name. Source: what was billed to the tests of
// openai-messages-token-helper, magentic and openai-chat-tokens; exact in 20 of
// 20.
func (t *tally) chatChoice(body map[string]node) {
	if t.model.reasoning {
		return
	}
	choice := body["tool_choice"]
	t.choice("tool_choice", choice, choice.get("function").get("name"), 7)
	choice = body["function_call"]
	t.choice("function_call", choice, choice.get("name"), 4)
}

// choice charges the choice of the function called name, or of none.
func (t *tally) choice(path string, choice, name node, extra int) {
	switch {
	case name.isString():
		t.charge(path, "tools-choice", Rule, extra+t.text(name))
	case choice.str() == "none":
		t.charge(path, "tools-choice", Rule, 1)
	}
}

// chatFormat counts a response format of a chat completion: its text, and what
// frames it, which depends on what else stands there. Exact in 11 of 12 bills, 1
// too few in 1.
func (t *tally) chatFormat(format node, tools, system bool) int {
	n := t.count(renderFormat(format))
	switch {
	case tools:
		return n + 1
	case system:
		return n + 3
	}
	return n + 8
}

// joined returns what text adds to the tokens of the content of the system
// message when the two are tokenized together.
func (t *tally) joined(system node, text string) int {
	s := system.appendStr(nil)
	for _, p := range system.elements() {
		s = p.get("text").appendStr(s)
	}
	before := t.count(string(s))
	return t.count(string(append(s, text...))) - before
}

// chatFunctions returns the definitions of the functions of a chat completion,
// in either notation.
func chatFunctions(body map[string]node) []node {
	var tools []node
	for _, f := range body["functions"].elements() {
		tools = append(tools, f)
	}
	for _, tool := range body["tools"].elements() {
		if f := tool.get("function"); f.isObject() {
			tools = append(tools, f)
		} else if f := tool.get("custom"); f.isObject() {
			tools = append(tools, f)
		}
	}
	return tools
}
