package tokens

import (
	"slices"
	"strings"
)

// A rendering says what of a function's schema the model gets to read, where
// models differ.
type rendering struct {
	titles      bool // titles of the parameters and properties
	description bool // description of the parameters as a whole
	refs        bool // what a $ref stands for, not any

	definitions map[string]node // reference → what it stands for
	open        []string        // the references that are being rendered
	budget      *int            // how many bytes of JSON references may still lead to
}

// Definitions may stand for each other many times over. So references are not
// followed beyond maxOpen within each other, nor to more than maxFollowed times
// the length of the functions' JSON in all.
const (
	maxOpen     = 8
	maxFollowed = 4
)

// maxIndent is the deepest indentation in bytes.
const maxIndent = 32

// tools writes function definitions as the model reads them: as declarations
// of TypeScript.
func (r rendering) tools(tools []node) string {
	r.budget = new(int)
	for _, f := range tools {
		*r.budget += maxFollowed * len(f)
	}
	b := []byte("# Tools\n\n## functions\n\nnamespace functions {\n\n")
	for _, f := range tools {
		b = r.appendTool(b, f)
	}
	return string(append(b, "} // namespace functions"...))
}

func (r rendering) appendTool(b []byte, tool node) []byte {
	var name, parameters node
	for member, v := range tool.members() {
		switch string(member) {
		case "name":
			name = v
		case "description":
			b = appendComment(b, "", v.str())
		case "parameters":
			parameters = v
		}
	}
	b = append(b, "type "...)
	b = name.appendStr(b)
	s := readSchema(parameters)
	if len(s.properties) == 0 {
		return append(b, " = () => any;\n\n"...)
	}
	b = append(b, " = (_: "...)
	if r.titles {
		b = appendComment(b, "", s.title)
	}
	if r.description {
		b = appendComment(b, "", s.description)
	}
	if r.refs {
		r.definitions = definitionsOf(parameters)
	}
	b = r.appendObject(b, s, "", true)
	return append(b, ") => any;\n\n"...)
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

// A schema is what is rendered of a JSON Schema.
type schema struct {
	title, description string
	union              node // anyOf or oneOf
	enum, kind, items  node
	ref                string
	properties         []property
	required           map[string]bool
}

type property struct {
	name   string
	schema node
}

func readSchema(n node) (s schema) {
	for name, v := range n.members() {
		switch string(name) {
		case "title":
			s.title = v.str()
		case "description":
			s.description = v.str()
		case "anyOf", "oneOf":
			s.union = v
		case "enum":
			s.enum = v
		case "type":
			s.kind = v
		case "items":
			s.items = v
		case "$ref":
			s.ref = v.str()
		case "properties":
			for name, v := range v.members() {
				s.properties = append(s.properties, property{string(name), v})
			}
		case "required":
			s.required = map[string]bool{}
			for _, name := range v.elements() {
				s.required[name.str()] = true
			}
		}
	}
	return s
}

// definitionsOf returns what the local references in a schema can stand for.
func definitionsOf(root node) map[string]node {
	definitions := map[string]node{}
	for _, place := range []string{"$defs", "definitions"} {
		for name, v := range root.get(place).members() {
			definitions["#/"+place+"/"+string(name)] = v
		}
	}
	return definitions
}

// appendObject writes the type of an object. A top-level object none of whose
// properties has a comment stands on one line; descriptions of nested
// properties are left out.
func (r rendering) appendObject(b []byte, s schema, indent string, top bool) []byte {
	if len(s.properties) == 0 {
		return append(b, "object"...)
	}
	oneLine := top
	properties := make([]schema, len(s.properties))
	for i, p := range s.properties {
		properties[i] = readSchema(p.schema)
		if properties[i].description != "" || r.titles && properties[i].title != "" {
			oneLine = false
		}
	}
	inner := indent
	if !top && len(indent) < maxIndent {
		inner += "    "
	}
	before, after, end := "\n", ",", "\n"+indent+"}"
	if oneLine {
		before, after, end = " ", "", " }"
	}
	b = append(b, '{')
	for i, p := range properties {
		if oneLine && i > 0 {
			b = append(b, ',')
		}
		b = append(b, before...)
		if !oneLine {
			if r.titles {
				b = appendComment(b, inner, p.title)
			}
			if top {
				b = appendComment(b, inner, p.description)
			}
			b = append(b, inner...)
		}
		b = append(b, s.properties[i].name...)
		if !s.required[s.properties[i].name] {
			b = append(b, '?')
		}
		b = append(b, ": "...)
		b = r.appendType(b, p, inner)
		b = append(b, after...)
	}
	return append(b, end...)
}

// appendType writes the type that a schema describes.
func (r rendering) appendType(b []byte, s schema, indent string) []byte {
	switch {
	case s.union.isArray():
		for i, v := range s.union.elements() {
			b = r.appendType(appendBar(b, i), readSchema(v), indent)
		}
	case s.ref != "":
		b = r.appendRef(b, s.ref, indent)
	case s.enum.isArray():
		for i, v := range s.enum.elements() {
			b = append(appendBar(b, i), v...)
		}
	case s.kind.isArray():
		var kinds []string
		for _, v := range s.kind.elements() {
			if kind := v.str(); !slices.Contains(kinds, kind) && len(kinds) < maxKinds {
				b = r.appendKind(appendBar(b, len(kinds)), kind, s, indent)
				kinds = append(kinds, kind)
			}
		}
	default:
		b = r.appendKind(b, s.kind.str(), s, indent)
	}
	return b
}

// maxKinds is how many kinds of values there are in JSON, integers counted.
const maxKinds = 7

// appendBar separates the ith variant of a union from the one before.
func appendBar(b []byte, i int) []byte {
	if i > 0 {
		return append(b, " | "...)
	}
	return b
}

// appendRef writes the type that a reference stands for, or any where it is
// not followed.
func (r rendering) appendRef(b []byte, ref, indent string) []byte {
	target := r.definitions[ref]
	if target == nil || slices.Contains(r.open, ref) || len(r.open) == maxOpen || *r.budget < len(target) {
		return append(b, "any"...)
	}
	*r.budget -= len(target)
	r.open = append(slices.Clip(r.open), ref)
	return r.appendType(b, readSchema(target), indent)
}

// appendKind writes the type of one kind of value that a schema describes.
func (r rendering) appendKind(b []byte, kind string, s schema, indent string) []byte {
	switch kind {
	case "string", "number", "boolean", "null":
		return append(b, kind...)
	case "integer":
		return append(b, "number"...)
	case "array":
		return append(r.appendType(b, readSchema(s.items), indent), "[]"...)
	case "object":
		return r.appendObject(b, s, indent, false)
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
	c := compactor{src: format.get("schema"), dst: b}
	c.value()
	return string(c.dst)
}

// A compactor copies a JSON Schema without white space and without the members
// that every strict schema has. It goes through src once, however deep it is.
type compactor struct {
	src node
	i   int // where it stands in src
	dst []byte
}

func (c *compactor) value() {
	switch {
	case c.i == len(c.src): // no schema
	case c.src[c.i] == '{':
		c.list('}', c.member)
	case c.src[c.i] == '[':
		c.list(']', func() bool { c.value(); return true })
	default:
		c.copyTo(valueEnd(c.src, c.i))
	}
}

func (c *compactor) copyTo(end int) {
	c.dst = append(c.dst, c.src[c.i:end]...)
	c.i = end
}

// list copies an object or array; item reports whether it copied one.
func (c *compactor) list(end byte, item func() bool) {
	c.copyTo(c.i + 1)
	for c.i = skipSpace(c.src, c.i); c.src[c.i] != end; c.i = skipSpace(c.src, c.i) {
		if c.src[c.i] == ',' {
			c.i = skipSpace(c.src, c.i+1)
		}
		if item() {
			c.dst = append(c.dst, ',')
		}
	}
	if last := len(c.dst) - 1; c.dst[last] == ',' {
		c.dst = c.dst[:last]
	}
	c.copyTo(c.i + 1)
}

func (c *compactor) member() bool {
	start, name := len(c.dst), c.src[c.i:stringEnd(c.src, c.i)]
	c.copyTo(c.i + len(name))
	c.i = skipSpace(c.src, c.i)
	c.copyTo(c.i + 1) // the colon
	c.i = skipSpace(c.src, c.i)
	first := c.src[c.i]
	if string(name) == `"required"` && first == '[' || string(name) == `"additionalProperties"` && first != '{' {
		c.dst = c.dst[:start]
		c.i = valueEnd(c.src, c.i)
		return false
	}
	c.value()
	return true
}
