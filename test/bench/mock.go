package main

import (
	"bytes"
	"fmt"
	"net/http"
	"strconv"
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

// mockUpstream answers chat completions by the marker in the request: JSON from
// a template, or a stream whose content chunks each say "SEQ NANOS" first, the
// chunk's number and the time it was written in Unix nanoseconds.
func mockUpstream() http.Handler {
	answers := sync.Pool{New: func() any { return answerTemplate() }}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", healthy)
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) {
		body, free, err := readBody(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		marker, err := findMarker(body)
		wantsUsage := bytes.Contains(body, []byte(`"include_usage":true`))
		free()
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if kind := marker[0]; kind == kindStream || kind == kindPaced {
			streamAnswer(w, marker, wantsUsage)
			return
		}
		t := answers.Get().(template)
		defer answers.Put(t)
		reply(w, t.stamp(marker))
	})
	return mux
}

// streamAnswer writes the stream that belongs to the marker, flushing each chunk.
func streamAnswer(w http.ResponseWriter, marker string, wantsUsage bool) {
	w.Header().Set("Content-Type", "text/event-stream")
	flush := http.NewResponseController(w)
	var line []byte
	write := func(choices, usage string) {
		line = fmt.Appendf(line[:0], `data: {"id":"chatcmpl-%s","object":"chat.completion.chunk","created":1764579600,`+
			`"model":"%s-2025-04-14","system_fingerprint":"fp_bench","choices":[%s]%s}`+"\n\n", marker, modelName, choices, usage)
		// A client that has gone is seen by the next write; nothing is left to do for it.
		if _, err := w.Write(line); err == nil {
			flush.Flush()
		}
	}
	if marker[0] == kindPaced {
		time.Sleep(firstWait)
	}
	for seq := range chunksOf(marker[0]) {
		role := ""
		if seq == 0 {
			role = `"role":"assistant",`
		} else if marker[0] == kindPaced {
			time.Sleep(chunkGap)
		}
		write(`{"index":0,"delta":{`+role+`"content":"`+strconv.Itoa(seq)+" "+
			strconv.FormatInt(time.Now().UnixNano(), 10)+` and some words "},"finish_reason":null}`, "")
	}
	write(`{"index":0,"delta":{},"finish_reason":"stop"}`, "")
	if wantsUsage {
		write("", `,"usage":{"prompt_tokens":231,"completion_tokens":262,"total_tokens":493}`)
	}
	fmt.Fprint(w, "data: [DONE]\n\n")
}
