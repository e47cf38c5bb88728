package guard

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Problem is an answer that is not a success: problem details (RFC 9457) with
// an `error` member in OpenAI's shape beside them. Its text says what mends it:
// automation tools show nothing else.
type Problem struct {
	Status     int
	Code       string
	Message    string
	Param      string
	Retry      *bool // x-should-retry, which overrides what SDKs make of the status
	RetryAfter int   // seconds; 0: none
	Allow      string
	Extra      map[string]any // further members beside `error`
	id         *ID
	state      State
}

func (p *Problem) Error() string { return p.Code + ": " + p.Message }

var (
	yes = true
	no  = false
)

// refusals is the one table that says how a refusal is answered. The statuses
// are chosen by what clients do: 409 and 5xx are retried by SDKs, 422 by none.
var refusals = map[Refusal]struct {
	status int
	retry  *bool
	soft   bool // a decision that a caller may ask to get as a success
}{
	InProgress:       {http.StatusConflict, &yes, true},
	RetryLater:       {http.StatusConflict, &yes, true},
	Undecided:        {http.StatusConflict, &no, true},
	InputMismatch:    {http.StatusUnprocessableEntity, &no, true},
	WorkTooOld:       {http.StatusPreconditionFailed, &no, false},
	LeaseLost:        {http.StatusConflict, &no, false},
	AlreadyCompleted: {http.StatusConflict, &no, false},
	NotCompleted:     {http.StatusConflict, &no, false},
	UnknownEffect:    {http.StatusNotFound, &no, false},
	BadToken:         {http.StatusForbidden, &no, false},
}

// refused is the problem that an answer with a refusal is told as.
func refused(a *Answer, event string) *Problem {
	rule := refusals[a.Reply.Refusal]
	p := &Problem{Status: rule.status, Code: string(a.Reply.Refusal), Retry: rule.retry, RetryAfter: a.RetryAfter(),
		Message: explain(a, event), Extra: map[string]any{}, id: &a.ID, state: a.Record.State}
	if a.Reply.Decision != "" {
		p.Extra["decision"] = a.Reply.Decision
	}
	switch a.Reply.Refusal {
	case Undecided:
		p.Extra["attempts"] = attemptsOf(&a.Record)
		p.Extra["resolve_url"] = base + "resolve"
		if a.Reply.Fence != 0 { // a probe may decide: its verdict counts with these two
			p.Extra["fence"], p.Extra["asked_at"] = a.Reply.Fence, stamp(a.Now)
		}
	case AlreadyCompleted:
		resultOf(a).into(p.Extra)
		p.Extra["duplicate_effect"] = a.Reply.Duplicate
	}
	return p
}

// explain says what a refusal means and what to do next.
func explain(a *Answer, event string) string {
	r := &a.Record
	wait := fmt.Sprintf("%d s", a.RetryAfter())
	switch a.Reply.Refusal {
	case InProgress:
		switch {
		case event == "resolve" || event == "purge":
			return fmt.Sprintf("Step %s, fence %d, may still be acting; wait %s and do it again, or send \"force\": true", r.Step, r.Fence, wait)
		case r.State == Unknown:
			return fmt.Sprintf("Step %s, fence %d, ended without a report, and what it sent may still take effect; begin again in %s", r.Step, r.Fence, wait)
		}
		return fmt.Sprintf("Step %s, fence %d, is being done; its lease ends in %d s. Begin again in %s, or send wait_seconds", r.Step, r.Fence, (a.Reply.Until-a.Now+999)/1000, wait)
	case RetryLater:
		return fmt.Sprintf("Step %s failed and asked not to be tried for %d s more; begin again in %s", r.Step, (a.Reply.Until-a.Now+999)/1000, wait)
	case Undecided:
		if event == "purge" {
			return fmt.Sprintf("It is not known whether step %s happened; resolve it first, or send ?force=true to forget it all the same", r.Step)
		}
		return fmt.Sprintf("Step %s may have happened: %s ended without a report. Look at the downstream, then say done or not_done to %sresolve", r.Step, counted(len(r.Attempts), "attempt"), base)
	case InputMismatch:
		return "This key was used for another input; send the input it was used for, another key or occurrence for other work, or drift \"replay\" to get the first result"
	case WorkTooOld:
		return "This work is older than the time for which effects are remembered, so it may have been done; check that by hand, then begin without work_created_at"
	case LeaseLost:
		if event == "resolve" {
			return "The effect moved on while it was looked at; read it again"
		}
		return "The lease is lost: it was taken over, completed, resolved or ran to its limit. Do not act; if you have acted already, report complete or fail with the same token"
	case AlreadyCompleted:
		return "The effect is completed already with the result in this answer, which stays; if a second one happened, undo it by hand, and to do it anew on purpose resolve with reopen"
	case NotCompleted:
		return "Only a completed effect can be reopened; say done or not_done for one in any other state"
	case UnknownEffect:
		return "No effect has this key in this namespace; begin it first, and send the namespace it was begun in"
	case BadToken:
		return "The token belongs to no attempt at this key; send the token that begin returned together with this key"
	}
	return string(a.Reply.Refusal)
}

