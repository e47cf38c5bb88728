package tokens

import "cmp"

// Charges are the tokens charged for what cannot be counted from a request
// alone. A charge of 0 means the default, so nothing is ever free. Whatever is
// charged so has the basis Estimated.
type Charges struct {
	// Image is for an image whose size is not known: it stands behind a URL,
	// is a file of the upstream, or does not decode. By default it is the
	// charge of the largest image that the model takes.
	Image int

	// Audio is for sound that is not in the request. By default 1,000, which
	// are 100 seconds.
	Audio int

	// File is for a document, whose text only the upstream extracts. By
	// default 1,000; pages of PDF were billed at 20 to 1,100 tokens.
	File int

	// WebSearch is for a web search that the upstream runs for a reasoning
	// model, whose results are input. By default 8,600, the median of ten
	// bills of 4,500 to 116,000.
	WebSearch int

	// HostedTool is for any other tool that the upstream runs, which adds a
	// hidden prompt and its results. By default 1,350, the median of sixteen
	// bills of 340 to 2,950 for code interpreter, file search, image
	// generation and MCP servers.
	HostedTool int

	// State is for what the upstream keeps: an earlier response whose tokens
	// are not known, a conversation, a stored prompt. By default 1,000.
	State int

	// Part is for a part or item of a kind that is not known. By default
	// 1,000.
	Part int
}

// orDefault returns c with every charge set that does not depend on the model.
func (c Charges) orDefault() Charges {
	return Charges{
		Image:      c.Image,
		Audio:      cmp.Or(c.Audio, 1000),
		File:       cmp.Or(c.File, 1000),
		WebSearch:  cmp.Or(c.WebSearch, 8600),
		HostedTool: cmp.Or(c.HostedTool, 1350),
		State:      cmp.Or(c.State, 1000),
		Part:       cmp.Or(c.Part, 1000),
	}
}

// image is the charge of an image of unknown size.
func (c *Charges) image(rule imageRule) int {
	if rule == (imageRule{}) {
		return cmp.Or(c.Image, c.Part)
	}
	return cmp.Or(c.Image, rule.largest())
}
