package proxy

import (
	"bytes"
	"strconv"
)

// usage is what an upstream says a call took, in tokens. Cached is a part of Input,
// Reasoning a part of Output.
type usage struct{ Input, Cached, Output, Reasoning int64 }

// maxUsage is the largest number of tokens that is believed.
const maxUsage = 1 << 40

// usage is the last that the upstream reported, in a chunk of its own or in any
// other.
func (c *chatCompletion) usage() (u usage, odd, ok bool) {
	return readUsage(c.top.get("usage").bytes(), "prompt", "completion")
}

// readUsage reads an upstream's usage, in which input and output go by those names. Zeros are reported figures like others. ok is false where input or
// output is missing and does not follow from the total: an answer without usage, or
// a placeholder.
//
// Where total_tokens says more than input and output together, the rest is
// output too: xAI counts reasoning there and not among the completion tokens, Gemini
// does so without saying that it was reasoning.
//
// odd means that a figure was no number of tokens (negative, above maxUsage, not a
// whole number) and was taken as 0, or that a part was larger than its whole and was
// cut to it.
func readUsage(raw []byte, input, output string) (u usage, odd, ok bool) {
	var hasInput, hasOutput, hasTotal bool
	u.Input, hasInput = tokenCount(jsonGet(raw, input+"_tokens"), &odd)
	u.Output, hasOutput = tokenCount(jsonGet(raw, output+"_tokens"), &odd)
	u.Cached, _ = tokenCount(jsonGet(raw, input+"_tokens_details", "cached_tokens"), &odd)
	u.Reasoning, _ = tokenCount(jsonGet(raw, output+"_tokens_details", "reasoning_tokens"), &odd)
	total, hasTotal := tokenCount(jsonGet(raw, "total_tokens"), &odd)
	if !hasInput || !hasOutput && !hasTotal {
		return usage{}, odd, false
	}
	if hasTotal && !odd {
		u.Output = max(u.Output, total-u.Input)
	}
	if u.Cached > u.Input || u.Reasoning > u.Output {
		odd = true
		u.Cached, u.Reasoning = min(u.Cached, u.Input), min(u.Reasoning, u.Output)
	}
	return u, odd, true
}

// tokenCount reads one figure. ok is false where there is none.
func tokenCount(raw []byte, odd *bool) (n int64, ok bool) {
	if kind := jsonKind(raw); kind == 0 || kind == 'n' {
		return 0, false
	}
	f, err := strconv.ParseFloat(string(raw), 64) // whole numbers up to 2^53 are exact
	if err != nil || f != float64(int64(f)) || f < 0 || f > maxUsage {
		*odd = true
		return 0, true
	}
	return int64(f), true
}

// isUsageChunk reports whether a chunk exists for its usage alone: no choices, and an
// object of usage. It is shown to those who asked for it and to nobody else, because
// clients that did not ask look for a first choice in each chunk.
func isUsageChunk(data []byte) bool {
	if !bytes.Contains(data, []byte(`"usage"`)) {
		return false
	}
	empty, reported := true, false
	for name, value := range jsonMembers(bytes.TrimSpace(data)) {
		switch string(name) {
		case "choices":
			empty = jsonEmpty(value)
		case "usage":
			reported = jsonKind(value) == '{'
		}
	}
	return empty && reported
}
