package guard

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// Times of the tests of Apply are in ms, small so that they read well.
var testPolicy = Policy{OnUnknown: Retry, Lease: 100, MaxLease: 600, Drain: 20, Retention: 1000, Tombstone: 5000}

// begin is a Begin with a token of its own name.
func begin(token string, change ...func(*Begin)) Begin {
	b := Begin{Step: "mail", Mode: ModeAPI, Policy: testPolicy, Token: HashToken(token), MaxAttempts: 5}
	for _, c := range change {
		c(&b)
	}
	return b
}

func holding(b *Begin)    { b.Policy.OnUnknown = Hold }
func probing_(b *Begin)   { b.Policy.OnUnknown = Probe }
func confirming(b *Begin) { b.Confirm = true }
func idempotent(b *Begin) { b.Policy.Idempotent = true }
func forwarding(b *Begin) { b.Mode, b.Instance = ModeForward, 7 }

func input(fingerprint string, reject bool) func(*Begin) {
	return func(b *Begin) { b.Fingerprint, b.RejectDrift = []byte(fingerprint), reject }
}

func complete(token, resource string) Complete {
	return Complete{Token: HashToken(token), Result: Result{ResourceID: resource}}
}

func completeWith(token, resource, body string) Complete {
	return Complete{Token: HashToken(token), Result: Result{ResourceID: resource, Body: []byte(body)}}
}

func failNone(token string) Fail    { return Fail{Token: HashToken(token), None: true} }
func failUnknown(token string) Fail { return Fail{Token: HashToken(token)} }
func extend(token string) Extend    { return Extend{Token: HashToken(token)} }

func say(v Verdict, change ...func(*Resolve)) Resolve {
	d := Resolve{Verdict: v, By: "ann", Reason: "looked"}
	for _, c := range change {
		c(&d)
	}
	return d
}

func forced(d *Resolve) { d.Force = true }

// told writes an answer in a line: the state after it, the decision or refusal,
// and what else holds.
func told(r *Record, reply Reply) string {
	words := []string{r.State.String()}
	if reply.Refusal != "" {
		words = append(words, string(reply.Refusal))
	} else if reply.Decision != "" {
		words = append(words, string(reply.Decision))
	}
	if reply.Decision == Ask {
		words = append(words, "probe")
	}
	if r.State == Pending {
		words = append(words, fmt.Sprintf("fence=%d until=%d", r.Fence, r.LeaseUntil))
	}
	if (reply.Decision == Wait || reply.Refusal == InProgress) && r.State != Pending {
		words = append(words, fmt.Sprintf("until=%d", reply.Until))
	}
	if r.State == Completed {
		words = append(words, fmt.Sprintf("%s by=%d", r.Result.ResourceID, r.CompletedBy))
	}
	for _, flag := range []struct {
		name string
		set  bool
	}{{"takeover", reply.Takeover}, {"late", reply.Late}, {"first", reply.First}, {"drift", reply.Drift}, {"duplicate", reply.Duplicate}} {
		if flag.set {
			words = append(words, flag.name)
		}
	}
	return strings.Join(words, " ")
}

type act struct {
	at   int64
	do   Event
	want string // as told writes it
}

