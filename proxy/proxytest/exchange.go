package proxytest

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"net/http"
	"slices"
	"time"
)

// exchange is one request and its reply on a connection.
type exchange struct {
	up      *Upstream
	conn    *net.TCPConn
	request *Request
	lost    chan struct{} // closed when the client has closed the connection; nil: not watched
}

// run reads the request's body, plays the reply, and tells whether another
// request may be read from in.
func (x *exchange) run(r Reply, in *bufio.Reader, body io.Reader) (keep bool) {
	if r.early {
		keep = x.play(r)
		return x.read(body) && keep
	}
	if !x.read(body) {
		x.up.leave(x.request)
		return false
	}
	x.lost = make(chan struct{})
	idle := make(chan struct{})
	go func() { // nobody else reads from in until idle is closed
		defer close(idle)
		if _, err := in.Peek(1); err != nil {
			x.up.leave(x.request)
			close(x.lost)
		}
	}()
	if keep = x.play(r); !keep {
		x.conn.Close()
	}
	<-idle
	return keep
}

func (x *exchange) read(body io.Reader) bool {
	data, err := io.ReadAll(body)
	x.up.setBody(x.request, data)
	return err == nil
}

// play sends the reply and tells whether the connection can be used again.
func (x *exchange) play(r Reply) (keep bool) {
	if !x.pause(r.delay) || !x.pass(r.gates[beforeHeader]) {
		return false
	}
	if r.silent {
		return x.finish(r)
	}
	total := r.total()
	// The client has the whole answer, and may leave, before finish runs.
	whole := func(n int) bool { return n == total && !r.chunked && r.ending <= clean }
	if whole(0) {
		x.up.answer(x.request)
	}
	if !x.write(r.head()) || !x.pause(r.delayBody) {
		return false
	}
	for n := range total {
		if n > 0 && !x.pause(r.every) || !x.pass(r.gates[n]) {
			return false
		}
		if whole(n + 1) {
			x.up.answer(x.request)
		}
		if !x.write(r.frame(n)) {
			return false
		}
	}
	return x.pass(r.gates[total]) && x.finish(r)
}

// finish ends the answer as the reply says.
func (x *exchange) finish(r Reply) (keep bool) {
	x.up.answer(x.request)
	switch r.ending {
	case dropped:
		if x.conn.CloseWrite() == nil && x.lost != nil {
			select {
			case <-x.lost:
			case <-x.up.quit:
			}
		}
		return false
	case reset:
		// Closing with nothing lingering sends a reset.
		if err := x.conn.SetLinger(0); err != nil {
			x.up.t.Errorf("proxytest: preparing a reset: %v", err)
		}
		x.conn.Close()
		return false
	}
	return !r.chunked || x.write("0\r\n\r\n")
}

// write tells whether all was written; it was not if the client has left.
func (x *exchange) write(data string) bool {
	_, err := io.WriteString(x.conn, data)
	return err == nil
}

// pause waits for d, pass for a gate, which may be nil; both tell whether to
// go on: not where the client has left or the upstream is closed.
func (x *exchange) pause(d time.Duration) bool {
	if d == 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-x.lost:
	case <-x.up.quit:
	}
	return false
}

func (x *exchange) pass(g *Gate) bool {
	if g == nil {
		return true
	}
	g.reachedOnce.Do(func() { close(g.reached) })
	select {
	case <-g.open:
		return true
	case <-x.lost:
	case <-x.up.quit:
	}
	return false
}

// total is how many pieces are sent before the ending.
func (r Reply) total() int {
	switch {
	case r.endless && r.ending == complete:
		return math.MaxInt
	case r.endless:
		return r.stop
	case r.ending == complete:
		return len(r.pieces)
	}
	return min(r.stop, len(r.pieces))
}

// head is the status line and the header, with the framing of the body.
func (r Reply) head() string {
	h := r.header.Clone()
	if r.chunked {
		h.Set("Transfer-Encoding", "chunked")
	} else {
		length := 0
		for n, piece := range r.pieces {
			if r.ending != clean || n < r.stop {
				length += len(piece)
			}
		}
		h.Set("Content-Length", fmt.Sprint(length))
	}
	head := fmt.Sprintf("HTTP/1.1 %d %s\r\n", r.status, http.StatusText(r.status))
	for _, name := range slices.Sorted(maps.Keys(h)) {
		for _, value := range h[name] {
			head += name + ": " + value + "\r\n"
		}
	}
	return head + "\r\n"
}

// frame is the n-th piece as it goes over the wire.
func (r Reply) frame(n int) string {
	piece := r.pieces[n%len(r.pieces)]
	if !r.chunked || piece == "" { // an empty chunk would be the last
		return piece
	}
	return fmt.Sprintf("%x\r\n%s\r\n", len(piece), piece)
}
