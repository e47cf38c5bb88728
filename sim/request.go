package sim

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// epoch is the earliest time at which an answer says it was made, and yearLong
// the span of all those times, in seconds.
const (
	epoch    = 1767225600 // 2026-01-01T00:00:00Z
	yearLong = 365 * 24 * 3600
)

// maxChoices bounds n, as OpenAI does.
const maxChoices = 128

// partTokens is what a part of a message that is not text counts.
const partTokens = 85

// body is a request body: its members by their exact names, and what is
// derived from its bytes. Of a member that stands twice the last one counts.
type body struct {
	members map[string]json.RawMessage
	id      string // 24 hex digits
	created int64  // seconds since 1970
}

func parseBody(data []byte) (*body, error) {
	sum := sha256.Sum256(data)
	b := &body{
		id:      hex.EncodeToString(sum[:12]),
		created: epoch + int64(binary.BigEndian.Uint64(sum[12:])%yearLong),
	}
	if err := json.Unmarshal(data, &b.members); err != nil {
		return nil, badRequest("", "the body is not a JSON object: %v", err)
	}
	if b.members == nil {
		return nil, badRequest("", "the body is null, not a JSON object")
	}
	return b, nil
}

// has tells whether the member name is there and not null.
func (b *body) has(name string) bool {
	raw := b.members[name]
	return raw != nil && string(raw) != "null"
}

// get decodes the member name into dst, a pointer; an absent or null member
// leaves dst as it is.
func (b *body) get(name string, dst any) error {
	if !b.has(name) {
		return nil
	}
	if err := json.Unmarshal(b.members[name], dst); err != nil {
		return badRequest(name, "the member %s: %v", name, err)
	}
	return nil
}

// require is get for a member that must be there.
func (b *body) require(name string, dst any) error {
	if !b.has(name) {
		return badRequest(name, "the member %s is missing", name)
	}
	return b.get(name, dst)
}

// or returns the member name as it stands, or def if there is none.
func (b *body) or(name string, def any) any {
	if raw, ok := b.members[name]; ok {
		return raw
	}
	return def
}

// options are the members that endpoints share.
type options struct {
	model        string
	stream       bool
	includeUsage bool // on a stream
	n            int  // choices
	limit        int  // tokens of output; 0: none
	json         bool // the text must be JSON
}

// options reads the members that endpoints share. The first of limits that is
// there bounds the output.
func (b *body) options(limits ...string) (options, error) {
	o := options{n: 1}
	var stream struct {
		IncludeUsage bool `json:"include_usage"`
	}
	if err := errors.Join(
		b.require("model", &o.model),
		b.get("stream", &o.stream),
		b.get("stream_options", &stream),
		b.get("n", &o.n),
	); err != nil {
		return o, err
	}
	o.includeUsage = stream.IncludeUsage
	if o.model == "" {
		return o, badRequest("model", "the member model is empty")
	}
	if o.n < 1 || o.n > maxChoices {
		return o, badRequest("n", "n is not a number from 1 to %d", maxChoices)
	}
	for _, name := range limits {
		if !b.has(name) {
			continue
		}
		if err := b.get(name, &o.limit); err != nil {
			return o, err
		}
		if o.limit < 1 {
			return o, badRequest(name, "%s is not a number from 1", name)
		}
		break
	}
	return o, nil
}

// textFormat is response_format, or the member format of text.
type textFormat struct {
	Type string `json:"type"`
}

// json tells whether the text must be JSON.
func (f textFormat) json() bool { return f.Type == "json_object" || f.Type == "json_schema" }

// turn is a message of a chat or an input item of the Responses API.
type turn struct {
	Type    string  `json:"type"`
	Role    string  `json:"role"`
	Name    string  `json:"name"`
	Content content `json:"content"`

	ToolCalls []struct {
		Function struct {
			Name      string `json:"name"`
			Arguments string `json:"arguments"`
		} `json:"function"`
	} `json:"tool_calls"`

	Arguments string  `json:"arguments"` // of a function_call item
	Output    content `json:"output"`    // of a function_call_output item
}

// content is text, or a list of parts of which some are text.
type content struct {
	text  string
	other int // parts that are not text
}

