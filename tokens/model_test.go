package tokens

import (
	"strings"
	"testing"
)

func TestModel(t *testing.T) {
	for _, c := range []struct {
		name, encoding string
		priming        int
		basis          Basis
	}{
		{"gpt-3.5-turbo-0125", cl100k, 3, Exact},
		{"gpt-4", cl100k, 3, Exact},
		{"gpt-4-0613", cl100k, 3, Exact},
		{"gpt-4-turbo-2024-04-09", cl100k, 3, Exact},
		{"gpt-4-1106-vision-preview", cl100k, 3, Exact},
		{"gpt-4o", o200k, 3, Exact},
		{"gpt-4o-mini-2024-07-18", o200k, 3, Exact},
		{"gpt-4o-audio-preview", o200k, 3, Exact},
		{"gpt-4o-search-preview-2025-03-11", o200k, 3, Estimated},
		{"chatgpt-4o-latest", o200k, 3, Exact},
		{"chatgpt-6-latest", o200k, 2, FallbackEncoding},
		{"gpt-4.1", o200k, 3, Exact},
		{"gpt-4.1-nano-2025-04-14", o200k, 3, Exact},
		{"gpt-4.5-preview-2025-02-27", o200k, 3, Exact},
		{"gpt-4.9-preview", o200k, 3, FallbackEncoding},
		{"o1-preview", o200k, 2, Exact},
		{"o1-mini", o200k, 2, Estimated},
		{"o3-mini", o200k, 2, Exact},
		{"o4-mini-2025-04-16", o200k, 2, Exact},
		{"o5-pro", o200k, 2, FallbackEncoding},
		{"o10", o200k, 3, FallbackEncoding}, // no name that the vendor gave
		{"codex-mini-latest", o200k, 2, Rule},
		{"gpt-5", o200k, 2, Exact},
		{"gpt-5-codex", o200k, 2, Exact},
		{"gpt-5-chat-latest", o200k, 2, Rule},
		{"gpt-5.1-2030-01-01", o200k, 2, Exact},
		{"gpt-5.6-sol", o200k, 2, Exact},
		{"gpt-5.9", o200k, 2, FallbackEncoding},
		{"gpt-7-turbo", o200k, 2, FallbackEncoding},
		{"gpt-oss-120b", harmony, 2, Rule},

		{"gpt-3.5-turbo-instruct", cl100k, 0, Exact},
		{"davinci-002", cl100k, 0, Exact},
		{"text-davinci-003", p50k, 0, Exact},
		{"code-cushman-001", p50k, 0, Exact},
		{"text-davinci-001", r50k, 0, Exact},
		{"text-similarity-ada-001", r50k, 0, Exact},
		{"davinci", r50k, 0, Exact},
		{"ada:2020-05-03", r50k, 0, Exact},
		{"gpt2", r50k, 0, Exact},
		{"text-embedding-3-small", cl100k, 0, Exact},
		{"text-embedding-ada-002-v2", cl100k, 0, Exact},
		{"text-embedding-004", cl100k, 0, FallbackEncoding},
		{"text-bison", o200k, 3, FallbackEncoding},
		{"code-llama-7b", o200k, 3, FallbackEncoding},

		{"ft:gpt-4o:org::id", o200k, 3, Exact},
		{"ft:gpt-4.1-mini-2025-04-14:org::id", o200k, 3, Exact},
		{"ft:gpt-4:org::id", cl100k, 3, Exact},
		{"ft:gpt-3.5-turbo-0613:org:gpt-4o:id", cl100k, 3, Exact},
		{"azure/gpt-4o", o200k, 3, Exact},
		{"azure/eu/gpt-4o", o200k, 3, Exact},
		{"gpt-35-turbo-16k", cl100k, 3, Exact},
		{"openai/gpt-4", cl100k, 3, Exact},
		{"openrouter/openai/gpt-4o-mini:free", o200k, 3, Exact},
		{"openai/ft:gpt-4o:org::id", o200k, 3, Exact},
		{"openai.gpt-oss-120b-1:0", harmony, 2, Rule},
		{" GPT-4o", o200k, 3, Exact},

		{"prod-gpt-4-eu", cl100k, 3, FallbackEncoding},
		{"team_gpt-5", o200k, 2, FallbackEncoding},
		{"gpt4o", o200k, 3, FallbackEncoding},
		{"gpt35-turbo", cl100k, 3, FallbackEncoding},
		{"a gpt, and then gpt-4", o200k, 2, FallbackEncoding}, // the first one is of no known kind

		{"claude-sonnet-4-5", o200k, 3, FallbackEncoding},
		{"anthropic/claude-3.5-sonnet", o200k, 3, FallbackEncoding},
		{"gemini/gemini-2.5-pro", o200k, 3, FallbackEncoding},
		{"meta-llama/Llama-3.1-8B-Instruct", o200k, 3, FallbackEncoding},
		{"mistral-large-latest", o200k, 3, FallbackEncoding},
		{"qwen/qwen3-coder", o200k, 3, FallbackEncoding},
		{"deepseek-chat", o200k, 3, FallbackEncoding},
		{"my-alias", o200k, 3, FallbackEncoding},
		{"openai/", o200k, 3, FallbackEncoding},
		{"g", o200k, 3, FallbackEncoding},
		{"o", o200k, 3, FallbackEncoding},
		{"", o200k, 3, FallbackEncoding},
		{strings.Repeat("gpt-4", 1<<20), o200k, 3, FallbackEncoding},
	} {
		m := modelOf(c.name)
		if m.encoding != c.encoding || m.priming != c.priming || m.basis != c.basis {
			t.Errorf("modelOf(%.40q) = %s, priming %d, %s; want %s, %d, %s",
				c.name, m.encoding, m.priming, m.basis, c.encoding, c.priming, c.basis)
		}
	}
}

func TestModelImages(t *testing.T) {
	for name, want := range map[string]imageRule{
		"gpt-3.5-turbo":             {},
		"gpt-4-turbo":               tiles(85, 170),
		"azure/gpt-4o-mini":         tiles(2833, 5667),
		"gpt-4.1-nano-2025-04-14":   patches(246, 1536),
		"o3":                        tiles(75, 150),
		"ft:o4-mini-2025:org::id":   patches(172, 1536),
		"gpt-5-nano-2025-08-07":     patches(150, 1536),
		"gpt-5.4-mini-2026-03-17":   patches(162, 1536),
		"prod-gpt-5-mini":           patches(120, 1536),
		"claude-3-5-sonnet":         tiles(85, 170),
		"computer-use-preview-2025": tiles(65, 129),
	} {
		if got := modelOf(name).images; got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
}
