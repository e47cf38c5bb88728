package proxy

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"llmproxy/budget"
	"llmproxy/cache"
	"llmproxy/store"
)

// Error is what a client gets instead of an answer, in OpenAI's shape. Message
// says what to do next: automation tools show nothing else.
type Error struct {
	Status     int
	Type       string
	Code       string
	Message    string
	Param      string
	RetryAfter int            // seconds, 0: none
	Retry      *bool          // x-should-retry, which overrides what SDKs make of the status
	Detail     map[string]any // further members of the error object
}

func (e *Error) Error() string { return e.Code + ": " + e.Message }

var (
	yes = true
	no  = false
)

// The errors of the proxy itself. The status of each is chosen by what real
// clients do with it: 409, 429 and 5xx are retried by SDKs, 402 by none.
func badRequest(code, format string, args ...any) *Error {
	return &Error{Status: http.StatusBadRequest, Type: "invalid_request_error", Code: code, Message: fmt.Sprintf(format, args...)}
}

func invalidRequest(format string, args ...any) *Error {
	return badRequest("invalid_request", format, args...)
}

func unavailable(code, message string, retryAfter int) *Error {
	return &Error{Status: http.StatusServiceUnavailable, Type: "server_error", Code: code, Message: message, RetryAfter: retryAfter, Retry: &yes}
}

func upstreamError(status int, code, format string, args ...any) *Error {
	return &Error{Status: status, Type: "upstream_error", Code: code, Message: fmt.Sprintf(format, args...)}
}

// toError is the one table that turns errors of the packages below into what clients get.
func toError(err error) *Error {
	var (
		ours      *Error
		exceeded  *budget.Exceeded
		syntax    *cache.SyntaxError
		duplicate *cache.DuplicateError
		inBand    *chunkError
	)
	switch {
	case errors.As(err, &ours):
		return ours
	case errors.As(err, &exceeded):
		return overBudget(exceeded)
	case errors.As(err, &duplicate):
		return badRequest("duplicate_member", "%s; send each member once", duplicate.Error())
	case errors.As(err, &syntax):
		return invalidRequest("The request body is not valid JSON: %s", syntax.Error())
	case errors.As(err, &inBand): // clients get the upstream's own object
		return upstreamError(http.StatusBadGateway, "upstream_error", "%s; send the call again", inBand.Error())
	case errors.Is(err, errBrokeOff):
		return upstreamError(http.StatusBadGateway, "upstream_invalid", "The upstream's answer broke off; send the call again")
	case errors.Is(err, cache.ErrTooManyDetached):
		return &Error{Status: http.StatusTooManyRequests, Type: "server_error", Code: "too_many_detached", RetryAfter: 5,
			Message: "This call was cancelled because too many calls run without a client; send it again, or raise limits.detached"}
	case errors.Is(err, cache.ErrAbandoned):
		return upstreamError(http.StatusBadGateway, "upstream_unreachable", "The call was cancelled when its last client left (on_disconnect: cancel); send it again")
	case errors.Is(err, store.ErrUnavailable):
		return unavailable("store_unavailable", "The database cannot be written, and this step has a hard budget that must be counted; look at the server's log, free disk space or release locks, then send the call again", 5)
	}
	return &Error{Status: http.StatusInternalServerError, Type: "server_error", Code: "internal_error",
		Message: "The proxy failed on this call; the server's log says why under this call's id"}
}

func overBudget(e *budget.Exceeded) *Error {
	detail := map[string]any{
		"step": e.Step, "unit": e.Rule.Unit.String(), "per": e.Rule.Per.String(),
		"limit": e.Rule.Limit, "used": e.Used, "reserved": e.Reserved, "needed": e.Needed,
	}
	if !e.ResetsAt.IsZero() {
		detail["resets_at"] = e.ResetsAt.Format("2006-01-02T15:04:05Z07:00")
	}
	return &Error{Status: http.StatusPaymentRequired, Type: "budget_error", Code: e.Code(), Message: e.Error(), Retry: &no, Detail: detail}
}

// body is the JSON that goes to the client; `error` is always an object.
func (e *Error) body() []byte {
	object := map[string]any{"message": e.Message, "type": e.Type, "code": e.Code, "param": nil}
	if e.Param != "" {
		object["param"] = e.Param
	}
	for name, value := range e.Detail {
		object[name] = value
	}
	body, err := json.Marshal(map[string]any{"error": object})
	if err != nil { // every member is a string, a number, a list of strings or nil
		panic(err)
	}
	return body
}

func (e *Error) write(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	if e.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(e.RetryAfter))
	}
	if e.Retry != nil {
		h.Set("X-Should-Retry", strconv.FormatBool(*e.Retry))
	}
	body := e.body()
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(e.Status)
	w.Write(body) //nolint:errcheck // a client that has left cannot be told
}
