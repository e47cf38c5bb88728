package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

// An endpoint is the path of an API whose streams are measured.
type endpoint string

const (
	chat      endpoint = "/v1/chat/completions"
	responses endpoint = "/v1/responses"
)

// name is the endpoint's name in the tables.
func (e endpoint) name() string {
	name, _, _ := strings.Cut(strings.TrimPrefix(string(e), "/v1/"), "/")
	return name
}

// The last event of a Responses stream.
const responseCompleted = "response.completed"

// responseEvents are the types of a Responses stream with so many deltas, in order.
func responseEvents(deltas int) []string {
	return slices.Concat(
		[]string{"response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"},
		slices.Repeat([]string{"response.output_text.delta"}, deltas),
		[]string{"response.output_text.done", "response.content_part.done", "response.output_item.done", responseCompleted},
	)
}

// responseForm is the stream of the Responses API that answers the marker.
func responseForm(marker string) streamForm {
	sent := 0
	event := func(kind, members string, args ...any) string {
		line := fmt.Sprintf("event: %s\ndata: {\"type\":\"%s\",\"sequence_number\":%d,%s}\n\n", kind, kind, sent, fmt.Sprintf(members, args...))
		sent++
		return line
	}
	at := `"item_id":"msg_` + marker + `","output_index":0,"content_index":0`
	part := func(text string) string {
		return `{"type":"output_text","annotations":[],"logprobs":[],"text":"` + text + `"}`
	}
	item := func(status, parts string) string {
		return `{"id":"msg_` + marker + `","type":"message","status":"` + status + `","role":"assistant","content":[` + parts + `]}`
	}
	whole := func(status, output, usage string) string {
		return `{"id":"resp_` + marker + `","object":"response","created_at":1764579600,"status":"` + status + `","background":false,` +
			`"error":null,"incomplete_details":null,"instructions":null,"max_output_tokens":800,"model":"` + modelName + `-2025-04-14",` +
			`"output":[` + output + `],"parallel_tool_calls":true,"previous_response_id":null,"reasoning":{"effort":null,"summary":null},` +
			`"service_tier":"default","store":true,"temperature":0.2,"text":{"format":{"type":"text"}},"tool_choice":"auto","tools":[],` +
			`"top_p":1.0,"truncation":"disabled","usage":` + usage + `,"user":null,"metadata":{}}`
	}
	begun := whole("in_progress", "", "null")
	return streamForm{
		opening: []string{
			event("response.created", `"response":%s`, begun),
			event("response.in_progress", `"response":%s`, begun),
			event("response.output_item.added", `"output_index":0,"item":%s`, item("in_progress", "")),
			event("response.content_part.added", `%s,"part":%s`, at, part("")),
		},
		delta: func(_ int, text string) string {
			return event("response.output_text.delta", `%s,"delta":"%s","logprobs":[]`, at, text)
		},
		closing: func(text string) []string {
			done := item("completed", part(text))
			return []string{
				event("response.output_text.done", `%s,"text":"%s","logprobs":[]`, at, text),
				event("response.content_part.done", `%s,"part":%s`, at, part(text)),
				event("response.output_item.done", `"output_index":0,"item":%s`, done),
				event(responseCompleted, `"response":%s`, whole("completed", done, `{"input_tokens":231,"input_tokens_details":{"cached_tokens":0},`+
					`"output_tokens":262,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":493}`)),
			}
		},
	}
}

// responseEvent takes one event of a Responses stream that arrived at the given
// time. Each must be the one due, the last hold what the deltas said and the usage.
func (st *streamState) responseEvent(data []byte, arrived time.Time) error {
	var event struct {
		Type     string `json:"type"`
		Number   int    `json:"sequence_number"`
		ItemID   string `json:"item_id"`
		Delta    string `json:"delta"`
		Response struct {
			ID     string `json:"id"`
			Status string `json:"status"`
			Output []struct {
				Content []struct {
					Text string `json:"text"`
				} `json:"content"`
			} `json:"output"`
			Usage struct {
				Total int `json:"total_tokens"`
			} `json:"usage"`
		} `json:"response"`
	}
	want, name := st.due[st.events], st.name
	st.name = ""
	err := json.Unmarshal(data, &event)
	if err != nil || event.Type != want || name != want || event.Number != st.events {
		return wrongAnswer(fmt.Sprintf("event %q %.300q in the stream of %s, want %s", name, data, st.marker, want))
	}
	st.events++
	switch r := event.Response; want {
	case "response.output_text.delta":
		if event.ItemID != "msg_"+st.marker {
			return wrongAnswer(fmt.Sprintf("delta %.300q in the stream of %s", data, st.marker))
		}
		st.text += event.Delta
		return st.content(event.Delta, arrived)
	case "response.created":
		if r.ID != "resp_"+st.marker {
			return wrongAnswer(fmt.Sprintf("response %.300q to %s", data, st.marker))
		}
	case responseCompleted:
		if r.ID != "resp_"+st.marker || r.Status != "completed" || r.Usage.Total == 0 ||
			len(r.Output) != 1 || len(r.Output[0].Content) != 1 || r.Output[0].Content[0].Text != st.text {
			return wrongAnswer(fmt.Sprintf("completed response %.300q is not what the stream of %s said", data, st.marker))
		}
		st.done = true
	}
	return nil
}
