package sim

import (
	"encoding/json"
	"fmt"
)

// completionUsage is the usage of chats and completions.
type completionUsage struct {
	PromptTokens     int `json:"prompt_tokens"`
	CompletionTokens int `json:"completion_tokens"`
	TotalTokens      int `json:"total_tokens"`
	PromptDetails    struct {
		CachedTokens int `json:"cached_tokens"`
		AudioTokens  int `json:"audio_tokens"`
	} `json:"prompt_tokens_details"`
	CompletionDetails struct {
		ReasoningTokens          int `json:"reasoning_tokens"`
		AudioTokens              int `json:"audio_tokens"`
		AcceptedPredictionTokens int `json:"accepted_prediction_tokens"`
		RejectedPredictionTokens int `json:"rejected_prediction_tokens"`
	} `json:"completion_tokens_details"`
}

// usageOf returns the usage as JSON, or nil where the plan leaves it out.
func usageOf(p *plan, input int, replies []reply) json.RawMessage {
	if p.noUsage {
		return nil
	}
	var u completionUsage
	u.PromptTokens = input
	for _, r := range replies {
		u.CompletionTokens += r.tokens
		u.CompletionDetails.ReasoningTokens += p.reasoning
	}
	u.TotalTokens = u.PromptTokens + u.CompletionTokens
	u.PromptDetails.CachedTokens = min(p.cached, input)
	return marshal(u)
}

// envelope is what a chat completion and each of its chunks have in common.
// Usage is null in the chunks of a stream that will report it at its end.
type envelope struct {
	ID          string          `json:"id"`
	Object      string          `json:"object"`
	Created     int64           `json:"created"`
	Model       string          `json:"model"`
	Choices     any             `json:"choices"`
	Usage       json.RawMessage `json:"usage,omitempty"`
	ServiceTier string          `json:"service_tier,omitempty"`
	Fingerprint string          `json:"system_fingerprint"`
}

type chatChoice struct {
	Index    int          `json:"index"`
	Message  *chatMessage `json:"message,omitempty"`
	Delta    *chatDelta   `json:"delta,omitempty"`
	Logprobs any          `json:"logprobs"`
	Finish   any          `json:"finish_reason"`
}

type chatMessage struct {
	Role        string         `json:"role"`
	Content     any            `json:"content"`
	ToolCalls   []chatToolCall `json:"tool_calls,omitempty"`
	Refusal     any            `json:"refusal"`
	Annotations []any          `json:"annotations"`
}

// chatDelta is what a chunk adds; the first chunk has a role and an empty
// content, or null where the message will have no text.
type chatDelta struct {
	Role      string          `json:"role,omitempty"`
	Content   json.RawMessage `json:"content,omitempty"` // a string or null
	ToolCalls []chatToolCall  `json:"tool_calls,omitempty"`
}

// chatToolCall has an index on a stream only, and there id, type and name in
// its first chunk only.
type chatToolCall struct {
	Index    *int         `json:"index,omitempty"`
	ID       string       `json:"id,omitempty"`
	Type     string       `json:"type,omitempty"`
	Function chatFunction `json:"function"`
}

type chatFunction struct {
	Name      string `json:"name,omitempty"`
	Arguments string `json:"arguments"`
}

