package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	firstWait   = 20 * time.Millisecond // before the first chunk of a paced stream; real models take longer
	chunkGap    = 5 * time.Millisecond  // between the chunks of a paced stream
	paceChunks  = 20                    // content chunks of a paced stream
	burstChunks = 32                    // content chunks of a stream that comes at once
)

// chunksOf returns the number of content chunks of a kind of stream.
func chunksOf(kind byte) int {
	if kind == kindPaced {
		return paceChunks
	}
	return burstChunks
}

// mockUpstream answers by the marker in the request: JSON (of chat only) from a
// template, or a stream whose content chunks each say "SEQ NANOS" first, the
// chunk's number and the time it was written in Unix nanoseconds.
func mockUpstream() http.Handler {
	answers := sync.Pool{New: func() any { return answerTemplate() }}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", healthy)
	for _, api := range []endpoint{chat, responses} {
		mux.HandleFunc("POST "+string(api), func(w http.ResponseWriter, r *http.Request) {
			body, free, err := readBody(r)
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			marker, err := findMarker(body)
			wantsUsage := bytes.Contains(body, []byte(`"include_usage":true`))
			free()
			switch streams := err == nil && isStream(marker[0]); {
			case err != nil:
				http.Error(w, err.Error(), http.StatusBadRequest)
			case streams && api == chat:
				streamAnswer(w, marker[0], chatForm(marker, wantsUsage))
			case streams:
				streamAnswer(w, marker[0], responseForm(marker))
			case api == chat:
				t := answers.Get().(template)
				defer answers.Put(t)
				reply(w, t.stamp(marker))
			default:
				http.Error(w, "only chat is answered in JSON", http.StatusBadRequest)
			}
		})
	}
	return mux
}

// streamForm makes the events of one stream. Texts are the insides of JSON strings.
type streamForm struct {
	opening []string                            // events before the first content
	delta   func(seq int, text string) string   // content chunk seq, from 0
	closing func(text string) (events []string) // after all content, which was text
}

// streamAnswer writes a stream of a kind, flushing each event.
func streamAnswer(w http.ResponseWriter, kind byte, form streamForm) {
	w.Header().Set("Content-Type", "text/event-stream")
	flush := http.NewResponseController(w)
	write := func(events ...string) {
		for _, event := range events {
			// A client that has gone is seen by the next write; nothing is left to do for it.
			if _, err := io.WriteString(w, event); err == nil {
				flush.Flush()
			}
		}
	}
	write(form.opening...)
	if kind == kindPaced {
		time.Sleep(firstWait)
	}
	var whole strings.Builder
	for seq := range chunksOf(kind) {
		if seq > 0 && kind == kindPaced {
			time.Sleep(chunkGap)
		}
		text := strconv.Itoa(seq) + " " + strconv.FormatInt(time.Now().UnixNano(), 10) + " and some words "
		write(form.delta(seq, text))
		whole.WriteString(text)
	}
	write(form.closing(whole.String())...)
}

// chatForm is the stream of the chat API that answers the marker.
func chatForm(marker string, wantsUsage bool) streamForm {
	chunk := func(choices, usage string) string {
		return fmt.Sprintf(`data: {"id":"chatcmpl-%s","object":"chat.completion.chunk","created":1764579600,`+
			`"model":"%s-2025-04-14","system_fingerprint":"fp_bench","choices":[%s]%s}`+"\n\n", marker, modelName, choices, usage)
	}
	return streamForm{
		delta: func(seq int, text string) string {
			role := ""
			if seq == 0 {
				role = `"role":"assistant",`
			}
			return chunk(`{"index":0,"delta":{`+role+`"content":"`+text+`"},"finish_reason":null}`, "")
		},
		closing: func(string) []string {
			events := []string{chunk(`{"index":0,"delta":{},"finish_reason":"stop"}`, "")}
			if wantsUsage {
				events = append(events, chunk("", `,"usage":{"prompt_tokens":231,"completion_tokens":262,"total_tokens":493}`))
			}
			return append(events, "data: [DONE]\n\n")
		},
	}
}
