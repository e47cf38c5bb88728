package proxy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/sashabaranov/go-openai"
)

// section returns a file of an archive, trimmed; "" where there is none.
func section(a *txtar.Archive, name string) string {
	for _, f := range a.Files {
		if f.Name == name {
			return strings.TrimSpace(string(f.Data))
		}
	}
	return ""
}

// readEvents returns the events of a stream up to its end.
func readEvents(t testing.TB, r io.Reader) [][]byte {
	t.Helper()
	var events [][]byte
	for reader := newEventReader(r, 1<<20); ; {
		raw, err := reader.next()
		if err == io.EOF {
			return events
		}
		if err != nil {
			t.Fatal(err)
		}
		events = append(events, raw)
	}
}

// sumOf adds the events of a stream, which must end in [DONE].
func sumOf(t testing.TB, events [][]byte) *chatCompletion {
	t.Helper()
	c, done := new(chatCompletion), false
	for _, raw := range events {
		data, ok := eventData(raw)
		switch {
		case !ok:
		case done:
			t.Fatalf("an event after [DONE]: %s", raw)
		case isDone(data):
			done = true
		default:
			if err := c.add(data); err != nil {
				t.Fatalf("adding %s: %v", data, err)
			}
		}
	}
	if !done {
		t.Fatal("the stream has no [DONE]")
	}
	return c
}

// chunks makes a completion of chunks that must all be good.
func chunks(t testing.TB, data ...string) *chatCompletion {
	t.Helper()
	c := new(chatCompletion)
	for _, d := range data {
		if err := c.add([]byte(d)); err != nil {
			t.Fatalf("adding %s: %v", d, err)
		}
	}
	return c
}

// deltas wraps deltas of choice 0 into chunks, and ends the choice with "stop".
func deltas(t testing.TB, data ...string) *chatCompletion {
	t.Helper()
	c := new(chatCompletion)
	for i, d := range data {
		finish := "null"
		if i == len(data)-1 {
			finish = `"stop"`
		}
		if err := c.add(fmt.Appendf(nil, `{"choices":[{"index":0,"delta":%s,"finish_reason":%s}]}`, d, finish)); err != nil {
			t.Fatalf("adding %s: %v", d, err)
		}
	}
	return c
}

func parseChat(body []byte) (*chatCompletion, error) {
	c := new(chatCompletion)
	return c, c.parse(body)
}

func bodyOf(t testing.TB, c *chatCompletion) string {
	t.Helper()
	body, err := c.body()
	if err != nil {
		t.Fatal(err)
	}
	if !json.Valid(body) {
		t.Fatalf("not JSON: %s", body)
	}
	return string(body)
}

func sameJSON(t testing.TB, got, want []byte) bool {
	t.Helper()
	decode := func(b []byte) (v any) {
		d := json.NewDecoder(bytes.NewReader(b))
		d.UseNumber()
		if err := d.Decode(&v); err != nil {
			t.Fatalf("decoding %s: %v", b, err)
		}
		return v
	}
	return reflect.DeepEqual(decode(got), decode(want))
}

var usualRules = storeRules{FinishReasons: []string{"stop", "tool_calls", "function_call"}}

// TestStreams reads the streams of testdata/chat: what they add up to, whether that
// may be stored, and that the JSON form becomes a stream with the same sum again.
func TestStreams(t *testing.T) {
	files, err := filepath.Glob("testdata/chat/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal("no streams to read", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			events := readEvents(t, strings.NewReader(section(a, "stream")))
			c := sumOf(t, events)
			if got, want := bodyOf(t, c), section(a, "body"); got != want {
				t.Errorf("body\n got %s\nwant %s", got, want)
			}
			if got, want := strconv.Quote(c.text()), section(a, "text"); got != want {
				t.Errorf("text\n got %s\nwant %s", got, want)
			}
			if got, want := describeUsage(c), section(a, "usage"); got != want {
				t.Errorf("usage: got %s, want %s", got, want)
			}
			rules := usualRules
			if n := section(a, "n"); n != "" {
				if rules.N, err = strconv.Atoi(n); err != nil {
					t.Fatal(err)
				}
			}
			if reason := c.judge(rules); reason != "" || !c.ended() {
				t.Errorf("judged %q, ended %v", reason, c.ended())
			}
			unrolled := checkUnrolled(t, []byte(section(a, "body")))
			if err := readByClient(events); err != nil {
				t.Logf("go-openai cannot read the stream itself: %v", err)
			} else if err := readByClient(unrolled); err != nil {
				t.Errorf("go-openai cannot read what was made of the body: %v", err)
			}
		})
	}
}

