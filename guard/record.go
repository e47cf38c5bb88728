package guard

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// State is where an effect stands. The values are stored; they never change.
type State uint8

const (
	Absent    State = 0 // no record
	Pending   State = 1 // an attempt holds a lease
	Completed State = 2 // somebody asserted that it is done
	Failed    State = 3 // definitely not done: the next begin is granted
	Unknown   State = 4 // it may have happened
)

// Outcome is what is known of one attempt. The values are stored; they never change.
type Outcome uint8

const (
	OutcomeRunning Outcome = 1
	OutcomeDone    Outcome = 2
	OutcomeNone    Outcome = 3 // the effect did not happen
	OutcomeUnknown Outcome = 4
)

// Mode is who holds a lease. The values are stored; they never change.
type Mode uint8

const (
	ModeAPI     Mode = 1
	ModeCLI     Mode = 2
	ModeForward Mode = 3
)

// OnUnknown is what a begin does with an effect whose outcome is unknown, the
// stricter the smaller. The values are stored; they never change.
type OnUnknown uint8

const (
	Hold  OnUnknown = 1 // refuse until somebody decides
	Probe OnUnknown = 2 // ask the downstream
	Retry OnUnknown = 3 // grant once more
)

var (
	stateNames     = [...]string{"absent", "pending", "completed", "failed", "unknown"}
	outcomeNames   = [...]string{"", "running", "done", "none", "unknown"}
	modeNames      = [...]string{"", "api", "cli", "forward"}
	onUnknownNames = [...]string{"", "hold", "probe", "retry"}
)

func (s State) String() string     { return nameOf(stateNames[:], int(s)) }
func (o Outcome) String() string   { return nameOf(outcomeNames[:], int(o)) }
func (m Mode) String() string      { return nameOf(modeNames[:], int(m)) }
func (o OnUnknown) String() string { return nameOf(onUnknownNames[:], int(o)) }

// ParseState reads a state as String writes it.
func ParseState(name string) (State, error) {
	i, err := indexOf(stateNames[:], "state", name)
	return State(i), err
}

// ParseOnUnknown reads a policy as String writes it.
func ParseOnUnknown(name string) (OnUnknown, error) {
	i, err := indexOf(onUnknownNames[:], "on_unknown", name)
	return OnUnknown(i), err
}

// parseHolder reads who asks for a lease by the API; forwarding does not.
func parseHolder(name string) (Mode, error) {
	i, err := indexOf(modeNames[:ModeForward], "mode", name)
	return Mode(i), err
}

func nameOf(names []string, i int) string {
	if i >= len(names) || names[i] == "" {
		return fmt.Sprintf("invalid(%d)", i)
	}
	return names[i]
}

func indexOf(names []string, kind, name string) (int, error) {
	known := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == "" })
	if i := slices.Index(names, name); i >= 0 && name != "" {
		return i, nil
	}
	return 0, fmt.Errorf("the %s %.40q is not known; use one of %s", kind, name, strings.Join(known, ", "))
}

// Policy is what a record keeps of the rules it was granted under. Times are in
// milliseconds.
type Policy struct {
	OnUnknown  OnUnknown
	Lease      int64 // from a grant or the latest extension
	MaxLease   int64 // from a grant, however often it is extended
	Drain      int64 // after a lease: how long a request already sent may still take effect
	Retention  int64 // of a result
	Tombstone  int64 // of the bare fact, after the result's retention
	Idempotent bool  // the downstream makes one effect of many requests with our key
}

// TokenHash is what is stored of a token.
type TokenHash [sha256.Size]byte

// HashToken is the form in which tokens are stored and compared.
func HashToken(token string) TokenHash { return sha256.Sum256([]byte(token)) }

// Attempt is one grant and what became of it. Times are Unix ms.
type Attempt struct {
	Fence      int64
	Token      TokenHash
	StartedAt  int64
	EndedAt    int64 // 0 while running
	Outcome    Outcome
	ResourceID string
	Note       string
	Closed     bool // before a reopening: what it reports no longer moves the state
	Duplicate  bool // counted in Record.DuplicateEffects
}

