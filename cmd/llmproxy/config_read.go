package main

import (
	"bytes"
	"cmp"
	"encoding"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// Mistake is one thing that is wrong in the configuration.
type Mistake struct {
	Where string // file:line, the name of a variable, or a flag
	Field string // such as steps[1].budget[0].per; "" where the place is enough
	Text  string // what is wrong and what to write instead

	source source
	line   int
}

func (m Mistake) String() string {
	if m.Field == "" {
		return m.Where + ": " + m.Text
	}
	return m.Where + ": " + m.Field + ": " + m.Text
}

// ConfigError lists every mistake of a configuration: those of the file by
// line, then those of the environment, then those of the flags.
type ConfigError struct{ Mistakes []Mistake }

func (e *ConfigError) Error() string {
	count := "a mistake"
	if len(e.Mistakes) > 1 {
		count = fmt.Sprintf("%d mistakes", len(e.Mistakes))
	}
	var text strings.Builder
	fmt.Fprintf(&text, "the configuration has %s:", count)
	for _, m := range e.Mistakes {
		text.WriteString("\n" + m.String())
	}
	return text.String()
}

// source is one of the layers a value may come from, weakest first.
type source int

const (
	sourceFile source = iota
	sourceVariable
	sourceFlag
)

// origin is where the value of a field was written, and how.
type origin struct {
	source source
	where  string
	line   int
	text   string // the scalar as it was written, variables not replaced
}

// reader turns the sources of the configuration into typed values. It collects
// mistakes instead of stopping at one, and remembers where each field stands,
// so that checks made later on whole values can name the place too.
type reader struct {
	env      map[string]string // name → value
	used     map[string]bool   // variables that the file names
	ignored  []string          // variables that look like ours and are not
	origins  map[string]origin // field → where it was last set; also of lists and mappings
	mistakes []Mistake
	wrong    map[string]bool // fields that have a mistake

	source source // what is being read
	name   string // of the file
	where  string // the variable or flag being read
}

func newReader(name string, env map[string]string) *reader {
	return &reader{
		env:     env,
		used:    map[string]bool{},
		origins: map[string]origin{},
		wrong:   map[string]bool{},
		name:    name,
	}
}

// file reads the configuration file.
func (r *reader) file(content []byte) map[string]any {
	r.source = sourceFile
	var doc yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(content))
	err := decoder.Decode(&doc)
	if errors.Is(err, io.EOF) { // nothing but comments
		return nil
	}
	if err == nil {
		var second yaml.Node
		if err = decoder.Decode(&second); err == nil {
			r.addAt(second.Line, "", "begins a second document; keep one")
		}
	}
	if err != nil && !errors.Is(err, io.EOF) {
		r.syntax(err, content)
		return nil
	}
	values, _ := r.value(doc.Content[0], reflect.TypeFor[Config](), "").(map[string]any)
	return values
}

var yamlError = regexp.MustCompile(`^yaml: (?:line ([0-9]+): )?((?s).*)$`)

// syntax reports that the file is no YAML. The parser stops at the first place.
func (r *reader) syntax(err error, content []byte) {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	line := syntaxLine(text, content)
	if m := yamlError.FindStringSubmatch(err.Error()); m != nil && m[1] != "" {
		line, _ = strconv.Atoi(m[1]) // digits
		text = m[2]
	}
	if strings.Contains(text, "cannot start any token") {
		text += "; indent with spaces, not tabs, and quote values that begin with @ or `"
	}
	r.addAt(line, "", "is no YAML: %s", text)
}

// syntaxLine finds the line of a parser's error that does not tell it: an alias
// without its anchor, a byte that no text holds, or anything in line 1.
func syntaxLine(text string, content []byte) int {
	at := bytes.IndexFunc(content, func(c rune) bool {
		return c == utf8.RuneError || unicode.IsControl(c) && !unicode.IsSpace(c)
	})
	if name := unknownAnchor.FindStringSubmatch(text); name != nil {
		at = bytes.Index(content, []byte("*"+name[1]))
	}
	return 1 + bytes.Count(content[:max(0, at)], []byte("\n"))
}

var unknownAnchor = regexp.MustCompile(`^unknown anchor '(.*)' referenced`)

// value reads n as a value of type t. It returns nil where n holds none: null,
// or a mistake, which is then noted.
func (r *reader) value(n *yaml.Node, t reflect.Type, path string) any {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if isNull(n) {
		return nil
	}
	switch {
	case t == reflect.TypeFor[BudgetRule]():
		return r.budgetRule(n, path)
	case t.Kind() == reflect.Struct:
		return r.mapping(n, t, path)
	case t.Kind() == reflect.Slice:
		return r.list(n, t, path)
	}
	return r.scalar(n, t, path)
}

func isNull(n *yaml.Node) bool {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null"
}

