package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"llmproxy/guard"
)

// simURL is the base URL of the simulated model inside the binary.
const simURL = "builtin:sim"

// validate notes what is wrong in values that are right by type. It sees the
// finished configuration, whichever source a value came from.
func validate(r *reader, cfg *Config) {
	validateListen(r, cfg)
	validateDatabase(r, cfg.Database)
	if _, err := time.LoadLocation(cfg.Timezone); err != nil || cfg.Timezone == "" {
		r.bad("timezone", "is no time zone; write an IANA name such as Europe/Berlin or UTC")
	}
	if cfg.Tenant != "" {
		r.label("tenant", cfg.Tenant)
	}
	r.oneOf("log.level", cfg.Log.Level, "level", []string{"debug", "info", "warn", "error"})
	r.oneOf("log.format", cfg.Log.Format, "format", []string{"auto", "text", "json"})
	validateUpstreams(r, cfg.Upstreams)
	validateCache(r, cfg.Cache)
	r.positive("limits.request_body", int64(cfg.Limits.RequestBody))
	r.positive("limits.response_body", int64(cfg.Limits.ResponseBody))
	for name, tokens := range map[string]int{"image": cfg.Charges.Image, "audio": cfg.Charges.Audio, "file": cfg.Charges.File,
		"web_search": cfg.Charges.WebSearch, "hosted_tool": cfg.Charges.HostedTool, "state": cfg.Charges.State, "part": cfg.Charges.Part} {
		if tokens < 0 {
			r.bad("charges."+name, "is negative; write the tokens to charge, or 0 for the figure built in")
		}
	}
	validateSteps(r, cfg.Steps)
	validateKeys(r, cfg)
	validateWebhooks(r, cfg.Webhooks)
	r.oneOf("guard.default_on_unknown", cfg.Guard.DefaultOnUnknown, "policy", []string{"retry", "hold"})
	if name := cfg.Guard.KeySecretEnv; name != "" && r.env[name] == "" {
		r.bad("guard.key_secret_env", "is a variable that is not set; set it to a secret that stays")
	}
	for i, pointer := range cfg.Guard.Redact {
		if err := guard.CheckPointers([]string{pointer}); err != nil {
			r.bad(fmt.Sprintf("guard.redact[%d]", i), "is no JSON pointer; write /member or /member/0")
		}
	}
	validateForward(r, cfg.Guard.Forward)
}

func validateListen(r *reader, cfg *Config) {
	host, port, err := net.SplitHostPort(cfg.Listen)
	number, portErr := strconv.ParseUint(port, 10, 16)
	if err != nil || portErr != nil {
		r.bad("listen", "is no address; write host:port, such as 127.0.0.1:8484")
		return
	}
	if !isLoopback(host) && len(cfg.Keys) == 0 && !r.isWrong("keys") {
		r.bad("listen", `can be reached from other machines, and there are no keys; `+
			`run "llmproxy keys new NAME" and put the line it prints under keys, or listen on 127.0.0.1:%d`, number)
	}
}

func isLoopback(host string) bool {
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && addr.Unmap().IsLoopback()
}

func validateDatabase(r *reader, name string) {
	switch {
	case strings.Contains(name, "://"): // may hold a password: not quoted
		r.add("database", "this release stores in SQLite only; write the path of a file")
	case name == "" || strings.HasPrefix(name, ":") || strings.HasPrefix(name, "file:"):
		r.bad("database", "is no path of a file; write one such as llmproxy.db")
	case strings.HasPrefix(name, "~"):
		r.bad("database", "is not expanded; write ${HOME} for the home folder")
	}
}

