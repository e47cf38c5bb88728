package guard

import (
	"bytes"
	"testing"

	"llmproxy/store"
)

func TestRedact(t *testing.T) {
	selectors, err := parseSelectors([]string{"/token", "/user/card", "/list/1", "/user", "/none"})
	if err != nil {
		t.Fatal(err)
	}
	for body, want := range map[string]string{
		`{"id":"m1","token":"s3cret"}`:                             `{"id":"m1","token":"[redacted]"}`,
		` {"token" : {"a":[1,2]} , "id":"m1","list":[1,"two",3]} `: `{"token" : "[redacted]" , "id":"m1","list":[1,"[redacted]",3]}`,
		`{"user":{"card":"4111","name":"x"},"id":1}`:               `{"user":"[redacted]","id":1}`,
		`{"id":"m1"}`: `{"id":"m1"}`,
		`plain text`:  `plain text`,
		`"token"`:     `"token"`,
		``:            ``,
	} {
		if got := cleaned(Result{Body: []byte(body)}, selectors); string(got.Body) != want || got.Truncated {
			t.Errorf("%s becomes %s, want %s", body, got.Body, want)
		}
	}
	if got := cleaned(Result{Body: []byte(`{"token":"a","token":"b"}`)}, selectors); got.Body != nil || !got.Truncated {
		t.Errorf("what cannot be read becomes %+v", got)
	}
}

// What is redacted is not in the database, and an equal report is still equal.
func TestRedactedResultsAreNotStored(t *testing.T) {
	g := newGuard(t)
	g.Redact = []string{"/token"}
	grant := mustBegin(t, g, work("w"))
	done := Complete{Token: HashToken(grant.Token), Result: Result{ResourceID: "m1", Body: []byte(`{"token":"s3cret","ok":true}`)}}
	mustDo(t, g, grant.ID, done)
	if again := mustDo(t, g, grant.ID, done); again.Reply.Refusal != "" {
		t.Errorf("the same report again: %v", again.Reply)
	}
	found, err := g.Find(t.Context(), grant.ID)
	if err != nil || string(found.Record.Result.Body) != `{"token":"[redacted]","ok":true}` {
		t.Errorf("%s, %v", found.Record.Result.Body, err)
	}
	err = g.Store.View(t.Context(), func(tx *store.Tx) error {
		var body []byte
		_, err := tx.Get("SELECT body FROM effect", nil, &body)
		if bytes.Contains(body, []byte("s3cret")) {
			t.Errorf("stored: %s", body)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if CheckPointers([]string{"token"}) == nil {
		t.Error("a pointer without a slash passes")
	}
}
