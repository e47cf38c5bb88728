package cache

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestDiff(t *testing.T) {
	base := `{"model":"m","temperature":0,"messages":[{"role":"system","content":"s"},{"role":"user","content":"Now is 12:00:01"}]}`
	for _, test := range []struct {
		other string
		want  []string
	}{
		{base, nil},
		{strings.Replace(base, `"temperature":0,`, `"temperature": 0.0 , "stream":true, "stop":null,`, 1), nil},
		{strings.Replace(base, `0,`, `1,`, 1), []string{"temperature"}},
		{strings.Replace(base, `"temperature":0,`, ``, 1), []string{"temperature"}},
		{strings.Replace(base, `{"model"`, `{"seed":1,"model"`, 1), []string{"seed"}},
		{strings.Replace(base, `01"`, `02"`, 1), []string{"messages[1]"}},
		{strings.Replace(strings.Replace(base, `"s"`, `"t"`, 1), `01"`, `02"`, 1), []string{"messages[0]", "messages[1]"}},
		{strings.Replace(base, `]}`, `,{}]}`, 1), []string{"messages[2]"}},
		{strings.Replace(base, `]}`, `,1,[2],"3"]}`, 1), []string{"messages[2:5]"}},
		{`{"model":"m","temperature":0,"messages":[]}`, []string{"messages[0:2]"}},
		{`{"model":"m","temperature":0,"messages":null}`, []string{"messages"}},
		{`{"model":"m","temperature":0,"messages":"x"}`, []string{"messages"}},
		{`{"model":"n","temperature":0,"input":[{"role":"user"}]}`, []string{"model", "messages", "input"}},
	} {
		a, b := mustScan(t, base).Fingerprint(byDefault), mustScan(t, test.other).Fingerprint(byDefault)
		if got := a.Diff(b); !slices.Equal(got, test.want) {
			t.Errorf("%s: %q; want %q", test.other, got, test.want)
		}
		if got := b.Diff(a); (got == nil) != (test.want == nil) {
			t.Errorf("%s, the other way round: %q", test.other, got)
		}
	}
	input := `{"model":"m","input":[{"role":"user","content":"a"},{"role":"user","content":"b"}]}`
	a, b := mustScan(t, input).Fingerprint(byDefault), mustScan(t, strings.Replace(input, `"b"`, `"c"`, 1)).Fingerprint(byDefault)
	if got := a.Diff(b); !slices.Equal(got, []string{"input[1]"}) {
		t.Errorf("items: %q", got)
	}
}

// A fingerprint depends on the options as the key does.
func TestFingerprintFollowsTheKey(t *testing.T) {
	r := seeded(t)
	for range 500 {
		g := newGenerator(r, true)
		body := g.body()
		a, b := mustScan(t, g.spell(body, "")), mustScan(t, g.spell(g.mutate(body), ""))
		for _, o := range []Options{{}, byDefault} {
			sameKey := a.Key(Context{}, o) == b.Key(Context{}, o)
			if diff := a.Fingerprint(o).Diff(b.Fingerprint(o)); (diff == nil) != sameKey {
				t.Fatalf("one key: %v, but the fingerprints differ in %q:\n%s\n%s", sameKey, diff, a.Raw, b.Raw)
			}
		}
	}
}

func TestTreeIsSmall(t *testing.T) {
	var body strings.Builder
	body.WriteString(`{"messages":[0`)
	for i := range 5000 {
		fmt.Fprintf(&body, `,{"role":"user","content":"%d"}`, i)
	}
	body.WriteString(`]`)
	for i := range 5000 {
		fmt.Fprintf(&body, `,"%s%d":1`, strings.Repeat("é", 200), i)
	}
	raw := body.String() + "}"
	tree := mustScan(t, raw).Fingerprint(byDefault)
	data, err := tree.AppendBinary(nil)
	if err != nil || len(data) > 14<<10 {
		t.Errorf("a fingerprint of %d bytes, %v", len(data), err)
	}
	for _, change := range [][2]string{{`"4999"`, `"x"`}, {`"1022"`, `"x"`}, {`é4999":1`, `é4999":2`}, {`é10":1`, `é10":2`}} {
		other := mustScan(t, strings.Replace(raw, change[0], change[1], 1)).Fingerprint(byDefault)
		if diff := tree.Diff(other); len(diff) != 1 {
			t.Errorf("%s for %s: %.80q", change[1], change[0], diff)
		}
	}
}

// A fingerprint holds no text of a request.
func TestFingerprintHoldsNoText(t *testing.T) {
	tree := mustScan(t, with("stop", `"a secret"`)).Fingerprint(byDefault)
	data, err := tree.AppendBinary([]byte("before"))
	if err != nil || !bytes.HasPrefix(data, []byte("before")) {
		t.Fatalf("%q, %v", data, err)
	}
	for _, text := range []string{"Say", "gpt", "secret", "user"} {
		if bytes.Contains(data, []byte(text)) {
			t.Errorf("%q holds %q", data, text)
		}
	}
	var read Tree
	if err := read.UnmarshalBinary(data[len("before"):]); err != nil || !reflect.DeepEqual(read, tree) {
		t.Errorf("%+v became %+v: %v", tree, read, err)
	}
	for n := range len(data) - len("before") {
		if err := read.UnmarshalBinary(data[len("before"):][:n]); err == nil {
			t.Errorf("the first %d bytes are a fingerprint", n)
		}
	}
	if err := read.UnmarshalBinary(append(data[len("before"):], 0)); err == nil {
		t.Error("a fingerprint with a byte too many is one")
	}
}