func (r *reader) mapping(n *yaml.Node, t reflect.Type, path string) any {
	known := schema(t)
	keys := make([]string, len(known))
	for i, m := range known {
		keys[i] = m.key
	}
	values := map[string]any{}
	for key, value := range r.members(n, path, keys) {
		m := known[slices.Index(keys, key)]
		if v := r.value(value, m.typ, join(path, key)); v != nil {
			values[key] = v
		}
	}
	return values
}

// members returns the members of a mapping that has the given keys. Others, and
// a key that stands twice, are mistakes.
func (r *reader) members(n *yaml.Node, path string, keys []string) map[string]*yaml.Node {
	r.note(path, n.Line, "")
	if n.Kind != yaml.MappingNode {
		r.add(path, "must be a mapping with keys such as %s", enumerate(keys[:min(3, len(keys))], "and"))
		return nil
	}
	found := map[string]*yaml.Node{}
	lines := map[string]int{}
	for i := 0; i < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		first, twice := lines[key.Value]
		lines[key.Value] = cmp.Or(first, key.Line)
		switch {
		case twice:
			r.addAt(key.Line, join(path, key.Value), "stands twice; the first is in line %d", first)
		case !slices.Contains(keys, key.Value):
			r.unknown(key, path, keys)
		default:
			found[key.Value] = value
		}
	}
	return found
}

// unknown reports a key that the configuration does not have here.
func (r *reader) unknown(key *yaml.Node, path string, keys []string) {
	full := join(path, key.Value)
	if text := laterRelease(full); text != "" {
		r.addAt(key.Line, full, "%s", text)
		return
	}
	if key.Value == "<<" {
		r.addAt(key.Line, full, "merging is not supported; repeat the lines, or use an alias for a whole value")
		return
	}
	if near, ok := nearest(key.Value, keys); ok {
		r.addAt(key.Line, full, "is no setting; did you mean %s?", near)
		return
	}
	if elsewhere := misplaced(key.Value, path); elsewhere != "" {
		r.addAt(key.Line, full, "is no setting; did you mean %s?", elsewhere)
		return
	}
	r.addAt(key.Line, full, "is no setting; use %s", enumerate(keys, "or"))
}

// misplaced returns the setting of that name which stands elsewhere: below path
// if there is one, such as cache.ttl of a step. It returns "" if there is none.
func misplaced(name, path string) string {
	below := listIndex.ReplaceAllString(path, "[]") + "."
	found := ""
	for _, key := range schemaKeys(reflect.TypeFor[Config](), "") {
		if !strings.HasSuffix(key, "."+name) {
			continue
		}
		if rest, ok := strings.CutPrefix(key, below); ok {
			return rest
		}
		found = cmp.Or(found, key)
	}
	return found
}

var listIndex = regexp.MustCompile(`\[[0-9]+\]`)

// laterRelease explains keys that are planned, but that this release would have
// to ignore. It returns "" for all others.
func laterRelease(path string) string {
	switch listIndex.ReplaceAllString(path, "[]") {
	case "prices":
		return "come with budgets in usd in a later release; remove the key"
	case "include", "ledger":
		return "is not available in this release; remove the key"
	case "budget[].usd", "steps[].budget[].usd":
		return "budgets in usd come in a later release; limit input_tokens, output_tokens, tokens or calls"
	}
	return ""
}

func (r *reader) list(n *yaml.Node, t reflect.Type, path string) any {
	r.note(path, n.Line, "")
	if n.Kind != yaml.SequenceNode {
		r.add(path, "must be a list; write [%s] or one line with a leading - for each entry", exampleItem(n, t.Elem()))
		return nil
	}
	placeholder := reflect.Zero(t.Elem()).Interface()
	items := make([]any, 0, len(n.Content))
	for i, item := range n.Content {
		at := fmt.Sprintf("%s[%d]", path, i)
		v := r.value(item, t.Elem(), at)
		if v == nil {
			v = placeholder // keeps the index of those after it
		}
		if isNull(item) {
			r.note(at, item.Line, "")
			r.add(at, "is empty; fill it in or remove the line")
		}
		items = append(items, v)
	}
	return items
}

func exampleItem(n *yaml.Node, t reflect.Type) string {
	switch {
	case t.Kind() == reflect.Struct:
		return "{…}"
	case n.Kind == yaml.ScalarNode:
		return n.Value
	}
	return "…"
}