func counted(n int, what string) string {
	if n == 1 {
		return "one " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// toProblem turns every other error into what clients get.
func toProblem(err error) *Problem {
	var (
		ours  *Problem
		input *InputError
		large *http.MaxBytesError
	)
	switch {
	case errors.As(err, &ours):
		return ours
	case errors.As(err, &input):
		p := &Problem{Status: http.StatusBadRequest, Code: input.Code, Message: input.Message, Param: input.Param, Retry: &no}
		if input.Code == "result_too_large" {
			p.Status = http.StatusRequestEntityTooLarge
		}
		return p
	case errors.As(err, &large):
		return &Problem{Status: http.StatusRequestEntityTooLarge, Code: "body_too_large", Retry: &no,
			Message: fmt.Sprintf("The body is larger than %d bytes; send the values that identify the work, or a resource_id instead of the result", large.Limit)}
	case errors.Is(err, ErrUnavailable):
		return &Problem{Status: http.StatusServiceUnavailable, Code: "guard_store_unavailable", Retry: &yes, RetryAfter: 5,
			Message: "The database cannot be written, so nothing was granted; do not act, and send the same request again in 5 s"}
	}
	return &Problem{Status: http.StatusInternalServerError, Code: "internal_error", Retry: &yes,
		Message: "The guard failed on this request; do not act, and look at the server's log"}
}

func (p *Problem) title() string {
	words := strings.ReplaceAll(p.Code, "_", " ")
	return strings.ToUpper(words[:1]) + words[1:]
}

// members are those that a problem and its soft form share.
func (p *Problem) members() map[string]any {
	m := map[string]any{}
	maps.Copy(m, p.Extra)
	if p.id != nil {
		m["key"] = p.id.Key.String()
		m["state"] = p.state.String()
	}
	if p.RetryAfter > 0 {
		m["retry_after"] = p.RetryAfter
	}
	return m
}

// soft is the problem as a success, for tools that cannot branch on an error:
// the caller looks at decision.
func (p *Problem) soft() *response {
	m := p.members()
	m["reason"], m["message"] = p.Code, p.Message
	return &response{status: http.StatusOK, body: m, id: p.id, state: p.state}
}

func (p *Problem) write(w http.ResponseWriter) {
	m := p.members()
	m["type"] = "urn:llmproxy:problem:" + strings.ReplaceAll(p.Code, "_", "-")
	m["title"], m["status"], m["detail"] = p.title(), p.Status, p.Message
	if p.id != nil {
		m["instance"] = base + "effects/" + p.id.Key.String()
	}
	inner := map[string]any{"message": p.Message, "type": "guard_error", "code": p.Code, "param": nil}
	if p.Param != "" {
		inner["param"] = p.Param
	}
	m["error"] = inner
	h := w.Header()
	if p.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(p.RetryAfter))
	}
	if p.Retry != nil {
		h.Set("X-Should-Retry", strconv.FormatBool(*p.Retry))
	}
	if p.Allow != "" {
		h.Set("Allow", p.Allow)
	}
	send(w, p.Status, "application/problem+json", m, p.id, p.state)
}

// response is a success.
type response struct {
	status int
	body   any
	id     *ID
	state  State
	replay bool
}

func (r *response) write(w http.ResponseWriter) {
	if r.replay {
		w.Header().Set("Idempotent-Replayed", "true")
	}
	send(w, r.status, "application/json", r.body, r.id, r.state)
}

func send(w http.ResponseWriter, status int, contentType string, body any, id *ID, state State) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false) // a stored result comes back as it was sent
	if err := encoder.Encode(body); err != nil {
		panic(err) // it is made of strings, numbers and JSON that was parsed
	}
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Content-Length", strconv.Itoa(text.Len()))
	h.Set("Cache-Control", "no-store")
	if id != nil {
		h.Set("Guard-Key", id.Key.String())
		h.Set("Guard-State", state.String())
	}
	w.WriteHeader(status)
	w.Write(text.Bytes()) //nolint:errcheck // a client that has left cannot be told
}

// stamp writes a time in Unix ms for people and programs; 0 is null.
func stamp(ms int64) any {
	if ms == 0 {
		return nil
	}
	return time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05.000Z")
}

func attemptsOf(r *Record) []map[string]any {
	list := make([]map[string]any, 0, len(r.Attempts))
	for _, a := range r.Attempts {
		m := map[string]any{"fence": a.Fence, "started_at": stamp(a.StartedAt), "ended_at": stamp(a.EndedAt), "outcome": a.Outcome.String()}
		if a.ResourceID != "" {
			m["resource_id"] = a.ResourceID
		}
		if a.Note != "" {
			m["note"] = a.Note
		}
		list = append(list, m)
	}
	return list
}

// result is what is known of a completed effect.
type result struct {
	ResourceID  *string `json:"resource_id"`
	Result      any     `json:"result"`
	CompletedAt any     `json:"completed_at"`
	Available   bool    `json:"result_available"`
}

func (r result) into(m map[string]any) {
	m["resource_id"], m["result"], m["completed_at"], m["result_available"] = r.ResourceID, r.Result, r.CompletedAt, r.Available
}

func resultOf(a *Answer) result {
	r := &a.Record
	known := result{CompletedAt: stamp(r.CompletedAt), Available: a.Now < r.ExpiresAt}
	if r.Result.ResourceID != "" {
		known.ResourceID = &r.Result.ResourceID
	}
	switch {
	case r.Result.Status != 0:
		response := map[string]any{"status": r.Result.Status, "headers": r.Result.Header, "truncated": r.Result.Truncated}
		if utf8.Valid(r.Result.Body) {
			response["body"] = string(r.Result.Body)
		} else {
			response["body_base64"] = r.Result.Body
		}
		known.Result = response
	case r.Result.Body != nil:
		known.Result = json.RawMessage(r.Result.Body)
	}
	return known
}
