package guard

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the derived values into testdata/guard/keys.json")

const vectorFile = "../testdata/guard/keys.json"

// vector is one derivation. The inputs are JSON texts in strings, so that no
// reader of the file changes their numbers.
type vector struct {
	Name        string   `json:"name"`
	Tenant      string   `json:"tenant"`
	Namespace   string   `json:"namespace"`
	Step        string   `json:"step"`
	Input       *string  `json:"input,omitempty"`
	Select      []string `json:"select,omitempty"`
	Explicit    string   `json:"explicit,omitempty"`
	Occurrence  string   `json:"occurrence,omitempty"`
	Secret      string   `json:"secret,omitempty"`
	Epoch       int64    `json:"epoch,omitempty"`
	Preimage    string   `json:"preimage"`
	Key         string   `json:"key"`
	Fingerprint string   `json:"fingerprint,omitempty"`
	Downstream  string   `json:"downstream"`
}

func (v *vector) derive() (vector, error) {
	w := Work{Tenant: v.Tenant, Namespace: v.Namespace, Step: v.Step, Select: v.Select, Explicit: v.Explicit, Occurrence: v.Occurrence}
	if v.Input != nil {
		w.Input = []byte(*v.Input)
	}
	d, err := w.Derive([]byte(v.Secret))
	got := *v
	got.Preimage, got.Key, got.Fingerprint = string(d.Preimage), d.ID.Key.String(), fmt.Sprintf("%x", d.Fingerprint)
	got.Downstream = Downstream(d.ID.Key, v.Epoch, []byte(v.Secret)).String()
	return got, err
}

func readVectors(t *testing.T) (vectors []vector) {
	t.Helper()
	text, err := os.ReadFile(vectorFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &vectors); err != nil {
		t.Fatal(err)
	}
	return vectors
}

