package cache

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestScanRefuses(t *testing.T) {
	for _, test := range []struct {
		raw    string
		offset int
		remedy string // part of the message
	}{
		{``, 0, "send a JSON object"},
		{" \n", 2, "send a JSON object"},
		{"\ufeff{}", 0, "byte order mark"},
		{`[]`, 0, "begin with {"},
		{`"x"`, 0, "begin with {"},
		{`nul`, 0, "begin with {"},
		{`{`, 1, "send all of it"},
		{`{"a`, 3, "send all of it"},
		{`{"a\`, 4, "send all of it"},
		{`{"a":"` + strings.Repeat("x", 100), 106, "send all of it"},
		{`{"a"`, 4, "send all of it"},
		{`{"a":`, 5, "send all of it"},
		{`{"a":1`, 6, "send all of it"},
		{`{"a":[`, 6, "send all of it"},
		{`{"a":[1`, 7, "send all of it"},
		{`{"a":1,}`, 7, "member name"},
		{`{,}`, 1, "member name"},
		{`{a:1}`, 1, "member name"},
		{`{“a”:1}`, 1, `'“' where a member name`},
		{`{"a" 1}`, 5, "a colon"},
		{`{"a"::1}`, 5, "a value"},
		{`{"a":1 "b":2}`, 7, "a comma or }"},
		{`{"a":1]`, 6, "a comma or }"},
		{`{"a":[1,]}`, 8, "a value"},
		{`{"a":[1 2]}`, 8, "a comma or ]"},
		{`{"a":[1}`, 7, "a comma or ]"},
		{`{"a":1}{}`, 7, "one object"},
		{`{"a":1} x`, 8, "one object"},
		{"{\"a\":1}\x00", 7, "one object"},
		{"{\"a\":\x001}", 5, "a value"},
		{"{\"a\":\v1}", 5, "a value"},
		{"{\"a\":1\u00a0}", 6, "a comma or }"},
		{`{"a":tru}`, 5, "a value"},
		{`{"a":nulll}`, 9, "a comma or }"},
		{`{"a":True}`, 5, "a value"},
		{`{"a":NaN}`, 5, "a value"},
		{`{"a":'x'}`, 5, "a value"},
		{`{"a":01}`, 5, "leading zero"},
		{`{"a":-}`, 6, "without digits"},
		{`{"a":+1}`, 5, "a value"},
		{`{"a":.5}`, 5, "a value"},
		{`{"a":1.}`, 7, "after its point"},
		{`{"a":1e}`, 7, "exponent"},
		{`{"a":1e+}`, 8, "exponent"},
		{`{"a":0x10}`, 6, "a comma or }"},
		{`{"a":1_000}`, 6, "a comma or }"},
		{"{\"a\":\"x\ny\"}", 7, `write \u000a`},
		{"{\"a\":\"" + strings.Repeat("x", 70) + "\x1f" + strings.Repeat("y", 70) + "\"}", 76, `write \u001f`},
		{`{"a":"\x"}`, 6, "double the backslash"},
		{`{"a":"\U0041"}`, 6, "double the backslash"},
		{`{"a":"\u12"}`, 6, "four hexadecimal digits"},
		{`{"a":"\u12g4"}`, 6, "four hexadecimal digits"},
		{`{"a":"ok\ud83d"}`, 8, "half of a character"},
		{`{"a":"\ud83dx\ude00"}`, 6, "half of a character"},
		{`{"a":"\ude00\ud83d"}`, 6, "half of a character"},
		{`{"a":"\ud83d\u0041"}`, 6, "half of a character"},
		{`{"\udfff":1}`, 2, "half of a character"},
		{"{\"a\":\"\xff\"}", 6, "encode the body as UTF-8"},
		{"{\"a\":\"\xc3\"}", 6, "encode the body as UTF-8"},
		{"{\"a\":\"\xc0\x80\"}", 6, "encode the body as UTF-8"},
		{"{\"a\":\"\xed\xa0\x80\"}", 6, "encode the body as UTF-8"},
		{"{\"a\":\"é\xf4\x90\x80\x80\"}", 8, "encode the body as UTF-8"},
		{"{\"a\":\"" + strings.Repeat("x", 70) + "é\x80" + strings.Repeat("y", 70) + "\"}", 78, "encode the body as UTF-8"},
		{"{\"\xff\":1}", 2, "encode the body as UTF-8"},
		{`{"a":` + strings.Repeat("[", 127) + `{}` + strings.Repeat("]", 127) + `}`, 132, "128 objects and arrays"},
		{strings.Repeat(`{"a":`, 100000), 640, "128 objects and arrays"},
	} {
		d, err := Scan([]byte(test.raw))
		syntax, ok := errors.AsType[*SyntaxError](err)
		if !ok || d != nil {
			t.Errorf("Scan(%.80q) = %v, %v; want a *SyntaxError", test.raw, d, err)
			continue
		}
		if syntax.Offset != test.offset || !strings.Contains(syntax.Message, test.remedy) {
			t.Errorf("Scan(%.80q): %v; want %q at byte %d", test.raw, err, test.remedy, test.offset)
		}
	}
}

func TestScanAccepts(t *testing.T) {
	for _, raw := range []string{
		`{}`, " {\n} ", `{"":""}`, `{"a":[]}`, `{"a":[ ]}`, `{"a":{ }}`, "\t{ \"a\" : [ 1 , -0 , 0.5e-7 , true , false , null ] }\r\n",
		`{"a":"\"\\\/\b\f\n\r\t\u0000\u001F\u00e9\ud83d\ude00\uD83D\uDE00"}`, `{"a":"é日本語😀` + "\x7f\u2028" + `"}`,
		`{"messages":1,"Messages":2,"message":3}`, `{"é":1,"e\u0301":2}`,
		`{"a":` + strings.Repeat("[", 127) + strings.Repeat("]", 127) + `}`,
		strings.Repeat(`{"a":`, 127) + `{}` + strings.Repeat("}", 127),
	} {
		if !json.Valid([]byte(raw)) {
			t.Fatalf("the test holds %q, which is not JSON", raw)
		}
		if _, err := Scan([]byte(raw)); err != nil {
			t.Errorf("Scan(%.80q): %v", raw, err)
		}
	}
}

// Each kind of character and mistake is found wherever it stands: the scan of
// strings works on blocks.
func TestScanAtEveryOffset(t *testing.T) {
	for _, bad := range []string{"\x00", "\x1f", "\n", "\xff", "\xc3", "\x80", `\x`, `\ud800`, `\u00g0`} {
		for n := range 140 {
			raw := `{"a":"` + strings.Repeat("x", n) + bad + strings.Repeat("y", 139-n) + `"}`
			var syntax *SyntaxError
			if _, err := Scan([]byte(raw)); !errors.As(err, &syntax) || syntax.Offset != 6+n {
				t.Fatalf("%q after %d characters: %v", bad, n, err)
			}
		}
	}
	for _, good := range []string{`\"`, `\\`, `\\\"`, `\n#]`, `#]`, `\u00e9`, `\/`, "é", "日本", "😀😀", `\ud83d\ude00`, "\x7f", ""} {
		for n := range 140 {
			value := `"` + strings.Repeat("x", n) + good + strings.Repeat("y", 139-n) + `"`
			d, err := Scan([]byte(`{"a":` + value + `}`))
			if err != nil {
				t.Fatalf("%q after %d characters: %v", good, n, err)
			}
			if got, _ := d.Member("a"); string(got) != value {
				t.Fatalf("%q after %d characters: the value ends after %q", good, n, got)
			}
		}
	}
}

func TestScanRefusesDuplicates(t *testing.T) {
	var many strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&many, `"m%d":%d,`, i*7919%1000, i)
	}
	for _, test := range []struct{ raw, name, path string }{
		{`{"model":"cheap","model":"dear"}`, "model", ""},
		{`{"b":1,"a":2,"c":3,"a":4}`, "a", ""},
		{`{"a":1,"\u0061":2}`, "a", ""},
		{`{"é":1,"\u00e9":2}`, "é", ""},
		{`{"":1,"":2}`, "", ""},
		{`{"x":{"b":1,"a":2,"b":3}}`, "b", "x"},
		{`{"messages":[{"role":"user"},{"role":"user","content":"x","role":"system"}]}`, "role", "messages[1]"},
		{`{"a":[[0,{"b":{"d":1,"d":2}}]]}`, "d", "a[0][1].b"},
		{`{` + many.String() + `"m500":1}`, "m500", ""},
		{`{"o":{` + many.String() + `"z":1,"z":2}}`, "z", "o"},
	} {
		_, err := Scan([]byte(test.raw))
		duplicate, ok := errors.AsType[*DuplicateError](err)
		if !ok || duplicate.Name != test.name || duplicate.Path != test.path {
			t.Errorf("Scan(%.80q): %#v; want a duplicate %q in %q", test.raw, err, test.name, test.path)
		}
	}
	if _, err := Scan([]byte(`{` + many.String() + `"last":1}`)); err != nil {
		t.Errorf("1001 different names: %v", err)
	}
}