// readByClient decodes events into the types of a client.
func readByClient(events [][]byte) error {
	for _, raw := range events {
		data, ok := eventData(raw)
		if !ok || isDone(data) {
			continue
		}
		var chunk openai.ChatCompletionStreamResponse
		if err := json.Unmarshal(data, &chunk); err != nil {
			return fmt.Errorf("%w: %s", err, data)
		}
	}
	return nil
}

func describeUsage(c *chatCompletion) string {
	u, odd, ok := c.usage()
	if !ok {
		return "none"
	}
	s := fmt.Sprintf("input %d cached %d output %d reasoning %d", u.Input, u.Cached, u.Output, u.Reasoning)
	if odd {
		s += " odd"
	}
	return s
}

// checkUnrolled makes a stream of a body and compares what it adds up to.
func checkUnrolled(t testing.TB, body []byte) (events [][]byte) {
	t.Helper()
	c, err := parseChat(body)
	if err != nil {
		t.Fatal(err)
	}
	events, err = c.unroll(true)
	if err != nil {
		t.Fatal(err)
	}
	if again := readEvents(t, bytes.NewReader(bytes.Join(events, nil))); !reflect.DeepEqual(again, events) {
		t.Errorf("the events are not read as they were made")
	}
	again := sumOf(t, events)
	if got := bodyOf(t, again); !sameJSON(t, []byte(got), body) {
		t.Errorf("unrolled and assembled\n got %s\nwant %s", got, body)
	}
	if got, want := again.text(), c.text(); got != want {
		t.Errorf("text: got %q, want %q", got, want)
	}
	if got, want := describeUsage(again), describeUsage(c); got != want {
		t.Errorf("usage: got %s, want %s", got, want)
	}
	return events
}

