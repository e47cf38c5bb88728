package tokens

import (
	"slices"
)

// A call is one function call in the history.
type call struct {
	id, name  string
	arguments node // a string that holds JSON
}

// functionCalls returns the calls of a chat message, in either notation.
func functionCalls(m node) []call {
	var calls []call
	for _, c := range m.get("tool_calls").elements() {
		f := c.get("function")
		if f == nil { // a custom tool takes free text
			f = c.get("custom")
		}
		arguments := f.get("arguments")
		if arguments == nil {
			arguments = f.get("input")
		}
		calls = append(calls, call{c.get("id").str(), f.get("name").str(), arguments})
	}
	if f := m.get("function_call"); f.isObject() {
		calls = append(calls, call{"", f.get("name").str(), f.get("arguments")})
	}
	return calls
}

// toolCalls counts the calls of one message and remembers their names.
// Several at once are written as one call to multi_tool_use.parallel.
// Ids are not counted.
func (t *tally) toolCalls(calls []call) int {
	if t.names == nil {
		t.names = map[string]string{}
	}
	for _, c := range calls {
		t.names[c.id] = c.name
	}
	if len(calls) == 1 {
		return t.count(" to=functions."+calls[0].name) + t.text(calls[0].arguments)
	}
	b := []byte(`{"tool_uses":[`)
	for i, c := range calls {
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
	return t.count(" to=multi_tool_use.parallel") + t.count(string(b))
}

// toolResult counts the answer of the function called name. The name stands
// in place of the role. What a pair of call and result adds is charged here.
func (t *tally) toolResult(path, name string, content node) {
	n := frame + t.count("functions."+name) + t.content(path+".content", content)
	if t.model.harmony {
		n += 8
	} else {
		n += 2
	}
	t.charge(path, "tool-result", Rule, n)
}

// chatTools charges the tool definitions and the response format of a chat
// completion whose first system message is system, or nil.
func (t *tally) chatTools(body, system node) {
	tools := functionsOf(body)
	if len(tools) > 0 {
		text := renderTools(tools)
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
	format := body.get("response_format")
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

// joined returns what text adds to the tokens of the system message's content
// when the two are tokenized together.
func (t *tally) joined(system node, text string) int {
	var s []byte
	content := system.get("content")
	s = content.appendStr(s)
	for _, p := range content.elements() {
		s = p.get("text").appendStr(s)
	}
	before := t.count(string(s))
	return t.count(string(append(s, text...))) - before
}

// functionsOf returns the definitions of the functions of a chat completion,
// in either notation.
func functionsOf(body node) []node {
	var tools []node
	for _, f := range body.get("functions").elements() {
		tools = append(tools, f)
	}
	for _, tool := range body.get("tools").elements() {
		if f := tool.get("function"); f.isObject() {
			tools = append(tools, f)
		} else if f := tool.get("custom"); f.isObject() {
			tools = append(tools, f)
		}
	}
	return tools
}

// renderTools writes function definitions as the model reads them: as
// declarations of TypeScript.
func renderTools(tools []node) string {
	b := []byte("# Tools\n\n## functions\n\nnamespace functions {\n\n")
	for _, f := range tools {
		b = appendComment(b, "", f.get("description").str())
		b = append(b, "type "...)
		b = f.get("name").appendStr(b)
		parameters := f.get("parameters")
		if hasMembers(parameters.get("properties")) {
			b = append(b, " = (_: "...)
			b = appendObject(b, parameters, "", true)
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
func appendObject(b []byte, schema node, indent string, top bool) []byte {
	properties := schema.get("properties")
	if !hasMembers(properties) {
		return append(b, "object"...)
	}
	oneLine := top
	for _, p := range properties.members() {
		if p.get("description").str() != "" {
			oneLine = false
		}
	}
	var required []string
	for _, name := range schema.get("required").elements() {
		required = append(required, name.str())
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
		if !slices.Contains(required, name) {
			b = append(b, '?')
		}
		b = append(b, ": "...)
		b = appendType(b, p, inner)
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
func appendType(b []byte, schema node, indent string) []byte {
	for _, union := range []string{"anyOf", "oneOf"} {
		if variants := schema.get(union); variants.isArray() {
			return appendUnion(b, variants, func(b []byte, v node) []byte { return appendType(b, v, indent) })
		}
	}
	if values := schema.get("enum"); values.isArray() {
		return appendUnion(b, values, func(b []byte, v node) []byte { return append(b, v...) })
	}
	kind := schema.get("type")
	if kind.isArray() {
		return appendUnion(b, kind, func(b []byte, k node) []byte { return appendKind(b, k.str(), schema, indent) })
	}
	return appendKind(b, kind.str(), schema, indent)
}

func appendUnion(b []byte, variants node, one func([]byte, node) []byte) []byte {
	for i, v := range variants.elements() {
		if i > 0 {
			b = append(b, " | "...)
		}
		b = one(b, v)
	}
	return b
}

func appendKind(b []byte, kind string, schema node, indent string) []byte {
	switch kind {
	case "string", "number", "boolean", "null":
		return append(b, kind...)
	case "integer":
		return append(b, "number"...)
	case "array":
		return append(appendType(b, schema.get("items"), indent), "[]"...)
	case "object":
		return appendObject(b, schema, indent, false)
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
			if name == "required" && v.isArray() || name == "additionalProperties" && !v.isObject() {
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
