package main

import (
	"slices"
	"time"
	_ "time/tzdata" // time zones must load where the machine has no zone files
)

// Config is the whole configuration file. The yaml tags are its keys, for
// reading, for layering and for printing. Once loaded it has passed every
// check, and list elements carry their defaults.
type Config struct {
	Listen              string           `yaml:"listen"`      // host:port
	Database            string           `yaml:"database"`    // path of the SQLite file
	Timezone            string           `yaml:"timezone"`    // IANA name; where days, weeks and months begin
	Tenant              string           `yaml:"tenant"`      // whom calls without a proxy key belong to; "" makes each credential a tenant of its own
	ReplayOnly          bool             `yaml:"replay_only"` // only stored answers are given, and no upstream is called
	Log                 LogConfig        `yaml:"log"`
	Upstreams           []UpstreamConfig `yaml:"upstreams"` // the first whose models match serves
	Cache               CacheConfig      `yaml:"cache"`
	Limits              LimitsConfig     `yaml:"limits"`
	Charges             ChargesConfig    `yaml:"charges"`
	Shutdown            ShutdownConfig   `yaml:"shutdown"`
	StepsDeclaredOnly   bool             `yaml:"steps_declared_only"`    // a step that is not in Steps is refused
	ServeHitsOverBudget bool             `yaml:"serve_hits_over_budget"` // a hit costs nothing and is served although the budget is used up
	Steps               []StepConfig     `yaml:"steps"`
	Budget              []BudgetRule     `yaml:"budget"` // over all steps together
	Keys                []KeyConfig      `yaml:"keys"`
	Webhooks            []WebhookConfig  `yaml:"webhooks"`
	Guard               GuardConfig      `yaml:"guard"`
}

// LogConfig says what is logged and how.
type LogConfig struct {
	Level  string `yaml:"level"`  // debug, info, warn or error
	Format string `yaml:"format"` // text, json, or auto: text on a terminal, JSON otherwise
}

// UpstreamConfig is one provider endpoint. At most one of APIKey and APIKeyEnv
// is set; see key.
type UpstreamConfig struct {
	Name              string         `yaml:"name"`
	BaseURL           string         `yaml:"base_url"` // http(s) URL, or builtin:sim
	APIKey            string         `yaml:"api_key,omitempty"`
	APIKeyEnv         string         `yaml:"api_key_env,omitempty"`
	Models            []string       `yaml:"models"` // names, where * stands for any text
	Headers           []HeaderConfig `yaml:"headers"`
	IdempotencyHeader string         `yaml:"idempotency_header"` // name of the header that carries the call's key; "" sends none
	Retries           RetryConfig    `yaml:"retries"`
	Timeout           TimeoutConfig  `yaml:"timeout"`
}

// key returns the API key that llmproxy itself sends to the upstream. It is ""
// where none is configured or the named variable is not set: then the client's
// own credential goes through.
func (u UpstreamConfig) key(env map[string]string) string {
	if u.APIKeyEnv != "" {
		return env[u.APIKeyEnv]
	}
	return u.APIKey
}

// HeaderConfig is a header added to every request to an upstream.
type HeaderConfig struct {
	Name  string `yaml:"name"`
	Value string `yaml:"value"`
}

// RetryConfig bounds the repeats of an upstream attempt, all of them before the
// first byte of an answer.
type RetryConfig struct {
	Max int      `yaml:"max"`
	On  []string `yaml:"on"` // "connect" or an HTTP status from 400 to 599, as text
}

// TimeoutConfig bounds an upstream attempt. Each is above 0.
type TimeoutConfig struct {
	Connect Duration `yaml:"connect"`
	Idle    Duration `yaml:"idle"` // between two bytes
	Total   Duration `yaml:"total"`
}

// CacheConfig governs stored answers.
type CacheConfig struct {
	TTL           Duration `yaml:"ttl"`       // above 0
	MaxBytes      Bytes    `yaml:"max_bytes"` // stored answers in the database; above 0
	Memory        Bytes    `yaml:"memory"`    // answers kept in memory too; 0 is none
	Scope         string   `yaml:"scope"`     // step or shared: who shares an answer within a tenant
	FinishReasons []string `yaml:"finish_reasons"`
	Exclude       []string `yaml:"exclude"` // "+name" takes a body member out of the key, "-name" puts one back
}

// excluded applies the changes of Exclude to the members that are out of the key
// by default.
func (c CacheConfig) excluded(byDefault []string) []string {
	names := slices.Clone(byDefault)
	for _, change := range c.Exclude {
		name := change[1:]
		names = slices.DeleteFunc(names, func(n string) bool { return n == name })
		if change[0] == '+' {
			names = append(names, name)
		}
	}
	return names
}

// LimitsConfig bounds what one request or the whole process may take.
type LimitsConfig struct {
	RequestBody     Bytes `yaml:"request_body"`      // above 0
	ResponseBody    Bytes `yaml:"response_body"`     // above 0
	Detached        int   `yaml:"detached"`          // calls that run with nobody reading; 0 allows none
	RefreshesPerKey int   `yaml:"refreshes_per_key"` // an hour; 0 allows none
}

// ChargesConfig is the input tokens charged for what cannot be counted from a
// request alone; see tokens.Charges. 0 stands for the figure built in.
type ChargesConfig struct {
	Image      int `yaml:"image"`
	Audio      int `yaml:"audio"`
	File       int `yaml:"file"`
	WebSearch  int `yaml:"web_search"`
	HostedTool int `yaml:"hosted_tool"`
	State      int `yaml:"state"`
	Part       int `yaml:"part"`
}