func TestMergeRules(t *testing.T) {
	for _, test := range []struct {
		rule   string
		deltas []string
		want   string // the message
	}{
		{"strings are concatenated, known or not", []string{`{"role":"assistant","content":"a","x":"1"}`, `{"content":"b","x":"2"}`}, `{"role":"assistant","content":"ab","x":"12"}`},
		{"names are said once", []string{`{"role":"","name":"n","x":{"id":"i","type":"t","format":"f"}}`, `{"role":"assistant","name":"o","x":{"id":"j","type":"u","format":"f"}}`}, `{"role":"assistant","name":"n","x":{"id":"i","type":"t","format":"f"}}`},
		{"numbers and booleans: the last", []string{`{"role":"a","n":1,"b":true}`, `{"n":2.50,"b":false}`}, `{"role":"a","n":2.50,"b":false}`},
		{"zero counts as a number", []string{`{"role":"a","n":1}`, `{"n":0}`}, `{"role":"a","n":0}`},
		{"null changes nothing", []string{`{"role":"a","content":"x","o":{"a":1},"n":1}`, `{"role":null,"content":null,"o":null,"n":null}`}, `{"role":"a","content":"x","o":{"a":1},"n":1}`},
		{"null is kept where nothing else comes", []string{`{"role":"a","content":null}`, `{"content":null}`}, `{"role":"a","content":null}`},
		{"null gives way", []string{`{"role":"a","content":null,"x":null}`, `{"content":"c","x":[1]}`}, `{"role":"a","content":"c","x":[1]}`},
		{"objects are merged", []string{`{"role":"a","x":{"a":{"s":"1"}}}`, `{"x":{"a":{"s":"2","t":3},"b":4}}`}, `{"role":"a","x":{"a":{"s":"12","t":3},"b":4}}`},
		{"arrays are appended", []string{`{"role":"a","x":[1,"b"]}`, `{"x":[{"c":2}]}`, `{"x":[]}`, `{"x":[[3]]}`}, `{"role":"a","x":[1,"b",{"c":2},[3]]}`},
		{"objects with an index are merged by it", []string{`{"role":"a","x":[{"index":1,"s":"b"}]}`, `{"x":[{"index":0,"s":"a"},{"index":1,"s":"c"}]}`, `{"x":[{"index":1,"s":"d"}]}`}, `{"role":"a","x":[{"index":0,"s":"a"},{"index":1,"s":"bcd"}]}`},
		{"an index may be any number", []string{`{"role":"a","x":[{"index":1000000000,"s":"b"}]}`, `{"x":[{"index":-1,"s":"a"},{"index":1000000000,"s":"c"}]}`}, `{"role":"a","x":[{"index":-1,"s":"a"},{"index":1000000000,"s":"bc"}]}`},
		{"an empty value of another kind changes nothing", []string{`{"role":"a","x":{"a":1}}`, `{"x":""}`, `{"x":[]}`}, `{"role":"a","x":{"a":1}}`},
		{"a value of another kind replaces", []string{`{"role":"a","x":"s","y":{"a":1}}`, `{"x":5,"y":[1]}`}, `{"role":"a","x":5,"y":[1]}`},
		{"padding is dropped", []string{`{"role":"a","content":"c","obfuscation":"zz"}`}, `{"role":"a","content":"c"}`},
		{"the role is the assistant's", []string{`{"content":"c"}`}, `{"role":"assistant","content":"c"}`},
		{"names are compared exactly", []string{`{"role":"a","content":"x","Content":"X"}`, `{"\u0063ontent":"y","CONTENT":"Z"}`}, `{"role":"a","content":"xy","Content":"X","CONTENT":"Z"}`},
		{"odd names survive", []string{`{"role":"a","\"q\\":"1"}`, `{"\u0022q\u005c":"2"}`}, `{"role":"a","\"q\\":"12"}`},
		{"characters that chunks share come together", []string{`{"role":"a","content":"\ud83d"}`, `{"content":"\ude00 ` + "\xe2\x82" + `"}`, `{"content":"` + "\xac" + `"}`}, `{"role":"a","content":"\ud83d\ude00 €"}`},
		{"text and parts", []string{`{"role":"a","content":"t"}`, `{"content":[{"type":"image_url"}]}`, `{"content":"u"}`}, `{"role":"a","content":[{"type":"text","text":"t"},{"type":"image_url"},{"type":"text","text":"u"}]}`},
		{"calls lose their index", []string{`{"role":"a","tool_calls":[{"index":0,"id":"i","function":{"name":"f","arguments":"{"}}]}`, `{"tool_calls":[{"index":0,"function":{"arguments":"}"}}]}`, `{"tool_calls":[]}`, `{"tool_calls":null}`}, `{"role":"a","tool_calls":[{"id":"i","function":{"name":"f","arguments":"{}"}}]}`},
		{"calls begin empty", []string{`{"role":"a","tool_calls":null}`, `{"tool_calls":[]}`, `{"tool_calls":[{"id":"i","function":{"name":"f","arguments":"{}"}}]}`}, `{"role":"a","tool_calls":[{"id":"i","function":{"name":"f","arguments":"{}"}}]}`},
		{"a call's id may come late or empty", []string{`{"role":"a","tool_calls":[{"index":3,"id":"","function":{"arguments":"[" }}]}`, `{"tool_calls":[{"index":3,"id":"i","function":{"name":"f","arguments":"]"}}]}`}, `{"role":"a","tool_calls":[{"id":"i","function":{"arguments":"[]","name":"f"}}]}`},
		{"calls of any shape", []string{`{"role":"a","tool_calls":[1,{"id":"i"}]}`, `{"tool_calls":["x"]}`}, `{"role":"a","tool_calls":[1,{"id":"i"},"x"]}`},
		{"calls that were something else", []string{`{"role":"a","tool_calls":"none"}`, `{"tool_calls":[{"id":"i"}]}`}, `{"role":"a","tool_calls":[{"id":"i"}]}`},
		{"many members", []string{manyMembers("1"), manyMembers("2")}, strings.Replace(manyMembers("12"), "{", `{"role":"assistant",`, 1)},
		{"what is too deep is replaced", []string{`{"role":"a","x":` + nested(40, `"1"`) + `}`, `{"x":` + nested(40, `"2"`) + `}`}, `{"role":"a","x":` + nested(40, `"2"`) + `}`},
	} {
		t.Run(test.rule, func(t *testing.T) {
			want := `{"object":"chat.completion","choices":[{"index":0,"message":` + test.want + `,"finish_reason":"stop"}]}`
			if got := bodyOf(t, deltas(t, test.deltas...)); got != want {
				t.Errorf("\n got %s\nwant %s", got, want)
			}
		})
	}
}

