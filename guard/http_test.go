package guard

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"llmproxy/store"
	"llmproxy/store/storetest"
)

var mail = object{"step": "send-email", "input": object{"order_id": "A-1", "email": "a@x"}}

func TestBeginCompleteReplay(t *testing.T) {
	s := serve(t, newGuard(t))
	b := s.post("begin", in(mail, "lease_seconds", 90, "note", "exec 8812"))
	if b.status != 200 || b.str("decision") != "proceed" || b.body["fence"] != 1.0 || b.body["lease_seconds"] != 90.0 || b.body["takeover"] != false {
		t.Fatalf("%d %s", b.status, b.text)
	}
	if b.str("downstream_key") != b.str("key") || b.header.Get("Guard-Key") != b.str("key") || b.header.Get("Guard-State") != "pending" || b.header.Get("Cache-Control") != "no-store" {
		t.Errorf("%v %s", b.header, b.text)
	}
	if ends, err := time.Parse(time.RFC3339, b.str("lease_expires_at")); err != nil || time.Until(ends) > 90*time.Second || time.Until(ends) < time.Minute {
		t.Errorf("the lease ends at %s, %v", b.str("lease_expires_at"), err)
	}
	e := s.post("extend", in(b.held(), "lease_seconds", 120))
	if e.status != 200 || e.body["lease_seconds"] != 120.0 {
		t.Errorf("%d %s", e.status, e.text)
	}
	result := `{"html":"<b>&</b>","id":12345678901234567890,"n":1.0,"lines":"\u2028"}`
	done := `{"key":"` + b.str("key") + `","token":"` + b.str("token") + `","resource_id":"msg_123","result":` + result + `}`
	for i, first := range []bool{true, false} {
		c := s.post("complete", done)
		if c.status != 200 || c.body["first"] != first || c.body["late"] != false || c.str("state") != "completed" {
			t.Errorf("completion %d: %d %s", i, c.status, c.text)
		}
	}
	for range 2 {
		r := s.post("begin", mail)
		if r.status != 200 || r.str("decision") != "replay" || r.str("resource_id") != "msg_123" || r.body["drift"] != false ||
			r.header.Get("Idempotent-Replayed") != "true" || r.header.Get("Guard-State") != "completed" || r.body["result_available"] != true {
			t.Errorf("%d %s", r.status, r.text)
		}
		if !bytes.Contains(r.text, []byte(`"result":`+result)) {
			t.Errorf("the result came back changed: %s", r.text)
		}
		if _, has := r.body["error"]; has {
			t.Error("a success has a member named error")
		}
	}
}