func TestGoldenKeys(t *testing.T) {
	vectors := readVectors(t)
	for i := range vectors {
		v := &vectors[i]
		got, err := v.derive()
		if err != nil {
			t.Errorf("%s: %v", v.Name, err)
			continue
		}
		if !*update && (got.Key != v.Key || got.Preimage != v.Preimage || got.Fingerprint != v.Fingerprint || got.Downstream != v.Downstream) {
			t.Errorf("%s:\ngot  %+v\nwant %+v", v.Name, got, *v)
		}
		*v = got
	}
	if len(vectors) < 30 {
		t.Errorf("only %d vectors", len(vectors))
	}
	if *update {
		var b strings.Builder
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		if err := enc.Encode(vectors); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(vectorFile, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestOtherLanguagesMakeTheSameKeys runs the programs that the documentation
// shows over every vector.
func TestOtherLanguagesMakeTheSameKeys(t *testing.T) {
	doc, err := os.ReadFile("../docs/guard-keys.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, language := range []struct{ name, fence, program, file, driver string }{
		{"Python", "python", "python3", "keys.py", `
import json, sys
for v in json.load(open(sys.argv[1], encoding="utf-8")):
    print(guard_key(v))
`},
		{"JavaScript", "js", "node", "keys.js", `
for (const v of JSON.parse(require("fs").readFileSync(process.argv[2], "utf8"))) console.log(guardKey(v));
`},
	} {
		t.Run(language.name, func(t *testing.T) {
			program, err := exec.LookPath(language.program)
			if err != nil {
				t.Skipf("%s is not installed, so its keys are not compared", language.program)
			}
			block := regexp.MustCompile("(?s)```" + language.fence + "\n(.*?)```").FindSubmatch(doc)
			if block == nil {
				t.Fatal("the documentation shows no such program")
			}
			var cases []map[string]any
			var want []string
			for _, v := range readVectors(t) {
				if strings.Contains(strings.Join(v.Select, ""), "|") {
					continue // transforms are this program's own
				}
				c := map[string]any{"tenant": v.Tenant, "namespace": v.Namespace, "step": v.Step, "select": v.Select, "key": nil, "occurrence": nil, "secret": v.Secret}
				if v.Input != nil {
					c["input"] = json.RawMessage(*v.Input)
				}
				if v.Explicit != "" {
					c["key"] = v.Explicit
				}
				if v.Occurrence != "" {
					c["occurrence"] = v.Occurrence
				}
				cases, want = append(cases, c), append(want, v.Key)
			}
			dir := t.TempDir()
			text, err := json.Marshal(cases)
			if err != nil {
				t.Fatal(err)
			}
			for name, content := range map[string][]byte{"cases.json": text, language.file: append(block[1], language.driver...)} {
				if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			out, err := exec.CommandContext(t.Context(), program, filepath.Join(dir, language.file), filepath.Join(dir, "cases.json")).CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			got := strings.Fields(string(out))
			for i := range want {
				if i >= len(got) || got[i] != want[i] {
					t.Errorf("%v: got %v, want %s", cases[i], got[i:min(i+1, len(got))], want[i])
				}
			}
		})
	}
}

func TestRefusedInputs(t *testing.T) {
	deep := strings.Repeat("[", 70) + strings.Repeat("]", 70)
	for _, c := range []struct {
		work  Work
		code  string
		param string
	}{
		{Work{Input: []byte(`{"a":1,"a":2}`)}, "duplicate_member", "a"},
		{Work{Input: []byte(`{"b":{"a":1,"\u0061":2}}`)}, "duplicate_member", "a"},
		{Work{Input: []byte(`{"id":9007199254740993}`)}, "unsafe_number", "/id"},
		{Work{Input: []byte(`{"id":9007199254740992}`)}, "unsafe_number", "/id"},
		{Work{Input: []byte(`{"l":[1,{"a/b":1e400}]}`)}, "unsafe_number", "/l/1/a~1b"},
		{Work{Input: []byte(`12345678901234567890`)}, "unsafe_number", "/"},
		{Work{Input: []byte(`{"x":0.1000000000000000055}`)}, "unsafe_number", "/x"},
		{Work{Input: []byte(`{"x":1e-400}`)}, "unsafe_number", "/x"},
		{Work{Input: []byte(`{"x":1e99999999999}`)}, "unsafe_number", "/x"},
		{Work{Input: []byte(`{"x":1e300}`)}, "unsafe_number", "/x"},
		{Work{Input: []byte("{\"a\":\"\xff\"}")}, "invalid_request", ""},
		{Work{Input: []byte(`{"a":"\ud800"}`)}, "invalid_request", ""},
		{Work{Input: []byte(`{"a":"\udc00\ud800"}`)}, "invalid_request", ""},
		{Work{Input: []byte(`{"a":"\ud800\u0041"}`)}, "invalid_request", ""},
		{Work{Input: []byte("\"a\nb\"")}, "invalid_request", ""},
		{Work{Input: []byte(`{"a":01}`)}, "invalid_request", ""},
		{Work{Input: []byte(`{"a":1.}`)}, "invalid_request", ""},
		{Work{Input: []byte(`{"a":+1}`)}, "invalid_request", ""},
		{Work{Input: []byte(`{"a":NaN}`)}, "invalid_request", ""},
		{Work{Input: []byte(`{"a":1,}`)}, "invalid_request", ""},
		{Work{Input: []byte(`{"a":1} x`)}, "invalid_request", ""},
		{Work{Input: []byte("\xef\xbb\xbf{}")}, "invalid_request", ""},
		{Work{Input: []byte(``)}, "invalid_request", ""},
		{Work{Input: []byte(deep)}, "invalid_request", ""},
		{Work{Input: []byte(`"` + strings.Repeat("x", maxInput) + `"`)}, "invalid_request", "input"},
		{Work{}, "key_required", "input"},
		{Work{Input: []byte(`{}`)}, "key_required", "input"},
		{Work{Input: []byte(`[ ]`)}, "key_required", "input"},
		{Work{Input: []byte(`null`)}, "key_required", "input"},
		{Work{Input: []byte(`""`)}, "key_required", "input"},
		{Work{Input: []byte(`{"a":1}`), Select: []string{"/b"}}, "missing_key_field", "/b"},
		{Work{Input: []byte(`{"a":[1]}`), Select: []string{"/a/1"}}, "missing_key_field", "/a/1"},
		{Work{Input: []byte(`{"a":[1]}`), Select: []string{"/a/00"}}, "missing_key_field", "/a/00"},
		{Work{Input: []byte(`{"a":[1]}`), Select: []string{"/a/-"}}, "missing_key_field", "/a/-"},
		{Work{Input: []byte(`{"a":null}`), Select: []string{"/a"}}, "missing_key_field", "select"},
		{Work{Input: []byte(`{"a":null}`), Select: []string{"/a", "/b?"}}, "missing_key_field", "select"},
		{Work{Input: []byte(`{"a":1}`), Select: []string{"a"}}, "invalid_request", "select"},
		{Work{Input: []byte(`{"a":1}`), Select: []string{""}}, "invalid_request", "select"},
		{Work{Input: []byte(`{"a":1}`), Select: []string{"/a~2"}}, "invalid_request", "select"},
		{Work{Input: []byte(`{"a":1}`), Select: []string{"/a|upper"}}, "invalid_request", "select"},
		{Work{Input: []byte(`{"a":1}`), Select: []string{"/a", "/a?"}}, "invalid_request", "select"},
		{Work{Explicit: "k\n"}, "invalid_request", "key"},
		{Work{Explicit: "clé"}, "invalid_request", "key"},
		{Work{Explicit: strings.Repeat("k", 256)}, "invalid_request", "key"},
		{Work{Explicit: "k", Namespace: "a/b"}, "invalid_request", "namespace"},
		{Work{Explicit: "k", Step: "a b"}, "invalid_request", "step"},
		{Work{Explicit: "k", Step: strings.Repeat("s", 129)}, "invalid_request", "step"},
		{Work{Explicit: "k", Occurrence: "a\x00"}, "invalid_request", "occurrence"},
		{Work{Explicit: "k", FingerprintInput: []byte(`{`)}, "invalid_request", ""},
	} {
		c.work.Tenant = "acme"
		c.work.Step = or(c.work.Step, "mail")
		d, err := c.work.Derive(nil)
		refused, ok := errors.AsType[*InputError](err)
		if !ok || refused.Code != c.code || refused.Param != c.param {
			t.Errorf("%.60s %q %q: %+v, want %s of %q (key %s)", c.work.Input, c.work.Select, c.work.Explicit, err, c.code, c.param, d.ID.Key)
		}
	}
}

// Different work must have different keys, in whatever way its parts are cut.
func TestKeysKeepWorkApart(t *testing.T) {
	seen := map[Key]string{}
	for _, w := range []Work{
		{Step: "mail", Input: []byte(`{"to":"a@x.co","text":"mHello"}`)},
		{Step: "mail", Input: []byte(`{"to":"a@x.com","text":"Hello"}`)},
		{Step: "mail", Input: []byte(`{"to":"a@x.com","text":"hello"}`)},
		{Step: "mail", Input: []byte(`{"to":"a@x.com","text":"Hello "}`)},
		{Step: "mail", Input: []byte(`{"to":"a@x.com","text":null}`)},
		{Step: "mail", Input: []byte(`{"to":"a@x.com"}`)},
		{Step: "mail", Input: []byte(`{"id":1}`)},
		{Step: "mail", Input: []byte(`{"id":"1"}`)},
		{Step: "mail", Input: []byte(`{"id":[1]}`)},
		{Step: "mail", Input: []byte(`"k"`)},
		{Step: "mail", Explicit: "k"},
		{Step: "mail", Explicit: "k", Occurrence: "2"},
		{Step: "mail", Explicit: "k", Occurrence: "null"},
		{Step: "mail2", Explicit: "k"},
		{Step: "mail", Explicit: "k", Namespace: "test"},
		{Step: "mail", Explicit: "k", Tenant: "acme/test", Namespace: "default"},
		{Step: "mail", Explicit: "k", Tenant: "other"},
		{Step: "mail", Input: []byte(`{"name":"café"}`)},
		{Step: "mail", Input: []byte(`{"name":"cafe\u0301"}`)},
		{Step: "mail", Input: []byte(`{"/a":1}`)},
		{Step: "mail", Input: []byte(`{"a":{"b":1}}`)},
		{Step: "mail", Input: []byte(`{"a":{"b":1}}`), Select: []string{"/a/b"}},
		{Step: "mail", Input: []byte(`{"a":{"b":1}}`), Select: []string{"/a"}},
	} {
		w.Tenant = or(w.Tenant, "acme")
		d, err := w.Derive(nil)
		if err != nil {
			t.Fatalf("%+v: %v", w, err)
		}
		name := fmt.Sprintf("%+v, input %s", w, w.Input)
		if other, taken := seen[d.ID.Key]; taken {
			t.Errorf("one key for\n%s\n%s", other, name)
		}
		seen[d.ID.Key] = name
	}
}

// The same work must have one key, however it is spelt.
func TestKeysFollowMeaningNotSpelling(t *testing.T) {
	spellings := []string{
		`{"n":1.50,"s":"é/","l":[1,2],"z":0}`,
		`{"l": [1, 2], "z": -0, "s": "\u00e9\/", "n": 1.5}`,
		"{\"n\":15e-1,\"z\":0.0,\"s\":\"\\u00E9/\",\n\t\"l\":[1.0,2e0]}",
	}
	var keys []Key
	for _, s := range spellings {
		d, err := (&Work{Tenant: "acme", Step: "mail", Input: []byte(s)}).Derive(nil)
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, d.ID.Key)
	}
	if keys[0] != keys[1] || keys[0] != keys[2] {
		t.Errorf("three keys for one input: %v", keys)
	}
}

func TestIdempotencyKeyHeader(t *testing.T) {
	for header, want := range map[string]string{
		`abc`: "abc", `"abc"`: "abc", ` "abc" `: "abc", `"a\"b\\c"`: `a"b\c`, `a b`: "a b", `8e03978e-40d5`: "8e03978e-40d5",
		``: "", `""`: "", `"abc`: "", `"a"b"`: "", `"a\n"`: "", `"a\"`: "", `"`: "", "é": "", `"abc";x`: "",
	} {
		got, err := ParseIdempotencyKey(header)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v; want %q", header, got, err, want)
		}
	}
}

func TestKeySpellings(t *testing.T) {
	d, err := (&Work{Tenant: "acme", Step: "mail", Explicit: "k"}).Derive(nil)
	if err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`).MatchString(d.ID.Key.UUID()) {
		t.Errorf("no UUID of version 8: %s", d.ID.Key.UUID())
	}
	if back, err := ParseKey(d.ID.Key.String()); err != nil || back != d.ID.Key {
		t.Errorf("%v, %v", back, err)
	}
	for _, text := range []string{"", "abc", strings.Repeat("A", 64), strings.Repeat("a", 63), strings.Repeat("a", 65), strings.Repeat("g", 64)} {
		if k, err := ParseKey(text); err == nil {
			t.Errorf("%q was read as %s", text, k)
		}
	}
}
