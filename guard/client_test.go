package guard

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"llmproxy/store"
)

// clients are the two ways to a guard, as the tenant acme.
func clients(t *testing.T, g *Guard) map[string]*Client {
	t.Helper()
	remote, err := NewClient(serve(t, g).url+"/", "acme")
	if err != nil {
		t.Fatal(err)
	}
	return map[string]*Client{"over HTTP": remote, "in process": g.Local("acme")}
}

func code(err error) string {
	if p, ok := errors.AsType[*Problem](err); ok {
		return p.Code
	}
	return ""
}

func TestClientGoesThroughALife(t *testing.T) {
	for name, c := range clients(t, newGuard(t)) {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			req := Request{Work: Work{Step: "send", Namespace: "prod", Input: []byte(`{"id": "<1>", "text": "a"}`), Select: []string{"/id"},
				Occurrence: name}, Mode: ModeCLI, Lease: 30 * time.Second, OnUnknown: Hold, Confirm: true, Note: "cron"}
			grant, err := c.Begin(ctx, req)
			if err != nil || grant.Decision != Proceed || grant.Fence != 1 || grant.Token == "" || grant.LeaseSeconds != 30 {
				t.Fatalf("begin: %+v, %v", grant, err)
			}
			made, err := c.Derive(ctx, req.Work)
			if err != nil || made.Key != grant.Key || made.NS != "acme/prod" {
				t.Errorf("key: %+v, %v; begin says %s", made, err, grant.Key)
			}
			claim := Claim{"prod", grant.Key, grant.Token}
			if e, err := c.Extend(ctx, claim, time.Minute); err != nil || e.LeaseSeconds != 60 {
				t.Errorf("extend: %+v, %v", e, err)
			}
			if e, err := c.Begin(ctx, req); err != nil || e.Decision != Wait || e.RetryAfter != 30 || e.Reason != string(InProgress) {
				t.Errorf("a second begin: %+v, %v", e, err)
			}
			if _, err := c.Fail(ctx, Claim{"prod", grant.Key, "forged"}, true, "", 0); code(err) != string(BadToken) {
				t.Errorf("a forged token: %v", err)
			}
			result := json.RawMessage(`{"text":"<a&b>"}`)
			if e, err := c.Complete(ctx, claim, "msg_1", result); err != nil || e.State != "completed" || !e.First {
				t.Errorf("complete: %+v, %v", e, err)
			}
			if _, err := c.Complete(ctx, claim, "msg_2", nil); code(err) != string(AlreadyCompleted) {
				t.Errorf("another completion: %v", err)
			}
			req.Input = []byte(`{"id": "<1>", "text": "b"}`)
			e, err := c.Begin(ctx, req)
			if err != nil || e.Decision != Replay || e.ResourceID != "msg_1" || string(e.Result) != string(result) || !e.ResultAvailable || !e.Drift {
				t.Errorf("a begin after it: %+v, %v", e, err)
			}
			if _, err := c.Extend(ctx, claim, 0); code(err) != string(LeaseLost) {
				t.Errorf("extending what is done: %v", err)
			}
			e, err = c.Find(ctx, "prod", grant.Key)
			if err != nil || e.Mode != "cli" || e.OnUnknown != "hold" || e.CompletedAt.IsZero() || len(e.Attempts) != 1 || e.Attempts[0].Outcome != "done" {
				t.Errorf("find: %+v, %v", e, err)
			}
			if _, err := c.Find(ctx, "", grant.Key); code(err) != string(UnknownEffect) {
				t.Errorf("in another namespace: %v", err)
			}
			if _, err := c.Resolve(ctx, "prod", grant.Key, Resolve{Verdict: VerdictReopen, Reason: "lost", By: "me"}, ""); err != nil {
				t.Errorf("reopen: %v", err)
			}
			if e, err := c.Purge(ctx, "prod", grant.Key, false); err != nil || e.State != "absent" {
				t.Errorf("purge: %+v, %v", e, err)
			}
		})
	}
}

func TestClientListsByPrefix(t *testing.T) {
	for name, c := range clients(t, newGuard(t)) {
		t.Run(name, func(t *testing.T) {
			namespace := strings.ReplaceAll(name, " ", "-")
			keys := map[string]bool{}
			var one string
			for _, key := range []string{"a", "b", "c"} {
				e, err := c.Begin(t.Context(), Request{Work: Work{Step: "s-" + key, Namespace: namespace, Explicit: key}})
				if err != nil {
					t.Fatal(err)
				}
				keys[e.Key], one = true, e.Key
			}
			var got []Effect
			for cursor := ""; ; {
				page, next, err := c.List(t.Context(), namespace, Query{Limit: 2, State: Pending}, cursor)
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, page...)
				if cursor = next; cursor == "" {
					break
				}
			}
			for _, e := range got {
				delete(keys, e.Key)
			}
			if len(got) != 3 || len(keys) != 0 || got[0].Step != "s-c" {
				t.Errorf("listed %+v; without %v", got, keys)
			}
			for _, length := range []int{1, 11, 63, 64} {
				page, _, err := c.List(t.Context(), namespace, Query{Prefix: one[:length]}, "")
				if err != nil || len(page) < 1 || page[0].Key != one || length > 1 && len(page) != 1 {
					t.Errorf("%d digits of the key list %+v, %v", length, page, err)
				}
			}
			for _, prefix := range []string{"xyz", "AB", one + "0"} {
				if _, _, err := c.List(t.Context(), namespace, Query{Prefix: prefix}, ""); code(err) != "invalid_request" {
					t.Errorf("the prefix %q: %v", prefix, err)
				}
			}
		})
	}
}

