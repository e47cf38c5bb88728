package proxy

import (
	"net/http"
	"testing"

	"llmproxy/cache"
)

func TestNamesOfARequest(t *testing.T) {
	const metadata = `{"metadata":{"llmproxy_step":"from metadata","llmproxy_run":"run 5"}}`
	header := func(more ...string) http.Header {
		h := http.Header{}
		for i := 0; i+1 < len(more); i += 2 {
			h.Set(more[i], more[i+1])
		}
		return h
	}
	for _, tt := range []struct {
		header     http.Header
		path, body string
		want       Names
	}{
		{nil, "", `{}`, Names{Step: "default"}},
		{header("X-LLMProxy-Step", " a ", "X-LLMProxy-Context", "step=b;run=2"), "/steps/c/v1/responses", metadata, Names{"responses", "a", "2", true}},
		{header("X-LLMProxy-Context", "step=b"), "/v1/chat/completions", metadata, Names{"chat/completions", "b", "run 5", true}},
		{nil, "/steps/c%20d/runs/3/embeddings", metadata, Names{"embeddings", "c d", "3", true}},
		{nil, "/v1/completions", metadata, Names{"completions", "from metadata", "run 5", true}},
	} {
		doc, err := cache.Scan([]byte(tt.body))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := NamesOf(tt.header, tt.path, doc); err != nil || got != tt.want {
			t.Errorf("%v %s %s: %+v %v, want %+v", tt.header, tt.path, tt.body, got, err, tt.want)
		}
	}
	doc, _ := cache.Scan([]byte(`{"metadata":{"llmproxy_step":7}}`))
	if _, err := NamesOf(nil, "", doc); err == nil {
		t.Error("a step that is a number")
	}
	doc, _ = cache.Scan([]byte(`{}`))
	if _, err := NamesOf(header("X-LLMProxy-Run", "a/b"), "", doc); err == nil {
		t.Error("a run with a slash")
	}
}