// The answers to everything that is refused. Each message must say what to do.
func TestRefusals(t *testing.T) {
	g := newGuard(t)
	g.Step = func(name string) Step {
		if name == "money" {
			return Step{OnUnknown: Hold}
		}
		return Step{}
	}
	s := serve(t, g)
	begun := func(key string, more ...any) *reply {
		return s.post("begin", in(object{"step": "mail", "key": key}, more...))
	}
	lapse := func() { pass(t, g, 75*time.Second) }

	unknown := s.post("begin", object{"step": "money", "key": "unknown"})
	lost := begun("lost")
	lapse()
	taken := begun("lost")
	live := begun("live", "input", object{"a": 1})
	waiting := begun("waiting")
	s.post("fail", in(waiting.held(), "effect", "none", "retry_after_seconds", 600))
	done := begun("done")
	s.post("complete", in(done.held(), "resource_id", "m1", "result", object{"n": 1}))
	token := func(r *reply, other *reply) object { return object{"key": r.body["key"], "token": other.body["token"]} }
	large := `"` + strings.Repeat("x", 1<<20) + `"`

	type want struct {
		status int
		code   string
		retry  string // x-should-retry
		after  string // Retry-After
	}
	for name, c := range map[string]struct {
		method, path string
		tenant       string
		body         any
		want
	}{
		"no credential":               {"POST", "begin", "", mail, want{401, "invalid_api_key", "", ""}},
		"no scope":                    {"POST", "begin", "reader", mail, want{403, "forbidden", "false", ""}},
		"no scope to resolve":         {"POST", "resolve", "user", in(live.held(), "outcome", "done"), want{403, "forbidden", "false", ""}},
		"no scope to list":            {"GET", "effects", "user", nil, want{403, "forbidden", "false", ""}},
		"no scope to purge":           {"DELETE", "effects/" + live.str("key"), "user", nil, want{403, "forbidden", "false", ""}},
		"no such path":                {"POST", "start", "acme", mail, want{404, "unknown_route", "false", ""}},
		"wrong method":                {"GET", "begin", "acme", nil, want{405, "method_not_allowed", "false", ""}},
		"wrong method for an effect":  {"POST", "effects/" + live.str("key"), "acme", mail, want{405, "method_not_allowed", "false", ""}},
		"no JSON":                     {"POST", "begin", "acme", "step=mail", want{400, "invalid_request", "false", ""}},
		"no object":                   {"POST", "begin", "acme", "[1]", want{400, "invalid_request", "false", ""}},
		"empty body":                  {"POST", "complete", "acme", "", want{400, "invalid_request", "false", ""}},
		"duplicate member":            {"POST", "begin", "acme", `{"step":"mail","key":"a","key":"b"}`, want{400, "duplicate_member", "false", ""}},
		"misspelt member":             {"POST", "begin", "acme", in(mail, "occurence", "1"), want{400, "invalid_request", "false", ""}},
		"wrong case":                  {"POST", "begin", "acme", in(mail, "Confirm", true), want{400, "invalid_request", "false", ""}},
		"no step":                     {"POST", "begin", "acme", object{"key": "k"}, want{400, "invalid_request", "false", ""}},
		"neither input nor key":       {"POST", "begin", "acme", object{"step": "mail"}, want{400, "key_required", "false", ""}},
		"null input":                  {"POST", "begin", "acme", `{"step":"mail","input":null}`, want{400, "key_required", "false", ""}},
		"empty input":                 {"POST", "begin", "acme", `{"step":"mail","input":{}}`, want{400, "key_required", "false", ""}},
		"missing field":               {"POST", "begin", "acme", in(mail, "select", []string{"/nr"}), want{400, "missing_key_field", "false", ""}},
		"big integer":                 {"POST", "begin", "acme", `{"step":"mail","input":{"id":175928847299117063}}`, want{400, "unsafe_number", "false", ""}},
		"occurrence as a number":      {"POST", "begin", "acme", in(mail, "occurrence", 3), want{400, "invalid_request", "false", ""}},
		"confirm as a string":         {"POST", "begin", "acme", in(mail, "confirm", "yes"), want{400, "invalid_request", "false", ""}},
		"select with a number":        {"POST", "begin", "acme", in(mail, "select", []int{1}), want{400, "invalid_request", "false", ""}},
		"lease too short":             {"POST", "begin", "acme", in(mail, "lease_seconds", 0.5), want{400, "invalid_request", "false", ""}},
		"lease too long":              {"POST", "begin", "acme", in(mail, "lease_seconds", 3601), want{400, "invalid_request", "false", ""}},
		"negative lease":              {"POST", "begin", "acme", in(mail, "lease_seconds", -1), want{400, "invalid_request", "false", ""}},
		"wait too long":               {"POST", "begin", "acme", in(mail, "wait_seconds", 56), want{400, "invalid_request", "false", ""}},
		"retention too long":          {"POST", "begin", "acme", in(mail, "retention_seconds", 1e9), want{400, "invalid_request", "false", ""}},
		"unknown policy":              {"POST", "begin", "acme", in(mail, "on_unknown", "ask"), want{400, "invalid_request", "false", ""}},
		"unknown drift":               {"POST", "begin", "acme", in(mail, "drift", "warn"), want{400, "invalid_request", "false", ""}},
		"no time":                     {"POST", "begin", "acme", in(mail, "work_created_at", "yesterday"), want{400, "invalid_request", "false", ""}},
		"namespace with a slash":      {"POST", "begin", "acme", in(mail, "namespace", "a/b"), want{400, "invalid_request", "false", ""}},
		"body too large":              {"POST", "begin", "acme", `{"step":"mail","input":"` + strings.Repeat("x", maxBody) + `"}`, want{413, "body_too_large", "false", ""}},
		"result too large":            {"POST", "complete", "acme", `{"key":"` + live.str("key") + `","token":"t","result":` + large + `}`, want{413, "result_too_large", "false", ""}},
		"work too old":                {"POST", "begin", "acme", in(mail, "work_created_at", "2020-01-01T00:00:00Z"), want{412, "too_old", "false", ""}},
		"in progress":                 {"POST", "begin", "acme", object{"step": "mail", "key": "live"}, want{409, "effect_in_progress", "true", "30"}},
		"not to be tried yet":         {"POST", "begin", "acme", object{"step": "mail", "key": "waiting"}, want{409, "retry_later", "true", "30"}},
		"outcome unknown":             {"POST", "begin", "acme", object{"step": "money", "key": "unknown"}, want{409, "effect_outcome_unknown", "false", ""}},
		"another input":               {"POST", "begin", "acme", object{"step": "mail", "key": "live", "input": object{"a": 2}}, want{422, "input_mismatch", "false", ""}},
		"complete without a begin":    {"POST", "complete", "acme", object{"key": strings.Repeat("0", 64), "token": "t"}, want{404, "unknown_effect", "false", ""}},
		"no key":                      {"POST", "complete", "acme", object{"token": "t"}, want{400, "invalid_request", "false", ""}},
		"a key in capitals":           {"POST", "complete", "acme", object{"key": strings.Repeat("A", 64), "token": "t"}, want{400, "invalid_request", "false", ""}},
		"another tenant's effect":     {"POST", "complete", "zeta", live.held(), want{404, "unknown_effect", "false", ""}},
		"another namespace's effect":  {"POST", "complete", "acme", in(live.held(), "namespace", "test"), want{404, "unknown_effect", "false", ""}},
		"no token":                    {"POST", "complete", "acme", object{"key": live.body["key"]}, want{403, "bad_token", "false", ""}},
		"another effect's token":      {"POST", "extend", "acme", token(live, done), want{403, "bad_token", "false", ""}},
		"lease lost":                  {"POST", "extend", "acme", lost.held(), want{409, "lease_lost", "false", ""}},
		"extend after completion":     {"POST", "extend", "acme", done.held(), want{409, "lease_lost", "false", ""}},
		"lease of an extension":       {"POST", "extend", "acme", in(taken.held(), "lease_seconds", 7200), want{400, "invalid_request", "false", ""}},
		"completed otherwise":         {"POST", "complete", "acme", in(done.held(), "resource_id", "m2"), want{409, "already_completed", "false", ""}},
		"unknown effect word":         {"POST", "fail", "acme", in(live.held(), "effect", "maybe"), want{400, "invalid_request", "false", ""}},
		"retry_after too long":        {"POST", "fail", "acme", in(live.held(), "effect", "none", "retry_after_seconds", 1e6), want{400, "invalid_request", "false", ""}},
		"failed after completion":     {"POST", "fail", "acme", in(done.held(), "effect", "none"), want{409, "already_completed", "false", ""}},
		"no verdict":                  {"POST", "resolve", "acme", object{"key": live.body["key"]}, want{400, "invalid_request", "false", ""}},
		"unknown verdict":             {"POST", "resolve", "acme", object{"key": live.body["key"], "outcome": "perhaps"}, want{400, "invalid_request", "false", ""}},
		"reopened without a reason":   {"POST", "resolve", "acme", object{"key": done.body["key"], "outcome": "reopen", "reason": " "}, want{400, "invalid_request", "false", ""}},
		"reopened while unknown":      {"POST", "resolve", "acme", object{"key": unknown.body["key"], "outcome": "reopen", "reason": "x"}, want{409, "not_completed", "false", ""}},
		"resolved while in progress":  {"POST", "resolve", "acme", object{"key": live.body["key"], "outcome": "not_done"}, want{409, "effect_in_progress", "true", "30"}},
		"resolved against the result": {"POST", "resolve", "acme", object{"key": done.body["key"], "outcome": "not_done"}, want{409, "already_completed", "false", ""}},
		"resolved without a record":   {"POST", "resolve", "acme", object{"key": strings.Repeat("0", 64), "outcome": "done"}, want{404, "unknown_effect", "false", ""}},
		"found nothing":               {"GET", "effects/" + strings.Repeat("0", 64), "acme", nil, want{404, "unknown_effect", "false", ""}},
		"found by no key":             {"GET", "effects/abc", "acme", nil, want{400, "invalid_request", "false", ""}},
		"listed in no state":          {"GET", "effects?state=absent", "acme", nil, want{400, "invalid_request", "false", ""}},
		"listed without limit":        {"GET", "effects?limit=0", "acme", nil, want{400, "invalid_request", "false", ""}},
		"listed from nowhere":         {"GET", "effects?cursor=x", "acme", nil, want{400, "invalid_request", "false", ""}},
		"purged while in progress":    {"DELETE", "effects/" + live.str("key"), "acme", nil, want{409, "effect_in_progress", "true", "30"}},
		"purged while unknown":        {"DELETE", "effects/" + unknown.str("key"), "acme", nil, want{409, "effect_outcome_unknown", "false", ""}},
		"purged with force perhaps":   {"DELETE", "effects/" + live.str("key") + "?force=perhaps", "acme", nil, want{400, "invalid_request", "false", ""}},
	} {
		t.Run(name, func(t *testing.T) {
			r := s.call(c.tenant, c.method, base+c.path, c.body)
			got := want{r.status, r.code(), r.header.Get("X-Should-Retry"), r.header.Get("Retry-After")}
			if got != c.want {
				t.Fatalf("%+v, want %+v: %s", got, c.want, r.text)
			}
			inner, _ := r.body["error"].(map[string]any)
			if r.header.Get("Content-Type") != "application/problem+json" || r.body["status"] != float64(r.status) || r.header.Get("Cache-Control") != "no-store" ||
				r.str("type") != "urn:llmproxy:problem:"+strings.ReplaceAll(c.code, "_", "-") || r.str("title") == "" || inner["message"] != r.str("detail") || inner["type"] != "guard_error" {
				t.Errorf("%v %s", r.header, r.text)
			}
			if c.tenant != "" && !regexp.MustCompile(`(?i)\b(send|begin|add|use|wait|resolve|do|write|extend|read|say|undo|between|is not|it has)\b`).MatchString(r.str("detail")) {
				t.Errorf("the message does not say what to do: %s", r.str("detail"))
			}
		})
	}
}