// TestVerdictOfACallersProbe: a caller that was told to hold may look for itself,
// and its verdict counts only for what it looked at.
func TestVerdictOfACallersProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := store.Open(t.Context(), t.TempDir()+"/test.db", store.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		c := (&Guard{Store: s}).Local("acme")
		req := Request{Work: Work{Step: "send", Explicit: "1"}, OnUnknown: Probe, Lease: time.Second}
		begin := func() *Effect {
			e, err := c.Begin(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			return e
		}
		resolve := func(held *Effect, verdict Verdict) error {
			_, err := c.Resolve(t.Context(), "", held.Key, Resolve{Verdict: verdict, Result: Result{ResourceID: "msg"}, Probed: true, Fence: held.Fence}, held.AskedAt)
			return err
		}
		first := begin()
		time.Sleep(2 * time.Second)
		if e := begin(); e.Decision != Wait || e.AskedAt != "" {
			t.Errorf("before the drain is over: %+v; a probe then would not see what is still on its way", e)
		}
		time.Sleep(10 * time.Second)
		held := begin()
		if held.Decision != Held || held.Fence != 1 || held.AskedAt == "" {
			t.Fatalf("after the drain: %+v", held)
		}
		claim := Claim{Key: first.Key, Token: first.Token}
		if _, err := c.Extend(t.Context(), claim, 0); err != nil { // the first one is back
			t.Fatal(err)
		}
		if err := resolve(held, VerdictNotDone); code(err) != string(LeaseLost) {
			t.Errorf("a verdict on a live holder: %v", err)
		}
		time.Sleep(2 * time.Second)
		if err := resolve(held, VerdictNotDone); code(err) != string(InProgress) {
			t.Errorf("a verdict from before the holder's last sign of life: %v", err)
		}
		time.Sleep(10 * time.Second)
		held = begin()
		if err := resolve(held, VerdictNotDone); err != nil {
			t.Errorf("not done: %v", err)
		}
		if second := begin(); second.Decision != Proceed || second.Fence != 2 {
			t.Errorf("after not done: %+v", second)
		}
		time.Sleep(12 * time.Second)
		if err := resolve(held, VerdictDone); code(err) != string(LeaseLost) {
			t.Errorf("a verdict on an earlier grant: %v", err)
		}
		if err := resolve(begin(), VerdictDone); err != nil {
			t.Errorf("done: %v", err)
		}
		if e := begin(); e.Decision != Replay || e.ResourceID != "msg" {
			t.Errorf("after done: %+v", e)
		}

		req.Explicit, req.OnUnknown = "2", Hold
		begin()
		time.Sleep(12 * time.Second)
		req.OnUnknown = Probe
		if e := begin(); e.Decision != Held || e.AskedAt != "" {
			t.Errorf("of work that was begun under hold: %+v; no probe may decide it", e)
		}
	})
}

func TestClientErrors(t *testing.T) {
	req := Request{Work: Work{Step: "send", Explicit: "1"}}
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == base+"begin" {
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
			return
		}
		t.Errorf("a redirect was followed to %s", r.URL.Path)
	}))
	defer other.Close()
	c, err := NewClient(other.URL, "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Begin(t.Context(), req); code(err) != "no_guard" {
		t.Errorf("a server without a guard: %v", err)
	}
	other.Close()
	if _, err := c.Begin(t.Context(), req); err == nil || code(err) != "" {
		t.Errorf("no server: %v", err)
	} else if _, unreachable := errors.AsType[*url.Error](err); !unreachable {
		t.Errorf("no server is told as %T", err)
	}
	for _, bad := range []string{"", "localhost:8484", "ftp://x", "http://", "http://h?x=1"} {
		if _, err := NewClient(bad, ""); err == nil {
			t.Errorf("%q is taken for a server", bad)
		}
	}

	g := newGuard(t)
	local := g.Local("acme")
	for input, want := range map[string]string{`{"a":1`: "invalid_request", `{"a":1,"a":2}`: "duplicate_member", `{}`: "key_required", `{"a":9007199254740993}`: "unsafe_number"} {
		_, err := local.Begin(t.Context(), Request{Work: Work{Step: "send", Input: []byte(input)}})
		bad, ours := errors.AsType[*InputError](err)
		if got := code(err); got != want && !(ours && bad.Code == want) {
			t.Errorf("input %s: %v", input, err)
		}
	}
	if _, err := local.Begin(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	req.Wait = 30 * time.Second
	if _, err := local.Begin(ctx, req); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("leaving while it waits: %v", err)
	}
}

func TestTextAt(t *testing.T) {
	const text = `{"id": 17, "items": [{"name": "a/b"}], "a/b": "slash", "none": null}`
	for pointer, want := range map[string]string{"/id": "17", "/items/0/name": "a/b", "/a~1b": "slash"} {
		if got, err := TextAt([]byte(text), pointer); got != want || err != nil {
			t.Errorf("%s is %q, %v; want %q", pointer, got, err, want)
		}
	}
	for _, pointer := range []string{"/none", "/items", "/absent", "id", "/a~2"} {
		if got, err := TextAt([]byte(text), pointer); err == nil {
			t.Errorf("%s is %q; want an error", pointer, got)
		}
	}
	if _, err := TextAt([]byte("17 msgs"), "/id"); err == nil {
		t.Error("what is no JSON has something at /id")
	}
}
