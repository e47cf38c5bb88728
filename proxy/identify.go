package proxy

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strings"
	"unicode"
	"unicode/utf8"

	"llmproxy/cache"
)

// Our request headers. None of them is forwarded.
const (
	headerStep    = "X-Llmproxy-Step"
	headerRun     = "X-Llmproxy-Run"
	headerContext = "X-Llmproxy-Context"
	headerSample  = "X-Llmproxy-Sample"
	headerReject  = "X-Llmproxy-Reject"
	headerWork    = "Guard-Work"
)

const (
	defaultStep   = "default"
	maxNameLength = 128
)

// identify says whose the call is: its tenant and, so far as the headers, the
// path and the credential tell, its step and run.
func (c *call) identify(rt route) error {
	h := c.r.Header
	secret := presented(h)
	if len(c.policy.Credentials) > 0 {
		if c.credential = c.policy.credential(secret); c.credential == nil {
			return noKey()
		}
		if !c.credential.may(ScopeLLM) {
			return &Error{Status: http.StatusForbidden, Type: "permission_error", Code: "forbidden", Retry: &no,
				Message: "This proxy key may not call models; add llm to its scopes in the configuration"}
		}
		c.row.Tenant = firstOf(c.credential.Tenant, c.server.anonymousTenant(secret))
	} else {
		c.row.Tenant = firstOf(c.policy.Tenant, c.server.anonymousTenant(secret))
	}
	fallback := ""
	if c.credential != nil {
		fallback = c.credential.Step
	}
	c.row.Step, c.row.Run = namesOf(h, rt, fallback)
	return nil
}

// settleNames takes what the body's metadata names, where nothing before it
// did, and checks the result.
func (c *call) settleNames(step, run string) (err error) {
	if c.row.Step, c.row.Run, err = checkNames(firstOf(c.row.Step, step), firstOf(c.row.Run, run)); err != nil {
		return err
	}
	if work := c.r.Header.Get(headerWork); work != "" {
		if c.row.Work, err = checkName("unit of work", work); err != nil {
			return err
		}
	}
	var declared bool
	c.step, c.row.Step, declared = c.policy.step(c.row.Step)
	if !declared && c.policy.DeclaredOnly {
		return badRequest("bad_step", "Step %q is not declared; add it under steps: in the configuration, or set steps_declared_only: false", c.row.Step)
	}
	return nil
}

func noKey() *Error {
	return &Error{Status: http.StatusUnauthorized, Type: "authentication_error", Code: "invalid_api_key", Retry: &no,
		Message: "No valid proxy key was sent; send one as \"Authorization: Bearer …\" (`llmproxy keys new NAME` makes one)"}
}

func checkName(what, name string) (string, error) {
	name = strings.TrimSpace(name)
	bad := func(r rune) bool { return r == '/' || r == utf8.RuneError || !unicode.IsPrint(r) }
	if n := utf8.RuneCountInString(name); n < 1 || n > maxNameLength || strings.ContainsFunc(name, bad) {
		return "", badRequest("bad_step", "The %s's name %.140q is not usable: use 1 to %d printable characters without a slash", what, name, maxNameLength)
	}
	return name, nil
}

// presented is the secret a client sent, as OpenAI or as Azure clients do.
func presented(h http.Header) string {
	auth := h.Get("Authorization")
	if scheme, secret, ok := strings.Cut(auth, " "); ok && strings.EqualFold(scheme, "Bearer") {
		return strings.TrimSpace(secret)
	}
	return firstOf(auth, h.Get("Api-Key"))
}

// anonymousTenant names whoever presents a secret without storing it.
func (s *Server) anonymousTenant(secret string) string {
	mac := hmac.New(sha256.New, s.secret)
	mac.Write([]byte(secret))
	return "t_" + hex.EncodeToString(mac.Sum(nil)[:8])
}

// parseContext reads "step=draft; run=8812".
func parseContext(value string) map[string]string {
	if value == "" {
		return nil
	}
	fields := map[string]string{}
	for part := range strings.SplitSeq(value, ";") {
		if name, v, ok := strings.Cut(part, "="); ok {
			fields[strings.ToLower(strings.TrimSpace(name))] = strings.TrimSpace(v)
		}
	}
	return fields
}

// takeOwnMetadata returns the step and run that the body's metadata names, and
// the document without them: they are ours and not forwarded.
func takeOwnMetadata(doc *cache.Document) (rest *cache.Document, step, run string, err error) {
	raw, ok := doc.Member("metadata")
	if !ok || raw[0] != '{' {
		return doc, "", "", nil
	}
	meta, err := cache.Scan(raw)
	if err != nil {
		return nil, "", "", err
	}
	var edits []cache.Edit
	for name, into := range map[string]*string{"llmproxy_step": &step, "llmproxy_run": &run} {
		value, ok := meta.Member(name)
		if !ok {
			continue
		}
		if *into, ok = stringValue(value); !ok && !isNull(value) {
			return nil, "", "", badRequest("bad_step", "metadata.%s is not a string; send the name in double quotes", name)
		}
		edits = append(edits, cache.Edit{Name: name})
	}
	if len(edits) == 0 {
		return doc, "", "", nil
	}
	metadata := cache.Edit{Name: "metadata", Value: meta.Edit(edits...)}
	if len(bytes.Trim(metadata.Value, "{} \t\r\n")) == 0 {
		metadata.Value = nil
	}
	rest, err = cache.Scan(doc.Edit(metadata))
	return rest, step, run, err
}

func firstOf(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}