func validateCache(r *reader, cache CacheConfig) {
	r.positive("cache.ttl", int64(cache.TTL))
	r.positive("cache.max_bytes", int64(cache.MaxBytes))
	r.oneOf("cache.scope", cache.Scope, "scope", []string{"step", "shared"})
	for i, reason := range cache.FinishReasons {
		if reason == "" {
			r.bad(fmt.Sprintf("cache.finish_reasons[%d]", i), "is empty; write a finish reason such as stop")
		}
	}
	for i, change := range cache.Exclude {
		at := fmt.Sprintf("cache.exclude[%d]", i)
		name := strings.TrimLeft(change, "+-")
		opposite := strings.NewReplacer("+", "-", "-", "+").Replace(change[:len(change)-len(name)]) + name
		switch {
		case len(change)-len(name) != 1 || name == "":
			r.bad(at, `is no change; write "+name" to take a body member out of the key, or "-name" to put one back`)
		case slices.Contains([]string{"+model", "+messages", "+input", "+prompt"}, change):
			r.bad(at, "would answer different questions alike; this member stays in the key")
		case slices.Contains(cache.Exclude[:i], opposite):
			r.bad(at, "and %q cancel each other; keep one", opposite)
		}
	}
}

func validateUpstreams(r *reader, upstreams []UpstreamConfig) {
	if len(upstreams) == 0 {
		r.add("upstreams", "is empty; name at least one upstream, or remove the key for OpenAI")
	}
	names := map[string]string{}
	catchAll := "" // the first upstream that takes every model
	for i, u := range upstreams {
		at := fmt.Sprintf("upstreams[%d].", i)
		r.unique(at+"name", u.Name, names)
		if strings.ContainsFunc(u.Name, func(c rune) bool { return c <= ' ' || c == '/' || !unicode.IsPrint(c) }) {
			r.bad(at+"name", "has a space, a slash or a control character; use letters, digits, dots and dashes")
		}
		validateBaseURL(r, at+"base_url", u.BaseURL)
		validateCredential(r, at, u)
		for j, glob := range u.Models {
			if glob == "" || strings.ContainsFunc(glob, func(c rune) bool { return strings.ContainsRune("?[]{}", c) || !unicode.IsPrint(c) }) {
				r.bad(fmt.Sprintf("%smodels[%d]", at, j), `is no pattern; write a model's name, with * for any text, such as "gpt-4.1*"`)
			}
		}
		validateAttempts(r, at, u)
		switch {
		case len(u.Models) == 0:
			r.add(at+"models", `is empty, so no call would come here; write ["*"] for every model`)
		case catchAll != "":
			r.add(strings.TrimSuffix(at, "."), "is never used, because %q before it takes every model; put it first", catchAll)
		case slices.Contains(u.Models, "*"):
			catchAll = u.Name
		}
	}
}

func validateBaseURL(r *reader, at, text string) {
	if text == simURL {
		return
	}
	u, err := url.Parse(text)
	switch {
	case text == "":
		r.add(at, "is missing; write one such as https://api.openai.com/v1, or %s", simURL)
	case err == nil && u.User != nil: // holds a secret: not quoted
		r.add(at, "holds a user name or password; put it in api_key or headers")
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		if strings.Contains(text, "@") {
			r.add(at, "is no http or https URL")
			return
		}
		r.bad(at, "is no http or https URL; write one such as https://api.openai.com/v1, or %s", simURL)
	case u.Fragment != "":
		r.add(at, "ends in a fragment, which is never sent; leave out what begins with #")
	case u.RawQuery != "":
		query, err := url.ParseQuery(u.RawQuery)
		if err != nil {
			r.add(at, "has a query that is not name=value; write one such as ?api-version=2024-10-21, or leave it out")
		}
		for name := range query {
			if holdsSecret(name) { // the value would be shown
				r.add(at, "has a query that may hold a secret; put that in headers or api_key")
			}
		}
	}
}

// keyVariable is strict, so that a key in the wrong place is not taken for the
// name of a variable and shown.
var keyVariable = regexp.MustCompile(`^[A-Z_][A-Z0-9_]*$`)

