package proxy

import (
	"context"
	"time"

	"llmproxy/budget"
	"llmproxy/cache"
	"llmproxy/ledger"
	"llmproxy/store"
)

// Every lease and open call of a process hangs on its instance row, which it
// renews. When the row's time is past, any other process may bury it: its
// leases are freed, its open calls are lost and charged with their input.
const (
	aliveFor   = 30 * time.Second
	renewEvery = 10 * time.Second
)

// join makes this process an instance. Earlier instances of its name are dead:
// the name holds the listening address, which this process has now.
func (s *Server) join(ctx context.Context) error {
	var id int64
	err := s.Store.Update(ctx, func(tx *store.Tx) (err error) {
		var earlier []int64
		if id, earlier, err = tx.Join(s.Instance, aliveFor.Milliseconds()); err != nil {
			return err
		}
		return s.bury(tx, earlier)
	})
	if err == nil {
		s.instance.Store(id)
	}
	return err
}

// renew keeps this instance alive and buries the dead. A process that slept for
// longer than its time finds itself buried and joins anew.
func (s *Server) renew(ctx context.Context) {
	var alive bool
	id := s.instance.Load()
	err := s.Store.Update(ctx, func(tx *store.Tx) (err error) {
		if alive, err = tx.Renew(id, aliveFor.Milliseconds()); err != nil {
			return err
		}
		dead, err := tx.Dead()
		if err != nil {
			return err
		}
		return s.bury(tx, dead)
	})
	if err == nil && !alive {
		err = s.rejoin(ctx, id)
	}
	if err != nil && ctx.Err() == nil {
		s.metrics.storeErrors.WithLabelValues("instance").Inc()
		s.Log.Error("the database cannot be written; this process's leases lapse after "+aliveFor.String(), "err", err)
	}
}

// enter runs a transaction that admits a call. What is admitted hangs on the
// instance: a process that was taken for dead joins anew first, or others would
// take the call over at once, and nobody would settle it.
func (s *Server) enter(ctx context.Context, admit func(*store.Tx) error) error {
	for {
		var alive bool
		id := s.instance.Load()
		err := s.Store.Update(ctx, func(tx *store.Tx) (err error) {
			if alive, err = tx.Keep(id, aliveFor.Milliseconds()); err != nil || !alive {
				return err
			}
			return admit(tx)
		})
		if err != nil || alive {
			return err
		}
		if err := s.rejoin(ctx, id); err != nil {
			return err
		}
	}
}

// rejoin makes a process an instance again whose instance was buried.
func (s *Server) rejoin(ctx context.Context, buried int64) error {
	s.joining.Lock()
	defer s.joining.Unlock()
	if s.instance.Load() != buried {
		return nil // another call was faster
	}
	s.Log.Warn("this process was taken for dead, perhaps after a sleep; its calls under way count as lost until they finish")
	return s.join(ctx)
}

// bury settles what dead instances left.
func (s *Server) bury(tx *store.Tx, instances []int64) error {
	for _, instance := range instances {
		lost, err := ledger.LoseAll(tx, instance)
		if err != nil {
			return err
		}
		for _, call := range lost {
			if err := budget.Lose(tx, call); err != nil {
				return err
			}
			s.Log.Warn("a call was lost with its process; its input is charged", "call", ledger.Name(call))
		}
		if err := cache.ReleaseAll(tx, instance); err != nil {
			return err
		}
		if err := tx.Bury(instance); err != nil {
			return err
		}
	}
	return nil
}

// Leave takes the instance out of the database, at the end of a process that
// has no call under way.
func (s *Server) Leave(ctx context.Context) error {
	return s.Store.Update(ctx, func(tx *store.Tx) error { return s.bury(tx, []int64{s.instance.Load()}) })
}
