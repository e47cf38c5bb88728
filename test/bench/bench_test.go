package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"
)

// TestMain plays the roles that run asks this very program to play.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && isRole(os.Args[1]) {
		if err := playRole(os.Args[1], os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// The whole benchmark runs with each baseline against itself, every answer of
// them is right, and each section prints its table.
func TestQuickRunOfTheBaselines(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the benchmark reads /proc, which only Linux has")
	}
	var out, errs bytes.Buffer
	err := run(t.Context(), []string{"-baselines", "-quick", "-streams", "100", "-dir", t.TempDir()}, &out, &errs)
	if err != nil {
		t.Fatalf("%v\n%s%s", err, &out, &errs)
	}
	for _, want := range []string{
		"Hit from memory", "1 KB × 16 clients", "512 KB × 64 clients", "≤ 1.40",
		"Miss with both commits", "not reported", "≤ 0.70 ms",
		"Streams", "5ms apart", "chat, 100 streams × 64 clients", "chunks held back",
		"responses, 32 chunks at once × 1 client", "responses to chat", "≤ 1.15", "responses, 100 streams × 64 clients",
		"Memory", "≤ 64.0 MiB", "Start", "≤ 500.00 ms",
		"Counting", "o200k_base, Japanese", "≥ 25.00", "hostile texts", "allocations per count",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the report lacks %q", want)
		}
	}
	if t.Failed() {
		t.Log(out.String())
	}
}

func TestRequestsAreJSONOfTheirSize(t *testing.T) {
	seen := make(map[string]bool)
	for _, size := range bodySizes {
		for i, marker := range []string{hitMarker(size, 0), hitMarker(size, 1), freshMarker(kindStream, 1)} {
			body := request(chat, size, marker)
			if len(body) != size || !utf8.Valid(body) {
				t.Errorf("%d KB, body %d: %d bytes, valid UTF-8: %t", size/KB, i, len(body), utf8.Valid(body))
			}
			var v struct {
				Messages []struct{ Role, Content string }
				Stream   bool
			}
			if err := json.Unmarshal(body, &v); err != nil {
				t.Fatalf("%d KB, body %d: %v", size/KB, i, err)
			}
			if len(v.Messages) < 2 || v.Messages[0].Role != "system" || v.Stream != (i == 2) {
				t.Errorf("%d KB, body %d: %d messages, stream %t", size/KB, i, len(v.Messages), v.Stream)
			}
			for _, m := range v.Messages {
				if !strings.HasPrefix(m.Content, markerTag+marker+"] ") || seen[m.Content] {
					t.Errorf("%d KB, body %d: message %.60q is not its own", size/KB, i, m.Content)
				}
				seen[m.Content] = true
			}
			if got, err := findMarker(body); got != marker || err != nil {
				t.Errorf("findMarker = %q, %v; want %q", got, err, marker)
			}
		}
	}
}

// A Responses request says the same as a chat request, in the members of its own API.
func TestResponsesRequest(t *testing.T) {
	marker := freshMarker(kindStream, 1)
	body := request(responses, missSize, marker)
	var v struct {
		Input           []struct{ Role, Content string }
		MaxOutputTokens int `json:"max_output_tokens"`
		Stream          bool
		Messages        any
	}
	if err := json.Unmarshal(body, &v); err != nil {
		t.Fatal(err)
	}
	if len(body) != missSize || len(v.Input) < 2 || v.MaxOutputTokens != 800 || !v.Stream || v.Messages != nil {
		t.Errorf("%d bytes: %s", len(body), body)
	}
	if got, err := findMarker(body); got != marker || err != nil {
		t.Errorf("findMarker = %q, %v; want %q", got, err, marker)
	}
}

func TestStampMakesTheRequestOfItsMarker(t *testing.T) {
	work := requestTemplate(chat, missSize, kindFresh)
	one, two := freshMarker(kindFresh, 1), freshMarker(kindFresh, 2)
	first := bytes.Clone(work.stamp(one))
	if got, _ := findMarker(first); got != one || bytes.Contains(first, []byte(two)) {
		t.Errorf("stamped %q, found %q", one, got)
	}
	if second := work.stamp(two); bytes.Contains(second, []byte(one)) || !bytes.Contains(second, []byte(two)) {
		t.Errorf("a second stamp leaves %s", second)
	}
	if got, want := answerTemplate().stamp(two), answer(two); !bytes.Equal(got, want) {
		t.Errorf("stamped answer\n%s\nwant\n%s", got, want)
	}
}