func manyMembers(value string) string {
	var b strings.Builder
	for i := range 3 * manyNames {
		fmt.Fprintf(&b, `,"m%d":"%s"`, i, value)
	}
	return "{" + b.String()[1:] + "}"
}

func nested(depth int, value string) string {
	return strings.Repeat(`{"x":`, depth) + value + strings.Repeat("}", depth)
}

func TestAroundTheMessage(t *testing.T) {
	for _, test := range []struct {
		rule   string
		chunks []string
		want   string
	}{
		{"what stands beside a delta is said anew",
			[]string{`{"choices":[{"index":0,"delta":{},"level":"low","f":{"s":"safe"},"finish_reason":""}]}`,
				`{"choices":[{"index":0,"delta":null,"level":"high","f":{"s":"safe","n":1},"finish_reason":"stop"}]}`,
				`{"choices":[{"index":0,"level":"","finish_reason":null}]}`,
				`{"choices":[{"index":0,"finish_reason":""}]}`},
			`{"object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant"},"level":"high","f":{"s":"safe","n":1},"finish_reason":"stop"}]}`},
		{"the last finish reason counts",
			[]string{`{"choices":[{"index":0,"delta":{"role":"a"},"finish_reason":"stop"}]}`, `{"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}`},
			`{"object":"chat.completion","choices":[{"index":0,"message":{"role":"a"},"finish_reason":"tool_calls"}]}`},
		{"who answers is said once, the rest anew",
			[]string{`{"id":"","object":"","created":0,"model":null,"service_tier":"auto","choices":[]}`,
				`{"id":"i","object":"chat.completion.chunk","created":7,"model":"m","service_tier":null,"choices":null,"obfuscation":"z"}`,
				`{"id":"j","object":"chat.completion.chunk","created":8,"model":"n","service_tier":"default"}`},
			`{"id":"i","object":"chat.completion","created":7,"model":"m","service_tier":"default","choices":[]}`},
		{"a usage of null is none", []string{`{"choices":[],"usage":null}`}, `{"object":"chat.completion","choices":[]}`},
		{"nothing", nil, `{"object":"chat.completion"}`},
		{"choices of odd indexes",
			[]string{`{"choices":[{"index":1000000000,"delta":{"role":"a"}},{"index":-3,"delta":{"role":"b"}},{"delta":{"role":"c"}}]}`},
			`{"object":"chat.completion","choices":[{"index":-3,"message":{"role":"b"}},{"index":2,"message":{"role":"c"}},{"index":1000000000,"message":{"role":"a"}}]}`},
	} {
		t.Run(test.rule, func(t *testing.T) {
			if got := bodyOf(t, chunks(t, test.chunks...)); got != test.want {
				t.Errorf("\n got %s\nwant %s", got, test.want)
			}
		})
	}
}

