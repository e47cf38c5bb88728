package cache

import (
	"container/list"
	"context"
	"errors"
	"sync"
)

// ErrWithdrawn ends a flight that made no call: its followers decide anew.
var ErrWithdrawn = errors.New("no call was made")

// ErrTooManyDetached is the cause by which the oldest flight without a reader
// is cancelled when there are more than the limit.
var ErrTooManyDetached = errors.New("too many calls run without a client; the oldest was cancelled")

// ErrAbandoned is the cause by which a flight is cancelled whose step asks for
// that when its last client leaves.
var ErrAbandoned = errors.New("the last client left, and the step is set to cancel then")

// Flight is one upstream exchange shared by calls. It belongs to the process,
// not to a client: it goes on when every reader has left.
type Flight struct {
	Key         Key
	Fingerprint *Key // the body's own key, where Key is explicit

	flights *Flights
	decided chan struct{} // closed by Resolve or Withdraw
	rec     *Recording    // set before decided is closed, unless withdrawn
	failed  error         // why it was withdrawn

	// Guarded by flights.mu.
	readers  int
	landed   bool
	cancel   context.CancelCauseFunc // nil until the exchange begins
	abandon  bool                    // cancel when the last reader leaves
	detached *list.Element           // place among the flights without a reader
	left     bool                    // at some moment nobody was reading
}

// Flights are the exchanges that run in this process.
type Flights struct {
	// DetachedLimit is how many may run without a reader: 0 means any number,
	// a negative limit none.
	DetachedLimit int

	mu       sync.Mutex
	byKey    map[Key]*Flight
	detached list.List // *Flight, the longest without a reader first
	running  sync.WaitGroup
}

// Join attaches the caller to the flight of a key, or makes it the leader of a
// new one. Each caller must Leave; a leader must Withdraw, or Resolve and Land.
func (fs *Flights) Join(key Key, fingerprint *Key) (f *Flight, lead bool) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f := fs.byKey[key]; f != nil {
		f.readers++
		if f.detached != nil {
			fs.detached.Remove(f.detached)
			f.detached = nil
		}
		return f, false
	}
	f = fs.newFlight(key, fingerprint)
	if fs.byKey == nil {
		fs.byKey = map[Key]*Flight{}
	}
	fs.byKey[key] = f
	return f, true
}

// Solo starts a flight that nobody can join.
func (fs *Flights) Solo() *Flight {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return fs.newFlight(Key{}, nil)
}

func (fs *Flights) newFlight(key Key, fingerprint *Key) *Flight {
	fs.running.Add(1)
	return &Flight{Key: key, Fingerprint: fingerprint, flights: fs, decided: make(chan struct{}), readers: 1}
}

// Count tells how many keys are being called for and how many flights have no
// reader.
func (fs *Flights) Count() (running, detached int) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return len(fs.byKey), fs.detached.Len()
}

// Wait returns when every flight has landed.
func (fs *Flights) Wait() { fs.running.Wait() }

// Resolve names the recording that all who joined will read.
func (f *Flight) Resolve(rec *Recording) {
	f.rec = rec
	close(f.decided)
}

// Withdraw ends a flight before any recording: it sends its followers away with
// err, usually ErrWithdrawn.
func (f *Flight) Withdraw(err error) {
	f.failed = err
	f.Land() // first, so that a follower who decides anew does not find it
	close(f.decided)
}

// Recording waits until the leader has decided and returns what to read.
func (f *Flight) Recording(ctx context.Context) (*Recording, error) {
	select {
	case <-f.decided:
		return f.rec, f.failed
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Depart says that the exchange begins and how to stop it. With abandon it is
// stopped when its last reader leaves.
func (f *Flight) Depart(cancel context.CancelCauseFunc, abandon bool) {
	fs := f.flights
	fs.mu.Lock()
	f.cancel, f.abandon = cancel, abandon
	stop := f.readerless()
	fs.mu.Unlock()
	stop()
}

// Leave takes one reader off the flight.
func (f *Flight) Leave() {
	fs := f.flights
	fs.mu.Lock()
	f.readers--
	stop := f.readerless()
	fs.mu.Unlock()
	stop()
}

// readerless, with the lock held, puts a flight that nobody reads among the
// detached ones and returns what is to be done without the lock.
func (f *Flight) readerless() (stop func()) {
	fs := f.flights
	if f.readers > 0 || f.landed || f.cancel == nil {
		return func() {}
	}
	f.left = true
	if f.abandon {
		return f.end(ErrAbandoned)
	}
	f.detached = fs.detached.PushBack(f)
	if fs.DetachedLimit != 0 && fs.detached.Len() > max(fs.DetachedLimit, 0) {
		oldest := fs.detached.Remove(fs.detached.Front()).(*Flight)
		oldest.detached = nil
		return oldest.end(ErrTooManyDetached)
	}
	return func() {}
}

// end takes the flight out, with the lock held, so that nobody joins what is
// about to end, and returns what ends it.
func (f *Flight) end(cause error) (stop func()) {
	f.takeOut()
	cancel := f.cancel
	return func() { cancel(cause) }
}

// takeOut lets the next call for the key decide anew. The lock is held.
func (f *Flight) takeOut() {
	if f.flights.byKey[f.Key] == f {
		delete(f.flights.byKey, f.Key)
	}
}

// Unread tells whether at some moment nobody was reading.
func (f *Flight) Unread() bool {
	f.flights.mu.Lock()
	defer f.flights.mu.Unlock()
	return f.left
}

// Land takes the flight out: the next call for its key decides anew. It must
// come after a stored answer can be found in memory.
func (f *Flight) Land() {
	fs := f.flights
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f.landed {
		return
	}
	f.landed = true
	f.takeOut()
	if f.detached != nil {
		fs.detached.Remove(f.detached)
		f.detached = nil
	}
	fs.running.Done()
}
