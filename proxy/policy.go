package proxy

import (
	"crypto/sha256"
	"crypto/subtle"
	"slices"
	"time"

	"llmproxy/budget"
	"llmproxy/cache"
)

// Policy is what the configuration decides. A running server swaps it whole.
type Policy struct {
	Budget       *budget.Policy
	Steps        []*Step // declared ones
	Default      Step    // the settings of every other step
	DeclaredOnly bool    // an undeclared step is refused
	Upstreams    []*Upstream
	Credentials  []Credential // none: everybody may call
	Tenant       string       // whom calls belong to where there are no Credentials; "": each credential is a tenant of its own
	ReplayOnly   bool         // only stored answers are given, however old, and no upstream is called

	ServeHitsOverBudget bool
	Exclude             []string // members that do not count in the key
	MaxBytes            int64    // of stored bodies
	RequestBody         int64    // bytes
	ResponseBody        int64    // bytes
	RefreshesPerKey     int      // an hour

	steps map[string]*Step // name or alias → step
}

// Step is how one step's calls are handled.
type Step struct {
	Name               string
	Aliases            []string
	TTL                time.Duration
	Shared             bool          // answers are shared with the tenant's other shared steps
	Wait               time.Duration // how long a collapsed call waits; 0: as long as its client
	CancelOnDisconnect bool
	DissatisfiedWithin time.Duration // a repeat this soon after a delivery is a rejection; 0: never
	AssumeOutput       int64         // tokens reserved where the request sets no limit; 0: the largest answer seen
	Normalise          []cache.Normaliser
	FinishReasons      []string // of answers that may be stored
}

// Credential is a key that clients present to the proxy.
type Credential struct {
	Name   string
	Hash   [sha256.Size]byte // SHA-256 of the key
	Tenant string
	Step   string // default step, may be empty
	Scopes []string
}

// Scopes of a credential.
const (
	ScopeLLM   = "llm"
	ScopeGuard = "guard"
	ScopeAdmin = "admin"
)

func (p *Policy) prepare() {
	p.steps = map[string]*Step{}
	for _, s := range p.Steps {
		p.steps[s.Name] = s
		for _, alias := range s.Aliases {
			p.steps[alias] = s
		}
	}
}

// step returns the settings of a step by name or alias, and its proper name.
func (p *Policy) step(name string) (settings *Step, proper string, declared bool) {
	if s, ok := p.steps[name]; ok {
		return s, s.Name, true
	}
	return &p.Default, name, false
}

// credential finds who presents a secret, comparing every candidate in
// constant time.
func (p *Policy) credential(secret string) *Credential {
	sum := sha256.Sum256([]byte(secret))
	var found *Credential
	for i := range p.Credentials {
		if subtle.ConstantTimeCompare(sum[:], p.Credentials[i].Hash[:]) == 1 {
			found = &p.Credentials[i]
		}
	}
	return found
}

func (c *Credential) may(scope string) bool { return slices.Contains(c.Scopes, scope) }

// upstream returns the first upstream that serves a model, nil where none does.
func (p *Policy) upstream(model string) *Upstream {
	for _, u := range p.Upstreams {
		if u.serves(model) {
			return u
		}
	}
	return nil
}