func TestChunkErrors(t *testing.T) {
	const wordless = `{"error":{"message":"The upstream sent an error without a message","type":"upstream_error","code":null,"param":null}}`
	for _, test := range []struct{ chunk, body string }{
		{`{"error":{"message":"overloaded","code":503},"choices":[]}`, `{"error":{"message":"overloaded","code":503}}`},
		{`{"choices":[{"index":0,"delta":{"content":""},"finish_reason":"error"}],"error":{"code":"server_error"}}`, `{"error":{"code":"server_error"}}`},
		{`{"error":"boom"}`, `{"error":{"message":"boom","type":"upstream_error","code":null,"param":null}}`},
		{`{"error":500}`, `{"error":{"message":"500","type":"upstream_error","code":null,"param":null}}`},
		{`{"error":["a"]}`, wordless},
		{`{"object":"error","message":"too long","code":400}`, `{"error":{"object":"error","message":"too long","code":400}}`},
	} {
		failure, ok := errors.AsType[*chunkError](checkRefused(t, test.chunk, "error object"))
		if !ok || string(failure.Body) != test.body || !json.Valid(failure.Body) {
			t.Errorf("%s\n got %s\nwant %s", test.chunk, failure.Body, test.body)
		}
	}
	for _, chunk := range []string{`{"choices":[`, `{} {}`, ``, `[]`, `null`, `"text"`, `<html>`} {
		if err := checkRefused(t, chunk, "not a JSON object"); err != errNoChunk {
			t.Errorf("%s: error %v", chunk, err)
		}
	}
	for _, harmless := range []string{`{"error":null}`, `{"error":""}`, `{"error":false}`, `{"error":{}}`} {
		if err := new(chatCompletion).add([]byte(harmless)); err != nil {
			t.Errorf("%s: %v", harmless, err)
		}
	}
	if got, want := newChunkError([]byte(`{"message":"caf\u00e9"}`)).Error(), "the upstream sent an error in its answer: café"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// checkRefused adds a chunk to an answer that is complete without it, and returns
// the error. The answer must be of no use afterwards.
func checkRefused(t *testing.T, chunk, reason string) error {
	t.Helper()
	c := chunks(t, `{"choices":[{"index":0,"delta":{"role":"assistant","content":"a"},"finish_reason":"stop"}]}`)
	failure := c.add([]byte(chunk))
	if failure == nil {
		t.Errorf("%s: no error", chunk)
	}
	if got := c.judge(usualRules); got != reason {
		t.Errorf("%s: judged %q, want %q", chunk, got, reason)
	}
	if _, err := c.body(); err == nil {
		t.Errorf("%s: made a body of it", chunk)
	}
	if _, err := c.unroll(true); err == nil {
		t.Errorf("%s: made a stream of it", chunk)
	}
	if _, err := parseChat([]byte(chunk)); err == nil {
		t.Errorf("%s: taken for a JSON answer", chunk)
	}
	return failure
}

// An error does not hide what came beside it: it is paid for.
func TestErrorKeepsUsage(t *testing.T) {
	c := chunks(t, `{"choices":[{"index":0,"delta":{"content":"half"}}]}`)
	if err := c.add([]byte(`{"error":{"message":"m"},"usage":{"prompt_tokens":5,"completion_tokens":6}}`)); err == nil {
		t.Fatal("no error")
	}
	if got := describeUsage(c); got != "input 5 cached 0 output 6 reasoning 0" || c.text() != "half" {
		t.Errorf("usage %s, text %q", got, c.text())
	}
}

func TestUsage(t *testing.T) {
	for _, test := range []struct{ usage, want string }{
		{`{"prompt_tokens":7,"completion_tokens":5,"total_tokens":12}`, "input 7 cached 0 output 5 reasoning 0"},
		{`{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0}`, "input 0 cached 0 output 0 reasoning 0"},
		{`{"prompt_tokens":7,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":3},"completion_tokens_details":{"reasoning_tokens":4}}`, "input 7 cached 3 output 5 reasoning 4"},
		{`{"prompt_tokens":7,"completion_tokens":5,"prompt_tokens_details":null,"completion_tokens_details":null}`, "input 7 cached 0 output 5 reasoning 0"},
		{`{"prompt_tokens":7.0,"completion_tokens":5e1}`, "input 7 cached 0 output 50 reasoning 0"},
		{`{"prompt_tokens":7,"total_tokens":12}`, "input 7 cached 0 output 5 reasoning 0"},
		{`{"prompt_tokens":7,"completion_tokens":5,"total_tokens":40}`, "input 7 cached 0 output 33 reasoning 0"},
		{`{"prompt_tokens":7,"completion_tokens":5,"total_tokens":3}`, "input 7 cached 0 output 5 reasoning 0"},
		{`{"prompt_tokens":-1000,"completion_tokens":5}`, "input 0 cached 0 output 5 reasoning 0 odd"},
		{`{"prompt_tokens":7,"completion_tokens":-1000,"total_tokens":-993}`, "input 7 cached 0 output 0 reasoning 0 odd"},
		{`{"prompt_tokens":7,"completion_tokens":5,"total_tokens":99999999999999}`, "input 7 cached 0 output 5 reasoning 0 odd"},
		{`{"prompt_tokens":1099511627776,"completion_tokens":1099511627777}`, "input 1099511627776 cached 0 output 0 reasoning 0 odd"},
		{`{"prompt_tokens":1e400,"completion_tokens":9223372036854775808}`, "input 0 cached 0 output 0 reasoning 0 odd"},
		{`{"prompt_tokens":7.5,"completion_tokens":"5"}`, "input 0 cached 0 output 0 reasoning 0 odd"},
		{`{"prompt_tokens":7,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":8}}`, "input 7 cached 7 output 5 reasoning 0 odd"},
		{`{"prompt_tokens":7,"completion_tokens":5,"completion_tokens_details":{"reasoning_tokens":6}}`, "input 7 cached 0 output 5 reasoning 5 odd"},
		{`{"PROMPT_TOKENS":7,"prompt_tokens":8,"completion_tokens":5,"Prompt_Tokens":9}`, "input 8 cached 0 output 5 reasoning 0"},
		{`{"prompt_tokens":7}`, "none"},
		{`{"completion_tokens":7,"total_tokens":9}`, "none"},
		{`{"prompt_tokens":null,"completion_tokens":null}`, "none"},
		{`{"total_tokens":0}`, "none"},
		{`{}`, "none"}, {`null`, "none"}, {`[]`, "none"}, {`"x"`, "none"}, {`7`, "none"},
	} {
		whole, err := parseChat([]byte(`{"choices":[],"usage":` + test.usage + `}`))
		if err != nil {
			t.Fatal(err)
		}
		chunk := chunks(t, `{"choices":[{"index":0,"delta":{"role":"assistant"}}],"usage":`+test.usage+`}`, `{"choices":[],"usage":null}`, `{"choices":[],"usage":{}}`, `{"choices":[]}`)
		for _, c := range []*chatCompletion{whole, chunk} {
			if got := describeUsage(c); got != test.want {
				t.Errorf("%s\n got %s\nwant %s", test.usage, got, test.want)
			}
		}
	}
	last := chunks(t, `{"usage":{"prompt_tokens":1,"completion_tokens":1}}`, `{"usage":{"prompt_tokens":2,"completion_tokens":3}}`)
	if got, want := describeUsage(last), "input 2 cached 0 output 3 reasoning 0"; got != want {
		t.Errorf("of two: got %s, want %s", got, want)
	}
	if got := describeUsage(new(chatCompletion)); got != "none" {
		t.Errorf("of nothing: got %s", got)
	}
}

func TestIsUsageChunk(t *testing.T) {
	for data, want := range map[string]bool{
		`{"id":"c","choices":[],"usage":{"prompt_tokens":1}}`:   true,
		` {"usage" : {} , "choices" : [ ] } `:                   true,
		`{"usage":{"prompt_tokens":1}}`:                         true,
		`{"choices":null,"usage":{"prompt_tokens":1}}`:          true,
		`{"choices":[],"usage":null}`:                           false,
		`{"choices":[],"prompt_filter_results":[{"usage":{}}]}`: false,
		`{"choices":[{"index":0,"delta":{}}],"usage":{}}`:       false,
		`{"choices":[{"delta":{"content":"\"usage\":{}"}}]}`:    false,
		`{"choices":[{"delta":{"usage":{}}}],"usage":null}`:     false,
		`{"choices":[]}`: false, ``: false, `[DONE]`: false, `{"usage":{`: true,
		`"usage"`: false, `{"usage"`: false, `{"usage":`: false,
	} {
		if got := isUsageChunk([]byte(data)); got != want {
			t.Errorf("%s: %v, want %v", data, got, want)
		}
	}
}

func TestText(t *testing.T) {
	c := chunks(t, `{"choices":[{"index":1,"delta":{"content":"b"}},{"index":0,"delta":{"content":[{"type":"text","text":"p"},{"type":"refusal","refusal":"q"},{"type":"image_url"},7,"s"],"refusal":"r\u00e9","reasoning":"think","tool_calls":[{"function":{"name":"f","arguments":"{}"}},{"custom":{"name":"g","input":"in"}}]}}]}`)
	if got, want := c.text(), "pq"+"ré"+"think"+"f{}"+"gin"+"b"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := new(chatCompletion).text(); got != "" {
		t.Errorf("of nothing: %q", got)
	}
}

func TestEnded(t *testing.T) {
	c := new(chatCompletion)
	steps := []struct {
		chunk  string
		ended  bool
		finish string
	}{
		{`{"choices":[]}`, false, ""},
		{`{"choices":[{"index":1,"delta":{"content":"a"},"finish_reason":"length"}]}`, true, "length"},
		{`{"choices":[{"index":0,"delta":{"content":"a"}}]}`, false, ""},
		{`{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`, true, "stop"},
	}
	for _, step := range steps {
		if err := c.add([]byte(step.chunk)); err != nil {
			t.Fatal(err)
		}
		if c.ended() != step.ended || c.finish() != step.finish {
			t.Errorf("after %s: ended %v for %q", step.chunk, c.ended(), c.finish())
		}
	}
}

// A JSON body is given back as it came, byte for byte.
func TestOriginalBody(t *testing.T) {
	body := "{ \"choices\" : [ {\"index\":0, \"message\":{\"role\":\"assistant\",\"content\":\"a\"},\r\n\"finish_reason\":\"stop\"} ], \"created\": 1.0 }\n"
	c, err := parseChat([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	if got := bodyOf(t, c); got != body {
		t.Errorf("got %q", got)
	}
	if reason := c.judge(usualRules); reason != "" {
		t.Errorf("judged %q", reason)
	}
}

// Shapes that make memory grow faster than the bytes that came are refused, and
// the usage is read none the less.
func TestTooManyParts(t *testing.T) {
	var members, choices strings.Builder
	for i := range maxParts + 2 {
		fmt.Fprintf(&members, `,"%d":1`, i)
		fmt.Fprintf(&choices, `,{"index":%d}`, i)
	}
	for name, chunk := range map[string]string{
		"members": `{"choices":[{"index":0,"delta":{` + members.String()[1:] + `},"finish_reason":"stop"}]`,
		"choices": `{"choices":[` + choices.String()[1:] + `]`,
		"calls":   `{"choices":[{"index":0,"delta":{"tool_calls":[` + choices.String()[1:] + `]}}]`,
		"top":     `{` + members.String()[1:],
	} {
		c := chunks(t, `{"usage":null}`, chunk+`,"usage":{"prompt_tokens":1,"completion_tokens":2}}`)
		if got := c.judge(usualRules); got != "too many parts" {
			t.Errorf("%s: judged %q", name, got)
		}
		if got := describeUsage(c); got != "input 1 cached 0 output 2 reasoning 0" {
			t.Errorf("%s: usage %s", name, got)
		}
		c.text()
	}
}

// streamOf returns the chunks of a long answer with text, log probabilities and a call.
func streamOf(n int) [][]byte {
	chunks := make([][]byte, 0, n)
	for i := range n {
		chunks = append(chunks, fmt.Appendf(nil, `{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"word%d ","tool_calls":[{"index":0,"function":{"arguments":"%d,"}}]},"logprobs":{"content":[{"token":"word","logprob":-0.5}]},"finish_reason":null}],"usage":null,"obfuscation":"abc"}`, i, i))
	}
	return chunks
}

// Ten times the chunks take ten times the memory, not a hundred times.
func TestLongStreamIsLinear(t *testing.T) {
	allocated := func(n int) (size, objects uint64) {
		stream := streamOf(n)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		c := new(chatCompletion)
		for _, chunk := range stream {
			if err := c.add(chunk); err != nil {
				t.Fatal(err)
			}
		}
		body := bodyOf(t, c)
		runtime.ReadMemStats(&after)
		if want := fmt.Sprintf("word%d ", n-1); !strings.Contains(body, want) || strings.Count(c.text(), "word") != n || c.parts > 32 {
			t.Fatalf("the body of %d chunks in %d parts is wrong", n, c.parts)
		}
		return after.TotalAlloc - before.TotalAlloc, after.Mallocs - before.Mallocs
	}
	fewSize, fewObjects := allocated(1000)
	size, objects := allocated(10000)
	t.Logf("1,000 chunks: %d bytes in %d objects; 10,000: %d in %d", fewSize, fewObjects, size, objects)
	if size > 20*fewSize || objects > 20*fewObjects {
		t.Errorf("10,000 chunks take %d bytes in %d objects, 1,000 take %d in %d", size, objects, fewSize, fewObjects)
	}
}

func BenchmarkAdd(b *testing.B) {
	chunk := []byte(`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1764547200,"model":"gpt-4.1-2025-04-14","service_tier":"default","system_fingerprint":"fp_a1","choices":[{"index":0,"delta":{"content":" hello"},"logprobs":null,"finish_reason":null}],"usage":null,"obfuscation":"x7dF2"}`)
	c := new(chatCompletion)
	b.SetBytes(int64(len(chunk)))
	b.ReportAllocs()
	for b.Loop() {
		if err := c.add(chunk); err != nil {
			b.Fatal(err)
		}
		if isUsageChunk(chunk) {
			b.Fatal("no usage chunk")
		}
	}
}
