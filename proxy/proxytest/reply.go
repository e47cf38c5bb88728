package proxytest

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// Reply is one scripted answer. Its methods return a changed copy, so replies
// can be built on one another.
//
// The body is sent in pieces, each in a write of its own: a JSON body is one
// piece, each event of a stream is one. Methods that end in After count them.
type Reply struct {
	status  int
	header  http.Header
	pieces  []string
	chunked bool // else with Content-Length
	endless bool // the pieces again and again
	early   bool

	delay, delayBody, every time.Duration
	gates                   map[int]*Gate // number of pieces sent → gate; -1: before the header

	silent bool   // no answer at all, only an ending
	ending ending // how the answer ends
	stop   int    // pieces sent before an ending that is not complete
}

type ending int

const (
	complete ending = iota // as it should
	clean                  // as it should, but too early
	dropped                // the sending side is closed
	reset                  // the connection is reset
)

// beforeHeader is the place of a gate.
const beforeHeader = -1

// JSON is an answer with this status and body, whatever the body is.
func JSON(status int, body string) Reply {
	return Reply{status: status, header: http.Header{"Content-Type": {"application/json"}}, pieces: []string{body}}
}

// Stream is a 200 with server-sent events; each frame is a whole event with
// its blank line, see [Chunks], [Data], [Event] and [Comment].
func Stream(frames ...string) Reply {
	return Reply{status: 200, header: http.Header{"Content-Type": {"text/event-stream"}}, pieces: frames, chunked: true}
}

// Endless is a stream that repeats its frames until the client leaves. It needs
// at least one.
func Endless(frames ...string) Reply {
	r := Stream(frames...)
	r.endless = true
	return r
}

// Error is an error in OpenAI's shape.
func Error(status int, message string) Reply {
	return JSON(status, errorObject(message))
}

// RateLimited is a 429 with this Retry-After.
func RateLimited(retryAfter string) Reply {
	return Error(http.StatusTooManyRequests, "slow down").Header("Retry-After", retryAfter)
}

// Empty is a 200 without a body.
func Empty() Reply { return JSON(200, "") }

// InvalidJSON is a 200 whose body breaks off, although its length is right.
func InvalidJSON() Reply { return JSON(200, `{"id":"chatcmpl-1","choices":[{"index":0,`) }

// Never reads the request and then says nothing until the client leaves.
func Never() Reply { return Empty().Hold(NewGate()) }

// Reset reads the request and resets the connection without an answer.
func Reset() Reply { return Reply{silent: true, ending: reset} }

// Drop reads the request and closes its side of the connection without an
// answer.
func Drop() Reply { return Reply{silent: true, ending: dropped} }

// Status changes the status.
func (r Reply) Status(status int) Reply {
	r.status = status
	return r
}

// Header sets a header field.
func (r Reply) Header(name, value string) Reply {
	r.header = r.header.Clone()
	r.header.Set(name, value)
	return r
}

// Delay waits before the header.
func (r Reply) Delay(d time.Duration) Reply {
	r.delay = d
	return r
}

// DelayBody waits between the header and the body.
func (r Reply) DelayBody(d time.Duration) Reply {
	r.delayBody = d
	return r
}

// Every waits between two pieces of the body.
func (r Reply) Every(d time.Duration) Reply {
	r.every = d
	return r
}

// Hold waits before the header until the gate opens.
func (r Reply) Hold(g *Gate) Reply { return r.HoldAfter(beforeHeader, g) }

// HoldAfter sends the header and n pieces and waits until the gate opens.
func (r Reply) HoldAfter(n int, g *Gate) Reply {
	r.gates = maps.Clone(r.gates)
	if r.gates == nil {
		r.gates = map[int]*Gate{}
	}
	r.gates[n] = g
	return r
}

// ResetAfter sends the header and n pieces and resets the connection.
func (r Reply) ResetAfter(n int) Reply { return r.end(n, reset) }

// DropAfter sends the header and n pieces and closes its side of the
// connection, in the middle of the answer.
func (r Reply) DropAfter(n int) Reply { return r.end(n, dropped) }

// EndAfter sends the header and n pieces and ends the answer cleanly, as if
// that were all: a stream without its end, or a JSON body that breaks off.
func (r Reply) EndAfter(n int) Reply { return r.end(n, clean) }

func (r Reply) end(n int, how ending) Reply {
	r.stop, r.ending = n, how
	return r
}

// Early answers as soon as the request's header has come and reads the body
// only afterwards. Request.Gone is not watched.
func (r Reply) Early() Reply {
	r.early = true
	return r
}

// CRLF ends the lines of the body with a carriage return and a line feed.
func (r Reply) CRLF() Reply {
	return r.mapPieces(func(piece string) string { return strings.ReplaceAll(piece, "\n", "\r\n") })
}

// Gzip compresses the body, asked for or not. What was sent of it can be
// decompressed at any time.
func (r Reply) Gzip() Reply {
	var buf bytes.Buffer
	zw := gzip.NewWriter(&buf)
	n := 0
	return r.Header("Content-Encoding", "gzip").mapPieces(func(piece string) string {
		buf.Reset()
		_, err := zw.Write([]byte(piece))
		flush := zw.Flush
		if n++; n == len(r.pieces) {
			flush = zw.Close
		}
		if err := cmp.Or(err, flush()); err != nil {
			panic(err) // writing to memory does not fail
		}
		return buf.String()
	})
}

func (r Reply) mapPieces(f func(string) string) Reply {
	r.pieces = slices.Clone(r.pieces)
	for i, piece := range r.pieces {
		r.pieces[i] = f(piece)
	}
	return r
}

// SplitEvery cuts the body anew, into pieces of n bytes, wherever its events
// and runes end.
func (r Reply) SplitEvery(n int) Reply {
	body := strings.Join(r.pieces, "")
	r.pieces = nil
	for len(body) > n {
		r.pieces, body = append(r.pieces, body[:n]), body[n:]
	}
	r.pieces = append(r.pieces, body)
	return r
}

// Gate holds replies until the test opens it.
type Gate struct {
	open, reached         chan struct{}
	openOnce, reachedOnce sync.Once
}

// NewGate returns a closed gate.
func NewGate() *Gate { return &Gate{open: make(chan struct{}), reached: make(chan struct{})} }

// Open lets through all that wait and all that come. It may be called again.
func (g *Gate) Open() { g.openOnce.Do(func() { close(g.open) }) }

// Reached returns a channel that is closed once a reply waits at the gate: all
// that comes before it has been written.
func (g *Gate) Reached() <-chan struct{} { return g.reached }
