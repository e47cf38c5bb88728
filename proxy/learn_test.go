package proxy

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"

	"llmproxy/proxy/proxytest"
)

// foreign is a request of n texts to a model of a vendor whose encoding we do
// not have.
func foreign(n int, more string) string {
	return fmt.Sprintf(`{"model":"claude-sonnet-4-5","messages":[{"role":"user","content":"%d %s"}%s]}`, n, strings.Repeat("word ", 200), more)
}

func (h *harness) inputTokens(body string) int {
	h.Helper()
	n, err := strconv.Atoi(h.post(body).header.Get("X-LLMProxy-Input-Tokens"))
	if err != nil {
		h.Errorf("no input tokens: %v", err)
	}
	return n
}

// A model of another vendor is charged one and a half times what we count. The
// proxy learns so from the bills, and a later process from the ledger.
func TestWhatForeignModelsAreBilledIsLearned(t *testing.T) {
	h := newHarness(t, counting)
	raw := int(inputOf(t, foreign(100, "")))
	billed := raw * 3 / 2
	h.upstream.Reply(proxytest.JSON(200, proxytest.Completion("done", proxytest.Usage(billed, 2))))
	image := `,{"role":"user","content":[{"type":"image_url","image_url":{"url":"https://example.com/a.png"}}]}`
	for i := range 20 {
		h.post(foreign(200+i, image)) // teaches nothing: what an image costs there is not known
	}
	for i := range 5 {
		if n := h.inputTokens(foreign(100+i, "")); n != raw {
			t.Errorf("call %d: %d input tokens before anything is learned, want %d", i, n, raw)
		}
	}
	near := func(n int) bool { return math.Abs(float64(n-billed)) <= 1 }
	for i := range 70 { // more than are remembered: a factor that fed on itself would run away
		if n := h.inputTokens(foreign(110+i, "")); !near(n) {
			t.Fatalf("later call %d: %d input tokens, want %d", i, n, billed)
		}
	}
	if n := h.number(fmt.Sprintf(`SELECT count(*) FROM v_calls WHERE correction = input - %d AND correction > 0 AND basis = 'estimate' AND NOT images AND NOT uncounted`, raw)); n != 70 {
		t.Errorf("the correction stands in %d rows of 70", n)
	}
	if n := h.number(`SELECT count(*) FROM v_calls WHERE images AND uncounted`); n != 20 {
		t.Errorf("%d rows say that there was an image, want 20", n)
	}
	h.stop()
	h.start(h.store)
	if n := h.inputTokens(foreign(999, "")); !near(n) {
		t.Errorf("after a restart: %d input tokens, want %d", n, billed)
	}
}

func TestARuleIsNeverCorrectedByBills(t *testing.T) {
	h := newHarness(t, counting)
	want := int(inputOf(t, chat(strings.Repeat("word ", 200)+"0")))
	h.upstream.Reply(proxytest.JSON(200, proxytest.Completion("done", proxytest.Usage(3*want, 2))))
	for i := range 10 {
		if n := h.inputTokens(chat(strings.Repeat("word ", 200) + strconv.Itoa(i))); n != want {
			t.Errorf("call %d: %d input tokens, want %d", i, n, want)
		}
	}
	if n := h.number(`SELECT sum(correction <> 0) FROM call`); n != 0 {
		t.Errorf("%d rows have a correction", n)
	}
}

// The row says what a request holds beside text.
func TestRowsTellTheShapeOfTheirRequest(t *testing.T) {
	h := newHarness(t, counting)
	h.upstream.Reply(proxytest.JSON(200, proxytest.Completion("done", proxytest.Usage(9, 2))))
	const tool = `{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"a":{"type":"string"}}}}}`
	h.post(chat("text"))
	h.post(chat("tools", `,"tools":[`+tool+`]`))
	h.post(chat("schema", `,"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"type":"object"}}}`))
	h.post(`{"model":"gpt-4o","messages":[{"role":"tool","tool_call_id":"1","content":"x"}]}`)
	h.post(`{"model":"gpt-4o","messages":[{"role":"user","content":[{"type":"input_audio","input_audio":{"data":"AAAA","format":"mp3"}}]}]}`)
	for _, where := range []string{
		"NOT tools AND NOT tool_calls AND NOT images AND NOT audio AND NOT structured",
		"tools AND NOT structured", "structured AND NOT tools", "tool_calls AND NOT tools", "audio AND NOT images",
	} {
		if n := h.number(`SELECT count(*) FROM v_calls WHERE ` + where); n != 1 {
			t.Errorf("%d rows where %s, want 1", n, where)
		}
	}
}