func TestWhatAProblemTells(t *testing.T) {
	g := newGuard(t)
	s := serve(t, g)
	money := object{"step": "money", "key": "k", "on_unknown": "hold"}
	b := s.post("begin", money)
	wait := s.post("begin", money)
	if wait.str("decision") != "wait" || wait.body["retry_after"] != 30.0 || wait.str("state") != "pending" || wait.str("instance") != "/guard/v1/effects/"+b.str("key") || wait.header.Get("Guard-State") != "pending" {
		t.Errorf("%s", wait.text)
	}
	pass(t, g, 58*time.Second)
	if soon := s.post("begin", money); soon.body["retry_after"] != 2.0 && soon.body["retry_after"] != 1.0 {
		t.Errorf("2 s before the lease ends: %s", soon.text)
	}
	pass(t, g, time.Minute)
	held := s.post("begin", money)
	attempts, _ := held.body["attempts"].([]any)
	if held.str("decision") != "hold" || held.str("resolve_url") != "/guard/v1/resolve" || len(attempts) != 1 || attempts[0].(object)["outcome"] != "unknown" {
		t.Errorf("%s", held.text)
	}
	s.post("complete", in(b.held(), "resource_id", "m1", "result", object{"n": 1}))
	other := s.post("complete", in(b.held(), "resource_id", "m2"))
	if other.str("resource_id") != "m1" || other.body["duplicate_effect"] != true || other.body["result"].(object)["n"] != 1.0 {
		t.Errorf("%s", other.text)
	}
}