func TestErrorsStayShort(t *testing.T) {
	long := strings.Repeat("é", 1<<16)
	_, err := Scan([]byte(`{"` + long + `":[{"` + long + `":1,"` + long + `":2}]}`))
	var duplicate *DuplicateError
	if !errors.As(err, &duplicate) || len(err.Error()) > 500 {
		t.Errorf("an error of %d bytes: %.100v", len(err.Error()), err)
	}
}

// A body of half a million members takes a time that a quadratic scan could not
// keep: the test would not end.
func TestScanIsNotQuadratic(t *testing.T) {
	var members, nested strings.Builder
	for i := range 500_000 {
		fmt.Fprintf(&members, `"%d":%d,`, i*7919%500_000, i)
	}
	for range 1000 {
		nested.WriteString(`,` + strings.Repeat(`{"b":[`, 60) + strings.Repeat(`],"a":1}`, 60))
	}
	raw := `{` + members.String() + `"list":[0` + nested.String() + `],"end":"` + strings.Repeat(`\\`, 500_000) + `"}`
	d := mustScan(t, raw)
	if key := d.Key(Context{}, Options{}); key == (Key{}) {
		t.Error("no key")
	}
	if tree := d.Fingerprint(Options{}); len(tree.Fields) > maxFields {
		t.Errorf("a fingerprint of %d fields", len(tree.Fields))
	}
}

