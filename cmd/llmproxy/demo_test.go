package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"llmproxy/sim"
)

// A demonstration that passed with no proxy at all would show nothing.
func TestDemoFailsWhereTheProxyDoesNotDoItsWork(t *testing.T) {
	answers := func(outcome string, model *sim.Model) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-LLMProxy-Cache", outcome)
			r.URL.Path = r.URL.Path[strings.Index(r.URL.Path, "/v1/"):]
			model.ServeHTTP(w, r)
		}
	}
	for _, test := range []struct {
		name    string
		outcome string // what the server says of every call
		want    []string
	}{
		{"no proxy", "", []string{"scene 1 (A first call): ", "X-LLMProxy-Cache: expected miss, got "}},
		{"no cache", "miss", []string{"scene 2 (Its retry): ", "X-LLMProxy-Cache: expected hit, got miss", "further calls that reached the model: expected 0, got 1"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			model := &sim.Model{}
			server := httptest.NewServer(answers(test.outcome, model))
			defer server.Close()
			d := &demo{out: &bytes.Buffer{}, model: model, base: server.URL, client: server.Client()}
			err := d.play(t.Context())
			for _, part := range test.want {
				if err == nil || !strings.Contains(err.Error(), part) {
					t.Errorf("the error is %v, want %q in it", err, part)
				}
			}
		})
	}
}

func TestDemoFailsWithExitCode1(t *testing.T) {
	t.Setenv("TMPDIR", "/dev/null") // no folder can be made there
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), []string{"demo"}, nil, &stdout, &stderr); code != exitFailed || stderr.Len() == 0 {
		t.Errorf("exit code %d, %q", code, &stderr)
	}
}

func TestWrap(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{"short   enough", "short   enough"},
		{"a line that is too long", "a line that is|too long"},
		{"unbreakableunbreakable at all", "unbreakableunbreakable|at all"},
		{"zwölf Wörter ähnlich", "zwölf Wörter|ähnlich"},
	} {
		if got := strings.Join(wrap(test.text, 14), "|"); got != test.want {
			t.Errorf("wrap(%q) = %q, want %q", test.text, got, test.want)
		}
	}
}
