package proxy

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"llmproxy/ledger"
	"llmproxy/proxy/proxytest"
	"llmproxy/store"
)

// Only answers that are proven complete and of use are given again. The others
// are passed on, whole, and forgotten.
func TestWhatIsStored(t *testing.T) {
	const limit = `,"max_tokens":5`
	answer := func(choices string) string {
		return `{"id":"x","object":"chat.completion","created":1,"model":"m","choices":[` + choices + `],"usage":{"prompt_tokens":11,"completion_tokens":7}}`
	}
	choice := func(index int, message, finish string) string {
		return fmt.Sprintf(`{"index":%d,"message":%s,"finish_reason":%s}`, index, message, finish)
	}
	text := `{"role":"assistant","content":"hello"}`
	call := func(arguments string) string {
		return `{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":` + arguments + `}}]}`
	}
	h := newHarness(t, nil)
	for name, tt := range map[string]struct {
		body   string
		asks   string
		stored bool
	}{
		"stop":                         {answer(choice(0, text, `"stop"`)), "", true},
		"tool_calls":                   {answer(choice(0, call(`"{\"a\":1}"`), `"tool_calls"`)), "", true},
		"function_call":                {answer(choice(0, `{"function_call":{"name":"f","arguments":"{}"}}`, `"function_call"`)), "", true},
		"refusal":                      {answer(choice(0, `{"content":null,"refusal":"I will not"}`, `"stop"`)), "", true},
		"length":                       {answer(choice(0, text, `"length"`)), "", false},
		"length as asked":              {answer(choice(0, text, `"length"`)), limit, true},
		"length as asked by the other": {answer(choice(0, text, `"length"`)), `,"max_completion_tokens":5`, true},
		"content_filter":               {answer(choice(0, text, `"content_filter"`)), "", false},
		"content_filter with a limit":  {answer(choice(0, text, `"content_filter"`)), limit, false},
		"a new finish reason":          {answer(choice(0, text, `"tired"`)), "", false},
		"no finish reason":             {answer(choice(0, text, `null`)), "", false},
		"empty":                        {answer(choice(0, `{"role":"assistant","content":"","tool_calls":null}`, `"stop"`)), "", false},
		"white space":                  {answer(choice(0, `{"role":"assistant","content":" \n"}`, `"stop"`)), "", false},
		"content null":                 {answer(choice(0, `{"role":"assistant","content":null}`, `"stop"`)), "", false},
		"no tool after all":            {answer(choice(0, `{"content":"","tool_calls":[]}`, `"tool_calls"`)), "", false},
		"arguments cut off":            {answer(choice(0, call(`"{\"a\":"`), `"tool_calls"`)), "", false},
		"arguments empty":              {answer(choice(0, call(`""`), `"tool_calls"`)), "", false},
		"second call's arguments":      {answer(choice(0, `{"tool_calls":[{"function":{"name":"f","arguments":"{}"}},{"function":{"name":"g","arguments":"{"}}]}`, `"tool_calls"`)), "", false},
		"no choice":                    {answer(""), "", false},
		"two choices":                  {answer(choice(0, text, `"stop"`) + "," + choice(1, text, `"stop"`)), `,"n":2`, true},
		"one choice of two":            {answer(choice(0, text, `"stop"`)), `,"n":2`, false},
		"one of two is cut":            {answer(choice(0, text, `"stop"`) + "," + choice(1, text, `"length"`)), `,"n":2`, false},
		"one of two is empty":          {answer(choice(0, text, `"stop"`) + "," + choice(1, `{"content":""}`, `"stop"`)), `,"n":2`, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := h.sub(t)
			h.upstream.Always(proxytest.JSON(200, tt.body))
			before := h.stored()
			first := h.post(chat(name, tt.asks))
			if first.status != 200 || first.body != tt.body {
				t.Errorf("the client got %d %s", first.status, first.body)
			}
			row := h.lastRow()
			if stored := h.stored() - before; stored != map[bool]int{true: 1}[tt.stored] {
				t.Errorf("%d answers were stored", stored)
			}
			if row.outcome != ledger.Miss || (row.flags&ledger.Stored != 0) != tt.stored || row.used != [2]int64{11, 7} {
				t.Errorf("the row says %+v", row)
			}
			if got := strings.HasSuffix(first.header.Get("Cache-Status"), "; stored"); got != tt.stored {
				t.Errorf("Cache-Status: %s", first.header.Get("Cache-Status"))
			}
			if again := h.post(chat(name, tt.asks)); again.cache() != map[bool]string{true: "hit", false: "miss"}[tt.stored] {
				t.Errorf("then %s", again.cache())
			}
		})
	}
}

// A stream may say [DONE] without having said that its answer is whole.
func TestAStreamWithoutAFinishReasonIsNotStored(t *testing.T) {
	h := newHarness(t, nil)
	h.upstream.Reply(proxytest.Stream(proxytest.Chunks(wholeText, 3, proxytest.Finish(""))...))
	for range 2 {
		r := h.post(chat("hi", stream))
		if text, err := contentOf(r.body, true); r.cache() != "miss" || text != wholeText || err != nil {
			t.Errorf("%s %q %v", r.cache(), text, err)
		}
	}
	if n := h.stored(); n != 0 {
		t.Errorf("%d answers are stored", n)
	}
}

