package cache

import (
	"context"
	"errors"
	"sync"
	"testing"
)

func TestReadersSeeEveryEventAtTheirOwnPace(t *testing.T) {
	rec := &Recording{}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := 0; ; {
				g := rec.At(i)
				switch {
				case g.Event != nil:
					if g.Event[0] != byte(i) {
						t.Errorf("event %d is %d", i, g.Event[0])
					}
					i++
				case g.Ended:
					if i != 100 {
						t.Errorf("ended after %d events", i)
					}
					return
				default:
					<-g.Change
				}
			}
		})
	}
	rec.Start(Head{Form: SSE})
	for i := range 100 {
		rec.Append([]byte{byte(i)})
	}
	rec.Finish(Origin{Call: 5}, nil)
	wg.Wait()
	if rec.Origin().Call != 5 || rec.Size() != 100 {
		t.Errorf("%+v, %d bytes", rec.Origin(), rec.Size())
	}
}

func TestOneLeadsAndTheOthersFollow(t *testing.T) {
	var fs Flights
	var mu sync.Mutex
	leaders := 0
	rec := &Recording{}
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			f, lead := fs.Join(keyOf(1), nil)
			defer f.Leave()
			if lead {
				mu.Lock()
				leaders++
				mu.Unlock()
				f.Resolve(rec)
			}
			if got, err := f.Recording(t.Context()); err != nil || got != rec {
				t.Errorf("followed to %v, %v", got, err)
			}
		})
	}
	wg.Wait()
	if leaders != 1 {
		t.Errorf("%d leaders", leaders)
	}
}

func TestAWithdrawnFlightIsGoneBeforeItsFollowersKnow(t *testing.T) {
	var fs Flights
	f, _ := fs.Join(keyOf(1), nil)
	follower, lead := fs.Join(keyOf(1), nil)
	if lead {
		t.Fatal("two leaders")
	}
	f.Withdraw(ErrWithdrawn)
	if _, err := follower.Recording(t.Context()); !errors.Is(err, ErrWithdrawn) {
		t.Errorf("got %v", err)
	}
	if _, lead := fs.Join(keyOf(1), nil); !lead {
		t.Error("the withdrawn flight can still be joined")
	}
}

func TestFlightsWithoutAReader(t *testing.T) {
	depart := func(fs *Flights, n int, abandon bool) (*Flight, context.Context) {
		ctx, cancel := context.WithCancelCause(context.Background())
		f, _ := fs.Join(keyOf(n), nil)
		f.Resolve(&Recording{})
		f.Depart(cancel, abandon)
		return f, ctx
	}
	t.Run("past the limit the oldest is cancelled", func(t *testing.T) {
		fs := Flights{DetachedLimit: 2}
		var ctxs []context.Context
		for i := range 3 {
			f, ctx := depart(&fs, i, false)
			f.Leave()
			ctxs = append(ctxs, ctx)
		}
		if !errors.Is(context.Cause(ctxs[0]), ErrTooManyDetached) || ctxs[1].Err() != nil || ctxs[2].Err() != nil {
			t.Errorf("causes: %v, %v, %v", context.Cause(ctxs[0]), ctxs[1].Err(), ctxs[2].Err())
		}
	})
	t.Run("a reader that comes back saves it", func(t *testing.T) {
		fs := Flights{DetachedLimit: 1}
		f, ctx := depart(&fs, 0, false)
		f.Leave()
		fs.Join(keyOf(0), nil)
		g, _ := depart(&fs, 1, false)
		g.Leave()
		if ctx.Err() != nil || !f.Unread() || g.landed {
			t.Errorf("%v %v", ctx.Err(), f.Unread())
		}
	})
	t.Run("a step may cancel at once", func(t *testing.T) {
		var fs Flights
		f, ctx := depart(&fs, 0, true)
		f.Leave()
		if !errors.Is(context.Cause(ctx), ErrAbandoned) {
			t.Errorf("cause %v", context.Cause(ctx))
		}
	})
	t.Run("a client that leaves before the exchange begins", func(t *testing.T) {
		var fs Flights
		ctx, cancel := context.WithCancelCause(context.Background())
		f, _ := fs.Join(keyOf(0), nil)
		f.Leave()
		f.Depart(cancel, true)
		if !errors.Is(context.Cause(ctx), ErrAbandoned) {
			t.Errorf("cause %v", context.Cause(ctx))
		}
	})
	t.Run("a landed flight is nobody's", func(t *testing.T) {
		fs := Flights{DetachedLimit: 1}
		f, ctx := depart(&fs, 0, true)
		f.Land()
		f.Land()
		f.Leave()
		if n, detached := fs.Count(); n != 0 || detached != 0 || ctx.Err() != nil {
			t.Errorf("%d flights, %d detached, %v", n, detached, ctx.Err())
		}
		fs.Wait()
	})
}