// chat answers /v1/chat/completions.
func (m *Model) chat(b *body) (*answer, error) {
	o, err := b.options("max_completion_tokens", "max_tokens")
	if err != nil {
		return nil, err
	}
	var format textFormat
	if err := b.get("response_format", &format); err != nil {
		return nil, err
	}
	o.json = format.json()
	var messages []turn
	if err := b.require("messages", &messages); err != nil {
		return nil, err
	}
	if len(messages) == 0 {
		return nil, badRequest("messages", "messages is empty")
	}
	p, err := m.converse(b, messages)
	if err != nil {
		return nil, err
	}
	replies, err := m.replies(p, o)
	if err != nil {
		return nil, err
	}
	head := envelope{ID: "chatcmpl-sim" + b.id, Object: "chat.completion", Created: b.created,
		Model: o.model, ServiceTier: "default", Fingerprint: "sim"}
	usage := usageOf(p.plan, p.tokens, replies)
	if !o.stream {
		return &answer{plan: p.plan, object: wholeChat(head, b.id, replies, usage)}, nil
	}
	head.Object = "chat.completion.chunk"
	deltas := make([][]chatChoice, len(replies))
	for i, r := range replies {
		deltas[i] = r.deltas(i, b.id, p.plan.chunks)
	}
	if !o.includeUsage {
		usage = nil
	}
	return &answer{plan: p.plan, broken: errorChunk, events: func(yield func(event) bool) {
		playChunks(head, deltas, usage, yield)
	}}, nil
}

func wholeChat(head envelope, id string, replies []reply, usage json.RawMessage) envelope {
	choices := make([]chatChoice, len(replies))
	for i, r := range replies {
		message := &chatMessage{Role: "assistant", Content: r.text, Annotations: []any{}}
		if r.text == "" && len(r.tools) > 0 {
			message.Content = nil
		}
		for k, call := range r.tools {
			message.ToolCalls = append(message.ToolCalls, chatToolCall{
				ID: callID(id, i, k), Type: "function", Function: chatFunction{call.name, call.arguments}})
		}
		choices[i] = chatChoice{Index: i, Message: message, Finish: orNull(r.finish)}
	}
	head.Choices, head.Usage = choices, usage
	return head
}

// deltas are the chunks of one choice: the role, the text, the tool calls one
// after the other, the finish reason.
func (r reply) deltas(index int, id string, chunks int) []chatChoice {
	var list []chatChoice
	add := func(d chatDelta) { list = append(list, chatChoice{Index: index, Delta: &d}) }
	content := json.RawMessage(`""`)
	if r.text == "" && len(r.tools) > 0 {
		content = json.RawMessage("null")
	}
	add(chatDelta{Role: "assistant", Content: content})
	for _, piece := range split(r.text, chunks) {
		add(chatDelta{Content: marshal(piece)})
	}
	for k, call := range r.tools {
		add(chatDelta{ToolCalls: []chatToolCall{{Index: &k, ID: callID(id, index, k), Type: "function", Function: chatFunction{Name: call.name}}}})
		for _, piece := range split(call.arguments, argumentPieces(chunks)) {
			add(chatDelta{ToolCalls: []chatToolCall{{Index: &k, Function: chatFunction{Arguments: piece}}}})
		}
	}
	return append(list, chatChoice{Index: index, Delta: &chatDelta{}, Finish: orNull(r.finish)})
}

// argumentPieces is into how many pieces a stream cuts the arguments of a call.
func argumentPieces(chunks int) int {
	if chunks == 0 {
		return 3
	}
	return chunks
}

// playChunks yields the chunks of all choices, one of each choice in turn, then
// the usage unless it is nil, then [DONE].
func playChunks[T any](head envelope, choices [][]T, usage json.RawMessage, yield func(event) bool) {
	if usage != nil {
		head.Usage = json.RawMessage("null")
	}
	for k, more := 0, true; more; k++ {
		more = false
		for _, list := range choices {
			if k >= len(list) {
				continue
			}
			more = true
			head.Choices = list[k : k+1]
			if !yield(event{data: marshal(head)}) {
				return
			}
		}
	}
	if usage != nil {
		head.Choices, head.Usage = []T{}, usage
		if !yield(event{data: marshal(head)}) {
			return
		}
	}
	yield(done)
}

// errorChunk is the error event of all but the Responses API.
func errorChunk(int) event { return event{data: marshal(midStream())} }

// callID names the k-th tool call of a choice.
func callID(id string, choice, k int) string {
	return fmt.Sprintf("call_sim%s%d%d", id[:12], choice, k)
}
