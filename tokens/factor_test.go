package tokens

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
)

const claude = "claude-sonnet-4-5"

func chatOf(model, text string) Request {
	return Request{Endpoint: ChatCompletions, Model: model,
		Body: fmt.Appendf(nil, `{"model":%q,"messages":[{"role":"user","content":%q}]}`, model, text)}
}

func mustCount(t *testing.T, c *Counter, r Request) Estimate {
	t.Helper()
	e, err := c.Count(r)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestAFactorIsLearnedFromBillsAndShown(t *testing.T) {
	c := Counter{Factors: new(Factors)}
	r := chatOf(claude, strings.Repeat("The quick brown fox. ", 40))
	before := mustCount(t, &c, r)
	if before.Basis != FallbackEncoding || before.Raw != before.Tokens || before.High != 0 {
		t.Fatalf("before any bill: %+v", before)
	}
	for i := range factorAfter {
		if _, ok := c.Factors.Of(claude); ok {
			t.Fatalf("a factor after %d bills", i)
		}
		c.Factors.Learn(claude, 1000, 1150+25*i)
	}
	after := mustCount(t, &c, r)
	want := (before.Tokens*12 + 5) / 10
	if after.Tokens != want || after.Raw != before.Raw || after.Basis != Estimated {
		t.Errorf("%d tokens (raw %d, %s), want %d (%d, estimate)", after.Tokens, after.Raw, after.Basis, want, before.Raw)
	}
	if low, high := (before.Tokens*115+50)/100, (before.Tokens*125+50)/100; after.Low != low || after.High != high {
		t.Errorf("between %d and %d, want %d and %d", after.Low, after.High, low, high)
	}
	last := after.Parts[len(after.Parts)-1]
	if last.Path != "model" || last.Rule != "learned-factor 1.200 (1.150-1.250, 5 calls)" || last.Basis != Estimated {
		t.Errorf("the factor's part is %+v", last)
	}
	sum := 0
	for _, p := range after.Parts {
		sum += p.Tokens
	}
	if sum != after.Tokens {
		t.Errorf("parts add up to %d of %d", sum, after.Tokens)
	}
	if uncounted := after.Uncounted(); len(uncounted) > 0 {
		t.Errorf("a corrected count has uncounted parts: %v", uncounted)
	}
	if m := slices.Max(after.Messages); m > after.Tokens || m <= before.Messages[0] {
		t.Errorf("the message has %d tokens of %d", m, after.Tokens)
	}
}

func TestAFactorDoesNotFeedOnItself(t *testing.T) {
	c := Counter{Factors: new(Factors)}
	r := chatOf(claude, strings.Repeat("word ", 500))
	for range 3 * factorWindow {
		e := mustCount(t, &c, r)
		c.Factors.Learn(claude, e.Raw, 2*e.Raw)
	}
	if f, ok := c.Factors.Of(claude); !ok || f != (Factor{2, 2, 2, factorWindow}) {
		t.Errorf("factor %+v, want 2 throughout", f)
	}
}

func TestModelsWithARuleAreNeverCorrected(t *testing.T) {
	c := Counter{Factors: new(Factors)}
	for _, model := range []string{"gpt-4o", "gpt-4.1-mini-2025-04-14", "o3", "gpt-5-mini", "ft:gpt-4o:org::id", "text-embedding-3-small", "gpt-oss-20b"} {
		plain := mustCount(t, new(Counter), chatOf(model, strings.Repeat("a b ", 200)))
		for range factorWindow {
			c.Factors.Learn(model, 1000, 2000)
		}
		got := mustCount(t, &c, chatOf(model, strings.Repeat("a b ", 200)))
		if got.Tokens != plain.Tokens || got.Basis != plain.Basis {
			t.Errorf("%s: %d %s after bills, %d %s before", model, got.Tokens, got.Basis, plain.Tokens, plain.Basis)
		}
		if f, ok := c.Factors.Of(model); ok || Learnable(model) {
			t.Errorf("%s has the factor %+v", model, f)
		}
	}
	if len(c.Factors.models) != 0 {
		t.Errorf("%d models are remembered for nothing", len(c.Factors.models))
	}
}

func TestFactorsWithstandOutliers(t *testing.T) {
	f := new(Factors)
	for i := range 60 {
		billed := 1180 + i%5
		if i%10 == 9 {
			billed = 900_000 // what a gateway's own prompt or a faulty figure adds
		}
		f.Learn(claude, 1000, billed)
	}
	got, _ := f.Of("CLAUDE-Sonnet-4-5") // names are compared as models are looked up
	if got.Ratio < 1.18 || got.Ratio > 1.184 || got.High > factorMost {
		t.Errorf("factor %+v, want about 1.18 and nothing above %v", got, factorMost)
	}
	f.Learn("tiny", factorFrom-1, 500)
	f.Learn("free", 1000, 0)
	f.Learn("odd", 1000, -7)
	for _, name := range []string{"tiny", "free", "odd"} {
		if f.models[name] != nil {
			t.Errorf("%s was learned from", name)
		}
	}
}

func TestWhatIsNoTextKeepsItsCharge(t *testing.T) {
	c := Counter{Factors: new(Factors)}
	for range factorAfter {
		c.Factors.Learn(claude, 1000, 2000)
	}
	body := `{"model":"claude-sonnet-4-5","messages":[{"role":"user","content":[{"type":"text","text":"What is this?"},` +
		`{"type":"image_url","image_url":{"url":"https://example.com/a.png"}},{"type":"hologram"}]}]}`
	plain := mustCount(t, new(Counter), Request{Endpoint: ChatCompletions, Model: claude, Body: []byte(body)})
	got := mustCount(t, &c, Request{Endpoint: ChatCompletions, Model: claude, Body: []byte(body)})
	text := 0
	for _, p := range plain.Parts {
		if p.Basis < Estimated {
			text += p.Tokens
		}
	}
	if text == 0 || got.Tokens != plain.Tokens+text {
		t.Errorf("%d tokens, want %d and %d of text once more", got.Tokens, plain.Tokens, text)
	}
	if len(got.Uncounted()) != 2 {
		t.Errorf("uncounted %v, want the image and the hologram", got.Uncounted())
	}
}

func TestFactorsAreBounded(t *testing.T) {
	f := new(Factors)
	for i := range factorModels + 10 {
		f.Learn(fmt.Sprint("model-", i), 1000, 1100)
	}
	if len(f.models) != factorModels {
		t.Errorf("%d models are remembered", len(f.models))
	}
	if f.models["model-0"] != nil || f.models[fmt.Sprint("model-", factorModels+9)] == nil {
		t.Error("not the longest unused were forgotten")
	}
}

func TestFactorsAreLearnedAndUsedAtOnce(t *testing.T) {
	c := Counter{Factors: new(Factors)}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 200 {
				e, err := c.Count(chatOf(claude, "Some text to be counted by many at once, long enough to be learned from as it is, I should think so."))
				if err != nil {
					t.Error(err)
					return
				}
				c.Factors.Learn(claude, 2*e.Raw, 3*e.Raw)
			}
		})
	}
	all.Wait()
	if got, ok := c.Factors.Of(claude); !ok || got.Ratio != 1.5 {
		t.Errorf("factor %+v, want 1.5", got)
	}
}