func TestSoftAnswersAreSuccesses(t *testing.T) {
	g := newGuard(t)
	s := serve(t, g)
	money := object{"step": "money", "key": "k", "on_unknown": "hold", "input": object{"a": 1}, "soft": true}
	if b := s.post("begin", money); b.str("decision") != "proceed" {
		t.Fatalf("%s", b.text)
	}
	check := func(r *reply, decision, reason string) {
		t.Helper()
		_, hasError := r.body["error"]
		if r.status != 200 || r.str("decision") != decision || r.str("reason") != reason || hasError || r.str("message") == "" || r.header.Get("Content-Type") != "application/json" {
			t.Errorf("%d %s", r.status, r.text)
		}
	}
	check(s.post("begin", money), "wait", "effect_in_progress")
	check(s.post("begin", in(money, "input", object{"a": 2})), "mismatch", "input_mismatch")
	pass(t, g, 75*time.Second)
	check(s.post("begin", money), "hold", "effect_outcome_unknown")
	if bad := s.post("begin", in(money, "lease_seconds", 0.1)); bad.status != 400 {
		t.Errorf("a mistake is no decision: %d %s", bad.status, bad.text)
	}
}

func TestDriftRules(t *testing.T) {
	s := serve(t, newGuard(t))
	// Of a derived key, what is not selected may change.
	derived := func(text, drift string) object {
		o := object{"step": "mail", "input": object{"order": "A-1", "text": text}, "select": []string{"/order"}}
		if drift != "" {
			o["drift"] = drift
		}
		return o
	}
	b := s.post("begin", derived("one", ""))
	s.post("complete", in(b.held(), "resource_id", "m1"))
	for _, c := range []struct {
		body     object
		status   int
		decision string
		drift    any
	}{
		{derived("one", ""), 200, "replay", false},
		{derived("two", ""), 200, "replay", true},
		{derived("two", "reject"), 422, "mismatch", nil},
		{derived("one", "reject"), 200, "replay", false},
		{in(derived("two", "reject"), "fingerprint_input", object{"order": "A-1", "text": "one"}), 200, "replay", false},
	} {
		if r := s.post("begin", c.body); r.status != c.status || r.str("decision") != c.decision || r.body["drift"] != c.drift {
			t.Errorf("%v: %d %s", c.body, r.status, r.text)
		}
	}
	explicit := object{"step": "mail", "key": "k", "input": object{"a": 1}}
	b = s.post("begin", explicit)
	s.post("complete", b.held())
	for _, c := range []struct {
		body     object
		decision string
	}{
		{explicit, "replay"},
		{object{"step": "mail", "key": "k"}, "replay"},
		{in(explicit, "input", object{"a": 2}), "mismatch"},
		{in(explicit, "input", object{"a": 2}, "drift", "replay"), "replay"},
	} {
		if r := s.post("begin", c.body); r.str("decision") != c.decision {
			t.Errorf("%v: %s", c.body, r.text)
		}
	}
}

