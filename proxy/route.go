package proxy

import (
	"net/url"
	"slices"
	"strings"

	"llmproxy/ledger"
)

// route is a request's path taken apart.
type route struct {
	step, run string // percent-decoded, empty where the path names none
	path      string // below /v1, escaped, without a leading slash: "chat/completions"
	ok        bool   // it is a path of the OpenAI API
}

// parseRoute accepts the forms that clients make of a base URL: with and
// without /v1, /v1 twice, doubled and trailing slashes, and in front of it
// /steps/{step} and /steps/{step}/runs/{run}. Nothing is ever redirected: a
// redirected POST loses its body in many clients.
func parseRoute(escapedPath string) (r route, err error) {
	if escapedPath == "/v1/chat/completions" { // what most calls ask for
		return route{path: "chat/completions", ok: true}, nil
	}
	segments := strings.FieldsFunc(escapedPath, func(c rune) bool { return c == '/' })
	if len(segments) >= 2 && segments[0] == "steps" {
		if r.step, err = url.PathUnescape(segments[1]); err != nil {
			return r, badRequest("bad_step", "The step in the path is not percent-encoded properly: %s", segments[1])
		}
		segments = segments[2:]
		if len(segments) >= 2 && segments[0] == "runs" {
			if r.run, err = url.PathUnescape(segments[1]); err != nil {
				return r, badRequest("bad_step", "The run in the path is not percent-encoded properly: %s", segments[1])
			}
			segments = segments[2:]
		}
	}
	versioned := false
	for len(segments) > 0 && segments[0] == "v1" {
		segments, versioned = segments[1:], true
	}
	r.path = strings.Join(segments, "/")
	r.ok = len(segments) > 0 && (versioned || apiRoots[segments[0]])
	plain, err := url.PathUnescape(r.path)
	if err != nil {
		return r, badRequest("invalid_request", "The path is not percent-encoded properly: %s", r.path)
	}
	// Upstreams may read an encoded path as the plain one, so that is what
	// decides whether the call is counted; where dots would lead, none knows.
	segments = strings.FieldsFunc(plain, func(c rune) bool { return c == '/' })
	if plain = strings.Join(segments, "/"); endpointOf(plain) != ledger.Other {
		r.path = plain
	}
	r.ok = r.ok && !slices.Contains(segments, ".") && !slices.Contains(segments, "..")
	return r, nil
}

// apiRoots are the first segments that are served without /v1 as well.
var apiRoots = map[string]bool{
	"chat": true, "responses": true, "completions": true, "embeddings": true, "models": true, "moderations": true,
	"audio": true, "images": true, "files": true, "batches": true, "uploads": true, "vector_stores": true,
	"assistants": true, "threads": true, "conversations": true, "fine_tuning": true, "realtime": true, "videos": true,
}

func endpointOf(path string) ledger.Endpoint {
	switch path {
	case "chat/completions":
		return ledger.Chat
	case "responses":
		return ledger.Responses
	case "completions":
		return ledger.Completions
	case "embeddings":
		return ledger.Embeddings
	}
	return ledger.Other
}
