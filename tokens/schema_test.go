package tokens

import (
	"fmt"
	"strings"
	"testing"
)

func parsed(t *testing.T, text string) node {
	t.Helper()
	n, err := parse([]byte(text))
	if err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return n
}

func functionsIn(t *testing.T, text string) (tools []node) {
	t.Helper()
	for _, f := range parsed(t, text).elements() {
		tools = append(tools, f)
	}
	return tools
}

func TestRenderTools(t *testing.T) {
	const head, tail = "# Tools\n\n## functions\n\nnamespace functions {\n\n", "} // namespace functions"
	for name, c := range map[string]struct{ functions, want string }{
		"without parameters": {
			`[{"name":"stop"},{"name":"go","description":null,"parameters":{"type":"object","properties":{}}}]`,
			"type stop = () => any;\n\ntype go = () => any;\n\n",
		},
		"nothing said of the properties": {
			`[{"name":"f","description":"Does it.","parameters":{"type":"object","required":["a"],"additionalProperties":false,
				"properties":{"a":{"type":"string","minLength":1},"b":{"type":"integer"},"c":{"description":" "}}}}]`,
			"// Does it.\ntype f = (_: { a: string, b?: number, c?: any }) => any;\n\n",
		},
		"comments": {
			`[{"name":"f","parameters":{"title":"f_args","description":"All of it.",
				"properties":{"a":{"title":"A","description":"For whom","type":"string"},"b":{"type":"boolean"}}}}]`,
			"type f = (_: // f_args\n// All of it.\n{\n// A\n// For whom\na?: string,\nb?: boolean,\n}) => any;\n\n",
		},
		"a comment of lines": {
			`[{"name":"f","description":"\n  Plans.\n\n    Args:\n        a: what\n    "}]`,
			"// Plans.\n\nArgs:\na: what\ntype f = () => any;\n\n",
		},
		"defaults": {
			`[{"name":"f","parameters":{"properties":{"a":{"type":"string","default":"x"},"b":{"type":"boolean","default":false},"c":{"default":null}}}}]`,
			"type f = (_: {\na?: string, // default: \"x\"\nb?: boolean, // default: false\nc?: any, // default: null\n}) => any;\n\n",
		},
		"unions": {
			`[{"name":"f","parameters":{"properties":{"a":{"enum":["fast",2,null],"type":"string"},"b":{"type":["integer","null"]},
				"c":{"anyOf":[{"type":"string"},{"type":"array","items":{"type":"number"}}]},"d":{"oneOf":[{"type":"null"},{"type":"object"}]}}}}]`,
			"type f = (_: { a?: \"fast\" | 2 | null, b?: number | null, c?: string | number[], d?: null | object }) => any;\n\n",
		},
		"nested objects": {
			`[{"name":"f","parameters":{"properties":{"a":{"type":"object","required":["b"],"properties":{"b":{"type":"string"},"c":{"type":"array"}}},
				"d":{"type":"array","items":{"properties":{"e":{"type":"string","description":"what"}}}}}}}]`,
			"type f = (_: { a?: { b: string, c?: any[] }, d?: {\n// what\ne?: string,\n}[] }) => any;\n\n",
		},
		"references": {
			`[{"name":"f","parameters":{"properties":{"who":{"$ref":"#/$defs/Who"},"all":{"type":"array","items":{"$ref":"#/$defs/Who"}},
				"old":{"$ref":"#/definitions/Old","description":"of old"},"lost":{"$ref":"#/$defs/Lost"},"far":{"$ref":"https://x/y"}},
				"$defs":{"Who":{"title":"Person","type":"object","properties":{"name":{"type":"string"},"boss":{"$ref":"#/$defs/Who"}}}},
				"definitions":{"Old":{"description":"not said","enum":[1]}}}}]`,
			"type f = (_: {\n// Person\nwho?: {\nname?: string,\n// Person\nboss?: any,\n},\nall?: {\nname?: string,\n// Person\nboss?: any,\n}[],\n" +
				"// of old\nold?: 1,\nlost?: any,\nfar?: any,\n}) => any;\n\n",
		},
	} {
		if got := renderTools(functionsIn(t, c.functions)); got != head+c.want+tail {
			t.Errorf("%s:\n%s\nwant\n%s", name, got, head+c.want+tail)
		}
	}
}

func TestRenderFormat(t *testing.T) {
	for _, c := range []struct{ format, want string }{
		{`{"name":"x","schema":{"type": "object", "required": ["a"], "properties": {"a": [ 1 , {} , [ ] ], "required": {"type": "string"}},
			"additionalProperties" : false}}`,
			"x\n\n" + `{"type":"object","properties":{"a":[1,{},[]],"required":{"type":"string"}}}`},
		{`{"name":"x","description":"What\nfor","schema":{"additionalProperties":{"type":"number"},"x":"a, b"}}`,
			"x\n\n// What\nfor\n" + `{"additionalProperties":{"type":"number"},"x":"a, b"}`},
		{`{"schema":{"required":[]}}`, "\n\n{}"},
		{`{}`, "\n\n"},
	} {
		if got := renderFormat(node(c.format)); got != "# Response Formats\n\n## "+c.want {
			t.Errorf("%s:\n%s\nwant\n%s", c.format, got, c.want)
		}
	}
}

// TestReferencesAreBounded renders definitions that stand for each other so
// many times over that they would not end.
func TestReferencesAreBounded(t *testing.T) {
	var b strings.Builder
	b.WriteString(`[{"name":"f","parameters":{"properties":{"a":{"$ref":"#/$defs/0"}},"$defs":{`)
	for i := range 20 {
		fmt.Fprintf(&b, `"%d":{"type":"object","properties":{`, i)
		for k := range 20 {
			fmt.Fprintf(&b, `"p%d":{"$ref":"#/$defs/%d"},`, k, i+1)
		}
		b.WriteString(`"q":{}}},`)
	}
	b.WriteString(`"20":{}}}}]`)
	if got := len(renderTools(functionsIn(t, b.String()))); got > 2*maxFollowed*b.Len() {
		t.Errorf("%d bytes from %d", got, b.Len())
	}
}

// TestReferencesSayNoMoreThanTheyLeadTo has one long description that a great
// many properties refer to.
func TestReferencesSayNoMoreThanTheyLeadTo(t *testing.T) {
	var b strings.Builder
	b.WriteString(`[{"name":"f","parameters":{"$defs":{"D":{"type":"string","description":"` + strings.Repeat("long ", 10_000) + `"}},"properties":{`)
	for i := range 10_000 {
		fmt.Fprintf(&b, `"p%d":{"$ref":"#/$defs/D"},`, i)
	}
	b.WriteString(`"q":{}}}}]`)
	if got := len(renderTools(functionsIn(t, b.String()))); got > 2*maxFollowed*b.Len() {
		t.Errorf("%d bytes from %d", got, b.Len())
	}
}
