package tokens

import (
	"slices"
	"strings"
)

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

// A rendering says what of a function's schema the model gets to read, where
// models differ.
type rendering struct {
	titles      bool // titles of the parameters and properties
	description bool // description of the parameters as a whole
	refs        bool // what a $ref stands for, not any

	root node     // the parameters, which hold the definitions
	open []string // the references that are being rendered
}

// tools writes function definitions as the model reads them: as declarations
// of TypeScript.
func (r rendering) tools(tools []node) string {
	b := []byte("# Tools\n\n## functions\n\nnamespace functions {\n\n")
	for _, f := range tools {
		b = appendComment(b, "", f.get("description").str())
		b = append(b, "type "...)
		b = f.get("name").appendStr(b)
		parameters := f.get("parameters")
		r.root = parameters
		if hasMembers(parameters.get("properties")) {
			b = append(b, " = (_: "...)
			if r.titles {
				b = appendComment(b, "", parameters.get("title").str())
			}
			if r.description {
				b = appendComment(b, "", parameters.get("description").str())
			}
			b = r.appendObject(b, parameters, "", true)
			b = append(b, ") => any;\n\n"...)
		} else {
			b = append(b, " = () => any;\n\n"...)
		}
	}
	return string(append(b, "} // namespace functions"...))
}

func hasMembers(n node) bool {
	for range n.members() {
		return true
	}
	return false
}

// appendComment writes text as a comment; only its first line is marked.
func appendComment(b []byte, indent, text string) []byte {
	text = strings.TrimRight(text, " \n")
	if text == "" {
		return b
	}
	b = append(b, indent...)
	b = append(b, "// "...)
	b = append(b, text...)
	return append(b, '\n')
}

// appendObject writes the type of an object. A top-level object none of whose
// properties has a description stands on one line; descriptions of nested
// properties are left out.
func (r rendering) appendObject(b []byte, schema node, indent string, top bool) []byte {
	properties := schema.get("properties")
	if !hasMembers(properties) {
		return append(b, "object"...)
	}
	oneLine := top
	for _, p := range properties.members() {
		if p.get("description").str() != "" || r.titles && p.get("title").str() != "" {
			oneLine = false
		}
	}
	required := map[string]bool{}
	for _, name := range schema.get("required").elements() {
		required[name.str()] = true
	}
	b = append(b, '{')
	inner := indent
	if !top {
		inner += "    "
	}
	first := true
	for name, p := range properties.members() {
		switch {
		case !oneLine:
			b = append(b, '\n')
			if r.titles {
				b = appendComment(b, inner, p.get("title").str())
			}
			if top {
				b = appendComment(b, inner, p.get("description").str())
			}
			b = append(b, inner...)
		case !first:
			b = append(b, ", "...)
		default:
			b = append(b, ' ')
		}
		first = false
		b = append(b, name...)
		if !required[string(name)] {
			b = append(b, '?')
		}
		b = append(b, ": "...)
		b = r.appendType(b, p, inner)
		if !oneLine {
			b = append(b, ',')
		}
	}
	if oneLine {
		return append(b, " }"...)
	}
	b = append(b, '\n')
	b = append(b, indent...)
	return append(b, '}')
}

// appendType writes the type that a JSON Schema describes.
func (r rendering) appendType(b []byte, schema node, indent string) []byte {
	for _, union := range []string{"anyOf", "oneOf"} {
		if variants := schema.get(union); variants.isArray() {
			return appendUnion(b, variants, func(b []byte, v node) []byte { return r.appendType(b, v, indent) })
		}
	}
	if ref := schema.get("$ref").str(); r.refs && ref != "" {
		return r.appendRef(b, ref, indent)
	}
	if values := schema.get("enum"); values.isArray() {
		return appendUnion(b, values, func(b []byte, v node) []byte { return append(b, v...) })
	}
	kind := schema.get("type")
	if kind.isArray() {
		return appendUnion(b, kind, func(b []byte, k node) []byte { return r.appendKind(b, k.str(), schema, indent) })
	}
	return r.appendKind(b, kind.str(), schema, indent)
}

// appendRef writes the type that a local reference stands for, or any where
// it stands within itself.
func (r rendering) appendRef(b []byte, ref, indent string) []byte {
	target := r.root
	path, local := strings.CutPrefix(ref, "#/")
	for name := range strings.SplitSeq(path, "/") {
		target = target.get(name)
	}
	if !local || target == nil || slices.Contains(r.open, ref) || len(b) > maxWithRefs {
		return append(b, "any"...)
	}
	r.open = append(slices.Clip(r.open), ref)
	return r.appendType(b, target, indent)
}

// maxWithRefs is the length in bytes beyond which references are not followed:
// they may stand for each other many times over.
const maxWithRefs = 64 << 10

func appendUnion(b []byte, variants node, one func([]byte, node) []byte) []byte {
	for i, v := range variants.elements() {
		if i > 0 {
			b = append(b, " | "...)
		}
		b = one(b, v)
	}
	return b
}

func (r rendering) appendKind(b []byte, kind string, schema node, indent string) []byte {
	switch kind {
	case "string", "number", "boolean", "null":
		return append(b, kind...)
	case "integer":
		return append(b, "number"...)
	case "array":
		return append(r.appendType(b, schema.get("items"), indent), "[]"...)
	case "object":
		return r.appendObject(b, schema, indent, false)
	}
	return append(b, "any"...)
}

// renderFormat writes a response format (name, description, schema) as the
// model reads it.
func renderFormat(format node) string {
	b := []byte("# Response Formats\n\n## ")
	b = format.get("name").appendStr(b)
	b = append(b, "\n\n"...)
	b = appendComment(b, "", format.get("description").str())
	return string(appendSchema(b, format.get("schema")))
}

// appendSchema writes a JSON Schema compactly, without the members that every
// strict schema has.
func appendSchema(b []byte, n node) []byte {
	switch {
	case n.isObject():
		b = append(b, '{')
		start := len(b)
		for name, v := range n.members() {
			if string(name) == "required" && v.isArray() || string(name) == "additionalProperties" && !v.isObject() {
				continue
			}
			if len(b) > start {
				b = append(b, ',')
			}
			b = append(b, '"')
			b = append(b, name...)
			b = append(b, `":`...)
			b = appendSchema(b, v)
		}
		return append(b, '}')
	case n.isArray():
		b = append(b, '[')
		for i, v := range n.elements() {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendSchema(b, v)
		}
		return append(b, ']')
	}
	return append(b, n...)
}