func TestAStepChoosesWhatIsStored(t *testing.T) {
	h := newHarness(t, func(p *Policy) {
		p.Steps = []*Step{{Name: "any", TTL: time.Hour, FinishReasons: []string{"stop", "length"}}, {Name: "none", TTL: time.Hour}}
	})
	h.upstream.Reply(proxytest.JSON(200, proxytest.Completion("cut", proxytest.Finish("length"))))
	for step, want := range map[string]string{"any": "hit", "none": "miss", "default": "miss"} {
		h.post(chat("hi"), "X-LLMProxy-Step", step)
		if r := h.post(chat("hi"), "X-LLMProxy-Step", step); r.cache() != want {
			t.Errorf("step %s: %s, want %s", step, r.cache(), want)
		}
	}
}

func TestAnswersExpire(t *testing.T) {
	h := newHarness(t, func(p *Policy) {
		p.Steps = []*Step{{Name: "brief", TTL: 20 * time.Millisecond, FinishReasons: []string{"stop"}}}
	})
	h.upstream.Reply(numbered(9)...)
	brief := []string{"X-LLMProxy-Step", "brief"}
	h.wantAnswer(h.post(chat("hi"), brief...), "miss", 1)
	h.wantAnswer(h.post(chat("hi")), "miss", 2)
	time.Sleep(21 * time.Millisecond)
	h.wantAnswer(h.post(chat("hi"), brief...), "miss", 3) // expired in memory
	h.server.Cache.ForgetAll()
	time.Sleep(21 * time.Millisecond)
	h.wantAnswer(h.post(chat("hi"), brief...), "miss", 4) // and in the store
	h.wantAnswer(h.post(chat("hi")), "hit", 2)            // another step's lives longer
	time.Sleep(21 * time.Millisecond)
	h.settle()
	h.server.sweep(t.Context())
	if n := h.stored(); n != 1 {
		t.Errorf("%d answers are stored after a sweep, want the one that lives", n)
	}
	if got := h.metric("llmproxy_evicted_entries_total"); got != `llmproxy_evicted_entries_total{why="expired"} 1` {
		t.Errorf("the metrics say %q", got)
	}
}

func TestTheLeastRecentlyServedAnswerIsEvicted(t *testing.T) {
	h := newHarness(t, nil)
	h.upstream.Reply(numbered(9)...)
	for i := range 3 {
		h.wantAnswer(h.post(chat(fmt.Sprint("question ", i))), "miss", i+1)
	}
	h.settle()
	h.update(func(tx *store.Tx) error { // the second was served longest ago
		_, err := tx.Exec(`UPDATE served SET at = at - CASE entry_id WHEN (SELECT id FROM entry ORDER BY created_at, id LIMIT 1 OFFSET 1) THEN 5000 ELSE 0 END`)
		return err
	})
	h.policy.MaxBytes = h.number(`SELECT sum(size) FROM entry`) - 1
	h.server.sweep(t.Context())
	if n := h.stored(); n != 2 {
		t.Errorf("%d answers are stored", n)
	}
	h.wantAnswer(h.post(chat("question 0")), "hit", 1)
	h.wantAnswer(h.post(chat("question 2")), "hit", 3)
	h.wantAnswer(h.post(chat("question 1")), "miss", 4)
}

// A row that cannot be read is a miss, and is replaced.
func TestADamagedAnswerIsAMiss(t *testing.T) {
	for name, damage := range map[string]string{
		"body":     `UPDATE entry SET body = x'0102'`,
		"no body":  `UPDATE entry SET body = x''`,
		"checksum": `UPDATE entry SET crc = crc + 1`,
		"size":     `UPDATE entry SET raw_size = -1, codec = 1`,
		"huge":     `UPDATE entry SET raw_size = 1 << 60, codec = 1`,
		"codec":    `UPDATE entry SET codec = 7 - codec`,
		"form":     `UPDATE entry SET form = 9`,
		"header":   `UPDATE entry SET header = '{'`,
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, nil)
			h.upstream.Reply(proxytest.JSON(200, proxytest.Completion(strings.Repeat("answer 1 ", 1000))), numbered(2)[1])
			h.post(chat("hi"))
			h.settle()
			h.update(func(tx *store.Tx) error { _, err := tx.Exec(damage); return err })
			h.server.Cache.ForgetAll()
			h.wantAnswer(h.post(chat("hi"), "Cache-Control", "max-age=600"), "miss", 2)
			h.server.Cache.ForgetAll()
			h.wantAnswer(h.post(chat("hi")), "hit", 2)
			if !strings.Contains(h.logs.String(), "cannot be read and is dropped") {
				t.Error("the log does not say so")
			}
			if row := h.rows("")[1]; row.flags&(ledger.Refreshed|ledger.Rejected) != 0 {
				t.Errorf("the call counts as a wish for a fresh answer: %+v", row)
			}
		})
	}
}

// Where the store can be written and not read, calls go upstream, and come to an
// end.
func TestAStoreThatCannotBeReadIsAMiss(t *testing.T) {
	h := newHarness(t, nil)
	h.upstream.Reply(numbered(3)...)
	h.wantAnswer(h.post(chat("hi")), "miss", 1)
	h.settle()
	alter := func(from, to string) {
		t.Helper()
		h.update(func(tx *store.Tx) error {
			_, err := tx.Exec(`ALTER TABLE entry RENAME COLUMN ` + from + ` TO ` + to)
			return err
		})
	}
	alter("body", "elsewhere")
	h.server.Cache.ForgetAll()
	h.wantAnswer(h.post(chat("hi")), "miss", 2)
	h.server.Cache.Flights.Wait()
	alter("elsewhere", "body")
	h.nothingHeld()
	h.server.Cache.ForgetAll()
	h.wantAnswer(h.post(chat("hi")), "hit", 2)
	if got := h.metric(`llmproxy_store_errors_total{what="lookup"}`); got == "" {
		t.Error("the metrics do not say that the store could not be read")
	}
}
