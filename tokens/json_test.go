package tokens

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

func FuzzParse(f *testing.F) {
	for _, s := range []string{
		`{"a":[1,2.5e-3,{"b":"c\"\\\u00e9\ud83d\ude00"}],"d":null}`, ` [ ] `, `{}`, `""`, `"\ud800"`, "\"\xff\"", "{\"\xc8\":true}",
		`-0`, `01`, `1.`, `[1,]`, `{"a"}`, `tru`, `"a`, `"\x"`, "\"\n\"", `{"a":{"b":[[],{},""]} , "c" : true}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := parseDocument(b)
		n := d.root
		if (err == nil) != json.Valid(b) && err != errDepth {
			t.Fatalf("parse(%q) = %v, json.Valid says %t", b, err, json.Valid(b))
		}
		if err == nil {
			sameAsJSON(t, n)
			sameAsNode(t, d, n)
		}
	})
}

// sameAsNode checks that what a document yields is what its nodes yield.
func sameAsNode(t *testing.T, d *document, n node) {
	t.Helper()
	var plain, quick []node
	for name, v := range n.members() {
		plain = append(plain, name, v)
	}
	for _, v := range n.elements() {
		plain = append(plain, v)
	}
	for name, v := range d.members(n) {
		quick = append(quick, name, v)
	}
	for _, v := range d.elements(n) {
		quick = append(quick, v)
		sameAsNode(t, d, v)
	}
	for _, v := range d.object(n) {
		sameAsNode(t, d, v)
	}
	if !reflect.DeepEqual(plain, quick) {
		t.Fatalf("of %q: %q, want %q", n, quick, plain)
	}
}

func TestDocument(t *testing.T) {
	long := `"` + strings.Repeat(`a\"{[`, longValue/5) + `"`
	object := `{"b":[` + long + `,1,{"c":` + long + ` , "d":` + long + `}],"e":""}`
	body := ` {"short":[1,{"x":"y"}], "long" : ` + long + `,"deep":[[[[[[[[[[` + long + `,[]]]]]]]]]]],"objects":[` + object + `,` + object + `]} `
	d, err := parseDocument([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	if len(d.long) < 8 {
		t.Errorf("only %d long values: %v", len(d.long), d.long)
	}
	sameAsNode(t, d, d.root)
	other, err := parse([]byte(body[:len(body)-1]))
	if err != nil {
		t.Fatal(err)
	}
	sameAsNode(t, d, other) // of another document
}

// sameAsJSON compares what node reads with what encoding/json reads.
func sameAsJSON(t *testing.T, n node) {
	t.Helper()
	switch {
	case n.isObject():
		var want map[string]json.RawMessage
		if err := json.Unmarshal(n, &want); err != nil {
			t.Fatal(err)
		}
		got := map[string]json.RawMessage{}
		for name, v := range n.members() {
			got[string(name)] = json.RawMessage(v)
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("members of %q: %q, want %q", n, got, want)
		}
		for name := range got {
			sameAsJSON(t, n.get(name))
		}
	case n.isArray():
		var want []json.RawMessage
		if err := json.Unmarshal(n, &want); err != nil {
			t.Fatal(err)
		}
		for i, v := range n.elements() {
			if i >= len(want) || string(v) != string(want[i]) {
				t.Fatalf("elements of %q: [%d] is %q, want of %q", n, i, v, want)
			}
			sameAsJSON(t, v)
		}
	case n.isString():
		var want string
		if err := json.Unmarshal(n, &want); err != nil {
			t.Fatal(err)
		}
		if got := n.str(); got != want {
			t.Fatalf("str of %q = %q, want %q", n, got, want)
		}
	}
}
