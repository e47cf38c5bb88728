package proxy

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"llmproxy/budget"
	"llmproxy/cache"
	"llmproxy/ledger"
)

// keepAliveEvery is how long a stream may be silent before a comment holds it.
const keepAliveEvery = 15 * time.Second

var keepAlive = []byte(": keep-alive\n\n")

// reply reads a recording to the client in the form it asked for. It is the one
// path of hits, collapsed calls and first clients. ErrWithdrawn says that the
// recording came to nothing and the call is to be decided anew.
func (c *call) reply(rec *cache.Recording) error {
	if c.row.Outcome == ledger.Hit || c.row.Outcome == ledger.Collapsed {
		c.row.Attempt = rec.NextAttempt()
	}
	c.served = rec
	send := c.replyWhole
	if c.view.Stream {
		send = c.replyStream
	}
	err := send(rec)
	if err == nil {
		rec.Delivered(time.Now())
	}
	return err
}

// replyWhole waits for the end of the recording and sends it as JSON.
func (c *call) replyWhole(rec *cache.Recording) error {
	patience := c.patience()
	if patience != nil {
		defer patience.Stop()
	}
	for i := 0; ; {
		g := rec.At(i)
		switch {
		case g.Event != nil && g.Head.Form == cache.JSON:
			return c.sendWhole(g.Head, g.Event)
		case g.Event != nil:
			i++
			continue
		case g.Ended && g.Err != nil:
			return c.inBandError(g.Err)
		case g.Ended:
			body, err := c.assemble(rec.Events())
			if err != nil {
				return otherForm(err)
			}
			return c.sendWhole(&cache.Head{Status: http.StatusOK, Header: jsonHeader(g.Head.Header)}, body)
		}
		if _, err := c.wait(g.Change, nil, patience); err != nil {
			return err
		}
	}
}

// inBandError finds the error that a client which wants JSON gets for a stream
// that failed: where the upstream's own error came as an event, that object.
func (c *call) inBandError(err error) error {
	var inBand *chunkError
	if !errors.As(err, &inBand) {
		return err
	}
	head := &cache.Head{Status: http.StatusBadGateway, Header: http.Header{"Content-Type": {"application/json"}}}
	return c.sendWhole(head, inBand.Body)
}

func jsonHeader(h http.Header) http.Header {
	h = h.Clone()
	h.Set("Content-Type", "application/json")
	return h
}

// assemble makes the JSON form of a recorded stream.
func (c *call) assemble(events [][]byte) ([]byte, error) {
	whole := c.dialect.answer(c.view)
	for _, event := range events {
		if data, ok := eventData(event); ok && len(data) > 0 {
			if _, err := whole.event(data); err != nil {
				return nil, err
			}
		}
	}
	return whole.body()
}

func (c *call) sendWhole(head *cache.Head, body []byte) error {
	h := c.w.Header()
	for name, values := range head.Header {
		h[name] = values
	}
	c.describe(h)
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	c.row.Status, c.committed, c.first = head.Status, true, time.Now()
	c.w.WriteHeader(head.Status)
	if _, err := c.w.Write(body); err != nil {
		return errClientLeft
	}
	return nil
}

// replyStream follows the recording event by event.
func (c *call) replyStream(rec *cache.Recording) error {
	if g := rec.At(0); c.row.Outcome == ledger.Collapsed && g.Head == nil && !g.Ended {
		c.commit(nil) // at once: it holds the client past its time-out
	}
	patience := c.patience()
	if patience != nil {
		defer patience.Stop()
	}
	silence := time.NewTimer(keepAliveEvery)
	defer silence.Stop()
	written := c.committed
	for i := 0; ; {
		g := rec.At(i)
		switch {
		case g.Event != nil && g.Head.Form == cache.JSON:
			return c.streamWhole(g.Head, g.Event)
		case g.Event != nil:
			c.commit(g.Head)
			if err := c.writeEvent(g.Event); err != nil {
				return err
			}
			i, written = i+1, true
			continue
		case g.Ended:
			return c.endStream(g.Err)
		}
		if written {
			c.flush()
			silence.Reset(keepAliveEvery)
			written = false
		}
		quiet, err := c.wait(g.Change, silence, patience)
		if err != nil {
			return err
		}
		if quiet {
			c.commit(nil)
			if _, err := c.w.Write(keepAlive); err != nil {
				return errClientLeft
			}
			written = true
		}
	}
}

