package cache

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"
)

// spellings are numbers that are equal within a row and different between rows.
var spellings = [][]string{
	{"0", "-0", "0.0", "0e7", "-0.000E-3", "0e99999999999999999999"},
	{"1", "1.0", "1e0", "10e-1", "0.1E+1", "1.000"},
	{"-1", "-1.0", "-1E0", "-10E-1"},
	{"10", "1e1", "1E+1", "10.0", "100e-1"},
	{"0.7", "7e-1", "0.70", "70E-2"},
	{"12.5", "125e-1", "1.25e+1", "12.500"},
	{"100000000000000000000", "1e20", "1E+020"},
	{"1e21", "1000000000000000000000", "10e20"},
	{"0.000000000000000000001", "1e-21", "10e-22"},
	{"1e-22", "0.0000000000000000000001"},
	{"9007199254740993"}, {"9007199254740992"}, {"9007199254740992.5"},
	{"123456789012345678901234567890"}, {"123456789012345678901234567891"},
	{"1e400", "10e399", "0.1E401"},
	{"1e-999999999999999999"}, {"10e-1000000000000000000"}, // equal, but the second is kept as it stands
	{"1e1000000000000000000", "10e999999999999999999"},
	{"3e1000000000000000000000000"},
}

// generator makes request bodies. Its numbers are the first of a row of
// spellings.
type generator struct {
	*rand.Rand
	ids []string
	odd bool // odd ids, and mentions of ids in texts
}

func newGenerator(r *rand.Rand, odd bool) *generator {
	g := &generator{Rand: r, odd: odd}
	for range 2 + r.IntN(4) {
		g.ids = append(g.ids, g.freshID())
	}
	if odd {
		g.ids = append(g.ids, "1", "", "-", "call_é", `a"b\n`, "a\nb", "content", "fc_"+g.ids[0])
	}
	return g
}

func (g *generator) freshID() string {
	id := []byte("call_")
	for range 20 {
		id = append(id, "abcdefghijkmnopqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789"[g.IntN(57)])
	}
	return string(id)
}

func pick[T any](g *generator, from ...T) T { return from[g.IntN(len(from))] }

func (g *generator) id() string { return pick(g, g.ids...) }