// validateCredential checks what an upstream is sent beside the call. No value
// of it is ever quoted.
func validateCredential(r *reader, at string, u UpstreamConfig) {
	if u.APIKey != "" && u.APIKeyEnv != "" {
		r.add(at+"api_key_env", "stands beside api_key; keep one of them")
	}
	if u.APIKeyEnv != "" && !keyVariable.MatchString(u.APIKeyEnv) {
		r.add(at+"api_key_env", "is no name of a variable in capitals; write the name, such as OPENAI_API_KEY, not the key")
	}
	if strings.ContainsFunc(u.APIKey, unicode.IsControl) {
		r.add(at+"api_key", "holds a line break or another control character")
	}
	names := map[string]string{}
	for i, h := range u.Headers {
		here := fmt.Sprintf("%sheaders[%d].", at, i)
		r.unique(here+"name", strings.ToLower(h.Name), names)
		r.headerName(here+"name", h.Name)
		if strings.EqualFold(h.Name, "Authorization") && (u.APIKey != "" || u.APIKeyEnv != "") {
			r.bad(here+"name", "is what the API key is sent in; remove the header or the key")
		}
		if strings.ContainsFunc(h.Value, func(c rune) bool { return c != '\t' && unicode.IsControl(c) }) {
			r.add(here+"value", "holds a line break or another control character")
		}
	}
	if u.IdempotencyHeader != "" {
		r.headerName(at+"idempotency_header", u.IdempotencyHeader)
	}
}

var headerForm = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$") // token of RFC 9110, section 5.6.2

// headerName notes a name that is no header's, or that of one which belongs to
// the connection and not to the request.
func (r *reader) headerName(at, name string) {
	own := []string{"host", "content-length", "content-type", "content-encoding", "connection", "keep-alive",
		"proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"}
	switch {
	case name == "": // reported as missing
	case !headerForm.MatchString(name):
		r.bad(at, "is no header name; use letters, digits and dashes")
	case slices.Contains(own, strings.ToLower(name)):
		r.bad(at, "is set by the connection itself; remove it")
	}
}

func validateAttempts(r *reader, at string, u UpstreamConfig) {
	if u.Retries.Max > 10 {
		r.bad(at+"retries.max", "is above 10; clients retry too")
	}
	for i, cause := range u.Retries.On {
		status, err := strconv.Atoi(cause)
		if cause != "connect" && (err != nil || status < 400 || status > 599) {
			r.bad(fmt.Sprintf("%sretries.on[%d]", at, i), "is no reason to retry; use connect or a status from 400 to 599")
		}
	}
	r.positive(at+"timeout.connect", int64(u.Timeout.Connect))
	r.positive(at+"timeout.idle", int64(u.Timeout.Idle))
	r.positive(at+"timeout.total", int64(u.Timeout.Total))
}

func validateSteps(r *reader, steps []StepConfig) {
	names := map[string]string{}
	for i, s := range steps {
		at := fmt.Sprintf("steps[%d].", i)
		r.unique(at+"name", s.Name, names)
		if s.Name != "*" {
			r.label(at+"name", s.Name)
		} else if len(s.Aliases) > 0 {
			r.add(at+"aliases", `have no place at "*", which stands for every step without an entry`)
		}
		for j, alias := range s.Aliases {
			here := fmt.Sprintf("%saliases[%d]", at, j)
			r.unique(here, alias, names)
			if alias == "*" {
				r.bad(here, `is no alias; give the entry itself the name "*"`)
			}
			r.label(here, alias)
		}
		if r.isSet(at + "cache.ttl") {
			r.positive(at+"cache.ttl", int64(s.Cache.TTL))
		}
		if r.isSet(at + "cache.scope") {
			r.oneOf(at+"cache.scope", s.Cache.Scope, "scope", []string{"step", "shared"})
		}
		r.oneOf(at+"on_disconnect", s.OnDisconnect, "choice", []string{"finish", "cancel"})
		for j, n := range s.Normalize {
			validateNormalizer(r, fmt.Sprintf("%snormalize[%d].pattern", at, j), n.Pattern)
		}
	}
}

func validateNormalizer(r *reader, at, pattern string) {
	re, err := regexp.Compile(pattern)
	switch {
	case pattern == "":
		r.add(at, "is missing; write a regular expression (RE2)")
	case err != nil:
		r.bad(at, "is no regular expression: %s", strings.TrimPrefix(err.Error(), "error parsing regexp: "))
	case re.MatchString(""):
		r.bad(at, "matches nothing at all, and so everywhere; require at least one character")
	}
}