// The rows of the state machine, each reached from nothing.
var applyCases = map[string][]act{
	"absent, begin": {{0, begin("a"), "pending proceed fence=1 until=100"}},
	"failed, begin": {
		{0, begin("a"), "pending proceed fence=1 until=100"},
		{1, failNone("a"), "failed"},
		{2, begin("b"), "pending proceed fence=2 until=102"}},
	"failed, begin before retry_at": {
		{0, begin("a"), "pending proceed fence=1 until=100"},
		{10, Fail{Token: HashToken("a"), None: true, RetryAfter: 50}, "failed"},
		{59, begin("b"), "failed retry_later until=60"},
		{60, begin("b"), "pending proceed fence=2 until=160"}},
	"pending with a live lease, begin": {
		{0, begin("a"), "pending proceed fence=1 until=100"},
		{99, begin("b"), "pending effect_in_progress fence=1 until=100"}},
	"pending, lease over, confirm mode, never confirmed": {
		{0, begin("a", confirming), "pending proceed fence=1 until=100"},
		{100, begin("b", confirming), "pending proceed fence=2 until=200"}},
	"pending, lease over, confirmed": {
		{0, begin("a", confirming, holding), "pending proceed fence=1 until=100"},
		{50, extend("a"), "pending fence=1 until=150"},
		{150, begin("b", holding), "unknown effect_outcome_unknown"}},
	"an unconfirmed holder must not extend after its lease": {
		{0, begin("a", confirming), "pending proceed fence=1 until=100"},
		{100, extend("a"), "failed lease_lost"}},
	"an unconfirmed takeover lapses while the first attempt is unknown": {
		{0, begin("a"), "pending proceed fence=1 until=100"},
		{120, begin("b", confirming), "pending proceed fence=2 until=220 takeover"},
		{220, begin("c", holding), "unknown effect_outcome_unknown"}},
	"unknown, begin under retry after the drain": {
		{0, begin("a"), "pending proceed fence=1 until=100"},
		{119, begin("b"), "unknown effect_in_progress until=120"},
		{120, begin("b"), "pending proceed fence=2 until=220 takeover"}},
	"unknown, begin under hold": {
		{0, begin("a", holding), "pending proceed fence=1 until=100"},
		{5000, begin("b", holding), "unknown effect_outcome_unknown"}},
	"what was begun under hold is not taken over under retry": {
		{0, begin("a", holding), "pending proceed fence=1 until=100"},
		{5000, begin("b"), "unknown effect_outcome_unknown"}},
	"a caller under hold does not take over what was begun under retry": {
		{0, begin("a"), "pending proceed fence=1 until=100"},
		{5000, begin("b", holding), "unknown effect_outcome_unknown"}},
	"max_attempts": {
		{0, begin("a"), "pending proceed fence=1 until=100"},
		{120, begin("b", func(b *Begin) { b.MaxAttempts = 1 }), "unknown effect_outcome_unknown"},
		{120, begin("b", func(b *Begin) { b.MaxAttempts = 2 }), "pending proceed fence=2 until=220 takeover"},
		{500, begin("c", func(b *Begin) { b.MaxAttempts = 2 }), "unknown effect_outcome_unknown"}},
	"attempts that did nothing do not count as attempts": {
		{0, begin("a"), "pending proceed fence=1 until=100"},
		{1, failNone("a"), "failed"},
		{2, begin("b"), "pending proceed fence=2 until=102"},
		{3, failNone("b"), "failed"},
		{4, begin("c"), "pending proceed fence=3 until=104"},
		{200, begin("d", func(b *Begin) { b.MaxAttempts = 2 }), "pending proceed fence=4 until=300 takeover"}},
	"retry only while the downstream remembers our key": {
		{0, begin("a"), "pending proceed fence=1 until=100"},
		{199, begin("b", func(b *Begin) { b.RetryWithin = 200 }), "pending proceed fence=2 until=299 takeover"},
		{400, begin("c", func(b *Begin) { b.RetryWithin = 200 }), "unknown effect_outcome_unknown"}},
	"unknown, begin under probe": {
		{0, begin("a", probing_), "pending proceed fence=1 until=100"},
		{119, begin("b", probing_), "unknown effect_in_progress until=120"},
		{120, begin("b", probing_), "unknown effect_outcome_unknown probe"},
		{125, say(VerdictNotDone, func(d *Resolve) { d.Probed, d.Fence, d.AskedAt = true, 1, 119 }), "unknown effect_in_progress until=120"},
		{125, say(VerdictNotDone, func(d *Resolve) { d.Probed, d.Fence, d.AskedAt = true, 2, 121 }), "unknown lease_lost"},
		{125, say(VerdictNotDone, func(d *Resolve) { d.Probed, d.Fence, d.AskedAt = true, 1, 121 }), "failed"},
		{126, begin("b", probing_), "pending proceed fence=2 until=226"}},
	"a probe finds it done": {
		{0, begin("a", probing_), "pending proceed fence=1 until=100"},
		{130, Resolve{Verdict: VerdictDone, Result: Result{ResourceID: "m1"}, By: "probe", Probed: true, Fence: 1, AskedAt: 120}, "completed m1 by=0 first"}},
	"a probe that saw nothing before the holder came back counts for nothing": {
		{0, begin("a", probing_), "pending proceed fence=1 until=100"},
		{120, begin("b", probing_), "unknown effect_outcome_unknown probe"},
		{121, extend("a"), "pending fence=1 until=221 late"},
		{300, Resolve{Verdict: VerdictNotDone, By: "probe", Probed: true, Fence: 1, AskedAt: 120}, "unknown effect_in_progress until=241"}},
	"completed, begin": {
		{0, begin("a", input("x", false)), "pending proceed fence=1 until=100"},
		{10, complete("a", "m1"), "completed m1 by=1 first"},
		{11, begin("b", input("x", false)), "completed replay m1 by=1"},
		{12, begin("b", input("y", false)), "completed replay m1 by=1 drift"},
		{13, begin("b", input("y", true)), "completed input_mismatch m1 by=1 drift"},
		{14, begin("b"), "completed replay m1 by=1"}},
	"another input is refused in every state": {
		{0, begin("a", input("x", true)), "pending proceed fence=1 until=100"},
		{1, begin("b", input("y", true)), "pending input_mismatch fence=1 until=100 drift"},
		{2, failUnknown("a"), "unknown"},
		{3, begin("b", input("y", true)), "unknown input_mismatch drift"},
		{4, failNone("a"), "failed late"},
		{5, begin("b", input("y", true)), "failed input_mismatch drift"}},
	"extend": {
		{0, begin("a"), "pending proceed fence=1 until=100"},
		{90, extend("a"), "pending fence=1 until=190"},
		{100, Extend{Token: HashToken("a"), Lease: 300}, "pending fence=1 until=400"},
		{390, extend("a"), "pending fence=1 until=600"}, // as long as the last time, up to the limit
		{600, extend("a"), "unknown lease_lost"}},
	"extend after the lease, nobody took over": {
		{0, begin("a"), "pending proceed fence=1 until=100"},
		{150, extend("a"), "pending fence=1 until=250 late"}},
	"extend by an older attempt, after completion, after resolution": {
		{0, begin("a"), "pending proceed fence=1 until=100"},
		{120, begin("b"), "pending proceed fence=2 until=220 takeover"},
		{121, extend("a"), "pending lease_lost fence=2 until=220"},
		{122, complete("a", "m1"), "completed m1 by=1 late first"},
		{123, extend("b"), "completed lease_lost m1 by=1"}},
	"extend after not_done": {
		{0, begin("a"), "pending proceed fence=1 until=100"},
		{1, say(VerdictNotDone, forced), "failed"},
		{2, extend("a"), "failed lease_lost"}},
	"late completions": {
		{0, begin("a"), "pending proceed fence=1 until=100"},
		{110, complete("a", "m1"), "completed m1 by=1 late first"}},
	"complete by a failed attempt": {
		{0, begin("a"), "pending proceed fence=1 until=100"},
		{1, failNone("a"), "failed"},
		{2, complete("a", "m1"), "completed m1 by=1 late first"}},
	"complete twice, the same": {
		{0, begin("a"), "pending proceed fence=1 until=100"},
		{1, completeWith("a", "m1", `{"n":1}`), "completed m1 by=1 first"},
		{2, completeWith("a", "m1", `{"n":1}`), "completed m1 by=1"}},
	"complete twice, another result": {
		{0, begin("a"), "pending proceed fence=1 until=100"},
		{1, completeWith("a", "m1", `{"n":1}`), "completed m1 by=1 first"},
		{2, completeWith("a", "m1", `{"n":2}`), "completed already_completed m1 by=1"},
		{3, completeWith("a", "m2", `{"n":1}`), "completed already_completed m1 by=1 duplicate"}},
	"two attempts acted": {
		{0, begin("a"), "pending proceed fence=1 until=100"},
		{120, begin("b"), "pending proceed fence=2 until=220 takeover"},
		{121, complete("b", "m2"), "completed m2 by=2 first"},
		{122, complete("a", "m1"), "completed already_completed m2 by=2 late duplicate"}},
	"two attempts acted and neither names what it made": {
		{0, begin("a"), "pending proceed fence=1 until=100"},
		{120, begin("b"), "pending proceed fence=2 until=220 takeover"},
		{121, complete("b", ""), "completed  by=2 first"},
		{122, complete("a", ""), "completed already_completed  by=2 late duplicate"}},
	"two attempts report the same resource": {
		{0, begin("a"), "pending proceed fence=1 until=100"},
		{120, begin("b"), "pending proceed fence=2 until=220 takeover"},
		{121, complete("b", "m1"), "completed m1 by=2 first"},
		{122, complete("a", "m1"), "completed m1 by=2 late"}},
	"two attempts at a downstream that honours our key": {
		{0, begin("a", idempotent), "pending proceed fence=1 until=100"},
		{120, begin("b", idempotent), "pending proceed fence=2 until=220 takeover"},
		{121, complete("b", ""), "completed  by=2 first"},
		{122, complete("a", ""), "completed  by=2 late"}},
	"fail none": {
		{0, begin("a"), "pending proceed fence=1 until=100"},
		{1, failNone("a"), "failed"},
		{2, failNone("a"), "failed late"}},
	"fail unknown": {
		{0, begin("a"), "pending proceed fence=1 until=100"},
		{50, failUnknown("a"), "unknown"},
		{69, begin("b"), "unknown effect_in_progress until=70"},
		{70, begin("b"), "pending proceed fence=2 until=170 takeover"}},
	"an older attempt's fail leaves the new holder alone": {
		{0, begin("a"), "pending proceed fence=1 until=100"},
		{120, begin("b"), "pending proceed fence=2 until=220 takeover"},
		{121, failNone("a"), "pending fence=2 until=220 late"},
		{122, failNone("b"), "failed"}},
	"the takeover did nothing, the first attempt is still silent": {
		{0, begin("a"), "pending proceed fence=1 until=100"},
		{120, begin("b"), "pending proceed fence=2 until=220 takeover"},
		{121, failNone("b"), "unknown"},
		{122, failNone("a"), "failed late"}},
	"unknown, fail none by one of two": {
		{0, begin("a"), "pending proceed fence=1 until=100"},
		{120, begin("b"), "pending proceed fence=2 until=220 takeover"},
		{300, failNone("a"), "unknown late"},
		{301, failNone("b"), "failed late"}},
	"a holder says none and then that it does not know": {
		{0, begin("a"), "pending proceed fence=1 until=100"},
		{1, failNone("a"), "failed"},
		{2, failUnknown("a"), "unknown late"}},
	"what a person decided is not made unknown again": {
		{0, begin("a"), "pending proceed fence=1 until=100"},
		{1, say(VerdictNotDone, forced), "failed"},
		{2, failUnknown("a"), "failed late"}},
	"fail after one's own completion": {
		{0, begin("a"), "pending proceed fence=1 until=100"},
		{1, complete("a", "m1"), "completed m1 by=1 first"},
		{2, failNone("a"), "completed already_completed m1 by=1 late"}},
	"unknown, resolve done": {
		{0, begin("a", holding), "pending proceed fence=1 until=100"},
		{200, say(VerdictDone, func(d *Resolve) { d.Result.ResourceID = "m1" }), "completed m1 by=0 first"},
		{201, begin("b", holding), "completed replay m1 by=0"},
		{202, say(VerdictDone), "completed m1 by=0"},
		{203, say(VerdictDone, func(d *Resolve) { d.Result.ResourceID = "m2" }), "completed already_completed m1 by=0"},
		{204, say(VerdictNotDone), "completed already_completed m1 by=0"}},
	"the holder confirms what a person said": {
		{0, begin("a", holding), "pending proceed fence=1 until=100"},
		{200, say(VerdictDone), "completed  by=0 first"},
		{201, complete("a", "m1"), "completed  by=0 late"}},
	"the holder contradicts what a person said": {
		{0, begin("a", holding), "pending proceed fence=1 until=100"},
		{200, say(VerdictDone, func(d *Resolve) { d.Result.ResourceID = "m2" }), "completed m2 by=0 first"},
		{201, complete("a", "m1"), "completed already_completed m2 by=0 late duplicate"}},
	"unknown, resolve not_done": {
		{0, begin("a", holding), "pending proceed fence=1 until=100"},
		{119, say(VerdictNotDone), "unknown effect_in_progress until=120"},
		{120, say(VerdictNotDone), "failed"},
		{121, begin("b", holding), "pending proceed fence=2 until=221"},
		{122, complete("a", "m1"), "completed m1 by=1 late first"}},
	"not_done before the drain, forced": {
		{0, begin("a", holding), "pending proceed fence=1 until=100"},
		{101, say(VerdictNotDone, forced), "failed"}},
	"pending, resolve": {
		{0, begin("a"), "pending proceed fence=1 until=100"},
		{1, say(VerdictNotDone), "pending effect_in_progress fence=1 until=100"},
		{2, say(VerdictDone), "pending effect_in_progress fence=1 until=100"},
		{3, say(VerdictDone, forced), "completed  by=0 first"}},
	"completed, reopen": {
		{0, begin("a"), "pending proceed fence=1 until=100"},
		{1, complete("a", "m1"), "completed m1 by=1 first"},
		{2, say(VerdictReopen), "failed"},
		{3, complete("a", "m1"), "failed late"}, // the answer to the first was lost
		{4, begin("b"), "pending proceed fence=2 until=104"},
		{5, complete("a", "m1"), "pending fence=2 until=104 late"},
		{6, complete("b", "m2"), "completed m2 by=2 first"}},
	"reopen what is not completed": {
		{0, begin("a"), "pending proceed fence=1 until=100"},
		{200, say(VerdictReopen), "unknown not_completed"}},
	"purge": {
		{0, Purge{}, "absent unknown_effect"},
		{1, begin("a"), "pending proceed fence=1 until=101"},
		{2, Purge{}, "pending effect_in_progress fence=1 until=101"},
		{200, Purge{}, "unknown effect_outcome_unknown"},
		{201, complete("a", "m1"), "completed m1 by=1 late first"},
		{202, Purge{}, "completed m1 by=1"},
		{203, begin("b"), "completed replay m1 by=1"},
		{204, Purge{Force: true}, "absent"},
		{205, begin("b"), "pending proceed fence=1 until=305"}},
	"purge of a failed one": {
		{0, begin("a"), "pending proceed fence=1 until=100"},
		{1, failNone("a"), "failed"},
		{2, Purge{}, "absent"}},
	"retention": {
		{0, begin("a"), "pending proceed fence=1 until=100"},
		{1, completeWith("a", "m1", "{}"), "completed m1 by=1 first"},
		{1000, begin("b"), "completed replay m1 by=1"},
		{6000, begin("b"), "completed replay m1 by=1"}, // a tombstone
		{6001, begin("b"), "pending proceed fence=1 until=6101"}},
	"work older than all retention": {
		{10000, begin("a", func(b *Begin) { b.WorkCreatedAt = 3999 }), "absent too_old"},
		{10000, begin("a", func(b *Begin) { b.WorkCreatedAt = 4000 }), "pending proceed fence=1 until=10100"}},
	"no record": {
		{0, complete("a", "m1"), "absent unknown_effect"},
		{0, failNone("a"), "absent unknown_effect"},
		{0, extend("a"), "absent unknown_effect"},
		{0, say(VerdictNotDone), "absent unknown_effect"},
		{0, say(VerdictDone), "absent unknown_effect"},
		{0, say(VerdictDone, func(d *Resolve) { d.Step, d.Policy, d.Result.ResourceID = "mail", testPolicy, "m1" }), "completed m1 by=0 first"}},
	"a token of another key": {
		{0, begin("a"), "pending proceed fence=1 until=100"},
		{1, complete("x", "m1"), "pending bad_token fence=1 until=100"},
		{1, failNone("x"), "pending bad_token fence=1 until=100"},
		{1, extend("x"), "pending bad_token fence=1 until=100"}},
}

