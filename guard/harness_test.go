package guard

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"llmproxy/store"
	"llmproxy/store/storetest"
)

// newGuard guards effects in a fresh database.
func newGuard(t testing.TB) *Guard { return &Guard{Store: storetest.New(t)} }

// everyone lets the tenant that the credential names do everything.
func everyone(r *http.Request) (Caller, error) {
	secret := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	switch secret {
	case "":
		return Caller{}, &Problem{Status: http.StatusUnauthorized, Code: "invalid_api_key", Message: "no key"}
	case "reader":
		return Caller{Tenant: "acme"}, nil
	case "user":
		return Caller{Tenant: "acme", Scopes: []string{ScopeUse}}, nil
	}
	return Caller{Tenant: secret, Scopes: []string{ScopeUse, ScopeAdmin}}, nil
}

// server is the API over real HTTP.
type server struct {
	t    testing.TB
	url  string
	http *http.Client
}

func serve(t testing.TB, g *Guard) *server {
	s := httptest.NewServer(g.Handler(everyone))
	t.Cleanup(s.Close)
	return &server{t, s.URL, s.Client()}
}

// reply is what a client sees.
type reply struct {
	status int
	header http.Header
	text   []byte
	body   map[string]any
}

func (r *reply) str(name string) string {
	s, _ := r.body[name].(string)
	return s
}

// code is the error's code, or in a soft answer the reason, or empty.
func (r *reply) code() string {
	if e, ok := r.body["error"].(map[string]any); ok {
		return e["code"].(string)
	}
	return r.str("reason")
}

// call sends a request as a tenant; body is JSON text, or a value to encode.
func (s *server) call(tenant, method, path string, body any) *reply {
	s.t.Helper()
	r, err := s.try(tenant, method, path, body)
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}

func (s *server) try(tenant, method, path string, body any) (*reply, error) {
	var reader io.Reader
	switch body := body.(type) {
	case nil:
	case string:
		reader = strings.NewReader(body)
	default:
		text, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		reader = bytes.NewReader(text)
	}
	req, err := http.NewRequest(method, s.url+path, reader)
	if err != nil {
		return nil, err
	}
	if tenant != "" {
		req.Header.Set("Authorization", "Bearer "+tenant)
	}
	res, err := s.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, err
	}
	r := &reply{status: res.StatusCode, header: res.Header, text: text}
	if err := json.Unmarshal(text, &r.body); err != nil {
		return nil, fmt.Errorf("%s %s answers %q: %w", method, path, text, err)
	}
	return r, nil
}

// post sends a body to a path of the API as the tenant acme.
func (s *server) post(path string, body any) *reply {
	s.t.Helper()
	return s.call("acme", http.MethodPost, base+path, body)
}

type object = map[string]any

// in joins an object with more members.
func in(o object, more ...any) object {
	joined := object{}
	for name, v := range o {
		joined[name] = v
	}
	for i := 0; i < len(more); i += 2 {
		joined[more[i].(string)] = more[i+1]
	}
	return joined
}

// held is who may report on a grant.
func (r *reply) held() object { return object{"key": r.body["key"], "token": r.body["token"]} }

// shift moves every stored time of the database by d, as if d had passed.
func shift(t testing.TB, s *store.Store, d time.Duration) {
	t.Helper()
	err := s.Update(t.Context(), func(tx *store.Tx) error {
		ms := d.Milliseconds()
		for _, column := range []string{"lease_until", "lease_limit", "retry_at", "completed_at", "expires_at", "tombstone_until", "sweep_at", "created_at", "updated_at"} {
			if _, err := tx.Exec("UPDATE effect SET "+column+" = "+column+" - $1 WHERE "+column+" > 0", ms); err != nil {
				return err
			}
		}
		_, err := tx.Exec("UPDATE attempt SET started_at = started_at - $1", ms)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// pass shifts the database of a guard, which has none of it in memory.
func pass(t testing.TB, g *Guard, d time.Duration) {
	t.Helper()
	shift(t, g.Store, d)
	g.init()
	g.front.effects.InvalidateAll()
}

func databaseIn(t testing.TB) string { return filepath.Join(t.TempDir(), "guard.db") }
