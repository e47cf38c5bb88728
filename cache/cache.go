// Package cache says when two requests are the same and keeps their answers.
//
// A [Key] is the digest of a request's canonical form. A [Recording] is an
// answer as a growing list of events that any number of readers follow. A
// [Flight] is one upstream exchange that writes a recording and that equal
// calls share. An entry is a finished recording in the store; the most recent
// ones are also kept in memory by [Cache].
//
// Within a process one flight runs for a key; between processes the lease in
// the store sees to it. A lease holds as long as the process that took it keeps
// its instance row alive.
package cache

import (
	"time"

	"github.com/maypok86/otter/v2"
)

// recordingOverhead is roughly what a recording weighs in memory beyond the
// bytes of its events.
const recordingOverhead = 1024

// Cache keeps finished recordings in memory, up to a number of bytes, before
// the entries in the store.
type Cache struct {
	Flights Flights

	memory *otter.Cache[Key, *Recording]
	purges purges
}

// New makes a cache whose memory front holds about the given number of bytes.
func New(bytes int64) *Cache {
	return &Cache{memory: otter.Must(&otter.Options[Key, *Recording]{
		MaximumWeight: uint64(max(bytes, 1)),
		Weigher: func(_ Key, r *Recording) uint32 {
			return uint32(min(r.Size()+recordingOverhead, 1<<31))
		},
	})}
}

// Recall returns the recording kept in memory for a key, nil where there is
// none or its time is over.
func (c *Cache) Recall(key Key, now time.Time) *Recording {
	rec, ok := c.memory.GetIfPresent(key)
	if !ok || rec.origin.ExpiresAt <= now.UnixMilli() { // origin is fixed: only complete recordings are remembered
		return nil
	}
	return rec
}

// Remember keeps a complete recording in memory; its end may be about to come.
func (c *Cache) Remember(key Key, rec *Recording) { c.memory.Set(key, rec) }

// Forget drops a key from memory.
func (c *Cache) Forget(key Key) { c.memory.Invalidate(key) }

// ForgetAll drops everything from memory.
func (c *Cache) ForgetAll() { c.memory.InvalidateAll() }
