package sim

import "fmt"

// The types of errors that OpenAI has.
const (
	invalidRequest = "invalid_request_error"
	serverError    = "server_error"
)

// apiError is an error that the client is told, in OpenAI's shape.
type apiError struct {
	status     int
	kind       string // the member "type"
	code       string // empty: null
	param      string // empty: null
	message    string
	retryAfter string // seconds; empty: no header
}

func (e *apiError) Error() string { return fmt.Sprintf("%d %s", e.status, e.message) }

// MarshalJSON returns {"error":{…}}.
func (e *apiError) MarshalJSON() ([]byte, error) {
	return marshal(object{"error": object{
		"message": e.message, "type": e.kind, "code": orNull(e.code), "param": orNull(e.param),
	}}), nil
}

// badRequest is a 400 about the member param of the body.
func badRequest(param, format string, args ...any) error {
	return &apiError{status: 400, kind: invalidRequest, param: param,
		message: "[simulated] " + fmt.Sprintf(format, args...)}
}

// scripted is the error that a prompt asks for by status.
func scripted(status int, retryAfter string) error {
	e := &apiError{status: status, kind: invalidRequest, retryAfter: retryAfter,
		message: fmt.Sprintf("[simulated] the prompt asks for status %d", status)}
	switch {
	case status == 401:
		e.code = "invalid_api_key"
	case status == 429:
		e.kind, e.code = "requests", "rate_limit_exceeded"
	case status >= 500:
		e.kind = serverError
	}
	return e
}

// midStream is the error that a prompt asks for by error_after.
func midStream() *apiError {
	return &apiError{status: 500, kind: serverError, code: "server_error",
		message: "[simulated] the prompt asks for an error in mid-answer"}
}

// orNull is s, or nil for an empty s.
func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}