func (c *call) endStream(err error) error {
	var seen *passedOn
	switch {
	case errors.As(err, &seen): // the client has the upstream's own error already
		c.row.Finish = "upstream_error"
		return nil
	case err != nil:
		return err
	}
	c.flush()
	return nil
}

// writeEvent sends one event as it came, if it is for this client.
func (c *call) writeEvent(event []byte) error {
	if data, ok := eventData(event); ok {
		if !c.dialect.wants(c.view, data) {
			return nil
		}
		c.sent++
	}
	if c.first.IsZero() {
		c.first = time.Now()
	}
	if _, err := c.w.Write(event); err != nil {
		return errClientLeft
	}
	return nil
}

// streamWhole sends an answer that came as JSON to a client that wants a stream.
func (c *call) streamWhole(head *cache.Head, body []byte) error {
	if head.Status != http.StatusOK {
		if !c.committed {
			return c.sendWhole(head, body)
		}
		c.row.Status = head.Status
		object, ok := errorMember(body)
		if !ok {
			return upstreamError(head.Status, "upstream_invalid", "The upstream answered %d: %.200s", head.Status, body)
		}
		c.w.Write(c.dialect.failure(fmt.Appendf(nil, `{"error":%s}`, object), c.sent)) //nolint:errcheck // a client that has left cannot be told
		return nil
	}
	whole := c.dialect.answer(c.view)
	err := whole.parse(body)
	var inBand *chunkError
	if errors.As(err, &inBand) { // under status 200; the client has to see it as an event
		c.commit(head)
		c.row.Finish = toError(inBand).Code
		c.w.Write(c.dialect.failure(inBand.Body, c.sent)) //nolint:errcheck // a client that has left cannot be told
		return nil
	}
	if err != nil {
		return otherForm(err)
	}
	events, err := whole.unroll(c.view.IncludeUsage)
	if err != nil {
		return otherForm(err)
	}
	c.commit(head)
	c.first = time.Now()
	if _, err := c.w.Write(bytes.Join(events, nil)); err != nil {
		return errClientLeft
	}
	return nil
}

// otherForm says why an answer in one form cannot be given in the other.
func otherForm(err error) error {
	return upstreamError(http.StatusBadGateway, "upstream_invalid",
		"The upstream's answer is odd and cannot be given in the form that was asked for (%v); change \"stream\" to see it as it came, or send the call again", err)
}

// commit sends the head of a stream, once.
func (c *call) commit(head *cache.Head) {
	if c.committed {
		return
	}
	c.committed = true
	h := c.w.Header()
	if head != nil {
		for name, values := range head.Header {
			h[name] = values
		}
	}
	h["Content-Type"] = eventStream
	h["Cache-Control"] = noStore
	h["X-Accel-Buffering"] = noBuffering
	c.describe(h)
	c.row.Status = http.StatusOK
	c.w.WriteHeader(http.StatusOK)
}

func (c *call) flush() {
	http.NewResponseController(c.w).Flush() //nolint:errcheck // a failed write is seen at the next one
}

// patience limits how long a collapsed call waits, nil where only its client does.
func (c *call) patience() *time.Timer {
	if c.row.Outcome != ledger.Collapsed || c.step.Wait <= 0 {
		return nil
	}
	return time.NewTimer(max(c.step.Wait-time.Since(c.start), 0))
}