func TestATakeoverSeesWhatWasBefore(t *testing.T) {
	g := newGuard(t)
	s := serve(t, g)
	first := s.post("begin", in(mail, "note", "run 1"))
	pass(t, g, 75*time.Second)
	second := s.post("begin", mail)
	attempts, _ := second.body["attempts"].([]any)
	if second.body["takeover"] != true || second.body["fence"] != 2.0 || len(attempts) != 1 || attempts[0].(object)["fence"] != 1.0 {
		t.Fatalf("%s", second.text)
	}
	// The first acted after all, and so does the second.
	if r := s.post("complete", in(first.held(), "resource_id", "m1")); r.status != 200 || r.body["late"] != true || r.body["first"] != true {
		t.Errorf("%s", r.text)
	}
	if r := s.post("extend", second.held()); r.status != 409 || r.code() != "lease_lost" {
		t.Errorf("%s", r.text)
	}
	if r := s.post("complete", in(second.held(), "resource_id", "m2")); r.status != 409 || r.str("resource_id") != "m1" || r.body["duplicate_effect"] != true {
		t.Errorf("%s", r.text)
	}
	found := s.call("user", "GET", base+"effects/"+first.str("key"), nil)
	if found.body["duplicate_effects"] != 1.0 || found.str("resource_id") != "m1" || len(found.body["attempts"].([]any)) != 2 || bytes.Contains(found.text, []byte("token")) {
		t.Errorf("%s", found.text)
	}
}