func (g *generator) text() string {
	var b strings.Builder
	for range g.IntN(6) {
		b.WriteString(pick(g, "ticket ", "café ", "cafe\u0301 ", "12:00:01 ", "A  B", "\n", "\t", `"so"`, `\`, "/", "\x00", "\x1f", "\x7f", "<&>\u2028", "😀", "日本語", strings.Repeat("long prose ", 5)))
		if g.odd && g.IntN(4) == 0 {
			b.WriteString(pick(g, "", "\n", `\n`, "x", "-") + g.id() + pick(g, "", ".", "x", " "))
		}
	}
	return b.String()
}

func (g *generator) scalar() any {
	return pick[any](g, json.Number(pick(g, spellings...)[0]), g.text(), true, false, nil)
}

// value is anything at all.
func (g *generator) value(depth int) any {
	if depth == 0 {
		return g.scalar()
	}
	switch g.IntN(4) {
	case 0:
		array := []any{}
		for range g.IntN(4) {
			array = append(array, g.value(depth-1))
		}
		return array
	case 1:
		var names []string
		for range pick(g, 0, 1, 2, 3, 20) {
			names = append(names, pick(g, "a", "b", "id", "text", "type", "name", "content", "é", "é\"", "\n", "", "z", "schema", "parameters", fmt.Sprint(g.IntN(50))))
		}
		slices.Sort(names)
		object := refObject{}
		for _, name := range slices.Compact(names) {
			object = append(object, refMember{name, g.value(depth - 1)})
		}
		g.Shuffle(len(object), func(i, j int) { object[i], object[j] = object[j], object[i] })
		return object
	}
	return g.scalar()
}

func (g *generator) content() any {
	if g.IntN(3) > 0 {
		return g.text()
	}
	return []any{
		refObject{{"type", "text"}, {"text", g.text()}},
		refObject{{"type", "image_url"}, {"image_url", refObject{{"url", "data:image/png;base64,AAAA"}, {"detail", "low"}}}},
	}
}

// arguments is JSON in a string, with an id here and there.
func (g *generator) arguments() string {
	id := g.id()
	quoted, err := json.Marshal(id)
	if err != nil {
		panic(err)
	}
	return pick(g, `{"q":"x"}`, `{"input":"x","id":`+string(quoted)+`}`, `{ "n" : [ `+string(quoted)+` , 1.0 ] }`,
		`{`+string(quoted)+` : 1}`, `{"x":"\"so, \\\"","y":`+string(quoted)+`}`, `"`+id+`"`, `not JSON: `+id, "")
}

func (g *generator) chat() refObject {
	messages := []any{refObject{{"role", "system"}, {"content", g.text()}}}
	for range g.IntN(5) {
		switch g.IntN(3) {
		case 0:
			messages = append(messages, refObject{{"role", "user"}, {"content", g.content()}})
		case 1:
			var calls []any
			for range 1 + g.IntN(2) {
				calls = append(calls, refObject{{"id", g.id()}, {"type", "function"}, {"function", refObject{{"name", "f"}, {"arguments", g.arguments()}}}})
			}
			messages = append(messages, refObject{{"role", "assistant"}, {"content", nil}, {"tool_calls", calls}})
		case 2:
			messages = append(messages, refObject{{"role", "tool"}, {"tool_call_id", g.id()}, {"content", g.content()}})
		}
	}
	parameters := g.value(3)
	return refObject{
		{"model", "gpt-4.1"}, {"messages", messages}, {"temperature", json.Number(pick(g, spellings...)[0])},
		{"tools", []any{refObject{{"type", "function"}, {"function", refObject{{"name", "f"}, {"parameters", parameters}}}}}},
		{"response_format", refObject{{"type", "json_schema"}, {"json_schema", refObject{{"name", "n"}, {"schema", g.value(2)}}}}},
		{"metadata", refObject{{"run", g.id()}}}, {"unknown", g.value(3)},
	}
}

func (g *generator) responses() refObject {
	input := []any{}
	for range g.IntN(6) {
		input = append(input, pick[any](g,
			refObject{{"role", "user"}, {"content", g.content()}},
			refObject{{"type", "message"}, {"role", "assistant"}, {"id", g.id()}, {"content", []any{refObject{{"type", "output_text"}, {"text", g.text()}}}}},
			refObject{{"type", "function_call"}, {"id", g.id()}, {"call_id", g.id()}, {"name", "f"}, {"arguments", g.arguments()}},
			refObject{{"type", "function_call_output"}, {"call_id", g.id()}, {"output", g.text()}},
			refObject{{"type", pick(g, "item_reference", "image_generation_call")}, {"id", g.id()}},
			refObject{{"type", "reasoning"}, {"id", g.id()}, {"summary", []any{}}, {"encrypted_content", g.text()}},
			g.text(),
		))
	}
	body := refObject{
		{"model", "gpt-5"}, {"input", input}, {"instructions", g.text()}, {"store", true},
		{"tools", []any{refObject{{"type", "function"}, {"name", "f"}, {"parameters", g.value(3)}}}},
		{"text", refObject{{"format", refObject{{"type", "json_schema"}, {"schema", g.value(2)}}}}},
	}
	if g.odd && g.IntN(5) == 0 {
		body = append(body, refMember{"previous_response_id", pick[any](g, "resp_1", nil)})
	}
	return body
}

func (g *generator) body() refObject {
	body := pick(g, g.chat, g.responses)()
	g.Shuffle(len(body), func(i, j int) { body[i], body[j] = body[j], body[i] })
	return body
}

// spell writes v, which stands at path, in some JSON spelling.
func (g *generator) spell(v any, path string) string {
	space := func() string { return pick(g, "", "", "", " ", "\n\t", "\r\n") }
	var parts []string
	switch v := v.(type) {
	case json.Number:
		for _, row := range spellings {
			if row[0] == string(v) {
				return pick(g, row...)
			}
		}
		return string(v)
	case string:
		return g.spellString(v)
	case []any:
		for _, element := range v {
			parts = append(parts, space()+g.spell(element, path+"/*")+space())
		}
		return "[" + space() + strings.Join(parts, ",") + space() + "]"
	case refObject:
		v = slices.Clone(v)
		if !refSchema.MatchString(path) {
			g.Shuffle(len(v), func(i, j int) { v[i], v[j] = v[j], v[i] })
		}
		for _, m := range v {
			parts = append(parts, space()+g.spellString(m.name)+space()+":"+space()+g.spell(m.value, path+"/"+m.name)+space())
		}
		return "{" + space() + strings.Join(parts, ",") + space() + "}"
	case nil:
		return "null"
	}
	return fmt.Sprint(v)
}

func (g *generator) spellString(s string) string {
	plain := g.IntN(2) == 0
	var b strings.Builder
	for _, r := range s {
		switch {
		case r < 0x20 || r == '"' || r == '\\' || !plain && g.IntN(4) == 0:
			if short := strings.IndexRune("\b\f\n\r\t\"\\/", r); short >= 0 && g.IntN(3) > 0 {
				b.WriteString(`\` + string(`bfnrt"\/`[short]))
				continue
			}
			for _, unit := range utf16.Encode([]rune{r}) {
				fmt.Fprintf(&b, pick(g, `\u%04x`, `\u%04X`), unit)
			}
		default:
			b.WriteRune(r)
		}
	}
	return `"` + b.String() + `"`
}

