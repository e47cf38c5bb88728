package cache

import (
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Form is the wire form in which an upstream answered.
type Form uint8

// The forms of an answer.
const (
	JSON Form = 1 // one event: the whole body
	SSE  Form = 2 // each event as it came, its terminating blank line included
)

// Head is what is known of an answer before its body.
type Head struct {
	Status int
	Header http.Header // only what may be shown to every reader
	Form   Form
}

// Usage is what the upstream said a call used, in tokens. Cached is part of
// Input, Reasoning is part of Output.
type Usage struct{ Input, Cached, Output, Reasoning int64 }

// Origin tells where a finished recording came from.
type Origin struct {
	EntryID   int64 // 0 while not stored
	Call      int64 // the call that led
	CreatedAt int64 // Unix ms
	ExpiresAt int64 // Unix ms; 0: not to be served again
	Input     int64 // tokens counted before the call
	Basis     uint8
	Usage     *Usage // nil where the upstream reported none
	Cost      *int64 // micro-USD, nil where no price is known

	Fingerprint *Key // the body's own key, where the key was explicit
}

// Recording is an answer being written down: a head, then a list of events
// that only grows, then an end. One flight writes it; any number of readers
// read it from the first event, each at its own pace, live or long after. A
// hit, a collapsed call and the first client are all such readers.
type Recording struct {
	mu     sync.Mutex
	head   *Head
	events [][]byte
	last   [][]byte // events between Complete and End
	size   int64    // bytes, those of last included
	ended  bool
	err    error
	wake   chan struct{} // closed at the next change; nil while nobody waits
	origin Origin

	calls     atomic.Int64 // calls seen for this key, the leading one included
	delivered atomic.Int64 // Unix ms of the last complete delivery
	touched   atomic.Int64 // Unix ms when last marked as served in the store
}

// Start sets the head.
func (r *Recording) Start(h Head) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.head = &h
	r.broadcast()
}

// Append adds an event, which the caller must not change afterwards.
func (r *Recording) Append(event []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, event)
	r.size += int64(len(event))
	r.broadcast()
}

// Announce tells what is known of the origin before the end.
func (r *Recording) Announce(origin Origin) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.origin = origin
}

// Finish ends the recording with its last events: err is nil for a complete
// answer. Readers find all of it at once, so whoever has read the last event
// knows the origin.
func (r *Recording) Finish(origin Origin, err error, last ...[]byte) {
	r.Complete(origin, last...)
	r.End(err)
}

// Complete takes in the origin and the last events, which readers do not see
// before End. What they may rely on by then is done between the two.
func (r *Recording) Complete(origin Origin, last ...[]byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, event := range last {
		r.size += int64(len(event))
	}
	r.origin, r.last = origin, last
}

// End ends a recording that is complete or has failed.
func (r *Recording) End(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, r.last...)
	r.last, r.ended, r.err = nil, true, err
	r.broadcast()
}

func (r *Recording) broadcast() {
	if r.wake != nil {
		close(r.wake)
		r.wake = nil
	}
}

// Glance is a recording as a reader finds it.
type Glance struct {
	Head   *Head           // nil until known
	Event  []byte          // the asked event, nil until it is there
	Ended  bool            // no more events will come after those there are
	Err    error           // why it ended, nil for a complete answer
	Change <-chan struct{} // closed at the next change; nil where Event is there or the recording has ended
}

// At tells what there is of event i, without waiting.
func (r *Recording) At(i int) Glance {
	r.mu.Lock()
	defer r.mu.Unlock()
	g := Glance{Head: r.head}
	switch {
	case i < len(r.events):
		g.Event = r.events[i]
	case r.ended:
		g.Ended, g.Err = true, r.err
	default:
		if r.wake == nil {
			r.wake = make(chan struct{})
		}
		g.Change = r.wake
	}
	return g
}

// Events returns what has been recorded so far. The caller must not change it.
func (r *Recording) Events() [][]byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.events[:len(r.events):len(r.events)]
}

// Size is the recorded bytes.
func (r *Recording) Size() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.size
}

// Origin tells where a finished recording came from.
func (r *Recording) Origin() Origin {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.origin
}

// NextAttempt counts one more call for this answer's key and returns its number.
func (r *Recording) NextAttempt() int64 { return r.calls.Add(1) }

// Delivered notes that a client got the whole answer.
func (r *Recording) Delivered(now time.Time) { r.delivered.Store(now.UnixMilli()) }

// DeliveredWithin tells whether a client got the whole answer less than d ago.
func (r *Recording) DeliveredWithin(d time.Duration, now time.Time) bool {
	at := r.delivered.Load()
	return at != 0 && now.UnixMilli()-at < d.Milliseconds()
}