func TestWaitingOverHTTP(t *testing.T) {
	s := serve(t, newGuard(t))
	b := s.post("begin", mail)
	got := make(chan *reply)
	go func() {
		r, err := s.try("acme", "POST", base+"begin", in(mail, "wait_seconds", 55))
		if err != nil {
			t.Error(err)
		}
		got <- r
	}()
	s.post("complete", in(b.held(), "resource_id", "m1"))
	if r := <-got; r == nil || r.str("decision") != "replay" || r.str("resource_id") != "m1" {
		t.Errorf("%+v", r)
	}
}

func TestResolvingAndReopening(t *testing.T) {
	g := newGuard(t)
	s := serve(t, g)
	money := object{"step": "money", "key": "k", "on_unknown": "hold", "namespace": "prod"}
	b := s.post("begin", money)
	key := b.body["key"]
	pass(t, g, 75*time.Second)
	if r := s.post("resolve", object{"key": key, "namespace": "prod", "outcome": "not_done", "by": "ann", "rotate_downstream_key": true}); r.status != 200 || r.str("state") != "failed" || r.body["downstream_key"] == key || r.str("resolved_by") != "ann" {
		t.Errorf("%s", r.text)
	}
	again := s.post("begin", money)
	if again.str("decision") != "proceed" || again.body["downstream_key"] == key || again.body["takeover"] != false {
		t.Errorf("%s", again.text)
	}
	if r := s.call("acme", "POST", base+"complete?namespace=prod", in(again.held(), "resource_id", "m1")); r.status != 200 {
		t.Errorf("%s", r.text)
	}
	if r := s.post("resolve", object{"key": key, "namespace": "prod", "outcome": "reopen", "reason": "wrong address"}); r.status != 200 || r.str("state") != "failed" {
		t.Errorf("%s", r.text)
	}
	third := s.post("begin", money)
	if third.str("decision") != "proceed" || third.body["fence"] != 3.0 || third.body["downstream_key"] == again.body["downstream_key"] {
		t.Errorf("%s", third.text)
	}
	if r := s.post("resolve", object{"key": key, "namespace": "prod", "outcome": "done", "resource_id": "m2", "force": true}); r.status != 200 || r.str("state") != "completed" {
		t.Errorf("%s", r.text)
	}
	// Work that was done elsewhere is marked as done without a begin.
	derived := s.post("key", object{"step": "money", "key": "moved"})
	if r := s.post("resolve", object{"key": derived.body["key"], "step": "money", "outcome": "done", "resource_id": "m9"}); r.status != 200 {
		t.Errorf("%s", r.text)
	}
	if r := s.post("begin", object{"step": "money", "key": "moved"}); r.str("decision") != "replay" || r.str("resource_id") != "m9" {
		t.Errorf("%s", r.text)
	}
}

func TestListingAndPurging(t *testing.T) {
	s := serve(t, newGuard(t))
	var keys []string
	for i := range 5 {
		b := s.post("begin", object{"step": "mail", "key": strconv.Itoa(i)})
		s.post("complete", in(b.held(), "resource_id", "m"+strconv.Itoa(i), "result", object{"i": i}))
		keys = append(keys, b.str("key"))
	}
	var listed []string
	for cursor, pages := "", 0; pages < 3; pages++ {
		page := s.call("acme", "GET", base+"effects?state=completed&step=mail&namespace=default&limit=2&cursor="+cursor, nil)
		for _, e := range page.body["effects"].([]any) {
			listed = append(listed, e.(object)["key"].(string))
		}
		cursor = page.str("next_cursor")
	}
	slices.Reverse(listed)
	if !slices.Equal(listed, keys) {
		t.Errorf("listed %v, want %v", listed, keys)
	}
	if r := s.call("acme", "DELETE", base+"effects/"+keys[0], nil); r.status != 200 || r.str("state") != "completed" {
		t.Errorf("%s", r.text)
	}
	if r := s.post("begin", object{"step": "mail", "key": "0"}); r.str("decision") != "replay" || r.body["result_available"] != false || r.body["result"] != nil || r.str("resource_id") != "m0" {
		t.Errorf("a purged result: %s", r.text)
	}
	if r := s.call("acme", "DELETE", base+"effects/"+keys[0]+"?force=true", nil); r.status != 200 || r.str("state") != "absent" {
		t.Errorf("%s", r.text)
	}
	if r := s.post("begin", object{"step": "mail", "key": "0"}); r.str("decision") != "proceed" {
		t.Errorf("%s", r.text)
	}
}