// mutate changes one thing somewhere inside v.
func (g *generator) mutate(v any) any {
	switch v := v.(type) {
	case refObject:
		v = slices.Clone(v)
		if len(v) == 0 || g.IntN(8) == 0 {
			return append(v, refMember{"new one", g.scalar()})
		}
		i := g.IntN(len(v))
		if g.IntN(8) == 0 {
			return slices.Delete(v, i, i+1)
		}
		v[i].value = g.mutate(v[i].value)
		return v
	case []any:
		v = slices.Clone(v)
		if len(v) == 0 || g.IntN(8) == 0 {
			return append(v, g.scalar())
		}
		i := g.IntN(len(v))
		if j := g.IntN(len(v)); i != j && fmt.Sprint(v[i]) != fmt.Sprint(v[j]) {
			v[i], v[j] = v[j], v[i]
			return v
		}
		v[i] = g.mutate(v[i])
		return v
	case string:
		return v + pick(g, " ", "x", "\u0301", "\n")
	case bool:
		return !v
	case json.Number:
		return json.Number("0.31415")
	}
	return "no longer null"
}

func mustScan(t testing.TB, raw string) *Document {
	t.Helper()
	d, err := Scan([]byte(raw))
	if err != nil {
		t.Fatalf("Scan(%q): %v", raw, err)
	}
	return d
}

// seeded returns a source of random numbers, and has the test name its seed
// where it fails.
func seeded(t testing.TB) *rand.Rand {
	seed := rand.Uint64()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	})
	return rand.New(rand.NewPCG(seed, 0))
}

func TestKeyIsTheReferenceKey(t *testing.T) {
	r := seeded(t)
	c := Context{Tenant: "acme", Scope: "draft", Upstream: "openai", Endpoint: "/v1/chat/completions", Sample: "3", Organization: "o", Project: "p", Beta: "b=1", Query: "a=b"}
	clock := Normaliser{regexp.MustCompile(`\d\d:\d\d:(\d\d)`), "<time $1>"}
	quote := Normaliser{regexp.MustCompile(`so`), "\"\\\n\x01"}
	for range 600 {
		g := newGenerator(r, true)
		o := Options{Exclude: DefaultExclude()}
		if g.IntN(3) == 0 {
			o.Normalise = []Normaliser{clock, quote}
		}
		body := g.body()
		first, second := g.spell(body, ""), g.spell(body, "")
		d := mustScan(t, first)
		key := d.Key(c, o)
		if want := refKey(t, []byte(first), c, o); key != want {
			t.Fatalf("the key of %s is that of\n%s\nand not of\n%s", first, canonical(d, o), refCanonical(t, []byte(first), o))
		}
		if again := mustScan(t, second).Key(c, o); again != key {
			t.Fatalf("two spellings, two keys:\n%s\n%s", first, second)
		}
	}
}

