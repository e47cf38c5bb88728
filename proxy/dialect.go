package proxy

import (
	"bytes"
	"fmt"

	"llmproxy/cache"
	"llmproxy/ledger"
)

// A dialect is what the proxy has to know of an endpoint whose answers are
// counted, budgeted and kept.
type dialect struct {
	name     string // of its answers, for people
	view     func(*cache.Document) (view, error)
	outgoing func(*cache.Document, view) ([]byte, error) // the body as it is sent
	answer   func(view) completion
	failure  func(body []byte, sent int) []byte        // the event that carries an error body after so many events
	wants    func(view, []byte) bool                   // whether an event's data is for a client with that view
	reword   func(event, body []byte, sent int) []byte // makes an upstream's event of a failure, of which body is the error, one that every client sees; nil where it is
}

// A completion is one answer of an endpoint, in a form of its own: it is made
// from the events of a stream or from a JSON body, and gives either.
type completion interface {
	// parse reads a JSON body. An error that is a *chunkError is the
	// upstream's own, and the rest was read all the same.
	parse(body []byte) error
	// event takes the data of one event of a stream, of which last is the
	// end. An error that is a *chunkError is the upstream's own.
	event(data []byte) (last bool, err error)
	// closing is the event that a stream ends with which closed without one,
	// nil where its answer is not whole.
	closing() []byte
	// judge returns why the answer must not be stored, "" where it may be.
	judge(storeRules) (reason string)
	// finish is how the answer ended in the upstream's words, "" while it has
	// not.
	finish() string
	// usage is what the upstream reported, see readUsage.
	usage() (u usage, odd, ok bool)
	// text is all that the model wrote.
	text() string
	body() ([]byte, error)
	// unroll makes a stream's events.
	unroll(includeUsage bool) ([][]byte, error)
}

var (
	chatDialect = &dialect{
		name: "chat completion", view: chatView, outgoing: withUsage,
		answer: func(view) completion { return &chatCompletion{} }, failure: errorEvent, wants: wantsChunk, reword: rewordChunk,
	}
	textDialect = &dialect{
		name: "completion", view: textView, outgoing: withUsage,
		answer: func(view) completion { return &chatCompletion{legacy: true} }, failure: errorEvent, wants: wantsChunk, reword: rewordChunk,
	}
	responseDialect = &dialect{
		name: "response", view: responseView, outgoing: asItCame,
		answer: func(view) completion { return &modelResponse{} }, failure: responseErrorEvent, wants: wantsAll, reword: rewordFailure,
	}
	embeddingDialect = &dialect{
		name: "list of embeddings", view: embeddingView, outgoing: asItCame,
		answer: func(v view) completion { return &embeddings{base64: v.Base64} }, failure: errorEvent, wants: wantsAll,
	}
)

// dialectOf returns nil for an endpoint whose answers are passed through.
func dialectOf(endpoint ledger.Endpoint) *dialect {
	switch endpoint {
	case ledger.Chat:
		return chatDialect
	case ledger.Completions:
		return textDialect
	case ledger.Responses:
		return responseDialect
	case ledger.Embeddings:
		return embeddingDialect
	}
	return nil
}

func asItCame(doc *cache.Document, _ view) ([]byte, error) { return doc.Raw, nil }

func wantsAll(view, []byte) bool { return true }

// wantsChunk shows a chunk that exists for its usage alone only to who asked.
func wantsChunk(v view, data []byte) bool { return v.IncludeUsage || !isUsageChunk(data) }

// errorEvent carries an error body in a stream of chunks. go-openai looks for
// the prefix `data: {"error":`.
func errorEvent(body []byte, _ int) []byte { return fmt.Appendf(nil, "data: %s\n\n", onOneLine(body)) }

// rewordChunk makes an event of an error that some upstreams write as a text, or as
// an object without the member error: no client takes either for a failure.
func rewordChunk(event, body []byte, sent int) []byte {
	if data, _ := eventData(event); jsonKind(jsonGet(data, "error")) == '{' {
		return event
	}
	return errorEvent(body, sent)
}

// onOneLine makes JSON the data of one event line: a line end can only stand
// between its tokens.
func onOneLine(body []byte) []byte {
	return bytes.Map(func(r rune) rune {
		if r == '\n' || r == '\r' {
			return ' '
		}
		return r
	}, body)
}