// Every way in which an answer can be wrong is seen: the benchmark must not
// praise a fast server that answers rubbish.
func TestAsksSeeWrongAnswers(t *testing.T) {
	replace := func(old, new string) func(http.Header, string) (int, string) {
		return func(_ http.Header, body string) (int, string) { return 200, strings.Replace(body, old, new, 1) }
	}
	chunk3 := `"content":"3 `
	second := `data: {"type":"response.output_text.delta","sequence_number":5,`
	delta := `"type":"response.output_text.delta"`
	for _, test := range []struct {
		name   string
		api    endpoint
		kind   byte
		tamper func(http.Header, string) (status int, body string)
		wrong  bool   // a wrongAnswer rather than a failure of transport
		want   string // in the error; "" for none
	}{
		{"right answer", chat, kindFresh, replace("", ""), false, ""},
		{"other bytes", chat, kindFresh, replace(`"refusal":null`, `"refusal": null`), true, "got"},
		{"another request's answer", chat, kindFresh, replace("chatcmpl-m000000000000001", "chatcmpl-m000000000000002"), true, "got"},
		{"status", chat, kindFresh, func(_ http.Header, body string) (int, string) { return 503, body }, true, "status 503"},
		{"cache state", chat, kindFresh, func(h http.Header, body string) (int, string) {
			h.Set("X-LLMProxy-Cache", "hit")
			return 200, body
		}, true, `"hit", want "miss"`},
		{"right stream", chat, kindStream, replace("", ""), false, ""},
		{"comments in a stream", chat, kindStream, replace("data: [DONE]", ": keep-alive\n\ndata: [DONE]"), false, ""},
		{"stream status", chat, kindStream, func(_ http.Header, body string) (int, string) { return 429, body }, true, "status 429"},
		{"no [DONE]", chat, kindStream, replace("data: [DONE]\n\n", ""), false, "cut after 32 of 32"},
		{"early [DONE]", chat, kindStream, replace("data: ", "data: [DONE]\n\ndata: "), true, "[DONE] before"},
		{"chunk lost", chat, kindStream, replace(chunk3, `"content":"4 `), true, "want chunk 3"},
		{"chunk after the end", chat, kindStream, replace("data: [DONE]", "data: {}"), true, "chunk"},
		{"early end", chat, kindStream, replace(`"finish_reason":null`, `"finish_reason":"stop"`), true, "finishes after 0 chunks"},
		{"error frame", chat, kindStream, replace(`"choices":[{`, `"error":{},"x":[{`), true, "chunk"},
		{"named event", chat, kindStream, replace("data: ", "event: chunk\ndata: "), true, "line"},
		{"right response", responses, kindStream, replace("", ""), false, ""},
		{"comments in a response", responses, kindStream, replace("event: ", ": keep-alive\n\nevent: "), false, ""},
		{"response cut", responses, kindStream, func(_ http.Header, body string) (int, string) {
			before, _, _ := strings.Cut(body, "event: response.completed")
			return 200, before
		}, false, "cut after 32 of 32"},
		{"another request's response", responses, kindStream, replace("resp_", "resp_x"), true, "response"},
		{"another item's delta", responses, kindStream, replace(delta+`,"sequence_number":7,"item_id":"`, delta+`,"sequence_number":7,"item_id":"x`), true, "delta"},
		{"delta lost", responses, kindStream, replace(`"delta":"3 `, `"delta":"4 `), true, "want chunk 3"},
		{"event out of turn", responses, kindStream, replace("response.in_progress", "response.created"), true, "want response.in_progress"},
		{"number out of turn", responses, kindStream, replace(`"sequence_number":9`, `"sequence_number":8`), true, "want response.output_text.delta"},
		{"event without its name", responses, kindStream, replace("event: response.output_text.delta\n"+second, second), true, "want response.output_text.delta"},
		{"error event", responses, kindStream, replace("event: response.output_text.done", "event: error"), true, "want response.output_text.done"},
		{"other text in the end", responses, kindStream, func(_ http.Header, body string) (int, string) {
			at := strings.LastIndex(body, "and some words")
			return 200, body[:at] + "or" + body[at+len("and"):]
		}, true, "is not what"},
		{"no usage", responses, kindStream, replace(`"total_tokens":493`, `"total_tokens":0`), true, "is not what"},
		{"event after the end", responses, kindStream, func(_ http.Header, body string) (int, string) { return 200, body + "data: {}\n\n" }, true, "line"},
	} {
		t.Run(test.name, func(t *testing.T) {
			mock := mockUpstream()
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				rec := httptest.NewRecorder()
				mock.ServeHTTP(rec, r)
				w.Header().Set("X-LLMProxy-Cache", "miss")
				status, body := test.tamper(w.Header(), rec.Body.String())
				w.WriteHeader(status)
				io.WriteString(w, body)
			}))
			defer server.Close()
			c, err := dial(server.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer c.nc.Close()
			work := newFresh(test.api, test.kind, missSize, new(atomic.Int64))
			ask := freshAsk("miss", work)
			if test.kind == kindStream {
				ask = streamAsk("miss", work)
			}
			var s sample
			err = ask(c, &s)
			if _, wrong := errors.AsType[wrongAnswer](err); wrong != test.wrong {
				t.Errorf("wrong answer: %t, want %t", wrong, test.wrong)
			}
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %q", err, test.want)
			}
			if err == nil {
				if err := ask(c, &s); err != nil {
					t.Errorf("second request on the connection: %v", err)
				}
			}
		})
	}
}