// wait blocks until the recording changes or, quiet, silence is over. It ends
// with an error where the client leaves or patience runs out.
func (c *call) wait(change <-chan struct{}, silence, patience *time.Timer) (quiet bool, err error) {
	var quietC, overC <-chan time.Time
	if silence != nil {
		quietC = silence.C
	}
	if patience != nil {
		overC = patience.C
	}
	select {
	case <-change:
		return false, nil
	case <-quietC:
		return true, nil
	case <-overC:
		return false, unavailable("call_in_progress", "The same call is still running; send it again in a moment to attach to it or get its answer", 10)
	case <-c.r.Context().Done():
		return false, errClientLeft
	}
}

// Header values that never change are shared: nothing appends to them.
var (
	eventStream = []string{"text/event-stream; charset=utf-8"}
	noStore     = []string{"no-store"}
	noBuffering = []string{"no"}
	missStored  = []string{"llmproxy; fwd=miss; stored"}

	outcomeValues = map[ledger.Outcome][]string{
		ledger.Hit: {"hit"}, ledger.Collapsed: {"collapsed"}, ledger.Miss: {"miss"},
		ledger.Bypass: {"bypass"}, ledger.Refused: {"refused"},
	}
	statusValues = map[ledger.Outcome][]string{
		ledger.Collapsed: {"llmproxy; collapsed"}, ledger.Miss: {"llmproxy; fwd=miss"},
		ledger.Bypass: {"llmproxy; fwd=bypass"},
	}
)

// describe sets our own response headers: what became of the call.
func (c *call) describe(h http.Header) {
	h["X-LLMProxy-Call"] = []string{ledger.Name(c.row.ID)}
	if c.row.Step != "" {
		h["X-LLMProxy-Step"] = []string{headerSafe(c.row.Step)}
	}
	if c.row.Run != "" {
		h["X-LLMProxy-Run"] = []string{headerSafe(c.row.Run)}
	}
	if outcome, ok := outcomeValues[c.row.Outcome]; ok {
		h["X-LLMProxy-Cache"] = outcome
	}
	if !c.recorded {
		return
	}
	if c.key != (cache.Key{}) {
		h["X-LLMProxy-Key"] = []string{c.key.String()}
	}
	if status, ok := statusValues[c.row.Outcome]; ok {
		h["Cache-Status"] = status
	}
	if c.view.Stateful != "" {
		h["Cache-Status"] = []string{"llmproxy; fwd=bypass; detail=" + c.view.Stateful}
	}
	input := c.row.Input
	if c.served != nil {
		origin := c.served.Origin()
		input = max(input, origin.Input) // who leads has counted, others have not
		switch {
		case c.row.Outcome == ledger.Hit:
			age := max(c.start.UnixMilli()-origin.CreatedAt, 0) / 1000
			h["X-LLMProxy-Age"] = []string{strconv.FormatInt(age, 10)}
			h["Cache-Status"] = []string{"llmproxy; hit; ttl=" + strconv.FormatInt((origin.ExpiresAt-c.start.UnixMilli())/1000, 10)}
		case c.row.Outcome == ledger.Miss && origin.EntryID != 0:
			h["Cache-Status"] = missStored
		}
	}
	if input > 0 { // a call that follows another process's does not know
		h["X-LLMProxy-Input-Tokens"] = []string{strconv.FormatInt(input, 10)}
	}
	switch c.row.Outcome {
	case ledger.Refused:
		h["X-LLMProxy-Budget"] = []string{budget.Over.String()}
	case ledger.Miss, ledger.Bypass:
		h["X-LLMProxy-Budget"] = []string{c.verdict.State.String()}
	}
}

// headerSafe percent-encodes what a header field cannot carry.
func headerSafe(name string) string {
	if strings.IndexFunc(name, func(r rune) bool { return r < 0x20 || r > 0x7e }) < 0 {
		return name
	}
	return url.PathEscape(name)
}
