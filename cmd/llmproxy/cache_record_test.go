package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"llmproxy/cache"
	"llmproxy/ledger"
)

// sample is a record of an answer in the given form, as a server would store it.
func sample(form cache.Form, events ...[]byte) *cache.Record {
	cost := int64(12)
	own := cache.Key{9}
	return &cache.Record{
		Key: cache.Key{1, 2, 3}, Tenant: "tests", Step: "draft <mail>", Model: "vendor/large",
		Origin: cache.Origin{Call: ledger.FirstID(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)) + 7, CreatedAt: 1767323045678, ExpiresAt: 1767409445678,
			Input: 14, Basis: 2, Usage: &cache.Usage{Input: 15, Cached: 4, Output: 5, Reasoning: 1}, Cost: &cost, Fingerprint: &own},
		Head: cache.Head{Status: 200, Form: form, Header: http.Header{"Content-Type": {"application/json"}, "Openai-Model": {"m"}}},
		Body: cache.Pack(events),
	}
}

func sampleTree(t testing.TB) []byte {
	t.Helper()
	doc, err := cache.Scan([]byte(`{"model":"m","temperature":0.5,"messages":[{"role":"user","content":"a"},{"role":"user","content":"b"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	tree, err := doc.Fingerprint(cache.Options{}).AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

var hashForm = regexp.MustCompile(`"[0-9a-f]{16}"`)

var (
	oddBodies = []string{
		`{"a":1}`, `{ "a" : 1.0 , "b":"<&>\u00e9é" }`, "{\"a\":1}\n", "{\"a\":1} \r\n",
		"{\n  \"a\": 1,\n  \"b\": [],\n  \"c\": {\n    \"d\": [\n      1\n    ]\n  }\n}\n", "{\n\t\"a\": 1\n}",
		"{\n  \"a\":1\n}", "{\r\n  \"a\": 1\r\n}", "{\n\"a\": 1\n}", " {\"a\":1}", "{\"a\":\"\xff\"}", "{\n  \"a\": \"\xff\"\n}\n",
		`[1]`, `"text"`, `7`, `null`, ``, "\n", "{", `{"a":1}{}`, "not JSON \\ \" \u2028 \x00", "{\"a\":\"\u2028\"}", `{"body":1,"base64":"eA=="}`,
	}
	oddEvents = []string{
		"data: {\"a\":1}\n\n", "data: { \"a\" : 1e0 }\n\n", "data: [DONE]\n\n", "data:{\"a\":1}\n\n", "data: {\"a\":1}\r\n\r\n", "data: {\"a\":1}\r\r",
		"event: response.created\ndata: {\"a\":\"é<\"}\n\n", "event: \ndata: {}\n\n", "event: x\nid: 1\ndata: {}\n\n", "event: x\xff\ndata: {}\n\n",
		": comment\n\n", ": OPENROUTER PROCESSING\n\n\n\ndata: {}\n\n", "data: {\ndata: }\n\n", "data: {\"a\":\"\xff\"}\n\n", "\ndata: {}\n\n", "data: {} \n\n",
		"data: {\"event\":\"x\",\"data\":1}\n\n", "data:  {}\n\n", "event: a\"b\\c\ndata: {}\n\n", "data: {}\n\r\n",
	}
)

// TestRecordsComeBackByteForByte writes records as lines and reads them again.
func TestRecordsComeBackByteForByte(t *testing.T) {
	now := time.Now()
	check := func(t *testing.T, r *cache.Record, tree []byte) string {
		t.Helper()
		line, err := appendRecord(nil, r, tree)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Count(line, []byte("\n")) != 1 || !json.Valid(line) {
			t.Errorf("this is not JSON on one line: %q", line)
		}
		again, treeAgain, err := parseRecord(line, now)
		if err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		again.Origin.ExpiresAt = r.Origin.ExpiresAt // not read
		if !reflect.DeepEqual(again, r) || !bytes.Equal(treeAgain, tree) {
			t.Errorf("got %+v, want %+v", again, r)
		}
		return string(line)
	}
	for _, body := range oddBodies {
		t.Run(fmt.Sprintf("%q", body), func(t *testing.T) { check(t, sample(cache.JSON, []byte(body)), sampleTree(t)) })
	}
	for _, event := range oddEvents {
		t.Run(fmt.Sprintf("%q", event), func(t *testing.T) {
			check(t, sample(cache.SSE, []byte(event), []byte("data: [DONE]\n\n")), nil)
		})
	}
	t.Run("what is not known", func(t *testing.T) {
		r := sample(cache.JSON, []byte(`{}`))
		r.Origin.Usage, r.Origin.Cost, r.Origin.Fingerprint = nil, nil, nil
		line := check(t, r, nil)
		if !strings.Contains(line, `"usage":null,"request":null,`) {
			t.Errorf("got %s", line)
		}
	})
}

func TestALineOfAnExport(t *testing.T) {
	r := sample(cache.SSE, []byte("data: {\"id\": 1}\n\n"), []byte("event: x\ndata: {}\n\n"), []byte("data: [DONE]\n\n"))
	line, err := appendRecord(nil, r, sampleTree(t))
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"key":"0102030000000000000000000000000000000000000000000000000000000000","tenant":"tests","step":"draft <mail>","model":"vendor/large","form":"sse",` +
		`"call":"call_6dnpacch00007","stored_at":"2026-01-02T03:04:05.678Z","expires_at":"2026-01-03T03:04:05.678Z","counted_input_tokens":14,"basis":"estimate",` +
		`"usage":{"input":15,"cached":4,"output":5,"reasoning":1},"cost_micro_usd":12,"body_key":"0900000000000000000000000000000000000000000000000000000000000000",` +
		`"request":{"fields":[{"name":"model","hash":"HASH"},{"name":"temperature","hash":"HASH"}],"list":"messages","messages":["HASH","HASH"]},` +
		`"headers":{"Content-Type":["application/json"],"Openai-Model":["m"]},` +
		`"events":[{"data":{"id": 1}},{"event":"x","data":{}},"data: [DONE]\n\n"]}` + "\n"
	if got := hashForm.ReplaceAllString(string(line), `"HASH"`); got != want {
		t.Errorf("\n got %s\nwant %s", got, want)
	}
	pretty := "{\n  \"id\": 1\n}\n"
	if line, err = appendRecord(nil, sample(cache.JSON, []byte(pretty)), nil); err != nil || !strings.HasSuffix(string(line), `,"body_indent":"  ","body_end":"\n","body":{"id":1}}`+"\n") {
		t.Errorf("%v: %s", err, line)
	}
}

// TestRefusedLines changes a good line and expects the mistake to be named.
func TestRefusedLines(t *testing.T) {
	now := time.Now()
	write := func(r *cache.Record) string {
		line, err := appendRecord(nil, r, sampleTree(t))
		if err != nil {
			t.Fatal(err)
		}
		return string(line)
	}
	body, stream := write(sample(cache.JSON, []byte(`{"id":1}`))), write(sample(cache.SSE, []byte("data: {\"id\":1}\n\n")))
	future := ledger.Name(ledger.FirstID(now.Add(time.Hour)))
	for _, test := range []struct{ line, old, with, want string }{
		{body, `{"key"`, `"key"`, "is no line of an export"},
		{body, `"key":"01`, `"key":"0x`, "key: "},
		{body, `"key":"01`, `"key":"`, "64 hexadecimal digits"},
		{body, `"form":`, `"from":`, "unknown field"},
		{body, "}\n", "}{}\n", "more than one"},
		{body, `"tests"`, `""`, "tenant: "},
		{body, `"tests"`, `"a/b"`, "tenant: "},
		{body, `"draft <mail>"`, `" x"`, "step: "},
		{body, `"vendor/large"`, `"a\nb"`, "model: "},
		{body, `"call":"call_`, `"call":"cal_`, "call: "},
		{body, `"call":"call_6dnpacch00007"`, `"call":"call_-1"`, "call: "},
		{body, `call_6dnpacch00007`, future, "in the future"},
		{body, `"stored_at":"2026`, `"stored_at":"9026`, "in the future"},
		{body, `"stored_at":"2026-`, `"stored_at":"2026`, "stored_at: "},
		{body, `_tokens":14`, `_tokens":-14`, "negative"},
		{body, `"cached":4`, `"cached":-4`, "usage is negative"},
		{body, `_usd":12`, `_usd":-12`, "negative"},
		{body, `"estimate"`, `"guess"`, "basis: "},
		{body, `"body_key":"09`, `"body_key":"`, "body_key: "},
		{body, `"Openai-Model"`, `"Set-Cookie"`, `"Set-Cookie" is not kept`},
		{body, `["m"]`, `["m\nX: y"]`, "control character"},
		{body, `{"name":"model","hash":"`, `{"name":"model","hash":"z`, `no hash of "model"`},
		{body, `{"name":"model"`, `{"name":"z"`, "order of their names"},
		{body, `"messages":["`, `"messages":["z`, "no hash of a message"},
		{body, `"form":"json"`, `"form":"sse"`, "form: "},
		{body, `"form":"json"`, `"form":"xml"`, "form: "},
		{body, `,"body":{"id":1}`, ``, "form: "},
		{body, `,"body":{"id":1}`, `,"body":[1]`, "is no JSON object"},
		{body, `"body":`, `"body_base64":"eA==","body":`, "keep one"},
		{body, `"body":`, `"body_indent":"x","body":`, "white space"},
		{stream, `"form":"sse"`, `"form":"json"`, "form: "},
		{stream, `{"data":{"id":1}}`, ``, "form: "},
		{stream, `{"data":{"id":1}}`, `"data: {}\n"`, "blank line"},
		{stream, `{"data":{"id":1}}`, `7`, "events[0] is neither"},
		{stream, `{"data":{"id":1}}`, `{"data":7}`, "on one line"},
		{stream, `{"data":{"id":1}}`, `{"event":"x\ny","data":{}}`, "on one line"},
		{stream, `{"data":{"id":1}}`, `{"event":"x"}`, "is no event"},
		{stream, `{"data":{"id":1}}`, `{"data":{},"base64":"eA=="}`, "is no event"},
		{stream, `{"data":{"id":1}}`, `{"date":{}}`, "is no event"},
		{stream, `{"data":{"id":1}}`, `{"base64":"eA=="}`, "blank line"},
	} {
		line := strings.Replace(test.line, test.old, test.with, 1)
		if line == test.line {
			t.Errorf("%q is not in %s", test.old, test.line)
		}
		if _, _, err := parseRecord([]byte(line), now); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q for %q: error %v, want %q", test.with, test.old, err, test.want)
		}
	}
}

// FuzzAnswer writes any bytes as a body and as an event and reads them again.
func FuzzAnswer(f *testing.F) {
	for _, seed := range append(oddBodies, oddEvents...) {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		for form, event := range map[cache.Form][]byte{cache.JSON: raw, cache.SSE: append(bytes.Clone(raw), "\n\n"...)} {
			line, err := appendRecord(nil, sample(form, event), nil)
			if err != nil {
				t.Fatal(err)
			}
			if bytes.Count(line, []byte("\n")) != 1 {
				t.Fatalf("more than a line: %q", line)
			}
			r, _, err := parseRecord(line, time.Now())
			if err != nil {
				t.Fatalf("%v: %s", err, line)
			}
			if again, err := r.Body.Events(); err != nil || len(again) != 1 || !bytes.Equal(again[0], event) {
				t.Errorf("got %q, %v; want %q", again, err, event)
			}
		}
	})
}