func TestShapes(t *testing.T) {
	const tool = `{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"a":{"type":"string"}}}}}`
	const flatTool = `{"type":"function","name":"f","parameters":{"type":"object","properties":{"a":{"type":"string"}}}}`
	for _, test := range []struct {
		endpoint Endpoint
		body     string
		want     Shape
	}{
		{ChatCompletions, `{"messages":[{"role":"user","content":"hi"}]}`, 0},
		{ChatCompletions, `{"messages":[{"role":"user","content":"hi"}],"tools":[` + tool + `]}`, Tools},
		{ChatCompletions, `{"messages":[{"role":"assistant","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"1","content":"x"}]}`, ToolCalls},
		{ChatCompletions, `{"messages":[{"role":"tool","tool_call_id":"1","content":"x"}],"tools":[` + tool + `]}`, Tools | ToolCalls},
		{ChatCompletions, `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"https://e.com/a.png"}}]}]}`, Images},
		{ChatCompletions, `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"https://e.com/a.png","detail":"low"}}]}]}`, Images},
		{ChatCompletions, `{"messages":[{"role":"user","content":[{"type":"input_audio","input_audio":{"data":"AAAA","format":"mp3"}}]}]}`, Audio},
		{ChatCompletions, `{"messages":[],"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"type":"object"}}}}`, Structured},
		{ChatCompletions, `{"messages":[],"response_format":{"type":"json_object"}}`, 0},
		{Responses, `{"input":"hi","tools":[` + flatTool + `],"text":{"format":{"type":"json_schema","name":"n","schema":{"type":"object"}}}}`, Tools | Structured},
		{Responses, `{"input":[{"type":"function_call","call_id":"1","name":"f","arguments":"{}"}]}`, ToolCalls},
		{Embeddings, `{"input":"hi"}`, 0},
	} {
		e, err := Count(Request{Endpoint: test.endpoint, Model: "gpt-4o", Body: []byte(test.body)})
		if err != nil {
			t.Errorf("%s: %v", test.body, err)
		} else if got := e.Shape(); got != test.want {
			t.Errorf("%s: shape %b, want %b", test.body, got, test.want)
		}
	}
}
