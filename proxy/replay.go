package proxy

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"llmproxy/cache"
	"llmproxy/ledger"
	"llmproxy/store"
)

// A server that only replays gives stored answers, however old, and calls no
// upstream. It serves tests: what was recorded is given again without a network,
// and what was not is refused with the nearest recording and what sets the two
// apart.

// Kept is what of an upstream's header a server stores with an answer.
func Kept(h http.Header) http.Header { return keptHeader(h) }

// recentAnswers bounds how many answers of a step a request is compared with.
const recentAnswers = 200

// notRecorded refuses a request that has no stored answer.
func (c *call) notRecorded() error {
	var near nearest
	err := c.server.Store.View(context.WithoutCancel(c.r.Context()), func(tx *store.Tx) (err error) {
		near, err = nearestAnswer(tx, c.row.Tenant, c.row.Step, c.doc.Fingerprint(c.keyOptions()))
		return err
	})
	if err != nil || c.blind {
		c.server.Log.Error("the database cannot be read for stored answers", "err", err)
		return unavailable("store_unavailable", "The database cannot be read, and this server only gives stored answers (replay_only); look at the server's log, then send the call again", 5)
	}
	e := notReplayed("This request has no stored answer, and this server calls no upstream (replay_only): " + near.text(c.row.Tenant, c.row.Step))
	e.Detail = map[string]any{"step": c.row.Step, "tenant": c.row.Tenant, "nearest": nil, "differs": nil}
	if near.found {
		e.Detail["nearest"], e.Detail["differs"] = near.key.String(), near.differs
	}
	return e
}

// notReplayed is the error of a server that only replays.
func notReplayed(message string) *Error {
	return &Error{Status: http.StatusGatewayTimeout, Type: "invalid_request_error", Code: "not_cached", Retry: &no, Message: message}
}

// nearest is the stored answer whose request is the most like another.
type nearest struct {
	found   bool
	key     cache.Key
	differs []string // what of the bodies differs; empty where nothing does
	answers int      // of the step, that were looked at
}

// nearestAnswer compares a request with those of the latest answers of a step. Of
// two that are equally near it takes the later one.
func nearestAnswer(tx *store.Tx, tenant, step string, asked cache.Tree) (near nearest, err error) {
	recent, err := cache.Recent(tx, tenant, step, recentAnswers)
	if err != nil {
		return near, err
	}
	near.answers = len(recent)
	for _, answer := range recent {
		raw, err := ledger.Tree(tx, answer.Call)
		if err != nil {
			return near, err
		}
		var tree cache.Tree
		if raw == nil || tree.UnmarshalBinary(raw) != nil { // forgotten, or of another release
			continue
		}
		differs := tree.Diff(asked)
		if !near.found || len(differs) < len(near.differs) {
			near.found, near.key, near.differs = true, answer.Key, differs
		}
	}
	return near, nil
}

// text says what is nearest and what to do.
func (n nearest) text(tenant, step string) string {
	switch {
	case n.answers == 0:
		return fmt.Sprintf("tenant %q has none for step %q; record the call first, or see whether the step, and tenant: in the configuration, are those of the recording", tenant, step)
	case !n.found:
		return fmt.Sprintf("step %q has stored answers, but what they were asked is not known any more; record the call", step)
	}
	key := n.key.String()[:8] + "…"
	if len(n.differs) == 0 {
		return fmt.Sprintf("nearest is %s, whose body is the same; the endpoint, the upstream's name, X-LLMProxy-Sample, Idempotency-Key, the query or a header of OpenAI's differs", key)
	}
	return fmt.Sprintf("nearest is %s, which differs in %s; send what was recorded, or record this call", key, listing(n.differs))
}

// listing writes names as a sentence does: "a, b and c".
func listing(names []string) string {
	const most = 8
	if more := len(names) - most; more > 1 {
		names = append(slices.Clone(names[:most]), strconv.Itoa(more)+" more")
	}
	last := len(names) - 1
	if last == 0 {
		return names[0]
	}
	return strings.Join(names[:last], ", ") + " and " + names[last]
}

// replayOther serves what other servers pass through: the models, which clients
// ask for before they call one, and nothing else.
func (c *call) replayOther() error {
	name, single := strings.CutPrefix(c.route.path, "models/")
	if c.r.Method != http.MethodGet || isUpgrade(c.r) || c.route.path != "models" && !single {
		return notReplayed(fmt.Sprintf("%s %s goes to an upstream, and this server calls none (replay_only); only stored answers of chat/completions, responses, completions and embeddings are given, and the list of models", c.r.Method, c.r.URL.Path))
	}
	if !single {
		name = ""
	}
	return c.sendModels(name)
}
