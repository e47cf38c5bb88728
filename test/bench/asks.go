package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// exchange is a request and its only right answer.
type exchange struct{ request, answer []byte }

// jsonAsk sends what next returns and compares the answer byte for byte.
func jsonAsk(state string, next func() exchange) ask {
	return func(c *conn, _ *sample) error {
		x := next()
		r, err := c.post(chat, x.request)
		if err != nil {
			return err
		}
		body, err := c.readBody(r)
		if err != nil {
			return err
		}
		if err := checkHead(r, state, body); err != nil {
			return err
		}
		if !bytes.Equal(body, x.answer) {
			return wrongAnswer(fmt.Sprintf("got %.200q, want %.200q", body, x.answer))
		}
		return nil
	}
}

// checkHead checks status and cache state; body is quoted in the error.
func checkHead(r response, state string, body []byte) error {
	if r.status != 200 {
		return wrongAnswer(fmt.Sprintf("status %d: %.300q", r.status, body))
	}
	if state != "" && r.cache != state {
		return wrongAnswer(fmt.Sprintf("X-LLMProxy-Cache is %q, want %q", r.cache, state))
	}
	return nil
}

// workSet is the working set of one body size.
func workSet(size int) []exchange {
	set := make([]exchange, workingSet)
	for i := range set {
		marker := hitMarker(size, i)
		set[i] = exchange{request(chat, size, marker), answer(marker)}
	}
	return set
}

// repeatAsk asks the set over and over, each worker from another place on.
func repeatAsk(state string, set []exchange, worker int) ask {
	at := worker * 7
	return jsonAsk(state, func() exchange {
		at++
		return set[at%len(set)]
	})
}

// fresh makes pieces of work that were never asked before. All workers share it.
type fresh struct {
	api     endpoint
	kind    byte
	request template
	n       *atomic.Int64 // the last piece of work made
}

// newFresh makes requests of size bytes, numbered on from n.
func newFresh(api endpoint, kind byte, size int, n *atomic.Int64) fresh {
	return fresh{api, kind, requestTemplate(api, size, kind), n}
}

func (f fresh) marker() string { return freshMarker(f.kind, f.n.Add(1)) }

// freshAsk asks chat for another piece of JSON work each time.
func freshAsk(state string, f fresh) ask {
	request, answer := f.request.copied(), answerTemplate()
	return jsonAsk(state, func() exchange {
		marker := f.marker()
		return exchange{request.stamp(marker), answer.stamp(marker)}
	})
}

// streamAsk asks for another stream each time and checks every chunk of it.
func streamAsk(state string, f fresh) ask {
	request, due := f.request.copied(), responseEvents(chunksOf(f.kind))
	return func(c *conn, s *sample) error {
		marker := f.marker()
		began := time.Now()
		r, err := c.post(f.api, request.stamp(marker))
		if err != nil {
			return err
		}
		if r.status != 200 {
			body, err := c.readBody(r)
			if err != nil {
				return err
			}
			return checkHead(r, state, body)
		}
		if err := checkHead(r, state, nil); err != nil {
			return err
		}
		st := streamState{api: f.api, marker: marker, began: began, due: due}
		if err := st.read(c, c.lines(r)); err != nil {
			return err
		}
		if r.length < 0 {
			if err := c.endChunks(); err != nil {
				return err
			}
		}
		s.first = append(s.first, st.first)
		s.delays = append(s.delays, st.delays...)
		s.held += st.held
		return nil
	}
}

// streamState follows one stream.
type streamState struct {
	api    endpoint
	marker string
	began  time.Time

	chunks int // content chunks seen
	done   bool
	first  time.Duration
	delays []time.Duration
	held   int
	before time.Time // arrival of the chunk before

	finished bool // of chat: the finish reason has come

	// Of Responses.
	due    []string // types of the events due
	events int      // events seen
	name   string   // in the line before the data
	text   string   // of all deltas seen
}

// read follows the stream to its end. A stream that ends too early is a failure
// of transport, one that says something else a wrongAnswer.
func (st *streamState) read(c *conn, body *bufio.Reader) error {
	for {
		line, err := body.ReadSlice('\n')
		if err == io.EOF && len(line) == 0 {
			if !st.done {
				return fmt.Errorf("stream cut after %d of %d chunks", st.chunks, chunksOf(st.marker[0]))
			}
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading a stream after %d chunks: %w", st.chunks, err)
		}
		line = bytes.TrimRight(line, "\r\n")
		data, isData := bytes.CutPrefix(line, []byte("data: "))
		name, isName := bytes.CutPrefix(line, []byte("event: "))
		switch {
		case isName && st.api == responses && !st.done:
			st.name = string(name)
		case isData && !st.done:
			event := st.chatEvent
			if st.api == responses {
				event = st.responseEvent
			}
			if err := event(data, c.lastRead); err != nil {
				return err
			}
		case len(line) > 0 && line[0] != ':': // blank lines and comments are no events
			return wrongAnswer(fmt.Sprintf("line %.300q in a stream", line))
		}
	}
}

// chatEvent takes the data of one event of a chat stream that arrived at the
// given time.
func (st *streamState) chatEvent(data []byte, arrived time.Time) error {
	if string(data) == "[DONE]" {
		if !st.finished {
			return wrongAnswer("[DONE] before the end of the answer")
		}
		st.done = true
		return nil
	}
	var chunk struct {
		ID      string `json:"id"`
		Choices []struct {
			Delta struct {
				Content string `json:"content"`
			} `json:"delta"`
			FinishReason *string `json:"finish_reason"`
		} `json:"choices"`
	}
	err := json.Unmarshal(data, &chunk)
	if err != nil || len(chunk.Choices) != 1 || chunk.ID != "chatcmpl-"+st.marker || st.finished {
		return wrongAnswer(fmt.Sprintf("chunk %.300q in the stream of %s", data, st.marker))
	}
	choice := chunk.Choices[0]
	if choice.FinishReason != nil {
		st.finished = *choice.FinishReason == "stop" && st.chunks == chunksOf(st.marker[0])
		if !st.finished {
			return wrongAnswer(fmt.Sprintf("the answer finishes after %d chunks: %.300q", st.chunks, data))
		}
		return nil
	}
	return st.content(choice.Delta.Content, arrived)
}

// content takes the text of a content chunk: "SEQ NANOS words".
func (st *streamState) content(text string, arrived time.Time) error {
	fields := strings.Fields(text)
	if len(fields) < 2 || fields[0] != strconv.Itoa(st.chunks) {
		return wrongAnswer(fmt.Sprintf("content %q, want chunk %d", text, st.chunks))
	}
	nanos, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return wrongAnswer(fmt.Sprintf("content %q has no time", text))
	}
	written := time.Unix(0, nanos)
	if st.chunks == 0 {
		st.first = arrived.Sub(st.began)
	} else if st.before.After(written) {
		st.held++ // the chunk before came only after this one was written
	}
	st.delays = append(st.delays, arrived.Sub(written))
	st.before = arrived
	st.chunks++
	return nil
}
