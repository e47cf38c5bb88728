package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// parse loads a configuration file's content under the given variables and
// flags, all of which a command may have.
func parse(t testing.TB, content string, env map[string]string, args ...string) (Settings, error) {
	t.Helper()
	return parseSettings("config.yaml", []byte(content), env, testFlags(t, args...))
}

func testFlags(t testing.TB, args ...string) *pflag.FlagSet {
	t.Helper()
	cmd := &cobra.Command{}
	addConfigFlags(cmd, servingFlags()...)
	if err := cmd.ParseFlags(args); err != nil {
		t.Fatal(err)
	}
	return cmd.Flags()
}

func TestNothingSetIsDefault(t *testing.T) {
	for _, content := range []string{"", "# nothing\n", "---\n", "cache:\nsteps:\nlimits: {detached: null}\nlisten: ~\n"} {
		settings, err := parse(t, content, map[string]string{"LLMPROXY_LISTEN": ""})
		if err != nil || !reflect.DeepEqual(settings.Config, defaultConfig()) {
			t.Errorf("%q is read as %+v, %v; want the defaults", content, settings.Config, err)
		}
	}
}

// TestShippedConfig holds config.yaml to its promise: every setting stands in
// it, with its default, and its examples are right.
func TestShippedConfig(t *testing.T) {
	content, err := os.ReadFile("../../config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	shipped, err := parse(t, string(content), nil)
	if err != nil {
		t.Fatalf("the shipped file is refused where no variable is set: %v", err)
	}
	if !reflect.DeepEqual(shipped.Config, defaultConfig()) {
		t.Errorf("the shipped file is read as\n%+v\nwant the defaults\n%+v", shipped.Config, defaultConfig())
	}
	r := newReader("config.yaml", nil)
	r.file(content)
	for key := range leaves(reflect.ValueOf(defaultConfig()), "") {
		if empty := slices.Contains([]string{"steps", "budget", "keys", "webhooks", "guard.forward"}, key); !r.isSet(key) && !empty {
			t.Errorf("%s does not stand in the shipped file as a line of its own", key)
		}
	}

	// An example replaces the line before it that sets the same.
	example := regexp.MustCompile(`(?m)^#( {2,})`)
	replaced := regexp.MustCompile(`(?m)^ *(headers: \[\]|exclude: \[\]|api_key_env: .*)( *#.*)?\n`)
	content = example.ReplaceAll(replaced.ReplaceAll(content, nil), []byte("$1"))
	full, err := parse(t, string(content), map[string]string{"OPENAI_API_KEY": "sk-test", "WEBHOOK_SECRET": "s"})
	if err != nil {
		t.Fatalf("the examples of the shipped file are refused: %v\n%s", err, content)
	}
	if len(full.Steps) != 2 || len(full.Steps[0].Budget) != 5 || len(full.Upstreams) != 2 || len(full.Keys) != 1 {
		t.Errorf("the examples are read as %+v", full.Config)
	}
	set := newReader("config.yaml", map[string]string{"OPENAI_API_KEY": "sk-test", "WEBHOOK_SECRET": "s"})
	set.file(content)
	var seen []string
	for path := range set.origins {
		seen = append(seen, listIndex.ReplaceAllString(path, "[]"))
	}
	for _, key := range schemaKeys(reflect.TypeFor[Config](), "") {
		inShipped := slices.Contains(seen, key) || key == "upstreams[].api_key_env"
		inGlobal := strings.HasPrefix(key, "budget[].") && slices.Contains(seen, "steps[]."+key)
		if !inShipped && !inGlobal {
			t.Errorf("%s does not occur in the shipped file", key)
		}
	}
}

// TestLayers sets every setting of the file by a variable and checks that the
// variable wins over the file, and the file over the default.
func TestLayers(t *testing.T) {
	samples := map[string][2]string{ // key → value for the file, value for the variable
		"listen":                   {"127.0.0.1:1", "127.0.0.1:2"},
		"database":                 {"a.db", "b.db"},
		"timezone":                 {"Europe/Berlin", "America/New_York"},
		"log.level":                {"warn", "debug"},
		"log.format":               {"json", "text"},
		"cache.ttl":                {"1h", "2h"},
		"cache.max_bytes":          {"1MiB", "2MiB"},
		"cache.memory":             {"3MiB", "0"},
		"cache.scope":              {"shared", "step"},
		"cache.finish_reasons":     {"[length]", "stop, length"},
		"cache.exclude":            {`["+a"]`, "+b,-user"},
		"limits.request_body":      {"5MiB", "6MiB"},
		"limits.response_body":     {"7MiB", "8MiB"},
		"limits.detached":          {"1", "0"},
		"limits.refreshes_per_key": {"3", "4"},
		"shutdown.drain":           {"1s", "0s"},
		"charges.image":            {"100", "0"},
		"charges.audio":            {"100", "0"},
		"charges.file":             {"100", "0"},
		"charges.web_search":       {"100", "0"},
		"charges.hosted_tool":      {"100", "0"},
		"charges.state":            {"100", "0"},
		"charges.part":             {"100", "0"},
		"guard.default_on_unknown": {"hold", "retry"},
		"guard.redact":             {"[/a]", "/b"},
		"guard.key_secret_env":     {"HOME_A", "HOME_B"},
		"tenant":                   {"tests", "other"},
		"replay_only":              {"true", "false"},
		"steps_declared_only":      {"true", "false"},
		"serve_hits_over_budget":   {"false", "true"},
	}
	value := func(t *testing.T, content string, env map[string]string, key string) any {
		t.Helper()
		env = maps.Clone(env)
		if env == nil {
			env = map[string]string{}
		}
		env["HOME_A"], env["HOME_B"] = "a secret", "another"
		settings, err := parse(t, content, env)
		if err != nil {
			t.Fatal(err)
		}
		return leaves(reflect.ValueOf(settings.Config), "")[key]
	}
	for key, def := range leaves(reflect.ValueOf(defaultConfig()), "") {
		typ := reflect.TypeOf(def)
		if typ.Kind() == reflect.Slice && typ.Elem().Kind() == reflect.Struct {
			continue // only the file holds these
		}
		sample, ok := samples[key]
		if !ok {
			t.Errorf("no sample for %s", key)
			continue
		}
		t.Run(key, func(t *testing.T) {
			section, name, nested := strings.Cut(key, ".")
			content := section + ": " + sample[0]
			if nested {
				content = section + ":\n  " + name + ": " + sample[0]
			}
			env := map[string]string{variableName(key): sample[1]}
			file, both, variable := value(t, content, nil, key), value(t, content, env, key), value(t, "", env, key)
			if reflect.DeepEqual(file, def) {
				t.Errorf("the file does not win over the default %v", def)
			}
			if reflect.DeepEqual(both, file) || !reflect.DeepEqual(both, variable) {
				t.Errorf("file %v, variable %v; both give %v", file, variable, both)
			}
		})
	}
	for _, f := range settingFlags() {
		sample := samples[f.key]
		settings, err := parse(t, "", map[string]string{variableName(f.key): sample[0]}, "--"+f.name+"="+sample[1])
		if err != nil {
			t.Fatal(err)
		}
		if got := leaves(reflect.ValueOf(settings.Config), "")[f.key]; fmt.Sprint(got) != sample[1] {
			t.Errorf("--%s %s over a variable gives %v", f.name, sample[1], got)
		}
	}
}

// TestNamesSurvive guards against what becomes of names when they are keys of
// maps (cut at dots, in lower case) or YAML values (numbers, dates).
func TestNamesSurvive(t *testing.T) {
	settings, err := parse(t, `
upstreams:
  - {name: A.b, base_url: "http://h/V1", models: [gpt-4.1, Llama::3, 4.10, 2024-01-01, no, 0x1F]}
steps:
  - {name: Draft.Reply v2, aliases: [1e3, "007"]}
`, nil)
	if err != nil {
		t.Fatal(err)
	}
	u, s := settings.Upstreams[0], settings.Steps[0]
	if u.Name != "A.b" || u.BaseURL != "http://h/V1" ||
		!slices.Equal(u.Models, []string{"gpt-4.1", "Llama::3", "4.10", "2024-01-01", "no", "0x1F"}) {
		t.Errorf("the upstream is read as %+v", u)
	}
	if s.Name != "Draft.Reply v2" || !slices.Equal(s.Aliases, []string{"1e3", "007"}) {
		t.Errorf("the step is read as %+v", s)
	}
}

func TestListElementsHaveDefaults(t *testing.T) {
	settings, err := parse(t, `
cache: {ttl: 2h}
upstreams: [{name: sim, base_url: builtin:sim, retries: {max: 0}, timeout: {total: 1m}}]
steps: [{name: a, cache: {scope: shared}}, {name: b, budget: [{tokens: 0, per: day}, {calls: 5, per: hour, action: flag, flag_at: 3}]}]
keys: [{name: k, hash: "`+hashKey("k")+`"}]
`, map[string]string{"LLMPROXY_CACHE__TTL": "3h"})
	if err != nil {
		t.Fatal(err)
	}
	upstream := defaultUpstream()
	upstream.Name, upstream.BaseURL, upstream.Retries.Max, upstream.Timeout.Total = "sim", simURL, 0, Duration(time.Minute)
	if !reflect.DeepEqual(settings.Upstreams, []UpstreamConfig{upstream}) {
		t.Errorf("the upstream is %+v, want %+v", settings.Upstreams, upstream)
	}
	a, b := defaultStep(settings.Cache), defaultStep(settings.Cache)
	a.Name, a.Cache.Scope = "a", "shared"
	b.Name = "b"
	b.Budget = []BudgetRule{
		{Unit: "tokens", Limit: 0, Per: "day", Action: "reject"},
		{Unit: "calls", Limit: 5, Per: "hour", Action: "flag", FlagAt: 3},
	}
	if a.Cache.TTL != Duration(3*time.Hour) || !reflect.DeepEqual(settings.Steps, []StepConfig{a, b}) {
		t.Errorf("the steps are %+v, want %+v", settings.Steps, []StepConfig{a, b})
	}
	if !slices.Equal(settings.Keys[0].Scopes, []string{"llm"}) {
		t.Errorf("the key is %+v", settings.Keys[0])
	}
}

func TestVariablesInTheFile(t *testing.T) {
	settings, err := parse(t, `
cache: {ttl: "${TTL}"}
limits: {detached: "${COUNT}"}
database: ${DIR}/${DIR}$${x}.db
steps: [{name: a, normalize: [{pattern: "(a)", replace: "<${1}$2>"}]}]
`, map[string]string{"TTL": "7h", "COUNT": "9", "DIR": "a: {b}"})
	if err != nil {
		t.Fatal(err)
	}
	if settings.Cache.TTL != Duration(7*time.Hour) || settings.Limits.Detached != 9 ||
		settings.Database != "a: {b}/a: {b}${x}.db" || settings.Steps[0].Normalize[0].Replace != "<${1}$2>" {
		t.Errorf("the file is read as %+v", settings.Config)
	}
}

func TestWarnings(t *testing.T) {
	withKeys := `keys: [{name: k, hash: "` + hashKey("k") + `"}]`
	own := "upstreams: [{name: u, base_url: 'http://h', api_key_env: LLMPROXY_UPSTREAM_SECRET}]\ndatabase: ${LLMPROXY_FOLDER}/x.db"
	for _, test := range []struct {
		content string
		env     map[string]string
		want    []string
	}{
		{"", map[string]string{"OPENAI_API_KEY": "k"}, nil},
		{"", nil, []string{`OPENAI_API_KEY of upstream "openai" is not set: the client's own Authorization goes through`}},
		{withKeys, nil, []string{`OPENAI_API_KEY of upstream "openai" is not set: llmproxy has no key for it, and clients send their key to llmproxy`}},
		{own, map[string]string{"LLMPROXY_UPSTREAM_SECRET": "k", "LLMPROXY_FOLDER": "f"}, nil},
		{"", map[string]string{"OPENAI_API_KEY": "k", "LLMPROXY_KEY": "lp_x"}, // a client's, and no misspelling of keys
			[]string{"the environment variable LLMPROXY_KEY is no setting and is ignored"}},
		{own, map[string]string{"LLMPROXY_UPSTREAM_SECRET": "k", "LLMPROXY_FOLDER": "f", "LLMPROXY_CONFIG": "x",
			"LLMPROXY_SERVICE_HOST": "h", "LLMPROXY_PORT_8484_TCP_ADDR": "h", "LLMPROXY_PORT": "tcp://h:8484"},
			[]string{"the environment variable LLMPROXY_CONFIG is no setting and is ignored"}},
	} {
		settings, err := parse(t, test.content, test.env)
		if err != nil || !slices.Equal(settings.Warnings, test.want) {
			t.Errorf("%q under %v: warnings are %q, %v; want %q", test.content, test.env, settings.Warnings, err, test.want)
		}
	}
}

func TestUpstreamKey(t *testing.T) {
	env := map[string]string{"A": "from A"}
	for want, u := range map[string]UpstreamConfig{
		"from A":  {APIKeyEnv: "A"},
		"literal": {APIKey: "literal"},
		"":        {APIKeyEnv: "B"},
	} {
		if got := u.key(env); got != want {
			t.Errorf("the key of %+v is %q, want %q", u, got, want)
		}
	}
}

// TestMistakes holds the text of each mistake: one line of the file, one message.
func TestMistakes(t *testing.T) {
	upstream := "upstreams: [{name: u, base_url: 'http://h', "
	hash := "hash: '" + hashKey("k") + "'"
	tests := []struct{ content, want string }{
		{"listen: 8484", `listen: "8484" is no address; write host:port, such as 127.0.0.1:8484`},
		{"listen: 127.0.0.1:99999", `listen: "127.0.0.1:99999" is no address; write host:port, such as 127.0.0.1:8484`},
		{"listen: [a]", "listen: must be a single value"},
		{"timezone: Mars/Olympus", `timezone: "Mars/Olympus" is no time zone; write an IANA name such as Europe/Berlin or UTC`},
		{"database: postgres://u:SECRET@h/db", "database: this release stores in SQLite only; write the path of a file"},
		{"database: ':memory:'", `database: ":memory:" is no path of a file; write one such as llmproxy.db`},
		{"database: ~/x.db", `database: "~/x.db" is not expanded; write ${HOME} for the home folder`},
		{"log: {level: loud}", `log.level: "loud" is no level; use debug, info, warn or error`},
		{"log: info", "log: must be a mapping with keys such as level and format"},

		{"cache: {ttl: 0s}", `cache.ttl: "0s" must be above 0`},
		{"cache: {ttl: -1h}", `cache.ttl: "-1h" is negative; write 0s or more`},
		{"cache: {max_bytes: 0}", `cache.max_bytes: "0" must be above 0`},
		{"cache: {finish_reasons: stop}", "cache.finish_reasons: must be a list; write [stop] or one line with a leading - for each entry"},
		{"cache: {finish_reasons: [stop, null]}", "cache.finish_reasons[1]: is empty; fill it in or remove the line"},
		{"cache: {exclude: [user]}", `cache.exclude[0]: "user" is no change; write "+name" to take a body member out of the key, or "-name" to put one back`},
		{"cache: {exclude: [+messages]}", `cache.exclude[0]: "+messages" would answer different questions alike; this member stays in the key`},
		{"cache: {exclude: [+a, -a]}", `cache.exclude[1]: "-a" and "+a" cancel each other; keep one`},
		{"ttl: 5m", "ttl: is no setting; did you mean cache.ttl?"},
		{"steps: [{name: a, scope: step}]", "steps[0].scope: is no setting; did you mean cache.scope?"},
		{"colour: red", "colour: is no setting; use listen, database, timezone, tenant, replay_only, log, upstreams, cache, limits, charges, shutdown, steps_declared_only, serve_hits_over_budget, steps, budget, keys, webhooks or guard"},
		{"cache: {<<: {ttl: 1h}}", "cache.<<: merging is not supported; repeat the lines, or use an alias for a whole value"},

		{"limits: {request_body: 0}", `limits.request_body: "0" must be above 0`},
		{"limits: {detached: 1.5}", `limits.detached: "1.5" is no whole number; write digits only, such as 60000`},
		{"steps_declared_only: yes", `steps_declared_only: "yes" is neither true nor false`},
		{"steps_declared_only: 'true'", `steps_declared_only: "true" is neither true nor false`},

		{"upstreams: []", "upstreams: is empty; name at least one upstream, or remove the key for OpenAI"},
		{"upstreams: [{base_url: 'http://h'}]", "upstreams[0].name: is missing"},
		{"upstreams: [{name: a b, base_url: 'http://h'}]", `upstreams[0].name: "a b" has a space, a slash or a control character; use letters, digits, dots and dashes`},
		{"upstreams: [{name: a}]", "upstreams[0].base_url: is missing; write one such as https://api.openai.com/v1, or builtin:sim"},
		{"upstreams: [{name: a, base_url: api.openai.com}]", `upstreams[0].base_url: "api.openai.com" is no http or https URL; write one such as https://api.openai.com/v1, or builtin:sim`},
		{"upstreams: [{name: a, base_url: 'https://u:SECRET@h'}]", "upstreams[0].base_url: holds a user name or password; put it in api_key or headers"},
		{"upstreams: [{name: a, base_url: 'http://u:SEC RET@h'}]", "upstreams[0].base_url: is no http or https URL"},
		{"upstreams: [{name: a, base_url: 'http://h?key=SECRET'}]", "upstreams[0].base_url: has a query that may hold a secret; put that in headers or api_key"},
		{"tenant: a/b", `tenant: "a/b" has a slash or a control character; leave it out`},
		{"upstreams: [{name: a, base_url: 'http://h?a=%zz'}]", "upstreams[0].base_url: has a query that is not name=value; write one such as ?api-version=2024-10-21, or leave it out"},
		{"upstreams: [{name: a, base_url: 'http://h/#v1'}]", "upstreams[0].base_url: ends in a fragment, which is never sent; leave out what begins with #"},
		{"upstreams: [{name: a, base_url: 'http://h', models: [x]}, {name: a, base_url: 'http://h'}]", "upstreams[1].name: is the same as upstreams[0].name (config.yaml:1)"},
		{"upstreams: [{name: a, base_url: 'http://h'}, {name: b, base_url: 'http://h', models: [m]}]", `upstreams[1]: is never used, because "a" before it takes every model; put it first`},
		{upstream + "models: []}]", `upstreams[0].models: is empty, so no call would come here; write ["*"] for every model`},
		{upstream + "models: ['o?-mini']}]", `upstreams[0].models[0]: "o?-mini" is no pattern; write a model's name, with * for any text, such as "gpt-4.1*"`},
		{upstream + "models: gpt-4.1}]", "upstreams[0].models: must be a list; write [gpt-4.1] or one line with a leading - for each entry"},
		{upstream + "api_key_env: gsk_SECRET}]", "upstreams[0].api_key_env: is no name of a variable in capitals; write the name, such as OPENAI_API_KEY, not the key"},
		{upstream + `api_key: "SECRET\n"}]`, "upstreams[0].api_key: holds a line break or another control character"},
		{upstream + "headers: ['a: b']}]", "upstreams[0].headers[0]: must be a mapping with keys such as name and value"},
		{upstream + "headers: [{name: 'a b', value: SECRET}]}]", `upstreams[0].headers[0].name: "a b" is no header name; use letters, digits and dashes`},
		{upstream + "headers: [{name: Host, value: h}]}]", `upstreams[0].headers[0].name: "Host" is set by the connection itself; remove it`},
		{upstream + `headers: [{name: x, value: "SECRET\r\n"}]}]`, "upstreams[0].headers[0].value: holds a line break or another control character"},
		{upstream + "headers: [{name: x, value: 1}, {name: X, value: 2}]}]", "upstreams[0].headers[1].name: is the same as upstreams[0].headers[0].name (config.yaml:1)"},
		{upstream + "api_key: SECRET, headers: [{name: authorization, value: SECRET}]}]", `upstreams[0].headers[0].name: "authorization" is what the API key is sent in; remove the header or the key`},
		{upstream + "idempotency_header: 'a:'}]", `upstreams[0].idempotency_header: "a:" is no header name; use letters, digits and dashes`},
		{upstream + "retries: {max: 11}}]", `upstreams[0].retries.max: "11" is above 10; clients retry too`},
		{upstream + "retries: {on: [200]}}]", `upstreams[0].retries.on[0]: "200" is no reason to retry; use connect or a status from 400 to 599`},
		{upstream + "timeout: {idle: 0s}}]", `upstreams[0].timeout.idle: "0s" must be above 0`},

		{"steps: [{aliases: [a]}]", "steps[0].name: is missing"},
		{"steps: [{name: a/b}]", `steps[0].name: "a/b" has a slash or a control character; leave it out`},
		{"steps: [{name: ' a'}]", `steps[0].name: " a" has space around it; write "a"`},
		{"steps: [{name: a}, {name: a}]", "steps[1].name: is the same as steps[0].name (config.yaml:1)"},
		{"steps: [{name: a, aliases: [b, b]}]", "steps[0].aliases[1]: is the same as steps[0].aliases[0] (config.yaml:1)"},
		{"steps: [{name: '*', aliases: [b]}]", `steps[0].aliases: have no place at "*", which stands for every step without an entry`},
		{"steps: [{name: a, aliases: ['*']}]", `steps[0].aliases[0]: "*" is no alias; give the entry itself the name "*"`},
		{"steps: [{name: a, on_disconnect: stop}]", `steps[0].on_disconnect: "stop" is no choice; use finish or cancel`},
		{"steps: [{name: a, cache: {ttl: 0}}]", `steps[0].cache.ttl: "0" must be above 0`},
		{"steps: [{name: a, assume_output: -5}]", `steps[0].assume_output: "-5" is negative; write 0 or more`},
		{"steps: [{name: a, normalize: [{replace: x}]}]", "steps[0].normalize[0].pattern: is missing; write a regular expression (RE2)"},
		{"steps: [{name: a, normalize: [{pattern: 'x*', replace: y}]}]", `steps[0].normalize[0].pattern: "x*" matches nothing at all, and so everywhere; require at least one character`},
		{"steps: [null]", "steps[0]: is empty; fill it in or remove the line"},
		{"steps: {a: {}}", "steps: must be a list; write [{…}] or one line with a leading - for each entry"},

		{"budget: [{tokens: '100', per: day}]", `budget[0].tokens: "100" is text; write 100 without quotes`},
		{"budget: [{tokens: -1, per: day}]", `budget[0].tokens: "-1" is negative; write 0 or more`},
		{"budget: [{tokens: .nan, per: day, flag_at: 5}]", `budget[0].tokens: ".nan" is no whole number; write digits only, such as 60000`},
		{"budget: [{tokens: 99999999999999999999, per: day}]", `budget[0].tokens: "99999999999999999999" is too large; the most is 9223372036854775807`},
		{"budget: [{tokens: null, per: day}]", "budget[0]: has no limit; add one of input_tokens, output_tokens, tokens or calls"},
		{"budget: [{tokens: 5}]", "budget[0].per: is missing; use call, run, minute, hour, day, week, month or total"},
		{"budget: [{tokens: 5, per: day, action: warn}]", `budget[0].action: "warn" is no action; use reject or flag`},
		{"budget: [{tokens: 5, per: day, flag_at: 6}]", `budget[0].flag_at: "6" is above the limit of 5`},
		{"budget: [{tokns: 5, per: day, flag_at: 6}]", "budget[0].tokns: is no setting; did you mean tokens?"},
		{"budget: [{usd: 5, per: month}]", "budget[0].usd: budgets in usd come in a later release; limit input_tokens, output_tokens, tokens or calls"},
		{"budget: [tokens]", "budget[0]: must be a mapping with keys such as input_tokens, output_tokens and tokens"},

		{"keys: [{name: k}]", "keys[0].hash: is missing"},
		{"keys: [{name: k, hash: lp_SECRET}]", `keys[0].hash: is no hash of a key; write the line that "llmproxy keys new NAME" prints`},
		{"keys: [{name: k, " + hash + "}, {name: l, " + hash + "}]", "keys[1].hash: is the same as keys[0].hash (config.yaml:1)"},
		{"keys: [{name: k, scopes: [], " + hash + "}]", "keys[0].scopes: is empty, so the key may do nothing; use llm, guard or admin, or remove the key"},
		{"keys: [{name: k, scopes: [root], " + hash + "}]", `keys[0].scopes[0]: "root" is no scope; use llm, guard or admin`},
		{"keys: [{name: k, tenant: a/b, " + hash + "}]", `keys[0].tenant: "a/b" has a slash or a control character; leave it out`},
		{"{steps_declared_only: true, keys: [{name: k, step: a, " + hash + "}]}", `keys[0].step: "a" is not among the steps, and steps_declared_only is true; add it or write one that is`},

		{"webhooks: [{url: mail, events: [budget_over]}]", "webhooks[0].url: is no address; write one such as https://example.com/hook"},
		{"webhooks: [{url: 'http://h/', events: [budget_over], secret_env: NOT_SET}]", `webhooks[0].secret_env: "NOT_SET" is a variable that is not set, and notices would go unsigned; set it, or remove the key`},
		{"webhooks: [{url: 'http://h/', events: []}]", "webhooks[0].events: is empty, so it is told nothing; use budget_near, budget_over or effect_unknown"},
		{"webhooks: [{url: 'http://h/', events: [fire]}]", `webhooks[0].events[0]: "fire" is no event; use budget_near, budget_over or effect_unknown`},
		{"guard: {key_secret_env: NOT_SET}", "guard.key_secret_env: \"NOT_SET\" is a variable that is not set; set it to a secret that stays"},
		{"guard: {redact: [token]}", `guard.redact[0]: "token" is no JSON pointer; write /member or /member/0`},
		{"guard: {default_on_unknown: never}", `guard.default_on_unknown: "never" is no policy; use retry or hold`},
		{"ledger: {keep_requests: true}", "ledger: is not available in this release; remove the key"},
		{"database: ${NOPE}", "database: the environment variable NOPE is not set; set it, or write $${ for a literal ${"},
		{"database: ${MY-VAR}", "database: ${MY-VAR} names no environment variable; write ${NAME}, or $${ for a literal ${"},
		{"database: ${", "database: ${ names no environment variable; write ${NAME}, or $${ for a literal ${"},
		{"listen: ${PRIVATE}", `listen: "${PRIVATE}" is no address; write host:port, such as 127.0.0.1:8484`},
	}
	for _, test := range tests {
		_, err := parse(t, test.content, map[string]string{"PRIVATE": "SECRET"})
		wrong, ok := errors.AsType[*ConfigError](err)
		if !ok || len(wrong.Mistakes) != 1 || wrong.Mistakes[0].String() != "config.yaml:1: "+test.want {
			t.Errorf("%s\ngives %v\nwant one mistake: %s", test.content, err, test.want)
		}
		if err != nil && strings.Contains(err.Error(), "SECRET") {
			t.Errorf("%s\nshows a secret: %v", test.content, err)
		}
	}
}

func TestMistakesInVariables(t *testing.T) {
	for name, test := range map[string]struct{ text, want string }{
		"LLMPROXY_DATABASE":          {"null", ""},
		"LLMPROXY_TIMEZONE":          {"null", `timezone: "null" is no time zone; write an IANA name such as Europe/Berlin or UTC`},
		"LLMPROXY_LIMITS__DETACHED":  {"many", `limits.detached: "many" is no whole number; write digits only, such as 60000`},
		"LLMPROXY_CACHE__EXCLUDE":    {"+a,,-b", `cache.exclude[1]: "" is no change; write "+name" to take a body member out of the key, or "-name" to put one back`},
		"LLMPROXY_KEYS":              {"lp_x", "stands for a list that only the file can hold; move it there"},
		"LLMPROXY_LISTN":             {"x", "is no setting; did you mean LLMPROXY_LISTEN?"},
		"LLMPROXY_UPSTREAMS__0__KEY": {"x", "is no setting; llmproxy config check shows them all"},
	} {
		_, err := parse(t, "", map[string]string{name: test.text})
		wrong, _ := errors.AsType[*ConfigError](err)
		if test.want == "" && err == nil {
			continue
		}
		if wrong == nil || len(wrong.Mistakes) != 1 || wrong.Mistakes[0].String() != name+": "+test.want {
			t.Errorf("%s=%s gives %v, want %s", name, test.text, err, test.want)
		}
	}
}

// TestMistakesOfTwoSources has the same setting wrong in the file and over it.
func TestMistakesOfTwoSources(t *testing.T) {
	_, err := parse(t, "cache: {ttl: 90}\nlog: {level: [x]}", map[string]string{"LLMPROXY_CACHE__TTL": "soon"}, "--log-level", "loud")
	want := `the configuration has 4 mistakes:
config.yaml:1: cache.ttl: "90" has no unit; write 90s for seconds
config.yaml:2: log.level: must be a single value
LLMPROXY_CACHE__TTL: cache.ttl: "soon" is no duration; write one such as 90s, 24h or 30d
--log-level: log.level: "loud" is no level; use debug, info, warn or error`
	if err == nil || err.Error() != want {
		t.Errorf("error is %v\nwant %s", err, want)
	}
}

func TestExcluded(t *testing.T) {
	byDefault := []string{"stream", "user"}
	for _, test := range []struct{ changes, want []string }{
		{nil, []string{"stream", "user"}},
		{[]string{"+trace", "-user", "+stream"}, []string{"trace", "stream"}},
		{[]string{"-other"}, []string{"stream", "user"}},
	} {
		if got := (CacheConfig{Exclude: test.changes}).excluded(byDefault); !slices.Equal(got, test.want) {
			t.Errorf("%q changes %q to %q, want %q", test.changes, byDefault, got, test.want)
		}
	}
	if !slices.Equal(byDefault, []string{"stream", "user"}) {
		t.Errorf("the default list has become %q", byDefault)
	}
}

// TestPrintedConfigLoads prints configurations and reads them back.
func TestPrintedConfigLoads(t *testing.T) {
	shipped, err := os.ReadFile("../../config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, content := range []string{"", string(shipped), rich} {
		first, err := parse(t, content, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, format := range []string{"yaml", "json"} {
			text, err := printConfig(first, format)
			if err != nil {
				t.Fatal(err)
			}
			again, err := parse(t, string(text), nil)
			if err != nil || !reflect.DeepEqual(again.Config, maskSecrets(first.Config)) {
				t.Errorf("%s\nis read as %+v, %v; want %+v", text, again.Config, err, first.Config)
			}
			if strings.Contains(string(text), "SECRET") {
				t.Errorf("a secret is printed:\n%s", text)
			}
			if format == "json" && !json.Valid(text) {
				t.Errorf("this is no JSON:\n%s", text)
			}
		}
	}
}

// rich is a configuration with an entry in every list.
var rich = `
upstreams:
  - name: azure
    base_url: https://x.openai.azure.com/openai
    api_key: SECRET
    models: ["gpt-4.1*", "4.10"]
    headers: [{name: api-key, value: SECRET}, {name: X-Auth-Token, value: SECRET}, {name: X-Team, value: "$${team}"}]
    idempotency_header: Idempotency-Key
  - {name: sim, base_url: builtin:sim, retries: {max: 0, on: []}}
cache: {exclude: ["+trace", -user], ttl: 1h30m, max_bytes: 1500000}
steps:
  - name: a
    aliases: ["007", "null", "yes"]
    wait: 5m
    on_disconnect: cancel
    normalize: [{pattern: '\d+ # "x"', replace: "<${1}>"}]
    budget: [{input_tokens: 8000, per: call}, {tokens: 10, per: day, flag_at: 80%}]
  - {name: "*"}
budget: [{calls: 0, per: total, action: flag}]
keys: [{name: k, hash: "` + hashKey("k") + `", tenant: t, step: a, scopes: [admin]}]
`

func TestNewLogger(t *testing.T) {
	for _, format := range []string{"auto", "json"} {
		var out bytes.Buffer
		logger, err := newLogger(LogConfig{Level: "warn", Format: format}, &out)
		if err != nil {
			t.Fatal(err)
		}
		logger.Info("quiet")
		logger.Warn("loud", slog.Int("n", 1))
		var line struct {
			Msg string `json:"msg"`
			N   int    `json:"n"`
		}
		if err := json.Unmarshal(out.Bytes(), &line); err != nil || line.Msg != "loud" || line.N != 1 {
			t.Errorf("%s: the log is %q, %v; want one line of JSON", format, out.String(), err)
		}
	}
	var out bytes.Buffer
	logger, err := newLogger(LogConfig{Level: "debug", Format: "text"}, &out)
	if err != nil {
		t.Fatal(err)
	}
	logger.Debug("hello")
	if !strings.Contains(out.String(), "level=DEBUG msg=hello") {
		t.Errorf("the log is %q, want text", out.String())
	}
	if _, err := newLogger(LogConfig{Level: "loud"}, &out); err == nil {
		t.Error("the level loud is accepted")
	}
}

// FuzzSettings reads any file: no panic, every mistake with a place, and what is
// accepted prints as a file that is accepted and means the same.
func FuzzSettings(f *testing.F) {
	f.Add(rich)
	f.Add("steps: &a [{name: x, aliases: *a}]")
	f.Add("budget: [{tokens: 1e400, per: 0s, flag_at: 80%}, 5, {}, null]")
	f.Add("listen: [")
	f.Add("cache: {ttl: ${X}, <<: {}}")
	f.Add("? [a]\n: b\n---\nx: *y")
	f.Fuzz(func(t *testing.T, content string) {
		first, err := parse(t, content, nil)
		if err != nil {
			wrong, ok := errors.AsType[*ConfigError](err)
			if !ok {
				t.Fatalf("error is %v, want a *ConfigError", err)
			}
			for _, m := range wrong.Mistakes {
				if !strings.HasPrefix(m.Where, "config.yaml:") || m.Text == "" {
					t.Errorf("a mistake without a line: %v", m)
				}
			}
			return
		}
		text, err := printConfig(first, "yaml")
		if err != nil {
			t.Fatal(err)
		}
		again, err := parse(t, string(text), nil)
		if err != nil || !reflect.DeepEqual(again.Config, maskSecrets(first.Config)) {
			t.Errorf("%s\nis read as %+v, %v; want %+v", text, again.Config, err, first.Config)
		}
	})
}