func TestApply(t *testing.T) {
	for name, acts := range applyCases {
		t.Run(name, func(t *testing.T) {
			var r Record
			for i, a := range acts {
				before := copyOf(r)
				next, reply := Apply(r, a.do, a.at)
				if !reflect.DeepEqual(r, before) {
					t.Fatalf("%d: Apply changed the record it was given", i)
				}
				if got := told(&next, reply); got != a.want {
					t.Fatalf("%d: %T at %d: %q, want %q", i, a.do, a.at, got, a.want)
				}
				r = next
			}
		})
	}
}

func copyOf(r Record) Record {
	r.Attempts = slices.Clone(r.Attempts)
	r.Fingerprint = slices.Clone(r.Fingerprint)
	return r
}

func TestLeasesOfAnotherProcess(t *testing.T) {
	r, _ := Apply(Record{}, begin("a"), 0)
	r.Foreign = true
	if next, reply := Apply(r, begin("b"), 100+restartGrace-1); next.State != Pending || reply.Until != 100+restartGrace {
		t.Errorf("within the grace: %s", told(&next, reply))
	}
	if next, reply := Apply(r, begin("b"), 100+restartGrace); next.State != Unknown {
		t.Errorf("after the grace: %s", told(&next, reply))
	}
	r, _ = Apply(Record{}, begin("a", forwarding), 0)
	r.HolderGone = true
	next, reply := Apply(r, begin("b", forwarding), 1)
	if next.State != Unknown || reply.Until != 120 {
		t.Errorf("a forward whose process is gone: %s, until %d; want unknown at once and the drain after its lease", told(&next, reply), reply.Until)
	}
}

