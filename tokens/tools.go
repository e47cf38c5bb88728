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

// What a tool call adds beyond its text, its result included.
const (
	callExtra    = 2 // chat completions, once for the calls of one message
	callOfID     = 3 // responses, for a call that carries the id of its item
	callChannels = 8 // gpt-5 and later, where messages name their channel
)

// toolCalls counts the calls of one chat message, without its frame, and
// remembers their names. Several at once are written as one call to
// multi_tool_use.parallel, but by models with channels one by one. Ids are
// not counted.
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
		b = c.arguments.appendStr(b)
		b = append(b, '}')
	}
	b = append(b, `]}`...)
	return t.count(" to=multi_tool_use.parallel") + t.count(string(b)) + callExtra
}

// toolCall counts the text of one call and remembers its name.
func (t *tally) toolCall(c call) int {
	t.remember(c)
	return t.count(" to=functions."+c.name) + t.text(c.arguments)
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

// chatTools charges the tool definitions and the response format of a chat
// completion; system is the content of its first system message, or nil.
func (t *tally) chatTools(body map[string]node, system node) {
	tools := functionsOf(body)
	if len(tools) > 0 {
		text := rendering{}.tools(tools)
		n := 0
		switch {
		case t.model.harmony:
			n = frame + roleWord + t.count(text) + 81 // a preamble the API adds
			if tools[0].get("description").str() == "" {
				n--
			}
		case system != nil:
			n = t.joined(system, "\n\n"+text) - 1
		default:
			n = frame + roleWord + t.count(text) - 1
		}
		t.charge("tools", "tools", Rule, n)
	}
	format := body["response_format"]
	if format.get("type").str() != "json_schema" {
		return
	}
	n := t.count(renderFormat(format.get("json_schema")))
	switch {
	case len(tools) > 0:
		n++
	case system != nil:
		n += 3
	default:
		n += 8
	}
	t.charge("response_format", "json-schema", Rule, n)
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

// functionsOf returns the definitions of the functions of a chat completion,
// in either notation.
func functionsOf(body map[string]node) []node {
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
