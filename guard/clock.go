package guard

import (
	"context"
	"errors"
	"sync"
	"time"

	"llmproxy/store"
)

// toleratedJump is how far the wall clock may run ahead of the monotonic one
// between two looks without being taken for set forward.
const toleratedJump = 5_000

// Leases are stored in wall time, so that they mean something after a restart
// and to other processes. A wall clock that is set forward would end them all at
// once, so a process that sees it run ahead of its monotonic clock first moves
// the ends of leases by as much. A clock that is set back only lengthens them.
type clock struct {
	mu      sync.Mutex
	started time.Time
	wall    int64         // Unix ms at the last look; 0 before the first
	elapsed time.Duration // since started, at the same moment

	moving sync.Mutex // held while leases are moved
}

// jump tells by how many ms the wall clock has been set forward since the last
// look, and otherwise takes this look for the last.
func (c *clock) jump(wall int64) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	elapsed := time.Since(c.started)
	if c.wall != 0 {
		if ahead := wall - c.wall - (elapsed - c.elapsed).Milliseconds(); ahead > toleratedJump {
			return ahead
		}
	}
	c.wall, c.elapsed = wall, elapsed
	return 0
}

// follow takes the present for the last look, whatever has happened.
func (c *clock) follow(wall int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wall, c.elapsed = wall, time.Since(c.started)
}

var errJumped = errors.New("the wall clock was set forward")

// A lease that is not over gets as many ms as the clock jumped, so does one
// whose drain is not. None gets longer than a lease that begins now: several
// processes that see the same jump each add it.
const moveLeasesSQL = `UPDATE effect
SET lease_limit = lease_limit + $1,
    lease_until = CASE WHEN lease_until + $2 < $3 + lease THEN lease_until + $4 ELSE $5 + lease END
WHERE state IN (1, 4) AND lease_until + drain > $6`

// moveLeases makes up for a jump of the wall clock.
func (g *Guard) moveLeases(ctx context.Context) error {
	g.clock.moving.Lock()
	defer g.clock.moving.Unlock()
	var ahead, now int64
	err := g.Store.Update(ctx, func(tx *store.Tx) error {
		if ahead, now = g.clock.jump(tx.Now), tx.Now; ahead == 0 {
			return nil // somebody else has done it
		}
		_, err := tx.Exec(moveLeasesSQL, ahead, ahead, now, ahead, now, now-ahead)
		return err
	})
	if err == nil && ahead > 0 {
		g.clock.follow(now)
		g.log().Warn("the wall clock was set forward, or the machine slept; leases go on as if it had not", "ahead", time.Duration(ahead)*time.Millisecond)
	}
	return err
}