func validateKeys(r *reader, cfg *Config) {
	names, hashes := map[string]string{}, map[string]string{}
	for i, k := range cfg.Keys {
		at := fmt.Sprintf("keys[%d].", i)
		r.unique(at+"name", k.Name, names)
		r.label(at+"name", k.Name)
		r.unique(at+"hash", k.Hash, hashes)
		if _, ok := parseKeyHash(k.Hash); !ok { // may be a key in the wrong place: not quoted
			r.add(at+"hash", `is no hash of a key; write the line that "llmproxy keys new NAME" prints`)
		}
		if k.Tenant != "" {
			r.label(at+"tenant", k.Tenant)
		}
		if k.Step != "" {
			r.label(at+"step", k.Step)
			if cfg.StepsDeclaredOnly && !declared(cfg.Steps, k.Step) {
				r.bad(at+"step", "is not among the steps, and steps_declared_only is true; add it or write one that is")
			}
		}
		if len(k.Scopes) == 0 {
			r.add(at+"scopes", "is empty, so the key may do nothing; use %s, or remove the key", enumerate(keyScopes(), "or"))
		}
		for j, scope := range k.Scopes {
			here := fmt.Sprintf("%sscopes[%d]", at, j)
			r.oneOf(here, scope, "scope", keyScopes())
		}
	}
}

func validateWebhooks(r *reader, hooks []WebhookConfig) {
	for i, hook := range hooks {
		at := fmt.Sprintf("webhooks[%d].", i)
		if u, err := url.Parse(hook.URL); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			r.add(at+"url", "is no address; write one such as https://example.com/hook")
		}
		if name := hook.SecretEnv; name != "" && r.env[name] == "" {
			r.bad(at+"secret_env", "is a variable that is not set, and notices would go unsigned; set it, or remove the key")
		}
		if len(hook.Events) == 0 {
			r.add(at+"events", "is empty, so it is told nothing; use %s", enumerate(webhookEvents(), "or"))
		}
		for j, event := range hook.Events {
			r.oneOf(fmt.Sprintf("%sevents[%d]", at, j), event, "event", webhookEvents())
		}
	}
}

func keyScopes() []string { return []string{"llm", "guard", "admin"} }

func declared(steps []StepConfig, name string) bool {
	return slices.ContainsFunc(steps, func(s StepConfig) bool {
		return s.Name == name || slices.Contains(s.Aliases, name)
	})
}

// labelError says what is wrong with the name of a step, tenant or key, which is
// 1 to 128 printable characters without a slash and without space around it. It
// is nil for a good name, and otherwise meant to follow the quoted name.
func labelError(name string) error {
	switch {
	case name == "":
		return errors.New("is empty; write a name")
	case utf8.RuneCountInString(name) > 128:
		return errors.New("is longer than 128 characters; shorten it")
	case strings.TrimSpace(name) != name:
		return fmt.Errorf("has space around it; write %q", strings.TrimSpace(name))
	case !utf8.ValidString(name) || strings.ContainsFunc(name, func(c rune) bool { return c == '/' || !unicode.IsPrint(c) }):
		return errors.New("has a slash or a control character; leave it out")
	}
	return nil
}

func (r *reader) label(at, name string) {
	if err := labelError(name); err != nil {
		r.bad(at, "%w", err)
	}
}

// unique notes a value that is missing, or that another field has already.
// seen maps value → field.
func (r *reader) unique(at, value string, seen map[string]string) {
	if value == "" {
		r.add(at, "is missing")
		return
	}
	if first, taken := seen[value]; taken {
		r.add(at, "is the same as %s (%s)", first, r.origin(first).where)
		return
	}
	seen[value] = at
}

// positive notes a value that must not be 0.
func (r *reader) positive(at string, value int64) {
	if value <= 0 {
		r.bad(at, "must be above 0")
	}
}
