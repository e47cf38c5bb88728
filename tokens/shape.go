package tokens

import "strings"

// A Shape says what a request holds beside plain text: what decides which
// rules counted it.
type Shape uint8

// The bits of a Shape; a request of plain text has none.
const (
	Tools     Shape = 1 << iota // defines tools
	ToolCalls                   // its history has tool calls or their results
	Images
	Audio
	Structured // asks for an answer by a JSON schema
)

// Shape tells what the request holds, by the rules that counted it.
func (e *Estimate) Shape() (s Shape) {
	for _, p := range e.Parts {
		s |= shapeOf(p.Rule)
	}
	return s
}

func shapeOf(rule string) Shape {
	kind, _, _ := strings.Cut(rule, "-")
	switch {
	case kind == "tools":
		return Tools
	case kind == "tool":
		return ToolCalls
	case kind == "image":
		return Images
	case kind == "audio":
		return Audio
	case rule == "json-schema":
		return Structured
	}
	return 0
}
