package cache

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
)

// syntax returns the canonical form of d with ids as they stand: it is JSON.
func syntax(d *Document) string {
	f := newForm(d, Options{})
	defer f.release()
	f.renaming = false
	f.body()
	return string(f.buf)
}

func TestCanonicalNumbers(t *testing.T) {
	for number, want := range map[string]string{
		"0": "0", "-0": "0", "0.000": "0", "-0e5": "0", "0e99999999999999999999999": "0",
		"1": "1", "1.0": "1", "1e0": "1", "10E-1": "1", "0.01e+2": "1", "-1.00": "-1",
		"10": "10", "1e1": "10", "128000": "128000", "1.28e5": "128000",
		"0.7": "0.7", "7e-1": "0.7", "12.50": "12.5", "-0.05": "-0.05", "5E-2": "0.05", "123456.789e-3": "123.456789",
		"1e20": "100000000000000000000", "1e21": "1e21", "1000000000000000000000": "1e21", "15e20": "1500000000000000000000", "15e21": "15e21",
		"1e-21": "0.000000000000000000001", "1e-22": "1e-22", "-15e-30": "-15e-30", "0.0000000000000000000000015": "15e-25",
		"9007199254740993": "9007199254740993", "123456789012345678901234567890": "12345678901234567890123456789" + "0",
		"0.1000000000000000055511151231257827": "0.1000000000000000055511151231257827",
		"1e400":                                "1e400", "10E+399": "1e400", "1e-400": "1e-400", "1e0000000000000000000000000400": "1e400",
		"1e999999999999999999": "1e999999999999999999", "10e999999999999999999": "1e1000000000000000000",
		"1E1000000000000000000": "1E1000000000000000000", "1e-99999999999999999999": "1e-99999999999999999999",
	} {
		if got := string(appendNumber([]byte("["), []byte(number))); got != "["+want {
			t.Errorf("%s is spelled %s; want [%s", number, got, want)
		}
		if got := refNumber(number); got != want {
			t.Errorf("the reference spells %s %s; want %s", number, got, want)
		}
	}
	huge := strings.Repeat("9", 1<<20)
	if got := string(appendNumber(nil, []byte("0."+huge+"000e"+huge))); got != "0."+huge+"000e"+huge {
		t.Errorf("a number with a huge exponent became %.30s…", got)
	}
	if got := string(appendNumber(nil, []byte(huge+strings.Repeat("0", 1<<20)))); got != huge+"e1048576" {
		t.Errorf("a number with many zeros became %.30s…", got)
	}
}

func TestCanonicalForm(t *testing.T) {
	for _, test := range []struct{ raw, want string }{
		{` { } `, `{}`},
		{`{"b": [1, 2.0 ,{"d":4,"c":3}], "a":null, "é":"\u00e9\/\u0041"}`, `{"b":[1,2,{"c":3,"d":4}],"é":"é/A"}`},
		{`{"z":1,"\u0061":2,"é":3,"~":4,"":5,"aa":6,"B":7}`, `{"":5,"B":7,"a":2,"aa":6,"z":1,"~":4,"é":3}`},
		{`{"x":"\b\f\n\r\t\"\\\/\u0000\u001F\u007f\u0022\u005C"}`, `{"x":"\b\f\n\r\t\"\\/\u0000\u001f` + "\x7f" + `\"\\"}`},
		{`{"\"\n":1}`, `{"\"\n":1}`},
		{`{"tools":[{"parameters":{"b":[ 1.0 ],"a":{"d":1,"c":2}},"name":"f","function":{"parameters":{"b":1,"a":2},"name":"f"}}]}`,
			`{"tools":[{"function":{"name":"f","parameters":{"b":1,"a":2}},"name":"f","parameters":{"b":[1],"a":{"d":1,"c":2}}}]}`},
		{`{"x":{"parameters":{"b":1,"a":2}},"tools":{"parameters":{"b":1,"a":2}}}`, `{"tools":{"parameters":{"a":2,"b":1}},"x":{"parameters":{"a":2,"b":1}}}`},
		{`{"response_format":{"type":"json_schema","json_schema":{"schema":{"b":1,"a":2},"name":"n"}}}`, `{"response_format":{"json_schema":{"name":"n","schema":{"b":1,"a":2}},"type":"json_schema"}}`},
		{`{"response_format":{"schema":{"b":1,"a":2}},"text":{"format":{"schema":{ "b":1,"a":2}}}}`, `{"response_format":{"schema":{"b":1,"a":2}},"text":{"format":{"schema":{"b":1,"a":2}}}}`},
		{`{"functions":[{"parameters":{"b":1,"a":2},"name":"f"}]}`, `{"functions":[{"name":"f","parameters":{"b":1,"a":2}}]}`},
		{`{"messages":[{"tool_calls":[{"id":"call_x1y2z3","function":{"arguments":"{\"id\": \"call_x1y2z3\"}"}}]},{"tool_call_id":"call_x1y2z3","content":"c"},{"tool_call_id":"other"}]}`,
			`{"messages":[{"tool_calls":[{"function":{"arguments":"{\"id\": \"\#1\"}"},"id":"\#1"}]},{"content":"c","tool_call_id":"\#1"},{"tool_call_id":"other"}]}`},
		{`{"input":[{"id":"msg_aaaa1","content":"c"},{"type":"function_call","call_id":"call_bbbb2","id":"fc_cccc3","name":"f"},{"type":"x_output","call_id":"call_bbbb2"},{"type":"item_reference","id":"msg_dddd4"}]}`,
			`{"input":[{"content":"c","id":"\#1"},{"call_id":"\#2","id":"\#3","name":"f","type":"function_call"},{"call_id":"\#2","type":"x_output"},{"id":"msg_dddd4","type":"item_reference"}]}`},
	} {
		if got := canonical(mustScan(t, test.raw), Options{}); got != test.want {
			t.Errorf("%s\nbecame  %s\nand not %s", test.raw, got, test.want)
		}
		if want := refCanonical(t, []byte(test.raw), Options{}); want != test.want {
			t.Errorf("the reference makes of %s\n%s", test.raw, want)
		}
	}
}