func TestMember(t *testing.T) {
	d := mustScan(t, `{ "model" : "gpt" , "MODEL":1, "a\u0062" : [ 1, 2 ] , "n":null,"":{"model":2}}`)
	for name, want := range map[string]string{"model": `"gpt"`, "MODEL": "1", "ab": "[ 1, 2 ]", "n": "null", "": `{"model":2}`} {
		if got, ok := d.Member(name); !ok || string(got) != want {
			t.Errorf("Member(%q) = %q, %v; want %q", name, got, ok, want)
		}
	}
	for _, name := range []string{"Model", "ab\x00", `a\u0062`, "b"} {
		if got, ok := d.Member(name); ok {
			t.Errorf("Member(%q) = %q", name, got)
		}
	}
}

func TestEdit(t *testing.T) {
	remove := func(name string) Edit { return Edit{Name: name} }
	set := func(name, value string) Edit { return Edit{name, []byte(value)} }
	for _, test := range []struct {
		raw   string
		edits []Edit
		want  string
	}{
		{`{"a":1,"b":2,"c":3}`, []Edit{remove("a")}, `{"b":2,"c":3}`},
		{`{"a":1,"b":2,"c":3}`, []Edit{remove("b")}, `{"a":1,"c":3}`},
		{`{"a":1,"b":2,"c":3}`, []Edit{remove("c")}, `{"a":1,"b":2}`},
		{`{"a":1,"b":2,"c":3}`, []Edit{remove("c"), remove("a")}, `{"b":2}`},
		{`{"a":1,"b":2}`, []Edit{remove("a"), remove("b")}, `{}`},
		{`{"a":1,"b":2}`, []Edit{remove("a"), remove("b"), set("c", "3")}, `{"c":3}`},
		{"{\n  \"a\": 1.0,\n  \"b\": 2,\n  \"c\" : \"\\u00e9\"\n}\n", []Edit{remove("b")}, "{\n  \"a\": 1.0,\n  \"c\" : \"\\u00e9\"\n}\n"},
		{"{\n  \"a\": 1.0,\n  \"b\": 2\n}\n", []Edit{remove("b")}, "{\n  \"a\": 1.0\n}\n"},
		{` { "a" : 1 , "b":2 } `, []Edit{set("a", "[2]")}, ` { "a" : [2] , "b":2 } `},
		{`{"a\u0062":1,"\u0063":2}`, []Edit{set("ab", "3"), remove("c")}, `{"a\u0062":3}`},
		{`{ }`, []Edit{set("a", "1")}, `{"a":1 }`},
		{`{"a":1}`, []Edit{set("b", "2"), set("c\"\n", "3")}, `{"a":1,"b":2,"c\"\n":3}`},
		{`{"a":1 }`, []Edit{set("b", "2"), remove("b"), set("b", "3")}, `{"a":1,"b":3 }`},
		{`{"a":1}`, []Edit{set("b", "2"), remove("b"), remove("a")}, `{}`},
		{`{"a":{"b":1},"b":[{"a":2}]}`, []Edit{set("b", "null")}, `{"a":{"b":1},"b":null}`},
	} {
		d := mustScan(t, test.raw)
		got := d.Edit(test.edits...)
		if string(got) != test.want {
			t.Errorf("%s with %s: %s; want %s", test.raw, test.edits, got, test.want)
		}
		clear(got)
		if string(d.Raw) != test.raw {
			t.Errorf("%s: the result shares memory with the body", test.raw)
		}
	}
	d := mustScan(t, `{"a":1}`)
	for _, edits := range [][]Edit{nil, {remove("b")}} {
		if got := d.Edit(edits...); &got[0] != &d.Raw[0] {
			t.Errorf("Edit(%v) copied the body", edits)
		}
	}
}

// Editing random bodies does what editing their trees does.
func TestEditAgainstTree(t *testing.T) {
	r := seeded(t)
	for range 300 {
		g := newGenerator(r, true)
		body := g.body()
		var edits []Edit
		want := slices.Clone(body)
		for _, name := range []string{"messages", "metadata", "model", "new", "tools", "unknown"} {
			at := slices.IndexFunc(want, func(m refMember) bool { return m.name == name })
			switch g.IntN(3) {
			case 0:
				edits = append(edits, Edit{Name: name})
				want = slices.DeleteFunc(want, func(m refMember) bool { return m.name == name })
			case 1:
				edits = append(edits, Edit{name, []byte(`"edited"`)})
				if at < 0 {
					want = append(want, refMember{name: name})
					at = len(want) - 1
				}
				want[at].value = "edited"
			}
		}
		d := mustScan(t, g.spell(body, ""))
		edited := mustScan(t, string(d.Edit(edits...)))
		if edited.Key(Context{}, Options{}) != mustScan(t, g.spell(want, "")).Key(Context{}, Options{}) {
			t.Fatalf("%s with %s: %s", d.Raw, edits, edited.Raw)
		}
	}
}