func TestTheDownstreamKeyRotates(t *testing.T) {
	r, _ := Apply(Record{}, begin("a"), 0)
	r, _ = Apply(r, say(VerdictNotDone, forced, func(d *Resolve) { d.Rotate = true }), 1)
	if r.Epoch != 1 {
		t.Errorf("epoch %d after a rotation, want 1", r.Epoch)
	}
	r, _ = Apply(r, begin("b"), 2)
	r, _ = Apply(r, complete("b", "m1"), 3)
	r, _ = Apply(r, say(VerdictReopen), 4)
	if r.Epoch != 2 || r.DuplicateEffects != 0 {
		t.Errorf("epoch %d, %d duplicates after a reopening, want 2 and 0", r.Epoch, r.DuplicateEffects)
	}
}

func TestADuplicateIsCountedOnce(t *testing.T) {
	r, _ := Apply(Record{}, begin("a"), 0)
	r, _ = Apply(r, begin("b"), 120)
	r, _ = Apply(r, complete("b", "m2"), 121)
	for range 3 {
		r, _ = Apply(r, complete("a", "m1"), 122)
	}
	if r.DuplicateEffects != 1 || r.Attempts[0].ResourceID != "m1" || r.Result.ResourceID != "m2" {
		t.Errorf("%d duplicates, %+v, result %q", r.DuplicateEffects, r.Attempts, r.Result.ResourceID)
	}
}

func TestHistoryIsBoundedByWhatDidNothing(t *testing.T) {
	r, _ := Apply(Record{}, begin("first"), 0)
	r, _ = Apply(r, begin("b"), 120) // the first stays unknown
	r, _ = Apply(r, failNone("b"), 121)
	now := int64(200)
	for i := range 3 * maxAttemptsKept {
		r, _ = Apply(r, begin(fmt.Sprint(i)), now)
		r, _ = Apply(r, failNone(fmt.Sprint(i)), now+1)
		now += 100
	}
	if len(r.Attempts) > maxAttemptsKept || r.Attempts[0].Fence != 1 || r.Fence != 2+3*maxAttemptsKept {
		t.Errorf("%d attempts from fence %d, fence %d", len(r.Attempts), r.Attempts[0].Fence, r.Fence)
	}
	if r, reply := Apply(r, complete("first", "m1"), now); r.State != Completed || !reply.First {
		t.Errorf("the first attempt's late report: %s", told(&r, reply))
	}
}