// ShutdownConfig says how the server ends.
type ShutdownConfig struct {
	Drain Duration `yaml:"drain"` // how long running calls may go on
}

// StepConfig is one LLM step of an automation, or "*" for each step that has no
// entry of its own.
type StepConfig struct {
	Name               string          `yaml:"name"`
	Aliases            []string        `yaml:"aliases"`
	Cache              StepCacheConfig `yaml:"cache"`
	Wait               Duration        `yaml:"wait"`                // how long a duplicate waits for the running call; 0 is as long as its client
	OnDisconnect       string          `yaml:"on_disconnect"`       // finish or cancel
	DissatisfiedWithin Duration        `yaml:"dissatisfied_within"` // a repeat this soon rejects the answer; 0 is never
	AssumeOutput       int             `yaml:"assume_output"`       // tokens reserved where the request sets no limit; 0 is the largest answer seen
	Normalize          []Normalizer    `yaml:"normalize"`
	Budget             []BudgetRule    `yaml:"budget"`
}

// StepCacheConfig is the part of CacheConfig that a step may set for itself.
type StepCacheConfig struct {
	TTL   Duration `yaml:"ttl"`
	Scope string   `yaml:"scope"`
}

// Normalizer rewrites the text of messages for the cache key only.
type Normalizer struct {
	Pattern string `yaml:"pattern"` // RE2; compiles
	Replace string `yaml:"replace"` // as regexp.Regexp.Expand reads it
}

// WebhookConfig is an address that is told what a person should look at.
type WebhookConfig struct {
	URL       string   `yaml:"url"` // http or https
	Events    []string `yaml:"events"`
	SecretEnv string   `yaml:"secret_env,omitempty"` // names the variable whose value signs what is sent
}

// GuardConfig governs the guard of side effects.
type GuardConfig struct {
	DefaultOnUnknown string          `yaml:"default_on_unknown"` // retry or hold: what a begin does where a run vanished
	Redact           []string        `yaml:"redact"`             // JSON pointers to values of results that are not stored
	KeySecretEnv     string          `yaml:"key_secret_env"`     // names the variable whose value keys the hashes; "": none
	Forward          []ForwardConfig `yaml:"forward"`            // steps whose calls the guard makes itself
}

// KeyConfig is a client's key to llmproxy. Only its hash is known here.
type KeyConfig struct {
	Name   string   `yaml:"name"`
	Hash   string   `yaml:"hash"`             // see hashKey
	Tenant string   `yaml:"tenant,omitempty"` // whom its answers belong to; "" derives one from the key
	Step   string   `yaml:"step,omitempty"`   // the step of calls that name none
	Scopes []string `yaml:"scopes"`           // llm, guard, admin
}

// defaultConfig is the configuration where nothing is set. The shipped
// config.yaml says the same.
func defaultConfig() Config {
	openai := defaultUpstream()
	openai.Name = "openai"
	openai.BaseURL = "https://api.openai.com/v1"
	openai.APIKeyEnv = "OPENAI_API_KEY"
	return Config{
		Listen:    "127.0.0.1:8484",
		Database:  "llmproxy.db",
		Timezone:  "UTC",
		Log:       LogConfig{Level: "info", Format: "auto"},
		Upstreams: []UpstreamConfig{openai},
		Cache: CacheConfig{
			TTL:           Duration(24 * time.Hour),
			MaxBytes:      1 << 30,
			Memory:        64 << 20,
			Scope:         "step",
			FinishReasons: []string{"stop", "tool_calls", "function_call"},
			Exclude:       []string{},
		},
		Limits:              LimitsConfig{RequestBody: 32 << 20, ResponseBody: 64 << 20, Detached: 256, RefreshesPerKey: 5},
		Webhooks:            []WebhookConfig{},
		Guard:               GuardConfig{DefaultOnUnknown: "retry", Redact: []string{}, Forward: []ForwardConfig{}},
		Shutdown:            ShutdownConfig{Drain: Duration(30 * time.Second)},
		ServeHitsOverBudget: true,
		Steps:               []StepConfig{},
		Budget:              []BudgetRule{},
		Keys:                []KeyConfig{},
	}
}

// defaultUpstream holds what an entry of upstreams has without saying so.
func defaultUpstream() UpstreamConfig {
	return UpstreamConfig{
		Models:  []string{"*"},
		Headers: []HeaderConfig{},
		Retries: RetryConfig{Max: 2, On: []string{"connect", "429", "500", "502", "503", "504"}},
		Timeout: TimeoutConfig{
			Connect: Duration(10 * time.Second),
			Idle:    Duration(5 * time.Minute),
			Total:   Duration(15 * time.Minute),
		},
	}
}

// defaultStep holds what an entry of steps has without saying so.
func defaultStep(cache CacheConfig) StepConfig {
	return StepConfig{
		Aliases:      []string{},
		Cache:        StepCacheConfig{TTL: cache.TTL, Scope: cache.Scope},
		OnDisconnect: "finish",
		Normalize:    []Normalizer{},
		Budget:       []BudgetRule{},
	}
}

// defaultScopes is what a key may do without saying so.
func defaultScopes() []string { return []string{"llm"} }