// scalar reads a single value. What looks like a number or a date to YAML is
// text where text is asked for: a model may be called 4.1.
func (r *reader) scalar(n *yaml.Node, t reflect.Type, path string) any {
	r.note(path, n.Line, n.Value)
	if n.Kind != yaml.ScalarNode {
		r.add(path, "must be a single value")
		return nil
	}
	text, replaced := n.Value, false
	if r.source == sourceFile {
		var ok bool
		if text, replaced, ok = r.expand(n.Value, path); !ok {
			return nil
		}
	}
	quoted := !replaced && n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) != 0
	value := reflect.New(t)
	if u, ok := value.Interface().(encoding.TextUnmarshaler); ok {
		if err := u.UnmarshalText([]byte(text)); err != nil {
			r.bad(path, "%w", err)
			return nil
		}
		return value.Elem().Interface()
	}
	switch t.Kind() {
	case reflect.String:
		return text
	case reflect.Bool:
		if quoted || text != "true" && text != "false" {
			r.bad(path, "is neither true nor false")
			return nil
		}
		return text == "true"
	case reflect.Int, reflect.Int64:
		count, err := parseCount(text)
		if err == nil && quoted {
			err = fmt.Errorf("is text; write %s without quotes", text)
		}
		if err != nil {
			r.bad(path, "%w", err)
			return nil
		}
		value.Elem().SetInt(count)
		return value.Elem().Interface()
	}
	panic("configuration field of an unforeseen type: " + path)
}

var variable = regexp.MustCompile(`\$\$\{|\$\{([^{}]*)\}?`)

// expand replaces each ${NAME} by the environment variable, and $${ by ${. A
// group reference of a regular expression, ${1}, stays as it is.
func (r *reader) expand(text, path string) (expanded string, replaced, ok bool) {
	ok = true
	expanded = variable.ReplaceAllStringFunc(text, func(found string) string {
		if found == "$${" {
			return "${"
		}
		name := strings.TrimSuffix(found[2:], "}")
		value, set := r.env[name]
		switch {
		case isDigits(name) && strings.HasSuffix(found, "}"):
			return found
		case !variableForm.MatchString(name) || !strings.HasSuffix(found, "}"):
			r.add(path, "%s names no environment variable; write ${NAME}, or $${ for a literal ${", found)
			ok = false
		case !set:
			r.add(path, "the environment variable %s is not set; set it, or write $${ for a literal ${", name)
			ok = false
		}
		r.used[name] = true
		replaced = true
		return value
	})
	return expanded, replaced, ok
}

var variableForm = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

func isDigits(text string) bool { return text != "" && strings.Trim(text, "0123456789") == "" }

// note remembers where a field is set, and the text that sets it.
func (r *reader) note(path string, line int, text string) {
	where := r.where
	if r.source == sourceFile {
		where = fmt.Sprintf("%s:%d", r.name, line)
	} else {
		delete(r.wrong, path) // what is said of the file does not excuse what goes over it
	}
	r.origins[path] = origin{r.source, where, line, text}
}

// isSet tells whether a source sets a field, rightly or wrongly.
func (r *reader) isSet(path string) bool {
	_, set := r.origins[path]
	return set
}

// origin returns where a field, or else the nearest thing around it, was set.
func (r *reader) origin(path string) origin {
	for {
		if o, ok := r.origins[path]; ok {
			return o
		}
		end := strings.LastIndexAny(path, ".[")
		if end < 0 {
			break
		}
		path = path[:end]
	}
	return origin{where: cmp.Or(r.name, "defaults")}
}

// add notes a mistake at a field: the first one only, and none below a field
// that is wrong as a whole.
func (r *reader) add(path, format string, args ...any) {
	if r.isWrong(path) {
		return
	}
	if path != "" {
		r.wrong[path] = true
	}
	o := r.origin(path)
	if path == "" && r.source != sourceFile {
		o = origin{source: r.source, where: r.where}
	}
	r.mistakes = append(r.mistakes, Mistake{o.where, path, fmt.Errorf(format, args...).Error(), o.source, o.line})
}

// isWrong tells whether a mistake is noted for a field or for what holds it.
func (r *reader) isWrong(path string) bool {
	for ; path != ""; path = path[:max(0, strings.LastIndexAny(path, ".["))] {
		if r.wrong[path] {
			return true
		}
	}
	return false
}

// bad notes that the text of a field is wrong, and quotes it as it was written:
// never a value that came from a variable. It is not for secrets.
func (r *reader) bad(path, format string, args ...any) {
	r.add(path, "%q "+format, append([]any{r.origin(path).text}, args...)...)
}

// addAt notes a mistake at a line of the file, whatever else is wrong there.
func (r *reader) addAt(line int, path, format string, args ...any) {
	where := r.name
	if line > 0 {
		where = fmt.Sprintf("%s:%d", r.name, line)
	}
	r.mistakes = append(r.mistakes, Mistake{where, path, fmt.Sprintf(format, args...), sourceFile, line})
}

// err returns what was noted as a *ConfigError, or nil.
func (r *reader) err() error {
	if len(r.mistakes) == 0 {
		return nil
	}
	slices.SortStableFunc(r.mistakes, func(a, b Mistake) int {
		return cmp.Or(cmp.Compare(a.source, b.source), cmp.Compare(a.line, b.line),
			cmp.Compare(a.Where, b.Where), cmp.Compare(a.Field, b.Field))
	})
	return &ConfigError{r.mistakes}
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}
