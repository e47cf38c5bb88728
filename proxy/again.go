package proxy

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"llmproxy/cache"
)

// again is what a client means by sending a request that was answered before.
type again struct {
	noStore      bool          // a fresh answer, nothing stored, no joining
	refresh      bool          // a fresh answer that replaces the stored one
	reject       string        // why the stored answer was unusable; implies refresh
	maxAge       time.Duration // accept an answer at most this old; negative: any
	onlyIfCached bool
	exhausted    bool // it was wished for too often: any stored answer has to do
}

func readAgain(h http.Header) (a again, err error) {
	a.maxAge = -1
	a.reject = strings.TrimSpace(h.Get(headerReject))
	for _, line := range h.Values("Cache-Control") {
		for directive := range strings.SplitSeq(line, ",") {
			name, value, _ := strings.Cut(strings.ToLower(strings.TrimSpace(directive)), "=")
			switch name {
			case "no-store":
				a.noStore = true
			case "no-cache":
				a.refresh = !isEventSource(h)
			case "only-if-cached":
				a.onlyIfCached = true
			case "max-age":
				seconds, err := strconv.ParseInt(strings.Trim(value, `"`), 10, 32)
				if err != nil || seconds < 0 {
					return a, invalidRequest("Cache-Control: max-age=%s is not a number of seconds", value)
				}
				a.maxAge = time.Duration(seconds) * time.Second
			}
		}
	}
	return a, nil
}

// isEventSource tells a request that says no-cache as every reader of event
// streams does, by that protocol's rules, and means nothing by it: go-openai
// sends both headers with each streamed call.
func isEventSource(h http.Header) bool { return h.Get("Accept") == "text/event-stream" }

// fresh tells whether a stored answer is not wanted.
func (a again) fresh() bool { return a.refresh || a.reject != "" || a.noStore }

// accepts tells whether a stored answer will do.
func (a again) accepts(createdAt int64, now time.Time) bool {
	return !a.fresh() && (a.maxAge < 0 || now.UnixMilli()-createdAt <= a.maxAge.Milliseconds())
}

// sampleOf is the request's wish for another answer to the same question. It is
// part of the key.
func sampleOf(h http.Header) (string, error) {
	sample := strings.TrimSpace(h.Get(headerSample))
	if len(sample) > maxNameLength {
		return "", invalidRequest("X-LLMProxy-Sample is longer than %d characters; a number is enough", maxNameLength)
	}
	return sample, nil
}

// keyContext is what counts in the key beside the body.
func (c *call) keyContext(sample string) cache.Context {
	h := c.r.Header
	scope := c.row.Step
	if c.step.Shared {
		scope = ""
	}
	return cache.Context{
		Tenant: c.row.Tenant, Scope: scope, Upstream: c.upstream.Name, Endpoint: c.route.path, Sample: sample,
		Organization: h.Get("Openai-Organization"), Project: h.Get("Openai-Project"), Beta: h.Get("Openai-Beta"),
		Query: c.r.URL.RawQuery,
	}
}
