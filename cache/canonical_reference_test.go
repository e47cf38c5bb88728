package cache

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/big"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The reference says what a key is in the slowest and most obvious way: it
// builds the whole tree, and it shares no code with the package.

type refMember struct {
	name  string
	value any
}

// refObject is an object in the order of the text. The other values are []any,
// string, json.Number, bool and nil.
type refObject []refMember

func (o refObject) get(name string) any {
	for _, m := range o {
		if m.name == name {
			return m.value
		}
	}
	return nil
}

func refParse(t testing.TB, raw []byte) refObject {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	v, err := refValue(d)
	if err != nil {
		t.Fatalf("the reference cannot read %q: %v", raw, err)
	}
	return v.(refObject)
}

func refValue(d *json.Decoder) (any, error) {
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch token {
	case json.Delim('{'):
		object := refObject{}
		for d.More() {
			name, err := d.Token()
			if err != nil {
				return nil, err
			}
			value, err := refValue(d)
			if err != nil {
				return nil, err
			}
			object = append(object, refMember{name.(string), value})
		}
		_, err = d.Token()
		return object, err
	case json.Delim('['):
		array := []any{}
		for d.More() {
			value, err := refValue(d)
			if err != nil {
				return nil, err
			}
			array = append(array, value)
		}
		_, err = d.Token()
		return array, err
	}
	return token, nil
}

// refPiece is a part of the canonical form: syntax or the content of a string.
type refPiece struct {
	text string
	kind string // "new", "old" or "arguments" for the contents that may be or hold ids
}

type refWriter struct {
	pieces     []refPiece
	normalise  func(string) string
	keepsOrder bool // inside a schema
}

func (w *refWriter) put(text string) { w.pieces = append(w.pieces, refPiece{text: text}) }

// value writes v, which stands at path: names of members, and "*" for elements.
func (w *refWriter) value(v any, path string, self refObject) {
	switch v := v.(type) {
	case nil:
		w.put("null")
	case bool:
		w.put(fmt.Sprint(v))
	case json.Number:
		w.put(refNumber(string(v)))
	case string:
		if refIsProse(path) && w.normalise != nil {
			v = w.normalise(v)
		}
		w.put(`"`)
		w.pieces = append(w.pieces, refPiece{refEscape(v), refKind(path, self)})
		w.put(`"`)
	case []any:
		w.put("[")
		for i, element := range v {
			if i > 0 {
				w.put(",")
			}
			w.value(element, path+"/*", nil)
		}
		w.put("]")
	case refObject:
		w.object(v, path)
	}
}

func (w *refWriter) object(o refObject, path string) {
	members := slices.Clone(o)
	if !refSchema.MatchString(path) {
		slices.SortFunc(members, func(a, b refMember) int { return strings.Compare(a.name, b.name) })
	}
	w.put("{")
	for i, m := range members {
		if i > 0 {
			w.put(",")
		}
		w.put(`"` + refEscape(m.name) + `":`)
		w.value(m.value, path+"/"+strings.NewReplacer("/", "%", "*", "%").Replace(m.name), o)
	}
	w.put("}")
}

var (
	refSchema = regexp.MustCompile(`^(/tools/\*(/function)?/parameters|/functions/\*/parameters|/(response_format|text)(/json_schema|/format)*/schema)(/|$)`)
	refProse  = regexp.MustCompile(`^(/instructions|/prompt|/messages/\*/content|/input/\*/(content|output))(/\*|/text)*$|^/input(/\*)?$`)
)

func refIsProse(path string) bool { return refProse.MatchString(path) }

// refKind says what kind of id may stand at path, in the object self.
func refKind(path string, self refObject) string {
	switch path {
	case "/messages/*/tool_calls/*/id":
		return "new"
	case "/messages/*/tool_call_id":
		return "old"
	case "/messages/*/tool_calls/*/function/arguments":
		return "arguments"
	case "/input/*/id", "/input/*/call_id", "/input/*/arguments":
		kind, _ := self.get("type").(string)
		switch {
		case kind == "item_reference" || refIsBare(self):
			return ""
		case path == "/input/*/arguments":
			return "arguments"
		case path == "/input/*/call_id" && strings.HasSuffix(kind, "_output"):
			return "old"
		}
		return "new"
	}
	return ""
}

// refIsBare says whether an item holds nothing but what names it.
func refIsBare(item refObject) bool {
	for _, m := range item {
		if kind, ok := m.value.(string); m.name == "type" && ok && strings.HasSuffix(kind, "_output") {
			return false
		}
		empty := m.value == nil || m.value == ""
		switch v := m.value.(type) {
		case []any:
			empty = len(v) == 0
		case refObject:
			empty = len(v) == 0
		}
		if !empty && !slices.Contains([]string{"id", "call_id", "status", "type"}, m.name) {
			return false
		}
	}
	return true
}

