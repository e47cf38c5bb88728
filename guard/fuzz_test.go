package guard

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"llmproxy/store"
)

// FuzzBodies sends any body to any path: no panic, no answer that is not JSON,
// and no grant without a row that was there when it was answered.
func FuzzBodies(f *testing.F) {
	for _, body := range []string{
		`{"step":"mail","input":{"order_id":"A-1"},"select":["/order_id"],"lease_seconds":60}`,
		`{"step":"mail","key":"k","soft":true,"wait_seconds":0,"drift":"replay","on_unknown":"hold"}`,
		`{"key":"` + strings.Repeat("0", 64) + `","token":"t","resource_id":"m1","result":{"a":[1,2e3]}}`,
		`{"key":"` + strings.Repeat("0", 64) + `","token":"t","effect":"none","retry_after_seconds":1e999}`,
		`{"key":"` + strings.Repeat("0", 64) + `","outcome":"done","step":"mail","force":true}`,
		`{"step":"mail","input":"\ud800"}`, `[[[[[[[[`, `{"a":1,"a":2}`, `{"step":"mail","key":"k","lease_seconds":0.0000001}`, "\xef\xbb\xbf{}", `nul`,
	} {
		for _, path := range []string{"begin", "complete", "fail", "extend", "resolve", "key"} {
			f.Add(path, []byte(body), "")
		}
	}
	f.Add("begin", []byte(`{"step":"mail","key":"k"}`), "namespace=a%2Fb&namespace=c")
	f.Add("effects/"+strings.Repeat("0", 64), []byte(nil), "force=1")
	f.Add("effects", []byte(nil), "cursor=99999999999999999999&limit=-1&state=pending")
	g := newGuard(f)
	handler := g.Handler(everyone)
	f.Fuzz(func(t *testing.T, path string, body []byte, query string) {
		for _, method := range []string{"POST", "GET", "DELETE"} {
			r := httptest.NewRequest(method, base, bytes.NewReader(body))
			r.URL.Path, r.URL.RawQuery = base+path, query
			r.Header.Set("Authorization", "Bearer acme")
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			if w.Code >= 300 && w.Code < 400 {
				continue // ServeMux sends unclean paths to their clean form
			}
			var answer map[string]any
			if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil {
				t.Fatalf("%s %q answers %d %q", method, path, w.Code, w.Body)
			}
			if _, failed := answer["error"]; failed != (w.Code >= 400) || w.Code >= 500 {
				t.Fatalf("%s %q %q answers %d %s", method, path, body, w.Code, w.Body)
			}
			if answer["decision"] == "proceed" {
				checkRow(t, g, answer)
			}
		}
	})
}

// checkRow holds a grant to the row that it promises.
func checkRow(t *testing.T, g *Guard, answer map[string]any) {
	t.Helper()
	key, err := ParseKey(answer["key"].(string))
	if err != nil {
		t.Fatal(err)
	}
	hash := HashToken(answer["token"].(string))
	rows := 0
	err = g.Store.View(t.Context(), func(tx *store.Tx) error {
		_, err := tx.Get("SELECT count(*) FROM effect e JOIN attempt a ON a.effect_id = e.id AND a.fence = e.fence WHERE e.key = $1 AND a.token = $2 AND e.state = 1", []any{key[:], hash[:]}, &rows)
		return err
	})
	if err != nil || rows != 1 {
		t.Fatalf("%d rows for a grant, %v", rows, err)
	}
}

// FuzzCanonical: what is accepted is valid JSON, means the same, and is its own
// canonical form.
func FuzzCanonical(f *testing.F) {
	for _, v := range []string{`{"b":1.50,"a":[null,true,"\u00e9\ud83d\ude00"]}`, `-0.0`, `1e-7`, `9007199254740991`, `"\u0000\/"`, `{"":{"":[]}}`, `0.1e1`, `5e-324`, `123456789.123e-3`} {
		f.Add([]byte(v))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		parsed, err := parseJSON(text)
		if err != nil {
			return
		}
		if !json.Valid(text) {
			t.Fatalf("%q was read, and is no JSON", text)
		}
		once, err := appendCanonical(nil, &parsed)
		if err != nil {
			return
		}
		again, err := parseJSON(once)
		if err != nil {
			t.Fatalf("%q became %q: %v", text, once, err)
		}
		twice, err := appendCanonical(nil, &again)
		if err != nil || !bytes.Equal(once, twice) {
			t.Fatalf("%q became %q and then %q: %v", text, once, twice, err)
		}
		var a, b any
		if json.Unmarshal(text, &a) != nil || json.Unmarshal(once, &b) != nil {
			t.Fatalf("%q or %q is not read by others", text, once)
		}
		if !reflect.DeepEqual(a, b) { // to which -0 is 0
			t.Fatalf("%q became %q, which means another thing", text, once)
		}
	})
}

// FuzzSelectors: no panic, and what is selected is found where it is said to be.
func FuzzSelectors(f *testing.F) {
	for _, s := range []string{"/a", "/a/0/b?", "/a~1b|trim|lower", "", "/", "//", "/~", "/a|", "?", "/a?|nfc"} {
		f.Add(s, `{"a":[{"b":1}],"a/b":" X ","":{"":2}}`)
	}
	f.Fuzz(func(t *testing.T, text, input string) {
		d, err := (&Work{Tenant: "acme", Step: "mail", Input: []byte(input), Select: []string{text}}).Derive(nil)
		if err != nil {
			return
		}
		s, err := parseSelector(text)
		if err != nil {
			t.Fatalf("%q made a key and is no selector: %v", text, err)
		}
		parsed, err := parseJSON([]byte(input))
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := s.find(&parsed); !ok {
			t.Fatalf("%q found nothing in %q and made %s", text, input, d.Preimage)
		}
	})
}

// FuzzIdempotencyKey: both spellings of a header name the same key.
func FuzzIdempotencyKey(f *testing.F) {
	for _, s := range []string{"abc", `"abc"`, `"a\"b"`, `"`, `\`, " a "} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, header string) {
		key, err := ParseIdempotencyKey(header)
		if err != nil {
			return
		}
		quoted := `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key) + `"`
		if again, err := ParseIdempotencyKey(quoted); err != nil || again != key {
			t.Fatalf("%q is %q, quoted %q is %q, %v", header, key, quoted, again, err)
		}
	})
}

// A control header or query that a proxy adds never makes a grant of a GET.
func TestOnlyAPostBegins(t *testing.T) {
	s := serve(t, newGuard(t))
	for _, method := range []string{http.MethodGet, http.MethodPut, http.MethodPatch, http.MethodDelete} {
		if r := s.call("acme", method, base+"begin", mail); r.status != http.StatusMethodNotAllowed {
			t.Errorf("%s begin: %d %s", method, r.status, r.text)
		}
	}
}