// UnmarshalJSON implements json.Unmarshaler.
func (c *content) UnmarshalJSON(data []byte) error {
	*c = content{}
	if data[0] != '[' {
		return json.Unmarshal(data, &c.text)
	}
	var parts []struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	if err := json.Unmarshal(data, &parts); err != nil {
		return err
	}
	var texts []string
	for _, part := range parts {
		switch part.Type {
		case "text", "input_text", "output_text":
			texts = append(texts, part.Text)
		default:
			c.other++
		}
	}
	c.text = strings.Join(texts, "\n")
	return nil
}

// prompt is what an answer is made for.
type prompt struct {
	plan     *plan
	question string // the text that is answered, without directives
	result   bool   // question is a tool's result
	salt     uint64 // differs where the model, the seed or the text differ
	tokens   int    // input
}

// converse makes a prompt of a conversation.
func (m *Model) converse(b *body, turns []turn) (*prompt, error) {
	p := &prompt{tokens: 3}
	asked := ""
	for _, t := range turns {
		p.tokens += 3 + m.count(t.Role) + m.count(t.Content.text) + m.count(t.Output.text) +
			m.count(t.Arguments) + (t.Content.other+t.Output.other)*partTokens
		if t.Name != "" {
			p.tokens += 1 + m.count(t.Name)
		}
		for _, call := range t.ToolCalls {
			p.tokens += m.count(call.Function.Name) + m.count(call.Function.Arguments)
		}
		switch {
		case t.Role == "user":
			asked, p.question, p.result = t.Content.text, "", false
		case t.Role == "tool":
			p.question, p.result = t.Content.text, true
		case t.Type == "function_call_output":
			p.question, p.result = t.Output.text, true
		}
	}
	p.tokens += m.count(string(b.members["tools"]))
	var err error
	var rest string
	if p.plan, rest, err = parsePlan(asked); err != nil {
		return nil, err
	}
	if !p.result {
		p.question = rest
	}
	p.salt = b.salt(p.plan, "messages", "input", "instructions", "previous_response_id")
	return p, nil
}

// salt hashes the model, the seeds and the named members.
func (b *body) salt(p *plan, members ...string) uint64 {
	h := sha256.New()
	io.WriteString(h, p.seed)
	for _, name := range append(members, "model", "seed") {
		fmt.Fprintf(h, "\n%s=%s", name, bytes.TrimSpace(b.members[name]))
	}
	return binary.BigEndian.Uint64(h.Sum(nil))
}

// inputs reads the member name, which is a text, a list of texts, a list of
// token ids or a list of such lists, as completions and embeddings take it.
func (m *Model) inputs(b *body, name string) ([]input, error) {
	var raw json.RawMessage
	if err := b.require(name, &raw); err != nil {
		return nil, err
	}
	var items []json.RawMessage
	if one, err := m.input(raw); err == nil {
		return []input{one}, nil
	}
	if err := json.Unmarshal(raw, &items); err != nil || len(items) == 0 {
		return nil, badRequest(name, "%s is neither a text nor a list of texts or token ids", name)
	}
	inputs := make([]input, len(items))
	for i, item := range items {
		var err error
		if inputs[i], err = m.input(item); err != nil {
			return nil, badRequest(name, "%s[%d] is neither a text nor a list of token ids", name, i)
		}
	}
	return inputs, nil
}

// input is one text, or a list of token ids, which has no text.
type input struct {
	raw    json.RawMessage
	text   string
	tokens int
}

func (m *Model) input(raw json.RawMessage) (input, error) {
	in := input{raw: raw}
	if json.Unmarshal(raw, &in.text) == nil && string(raw) != "null" {
		in.tokens = m.count(in.text)
		return in, nil
	}
	var ids []*int
	if err := json.Unmarshal(raw, &ids); err != nil || len(ids) == 0 || slices.Contains(ids, nil) {
		return in, fmt.Errorf("neither text nor token ids")
	}
	in.tokens = len(ids)
	return in, nil
}

func (m *Model) count(text string) int {
	if text == "" {
		return 0
	}
	if m.CountText != nil {
		return m.CountText(text)
	}
	return len(strings.Fields(text))
}