func refEscape(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteString(`\` + string(r))
		case strings.ContainsRune("\b\f\n\r\t", r):
			b.WriteString(`\` + string("bfnrt"[strings.IndexRune("\b\f\n\r\t", r)]))
		case r < 0x20:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

func refNumber(s string) string {
	mantissa, exponent, _ := strings.Cut(strings.ToLower(s), "e")
	if exponent == "" {
		exponent = "0"
	}
	negative := strings.HasPrefix(mantissa, "-")
	whole, fraction, _ := strings.Cut(strings.TrimPrefix(mantissa, "-"), ".")
	digits, _ := new(big.Int).SetString(whole+fraction, 10)
	exp, _ := new(big.Int).SetString(exponent, 10)
	if digits.Sign() == 0 {
		return "0"
	}
	if len(exp.Text(10)) > 18+strings.Count(exp.Text(10), "-") {
		return s
	}
	exp.Sub(exp, big.NewInt(int64(len(fraction))))
	ten := big.NewInt(10)
	for {
		quotient, rest := new(big.Int).QuoRem(digits, ten, new(big.Int))
		if rest.Sign() != 0 {
			break
		}
		digits = quotient
		exp.Add(exp, big.NewInt(1))
	}
	text := digits.String()
	if e := exp.Int64(); exp.IsInt64() && e >= 0 && e <= 20 {
		text += strings.Repeat("0", int(e))
	} else if exp.IsInt64() && e < 0 && e > -1000 && int(-e) < len(text) {
		text = text[:len(text)+int(e)] + "." + text[len(text)+int(e):]
	} else if exp.IsInt64() && e < 0 && e > -1000-int64(len(text)) && int(-e)-len(text) <= 20 {
		text = "0." + strings.Repeat("0", int(-e)-len(text)) + text
	} else {
		text += "e" + exp.String()
	}
	if negative {
		text = "-" + text
	}
	return text
}

var (
	refRun    = regexp.MustCompile(`[0-9A-Za-z]+`)
	refString = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)
)

func refLongestRun(s string) string {
	longest := ""
	for _, run := range refRun.FindAllString(s, -1) {
		if len(run) > len(longest) {
			longest = run
		}
	}
	return longest
}

// refRename replaces the ids in the pieces and joins these.
func refRename(pieces []refPiece) string {
	number := map[string]int{}
	for _, p := range pieces {
		if p.kind == "new" && refLongestRun(p.text) != "" && number[p.text] == 0 {
			number[p.text] = len(number) + 1
		}
	}
	var text []string // other text and ids in turn
	joined := ""
	for _, p := range pieces {
		switch {
		case p.kind == "arguments":
			for i, part := range refArguments(p.text, number) {
				if i%2 == 0 {
					joined += part
					continue
				}
				text = append(text, joined, part)
				joined = ""
			}
		case p.kind != "" && number[p.text] != 0:
			text = append(text, joined, p.text)
			joined = ""
		default:
			joined += p.text
		}
	}
	text = append(text, joined)
	mentioned := map[string]bool{}
	for i := 0; i < len(text); i += 2 {
		for _, at := range refRun.FindAllStringIndex(text[i], -1) {
			run := text[i][at[0]:at[1]]
			mentioned[run] = true
			if at[0] > 0 && text[i][at[0]-1] == '\\' {
				mentioned[run[1:]] = true
				if run[0] == 'u' && len(run) > 5 {
					mentioned[run[5:]] = true
				}
			}
		}
	}
	for i := 1; i < len(text); i += 2 {
		if !mentioned[refLongestRun(text[i])] {
			text[i] = fmt.Sprintf(`\#%d`, number[text[i]])
		}
	}
	return strings.Join(text, "")
}

// refArguments splits the content of an arguments string at the known ids that
// are string values in its JSON: other text and ids in turn.
func refArguments(content string, number map[string]int) []string {
	var inner string
	if json.Unmarshal([]byte(`"`+content+`"`), &inner) != nil || !json.Valid([]byte(inner)) {
		return []string{content}
	}
	parts := []string{""}
	from := 0
	for _, at := range refString.FindAllStringIndex(inner, -1) {
		id := refEscape(inner[at[0]+1 : at[1]-1])
		if number[id] == 0 || strings.HasPrefix(strings.TrimLeft(inner[at[1]:], " \t\n\r"), ":") {
			continue
		}
		parts[len(parts)-1] = refEscape(inner[from : at[0]+1])
		parts = append(parts, id, "")
		from = at[1] - 1
	}
	parts[len(parts)-1] = refEscape(inner[from:])
	return parts
}

// refCanonical is the canonical form of a body.
func refCanonical(t testing.TB, raw []byte, o Options) string {
	t.Helper()
	body := refParse(t, raw)
	w := refWriter{}
	if len(o.Normalise) > 0 {
		w.normalise = func(s string) string {
			for _, n := range o.Normalise {
				s = n.Pattern.ReplaceAllString(s, n.Replace)
			}
			return s
		}
	}
	kept := slices.DeleteFunc(slices.Clone(body), func(m refMember) bool {
		return m.value == nil || slices.Contains(o.Exclude, m.name)
	})
	w.object(kept, "")
	if body.get("previous_response_id") != nil || body.get("conversation") != nil {
		for i := range w.pieces {
			w.pieces[i].kind = ""
		}
	}
	return refRename(w.pieces)
}

// refKey is the key of a request.
func refKey(t testing.TB, raw []byte, c Context, o Options) Key {
	t.Helper()
	text := "llmproxy.llm.v1\n"
	for _, field := range []string{c.Tenant, c.Scope, c.Upstream, c.Endpoint, c.Sample, c.Organization, c.Project, c.Beta, c.Query} {
		var length [8]byte
		binary.BigEndian.PutUint64(length[:], uint64(len(field)))
		text += string(length[:]) + field
	}
	return sha256.Sum256([]byte(text + refCanonical(t, raw, o)))
}
