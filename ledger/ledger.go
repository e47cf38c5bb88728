// Package ledger writes down each call once and keeps the hourly sums.
//
// A call that goes upstream has its row opened in the transaction that admits
// it and closed in the one that finishes it, so that whatever dies in between
// leaves an open row, which recovery turns into a lost one. Calls that cost
// nothing (hits, collapsed calls, refusals) are written finished, in groups.
//
// The row keeps figures and short hashes, never a word of a request.
package ledger

import (
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"llmproxy/store"
)

// Outcome is how a call ended.
type Outcome uint8

// The outcomes, as stored.
const (
	Open      Outcome = iota // upstream call under way
	Miss                     // paid, and led for its key
	Hit                      // served from a stored answer
	Collapsed                // served from another call's exchange
	Bypass                   // paid, and outside the cache
	Refused                  // not let through
	Failed                   // reached the upstream or tried to, without a usable answer
	Lost                     // its process died
)

var outcomes = [...]string{"open", "miss", "hit", "collapsed", "bypass", "refused", "failed", "lost"}

func (o Outcome) String() string { return outcomes[o] }

// Endpoint is the API a call used, as stored.
type Endpoint uint8

// The endpoints.
const (
	Other       Endpoint = 0
	Chat        Endpoint = 1
	Responses   Endpoint = 2
	Completions Endpoint = 3
	Embeddings  Endpoint = 4
)

// String returns the endpoint's path below /v1/, as v_calls does.
func (e Endpoint) String() string {
	names := [...]string{"other", "chat/completions", "responses", "completions", "embeddings"}
	if int(e) < len(names) {
		return names[e]
	}
	return "other"
}

// Flags of a call, as stored.
const (
	Streamed       = 1 << iota
	UsageEstimated // no usable usage came from upstream: our own count is charged
	OverBudget     // over a budget that only flags
	NearBudget     // over a budget's early warning
	ClientLeft     // at some moment nobody was reading
	Refreshed      // a fresh answer was asked for
	Rejected       // the stored answer was reported unusable
	Stored         // the answer was kept
	UsageOdd       // the upstream's usage was negative or absurd and was clamped
	Uncounted      // a part of the input was charged by a constant

	// What the request holds beside plain text.
	WithTools     // definitions of tools
	WithToolCalls // tool calls or their results in its history
	WithImages
	WithAudio
	WithStructured // asks for an answer by a JSON schema
)

// Usage is what a call used, in tokens. Cached is part of Input, Reasoning of
// Output.
type Usage struct{ Input, Cached, Output, Reasoning int64 }

// Call is one row.
type Call struct {
	ID                       int64 // from NewID
	Tenant, Step, Run, Model string
	Work                     string // the unit of work it was made for, "" where it did not say
	Key64                    int64  // first 8 bytes of the key, 0 without one
	Endpoint                 Endpoint
	Outcome                  Outcome
	Status                   int   // HTTP status sent to the client
	Attempt                  int64 // nth call for its key, 0 without one; served calls count while their process lives
	Retry                    int   // the client SDK's own retry count
	Flags                    int
	Input                    int64  // tokens counted before the call
	Basis                    uint8  // how well they are known
	Correction               int64  // of Input: added by a factor learned from bills, may be negative
	Resent                   int64  // of Input: sent before by the same step and run
	Usage                    *Usage // what was used: set for calls that reached an upstream
	Cost                     *int64 // micro-USD; nil where no price is known
	AvoidedInput             int64  // tokens the served answer had cost
	AvoidedOutput            int64
	AvoidedCost              int64 // micro-USD
	First, Total             time.Duration
	Finish                   string // finish reason, or the error's code
	Source                   int64  // the call whose answer was served
	Tree                     []byte // fingerprint tree, for KeepTree
}

// An id is the time in ms, the low bits of the process's instance, a sequence.
const (
	idBits       = 22 // below the milliseconds
	instanceBits = 6
	sequenceBits = idBits - instanceBits
)

// IDs makes call ids. Ids of one process only grow; processes whose instances
// differ in their low six bits never make the same one.
type IDs struct{ last atomic.Int64 }

// Next returns a new id for a call that begins now in the given instance.
func (g *IDs) Next(now time.Time, instance int64) int64 {
	fresh := now.UnixMilli()<<idBits | (instance&(1<<instanceBits-1))<<sequenceBits
	for {
		last := g.last.Load()
		id := max(fresh, last+1)
		if g.last.CompareAndSwap(last, id) {
			return id
		}
	}
}

// Time is when the call with the given id began.
func Time(id int64) time.Time { return time.UnixMilli(id >> idBits) }

// Name is how a call's id is written for people and in headers.
func Name(id int64) string { return "call_" + strconv.FormatInt(id, 32) }

// ParseName reads what Name has written.
func ParseName(name string) (id int64, ok bool) {
	digits, ok := strings.CutPrefix(name, "call_")
	id, err := strconv.ParseInt(digits, 32, 64)
	return id, ok && err == nil && id > 0 && Name(id) == name
}

// FirstID is the smallest id of a call that began at or after t.
func FirstID(t time.Time) int64 { return t.UnixMilli() << idBits }

// names are the interned ids of a call's names.
type names struct{ tenant, step, run, model int64 }

func (c *Call) namedLike(d *Call) bool {
	return c.Tenant == d.Tenant && c.Step == d.Step && c.Run == d.Run && c.Model == d.Model
}

func (c *Call) intern(tx *store.Tx) (n names, err error) {
	if n.tenant, err = tx.Intern("tenant", c.Tenant); err != nil {
		return n, err
	}
	if n.step, err = tx.Intern("step", c.Step); err != nil {
		return n, err
	}
	if n.run, err = tx.Intern("run", c.Run); err != nil {
		return n, err
	}
	n.model, err = tx.Intern("model", c.Model)
	return n, err
}