// canonical returns the canonical form of d, ids replaced.
func canonical(d *Document, o Options) string {
	f := newForm(d, o)
	defer f.release()
	f.whole()
	f.streaming = false
	f.replace(f.spare, 0, len(f.spare), f.spans)
	return string(f.buf)
}

func TestKeyChangesWithEveryDifference(t *testing.T) {
	r := seeded(t)
	o := Options{}
	for range 1500 {
		g := newGenerator(r, false)
		g.ids = []string{""} // it cannot be renamed, so that another id is a difference
		body := g.body()
		other := g.mutate(body).(refObject)
		raw, otherRaw := g.spell(body, ""), g.spell(other, "")
		if equalBodies(body, other) {
			continue
		}
		a, b := mustScan(t, raw), mustScan(t, otherRaw)
		if a.Key(Context{}, o) == b.Key(Context{}, o) {
			t.Fatalf("one key for\n%s\n%s", raw, otherRaw)
		}
		if a.Fingerprint(o).Diff(b.Fingerprint(o)) == nil {
			t.Fatalf("one fingerprint for\n%s\n%s", raw, otherRaw)
		}
	}
}

// equalBodies says whether two bodies differ in nothing but members that are
// null.
func equalBodies(a, b refObject) bool {
	strip := func(o refObject) string {
		o = slices.DeleteFunc(slices.Clone(o), func(m refMember) bool { return m.value == nil })
		slices.SortFunc(o, func(a, b refMember) int { return strings.Compare(a.name, b.name) })
		return fmt.Sprintf("%#v", o)
	}
	return strip(a) == strip(b)
}

func TestFreshIDsKeepTheKey(t *testing.T) {
	r := seeded(t)
	o := Options{Exclude: DefaultExclude()}
	renamed := 0
	for range 500 {
		g := newGenerator(r, false)
		// Every id is introduced, or it would stand for something upstream.
		introduced := refObject{{"role", "assistant"}, {"tool_calls", []any{}}}
		items := []any{}
		for _, id := range g.ids {
			introduced[1].value = append(introduced[1].value.([]any), refObject{{"id", id}})
			items = append(items, refObject{{"type", "function_call"}, {"call_id", id}, {"name", "f"}})
		}
		body := g.body()
		for i, m := range body {
			switch list, _ := m.value.([]any); m.name {
			case "messages":
				body[i].value = append([]any{introduced}, list...)
			case "input":
				body[i].value = append(items, list...)
			}
		}
		pairs := []string{}
		for _, id := range g.ids {
			pairs = append(pairs, id, g.freshID())
		}
		raw, fresh := g.spell(body, ""), g.spell(replaceIDs(body, strings.NewReplacer(pairs...)), "")
		d := mustScan(t, raw)
		if strings.Contains(canonical(d, o), "call_") {
			continue // an id that is mentioned by an item_reference
		}
		renamed++
		if other := mustScan(t, fresh); d.Key(Context{}, o) != other.Key(Context{}, o) || d.Fingerprint(o).Diff(other.Fingerprint(o)) != nil {
			t.Fatalf("two keys or fingerprints for\n%s\n%s", raw, fresh)
		}
	}
	if renamed < 40 {
		t.Fatalf("only %d of 500 bodies had ids to rename", renamed)
	}
}

// replaceIDs replaces ids in all strings inside v.
func replaceIDs(v any, r *strings.Replacer) any {
	switch v := v.(type) {
	case string:
		return r.Replace(v)
	case []any:
		v = slices.Clone(v)
		for i := range v {
			v[i] = replaceIDs(v[i], r)
		}
		return v
	case refObject:
		v = slices.Clone(v)
		for i := range v {
			v[i].value = replaceIDs(v[i].value, r)
		}
		return v
	}
	return v
}
