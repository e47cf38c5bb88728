package guard

import (
	"strings"
	"time"
	"unicode/utf8"
)

const (
	maxResult     = 1 << 20
	maxNote       = 1000 // characters; what is longer is cut
	minLease      = time.Second
	maxLease      = time.Hour
	maxWait       = 55 * time.Second
	maxRetryAfter = 24 * time.Hour
	maxRetention  = 10 * 365 * 24 * time.Hour
)

func (b Begin) check() error {
	if err := checkStep(b.Step); err != nil {
		return err
	}
	switch {
	case b.Policy.Lease < minLease.Milliseconds() || b.Policy.Lease > maxLease.Milliseconds():
		return badInput("lease_seconds", "The lease is not between 1 and 3600 seconds; extend it for longer work")
	case b.Policy.Retention < time.Second.Milliseconds() || b.Policy.Retention > maxRetention.Milliseconds():
		return badInput("retention_seconds", "The retention is not between 1 second and ten years")
	case b.Policy.OnUnknown < Hold || b.Policy.OnUnknown > Retry:
		return badInput("on_unknown", "on_unknown is not one of hold, probe and retry")
	}
	return nil
}

func (e Extend) check() error {
	if e.Lease != 0 && (e.Lease < minLease.Milliseconds() || e.Lease > maxLease.Milliseconds()) {
		return badInput("lease_seconds", "The lease is not between 1 and 3600 seconds; extend it again for longer work")
	}
	return nil
}

func (c Complete) check() error { return c.Result.check() }

func (f Fail) check() error {
	if f.RetryAfter < 0 || f.RetryAfter > maxRetryAfter.Milliseconds() {
		return badInput("retry_after_seconds", "retry_after_seconds is not between 0 and 86400")
	}
	return nil
}

func (d Resolve) check() error {
	switch {
	case d.Verdict < VerdictDone || d.Verdict > VerdictReopen:
		return badInput("outcome", "The outcome is not one of done, not_done and reopen")
	case d.Verdict == VerdictReopen && strings.TrimSpace(d.Reason) == "":
		return badInput("reason", "Reopening makes the effect happen again; say why in reason")
	case d.Step != "":
		if err := checkStep(d.Step); err != nil {
			return err
		}
	}
	return d.Result.check()
}

func (p Purge) check() error { return nil }

func (r *Result) check() error {
	switch {
	case len(r.Body) > maxResult:
		return &InputError{Code: "result_too_large", Param: "result", Message: "The result is larger than 1 MiB; send resource_id only, or store the result elsewhere and send where"}
	case len(r.ResourceID) > maxTextLength || !printable(r.ResourceID, true):
		return badInput("resource_id", "The resource_id is longer than %d bytes or has control characters", maxTextLength)
	}
	return nil
}

// cut bounds what is only for people to read.
func cut(note string) string {
	note = strings.ToValidUTF8(note, "�")
	if utf8.RuneCountInString(note) <= maxNote {
		return note
	}
	return string([]rune(note)[:maxNote-1]) + "…"
}