// Result is what an effect returned: a JSON value (Status is 0) or an HTTP
// response.
type Result struct {
	ResourceID string
	Status     int
	Header     http.Header
	Body       []byte // never changed in place
	Truncated  bool
}

// available tells whether there is more than the resource's id.
func (r *Result) available() bool { return r.Body != nil || r.Status != 0 }

func (r *Result) equal(other *Result) bool {
	return r.ResourceID == other.ResourceID && r.Status == other.Status && slices.Equal(r.Body, other.Body)
}

// Record is an effect as it is stored; the zero Record is an absent one. It is
// a value: Apply returns a new one and never writes through its slices. Times
// are Unix ms.
type Record struct {
	Step       string
	State      State
	Mode       Mode
	Fence      int64 // of the latest grant; 0 before the first
	Epoch      int64 // of the downstream key
	LeaseUntil int64 // of the latest grant; after it, the lease's end
	LeaseLimit int64 // no extension goes past it
	RetryAt    int64 // failed: no grant before it
	Confirm    bool  // the holder must extend before it acts
	Confirmed  bool
	Instance   int64 // the store's instance that forwards; 0 otherwise
	Policy     Policy
	// Fingerprint of the input of the latest grant; nil where it had none.
	Fingerprint []byte

	Result           Result
	CompletedAt      int64
	CompletedBy      int64 // a fence; 0: resolved, not reported
	ExpiresAt        int64 // of the result
	TombstoneUntil   int64
	DuplicateEffects int64
	ResolvedBy       string // who decided last; empty after a grant
	Reason           string

	Attempts  []Attempt // by fence; those that did nothing are forgotten beyond maxAttemptsKept
	CreatedAt int64
	UpdatedAt int64

	// Known at reading, not stored.
	Foreign    bool // another process granted or extended the lease last
	HolderGone bool // Instance is no longer alive
}

// maxAttemptsKept bounds a record's history. Only attempts that ended in
// nothing are dropped; others are evidence.
const maxAttemptsKept = 32

// restartGrace is added to leases of another process: its clock and ours may
// differ a little.
const restartGrace = 5_000

// leaseEnd is the moment from which the latest grant no longer holds.
func (r *Record) leaseEnd() int64 {
	if r.Foreign && r.Mode != ModeForward {
		return r.LeaseUntil + restartGrace
	}
	return r.LeaseUntil
}

// drained is the moment from which nothing of the latest attempt can still
// take effect.
func (r *Record) drained() int64 { return r.leaseEnd() + r.Policy.Drain }

// attempt finds the attempt that a token belongs to, or -1. It takes the same
// time whichever it is.
func (r *Record) attempt(token TokenHash) int {
	found := -1
	for i := range r.Attempts {
		if subtle.ConstantTimeCompare(r.Attempts[i].Token[:], token[:]) == 1 {
			found = i
		}
	}
	return found
}

// unsettled counts the attempts since the last reopening that may have acted.
func (r *Record) unsettled() (n int, firstStarted int64) {
	for _, a := range r.Attempts {
		if a.Closed || a.Outcome == OutcomeNone {
			continue
		}
		if n == 0 {
			firstStarted = a.StartedAt
		}
		n++
	}
	return n, firstStarted
}

// change sets an attempt on a copy of the history.
func (r *Record) change(i int, set func(*Attempt)) {
	r.Attempts = slices.Clone(r.Attempts)
	set(&r.Attempts[i])
}

// noteLapsed is the note of an attempt whose lease ended without a report.
const noteLapsed = "lapsed"

// end closes an attempt with its outcome, unless it is closed with it already.
// The note goes behind those that are there: where the attempt runs is what
// people look for once it has ended.
func (r *Record) end(i int, outcome Outcome, at int64, note string) {
	noted := note == "" || strings.HasSuffix(r.Attempts[i].Note, note)
	if r.Attempts[i].Outcome == outcome && noted {
		return
	}
	r.change(i, func(a *Attempt) {
		a.Outcome = outcome
		if a.EndedAt == 0 {
			a.EndedAt = at
		}
		switch {
		case noted:
		case a.Note == "":
			a.Note = note
		default:
			a.Note = cut(a.Note + "; " + note)
		}
	})
}