func TestStepsAndTenantsAreApart(t *testing.T) {
	s := serve(t, newGuard(t))
	keys := map[string]bool{}
	for _, r := range []*reply{
		s.post("begin", mail), s.post("begin", in(mail, "namespace", "test")), s.post("begin", in(mail, "step", "other")),
		s.post("begin", in(mail, "occurrence", "2026-W07")), s.call("zeta", "POST", base+"begin", mail),
	} {
		if r.str("decision") != "proceed" || keys[r.str("key")] {
			t.Errorf("%s", r.text)
		}
		keys[r.str("key")] = true
	}
}

func TestKeyOnlyDerives(t *testing.T) {
	s := serve(t, newGuard(t))
	k := s.post("key", mail)
	if k.status != 200 || k.str("ns") != "acme/default" || k.str("preimage") != `{"in":{"email":"a@x","order_id":"A-1"},"ns":"acme/default","occ":null,"step":"send-email"}` {
		t.Errorf("%s", k.text)
	}
	if r := s.call("acme", "GET", base+"effects/"+k.str("key"), nil); r.status != 404 {
		t.Errorf("deriving a key made a record: %s", r.text)
	}
	if b := s.post("begin", mail); b.str("key") != k.str("key") {
		t.Errorf("begin made %s of the same, key made %s", b.str("key"), k.str("key"))
	}
}

func TestTheStoreIsDown(t *testing.T) {
	var broken atomic.Bool
	st := storetest.Open(t, databaseIn(t), store.Options{AroundCommit: func(commit func() error) error {
		if broken.Load() {
			return os.ErrDeadlineExceeded
		}
		return commit()
	}})
	s := serve(t, &Guard{Store: st})
	b := s.post("begin", mail)
	broken.Store(true)
	for path, body := range map[string]any{"begin": in(mail, "step", "other"), "complete": b.held(), "fail": b.held(), "extend": b.held(),
		"resolve": object{"key": b.body["key"], "outcome": "done", "force": true}} {
		r := s.post(path, body)
		if r.status != 503 || r.code() != "guard_store_unavailable" || r.header.Get("Retry-After") != "5" || r.header.Get("X-Should-Retry") != "true" || strings.Contains(string(r.text), "token\"") {
			t.Errorf("%s: %d %s", path, r.status, r.text)
		}
	}
	broken.Store(false)
	if r := s.post("extend", b.held()); r.status != 200 {
		t.Errorf("afterwards: %s", r.text)
	}
}

// A client that speaks JSON sees every success without an error member.
func TestSuccessesHaveNoErrorMember(t *testing.T) {
	s := serve(t, newGuard(t))
	b := s.post("begin", in(mail, "soft", true))
	for _, r := range []*reply{b, s.post("begin", in(mail, "soft", true)), s.post("key", mail), s.post("extend", b.held()), s.post("complete", b.held()), s.post("begin", mail),
		s.call("acme", "GET", base+"effects", nil), s.call("acme", "GET", base+"effects/"+b.str("key"), nil), s.call("acme", "DELETE", base+"effects/"+b.str("key"), nil)} {
		if _, has := r.body["error"]; has || r.status != http.StatusOK || !json.Valid(r.text) {
			t.Errorf("%d %s", r.status, r.text)
		}
	}
}