// A wrong answer ends the run in failure, a lost one is only counted.
func TestDriveTellsWrongFromLost(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	outcomes := []error{nil, io.ErrUnexpectedEOF, nil, wrongAnswer("other bytes"), io.EOF}
	c, err := dial(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { c.nc.Close() }()
	var s sample
	at := -1
	if err := s.drive(c, func(*conn, *sample) error { return outcomes[at] }, func() bool { at++; return at < len(outcomes) }); err != nil {
		t.Fatal(err)
	}
	if s.answered != 2 || s.failed != 3 || s.failure != io.ErrUnexpectedEOF || s.wrong != wrongAnswer("other bytes") {
		t.Errorf("got %d answered, %d failed (%v), wrong: %v", s.answered, s.failed, s.failure, s.wrong)
	}
}

func TestSeriesReadsThePrometheusText(t *testing.T) {
	for line, want := range map[string]struct {
		name  string
		value float64
		ok    bool
	}{
		`llmproxy_count_seconds_sum 1.25`:                       {"llmproxy_count_seconds_sum", 1.25, true},
		`llmproxy_count_seconds_count{basis="exact"} 42`:        {"llmproxy_count_seconds_count", 42, true},
		`llmproxy_count_seconds_bucket{step="a b",le="+Inf"} 7`: {"llmproxy_count_seconds_bucket", 7, true},
		`# HELP llmproxy_count_seconds Time.`:                   {},
	} {
		name, value, ok := series(line)
		if ok != want.ok || name != want.name || value != want.value {
			t.Errorf("%s: got %q %v %t", line, name, value, ok)
		}
	}
}

func TestMedianAndQuantile(t *testing.T) {
	if got := median([]float64{4, 1, 3, 2}); got != 2.5 {
		t.Errorf("median of 1–4 = %v", got)
	}
	times := make([]time.Duration, 200)
	for i := range times {
		times[i] = time.Duration(200 - i)
	}
	for q, want := range map[float64]time.Duration{0.5: 100, 0.99: 198, 1: 200} {
		if got := quantile(times, q); got != want {
			t.Errorf("quantile %v of 1–200 = %d, want %d", q, got, want)
		}
	}
}

// What is added to one case is compared with what is added to the other round by
// round, and not at all where a round shows nothing added to compare with.
func TestAddedComparesWhatIsAdded(t *testing.T) {
	rounds := func(firsts ...time.Duration) (side []sample) {
		for _, first := range firsts {
			side = append(side, sample{first: []time.Duration{first * time.Millisecond}})
		}
		return side
	}
	base := rounds(10, 20, 30)
	for _, test := range []struct {
		one, other []sample
		want       []string
	}{
		{rounds(12, 23, 34), rounds(12, 22, 32), []string{"1.50 (1.00–2.00)", "≤ 1.15", "no"}},
		{rounds(11, 22, 33), rounds(12, 22, 32), []string{"1.00 (0.50–1.50)", "≤ 1.15", "yes"}},
		{rounds(12, 23, 34), rounds(12, 20, 32), []string{"not measurable", "≤ 1.15", ""}},
	} {
		table := newTable("", "ours", "base")
		table.added("case", firstP50, pair{test.one, base}, pair{test.other, base}, atMost(1.15))
		if got := table.rows[1][4:]; !slices.Equal(got, test.want) {
			t.Errorf("got %q, want %q", got, test.want)
		}
	}
}