func FuzzCanonical(f *testing.F) {
	for _, raw := range []string{
		`{}`, ` {"a" : [1.0, -0, 1e400, 10E-7, {"c":null,"b":true}] , "\u0061b":"\ud83d\ude00\/\n"}`, with("tools", `[{"function":{"parameters":{"b":1,"a":2}}}]`),
		`{"messages":[{"tool_calls":[{"id":"call_x1y2z3","function":{"arguments":"{\"id\": \"call_x1y2z3\"}"}}]},{"tool_call_id":"call_x1y2z3","content":"see\n4"}]}`,
		`{"input":[{"id":"msg_1","call_id":"c_2","type":"a_output","arguments":"[\"c_2\"]"},{"type":"item_reference","id":"msg_1"},"text"],"previous_response_id":null}`,
		`{"a":1,"a":2}`, `{"a":"` + "\xff" + `"}`, `{"a":"\ud800"}`, `[1]`, strings.Repeat(`{"a":[`, 65), `{"a":1}x`, string(proseBody(500, 40)), string(toolsBody(2000, true)),
	} {
		f.Add([]byte(raw))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		before := bytes.Clone(raw)
		d, err := Scan(raw)
		if err != nil {
			checkRefusal(t, raw, err)
			return
		}
		if !json.Valid(raw) {
			t.Fatalf("Scan accepts %q", raw)
		}
		once := syntax(d)
		if !json.Valid([]byte(once)) {
			t.Fatalf("the canonical form of %q is no JSON: %s", raw, once)
		}
		again := mustScan(t, once)
		if twice := syntax(again); twice != once {
			t.Fatalf("the canonical form of\n%s is\n%s", once, twice)
		}
		c := Context{Tenant: "t", Sample: "1"}
		key := d.Key(c, byDefault)
		if again.Key(c, byDefault) != key || refKey(t, raw, c, byDefault) != key {
			t.Fatalf("%q has the form\n%s, canonically spelled\n%s, by the reference\n%s", raw, canonical(d, byDefault), canonical(again, byDefault), refCanonical(t, raw, byDefault))
		}
		if diff := d.Fingerprint(byDefault).Diff(again.Fingerprint(byDefault)); diff != nil {
			t.Fatalf("the fingerprints of %q and its canonical form differ in %q", raw, diff)
		}
		if edited := d.Edit(Edit{"model", []byte("1")}, Edit{Name: "stream"}); !json.Valid(edited) {
			t.Fatalf("%q, edited, is no JSON: %q", raw, edited)
		}
		if !bytes.Equal(raw, before) {
			t.Fatalf("the body became %q", raw)
		}
	})
}

// checkRefusal checks that an error of Scan is of the two documented kinds, and
// that JSON is refused for a documented reason only.
func checkRefusal(t *testing.T, raw []byte, err error) {
	t.Helper()
	if _, ok := errors.AsType[*DuplicateError](err); ok {
		return
	}
	syntax, ok := errors.AsType[*SyntaxError](err)
	if !ok || syntax.Offset < 0 || syntax.Offset > len(raw) {
		t.Fatalf("Scan(%q): %#v", raw, err)
	}
	if !json.Valid(raw) {
		return
	}
	for _, reason := range []string{"not a JSON object", "half of a character", "not UTF-8", "objects and arrays inside"} {
		if strings.Contains(syntax.Message, reason) {
			return
		}
	}
	t.Fatalf("Scan refuses %q: %v", raw, err)
}

func FuzzTree(f *testing.F) {
	for _, raw := range []string{with("", ""), `{"input":[1,2]}`, `{}`} {
		d, err := Scan([]byte(raw))
		if err != nil {
			f.Fatal(err)
		}
		data, err := d.Fingerprint(byDefault).AppendBinary(nil)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var tree, again Tree
		if tree.UnmarshalBinary(data) != nil {
			return
		}
		data, err := tree.AppendBinary(nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := again.UnmarshalBinary(data); err != nil || !reflect.DeepEqual(tree, again) || tree.Diff(again) != nil {
			t.Fatalf("%+v became %+v: %v", tree, again, err)
		}
	})
}
