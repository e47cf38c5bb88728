package sim

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"strconv"
	"time"
)

// answer is what an endpoint has to say, before the plan's delays and faults.
type answer struct {
	plan   *plan
	object any                  // the JSON answer
	events iter.Seq[event]      // the stream; nil: answer with object
	broken func(sent int) event // the error event after so many events
}

// event is a server-sent event. An empty name has no event line.
type event struct {
	name string
	data []byte
}

// done ends the streams of all but the Responses API.
var done = event{data: []byte("[DONE]")}

// errCut ends an answer by cutting the connection.
var errCut = errors.New("cutting the connection as the prompt asks")

// play sends the answer as its plan says.
func (a *answer) play(w http.ResponseWriter, r *http.Request) error {
	if err := wait(r.Context(), a.plan.delay); err != nil {
		return err
	}
	if a.plan.status != 0 {
		return scripted(a.plan.status, a.plan.retryAfter)
	}
	if a.events == nil {
		return a.playJSON(w)
	}
	return a.playStream(w, r.Context())
}

func (a *answer) playJSON(w http.ResponseWriter) error {
	data := marshal(a.object)
	switch {
	case a.plan.cutAfter >= 0:
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", strconv.Itoa(len(data)))
		if _, err := w.Write(data[:len(data)/2]); err != nil {
			return err
		}
		return errors.Join(http.NewResponseController(w).Flush(), errCut)
	case a.plan.endAfter >= 0:
		data = data[:len(data)/2]
	case a.plan.errorAfter >= 0:
		data = marshal(midStream())
	}
	return writeJSON(w, http.StatusOK, data)
}

func (a *answer) playStream(w http.ResponseWriter, ctx context.Context) error {
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	w.Header().Set("Cache-Control", "no-cache")
	w.WriteHeader(http.StatusOK)
	flush := http.NewResponseController(w).Flush
	if err := flush(); err != nil {
		return err
	}
	sent := 0
	for e := range a.events {
		switch sent {
		case a.plan.cutAfter:
			return errCut
		case a.plan.endAfter:
			return nil
		case a.plan.errorAfter:
			return errors.Join(a.broken(sent).write(w), flush())
		}
		if sent > 0 {
			if err := wait(ctx, a.plan.chunkDelay); err != nil {
				return err
			}
		}
		if err := errors.Join(e.write(w), flush()); err != nil {
			return err
		}
		sent++
	}
	return nil
}

func (e event) write(w http.ResponseWriter) error {
	frame := make([]byte, 0, len(e.name)+len(e.data)+20)
	if e.name != "" {
		frame = fmt.Appendf(frame, "event: %s\n", e.name)
	}
	frame = fmt.Appendf(frame, "data: %s\n\n", e.data)
	_, err := w.Write(frame)
	return err
}

// wait returns nil after d, or earlier the context's error.
func wait(ctx context.Context, d time.Duration) error {
	if d == 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
