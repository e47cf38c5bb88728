package sim

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestMailbox(t *testing.T) {
	box := &Mailbox{}
	server := httptest.NewServer(box)
	defer server.Close()
	post := func(body, key string) (int, string, error) {
		req, err := http.NewRequestWithContext(t.Context(), "POST", server.URL+"/messages", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if key != "" {
			req.Header.Set("Idempotency-Key", key)
		}
		resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
		if err != nil {
			return 0, "", err
		}
		defer resp.Body.Close()
		answer, err := io.ReadAll(resp.Body)
		return resp.StatusCode, strings.TrimSpace(string(answer)), err
	}
	for _, tt := range []struct {
		body, key string
		status    int
		answer    string
		sent      int // for a
	}{
		{`{"for":"a"}`, "", 201, `{"id":"msg_1"}`, 1},
		{`{"for":"a"}`, "k", 201, `{"id":"msg_2"}`, 2},
		{`{"for":"a"}`, "k", 201, `{"id":"msg_2"}`, 2},
		{`{"for":"a","vanish":true}`, "", 0, "", 3},
		{`{"text":"a"}`, "", 400, `{"message":"send {\"for\": \"what it is about\"}"}`, 3},
	} {
		status, answer, err := post(tt.body, tt.key)
		if status != tt.status || answer != tt.answer || (err != nil) != (tt.status == 0) || box.Sent("a") != tt.sent {
			t.Errorf("%s: %d %s, %v; %d sent", tt.body, status, answer, err, box.Sent("a"))
		}
	}
	resp, err := http.Get(server.URL + "/messages?for=a")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if list, _ := io.ReadAll(resp.Body); strings.TrimSpace(string(list)) != `{"messages":[{"id":"msg_1"},{"id":"msg_2"},{"id":"msg_3"}]}` {
		t.Errorf("%s", list)
	}
}
