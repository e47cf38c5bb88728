package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/go-viper/mapstructure/v2"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/spf13/viper"
)

// Settings is a configuration that was loaded and found right.
type Settings struct {
	Config
	File     string   // the file that was read, "" where there is none
	Warnings []string // what is allowed, but is probably not what was meant
}

// settingFlag is a flag that overrides one key of the configuration.
type settingFlag struct {
	name, key, usage string
	isSwitch         bool // true or false, and true without a value
}

func settingFlags() []settingFlag {
	return []settingFlag{
		{name: "listen", key: "listen", usage: "`address` to listen on"},
		{name: "database", key: "database", usage: "`path` of the database file"},
		{name: "timezone", key: "timezone", usage: "time `zone` of days, weeks and months"},
		{name: "tenant", key: "tenant", usage: "`tenant` that calls without a proxy key belong to (default: each credential is its own)"},
		{name: "replay-only", key: "replay_only", usage: "give stored answers only and call no upstream", isSwitch: true},
		{name: "log-level", key: "log.level", usage: "`level` from which to log: debug, info, warn or error"},
		{name: "log-format", key: "log.format", usage: "log `format`: auto, text or json"},
	}
}

// servingFlags are the settings that commands have flags for which serve, or say
// how it would.
func servingFlags() []string {
	return []string{"listen", "database", "timezone", "tenant", "replay-only", "log-level", "log-format"}
}

// addConfigFlags gives cmd --config and those of the settingFlags that are
// named. A command has the flags of the settings it obeys; loadSettings reads
// them.
func addConfigFlags(cmd *cobra.Command, names ...string) {
	cmd.Flags().String("config", "", "configuration `file` (default ./config.yaml, else ~/.config/llmproxy/config.yaml)")
	for _, f := range settingFlags() {
		switch {
		case !slices.Contains(names, f.name):
		case f.isSwitch:
			cmd.Flags().Bool(f.name, false, f.usage)
		default:
			cmd.Flags().String(f.name, "", f.usage)
		}
	}
}

// loadSettings reads the configuration file, lays the environment over it and
// the flags over both, and checks everything. Its error is a *ConfigError that
// lists every mistake, unless the file cannot be read at all.
func (a *app) loadSettings(flags *pflag.FlagSet) (Settings, error) {
	name, content, err := a.readConfigFile(flags)
	if err != nil {
		return Settings{}, err
	}
	return parseSettings(name, content, a.env, flags)
}

// parseSettings is loadSettings without the search for the file.
func parseSettings(name string, content []byte, env map[string]string, flags *pflag.FlagSet) (Settings, error) {
	r := newReader(name, env)
	file := r.file(content)
	variables := r.variables()
	r.flags(flags)
	cfg, err := layer(file, variables, flags)
	if err != nil {
		return Settings{}, err
	}
	r.complete(&cfg)
	validate(r, &cfg)
	if err := r.err(); err != nil {
		return Settings{}, err
	}
	return Settings{Config: cfg, File: name, Warnings: r.warnings(cfg)}, nil
}

// readConfigFile finds and reads the file. Without one it returns "".
func (a *app) readConfigFile(flags *pflag.FlagSet) (name string, content []byte, err error) {
	candidates := []string{"config.yaml"}
	if home := a.env["HOME"]; home != "" {
		candidates = append(candidates, filepath.Join(home, ".config", "llmproxy", "config.yaml"))
	}
	asked := flags.Changed("config")
	if asked {
		file, err := flags.GetString("config")
		if err != nil {
			return "", nil, err
		}
		candidates = []string{file}
	}
	for _, name := range candidates {
		content, err := os.ReadFile(name)
		if err == nil {
			return name, content, nil
		}
		if asked || !errors.Is(err, fs.ErrNotExist) {
			return "", nil, fmt.Errorf("reading the configuration: %w", err)
		}
	}
	return "", nil, nil
}

// layer lets viper lay the sources over one another, weakest first: defaults,
// file, environment, flags. The values of file and variables are checked and
// typed already, so nothing is converted here. The delimiter is one that no key
// holds, and all that a user names stands in lists, because viper splits and
// lower-cases the keys of maps.
func layer(file, variables map[string]any, flags *pflag.FlagSet) (Config, error) {
	v := viper.NewWithOptions(viper.KeyDelimiter("::"))
	for key, value := range leaves(reflect.ValueOf(defaultConfig()), "") {
		v.SetDefault(viperKey(key), value)
	}
	// Viper itself would read the process's variables, not those run was given.
	for _, source := range []map[string]any{file, variables} {
		if err := v.MergeConfigMap(source); err != nil {
			return Config{}, fmt.Errorf("merging the configuration: %w", err)
		}
	}
	for _, f := range settingFlags() {
		flag := flags.Lookup(f.name)
		if flag == nil {
			continue
		}
		if err := v.BindPFlag(viperKey(f.key), flag); err != nil {
			return Config{}, fmt.Errorf("binding --%s: %w", f.name, err)
		}
	}
	var cfg Config
	err := v.UnmarshalExact(&cfg, func(d *mapstructure.DecoderConfig) {
		d.TagName = "yaml"
		d.WeaklyTypedInput = false
		d.DecodeHook = nil
	})
	if err != nil {
		return Config{}, fmt.Errorf("merging the configuration: %w", err)
	}
	return cfg, nil
}

func viperKey(key string) string { return strings.ReplaceAll(key, ".", "::") }

// leaves yields the values of a struct by their dotted keys. A list is a leaf.
func leaves(v reflect.Value, prefix string) map[string]any {
	found := map[string]any{}
	for _, f := range schema(v.Type()) {
		field := v.FieldByIndex(f.index)
		if f.typ.Kind() != reflect.Struct {
			found[prefix+f.key] = field.Interface()
			continue
		}
		for key, value := range leaves(field, prefix+f.key+".") {
			found[key] = value
		}
	}
	return found
}

// member is a key that the configuration knows, with the type of its value.
type member struct {
	key   string
	typ   reflect.Type
	index []int
}

// schema lists the keys of a configuration struct in their order.
func schema(t reflect.Type) []member {
	members := make([]member, 0, t.NumField())
	for f := range t.Fields() {
		key, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		members = append(members, member{key, f.Type, f.Index})
	}
	return members
}

// schemaKeys lists every key of t and below by its path, lists as "steps[].name".
func schemaKeys(t reflect.Type, prefix string) []string {
	var keys []string
	for _, m := range schema(t) {
		path, typ := prefix+m.key, m.typ
		if typ.Kind() == reflect.Slice {
			typ = typ.Elem()
			if typ.Kind() == reflect.Struct {
				path += "[]"
			}
		}
		switch {
		case typ == reflect.TypeFor[BudgetRule]():
			for _, key := range budgetKeys() {
				keys = append(keys, path+"."+key)
			}
		case typ.Kind() == reflect.Struct:
			keys = append(keys, schemaKeys(typ, path+".")...)
		default:
			keys = append(keys, path)
		}
	}
	return keys
}

// complete gives the elements of lists their defaults. Viper knows defaults for
// keys, but not for elements.
func (r *reader) complete(cfg *Config) {
	upstream, step := defaultUpstream(), defaultStep(cfg.Cache)
	for i := range cfg.Upstreams {
		u, at := &cfg.Upstreams[i], fmt.Sprintf("upstreams[%d].", i)
		fill(r, at+"models", &u.Models, upstream.Models)
		fill(r, at+"headers", &u.Headers, upstream.Headers)
		fill(r, at+"retries.max", &u.Retries.Max, upstream.Retries.Max)
		fill(r, at+"retries.on", &u.Retries.On, upstream.Retries.On)
		fill(r, at+"timeout.connect", &u.Timeout.Connect, upstream.Timeout.Connect)
		fill(r, at+"timeout.idle", &u.Timeout.Idle, upstream.Timeout.Idle)
		fill(r, at+"timeout.total", &u.Timeout.Total, upstream.Timeout.Total)
	}
	for i := range cfg.Steps {
		s, at := &cfg.Steps[i], fmt.Sprintf("steps[%d].", i)
		fill(r, at+"aliases", &s.Aliases, step.Aliases)
		fill(r, at+"cache.ttl", &s.Cache.TTL, step.Cache.TTL)
		fill(r, at+"cache.scope", &s.Cache.Scope, step.Cache.Scope)
		fill(r, at+"on_disconnect", &s.OnDisconnect, step.OnDisconnect)
		fill(r, at+"normalize", &s.Normalize, step.Normalize)
		fill(r, at+"budget", &s.Budget, step.Budget)
	}
	for i := range cfg.Keys {
		fill(r, fmt.Sprintf("keys[%d].scopes", i), &cfg.Keys[i].Scopes, defaultScopes())
	}
}

func fill[T any](r *reader, path string, field *T, value T) {
	if !r.isSet(path) {
		*field = value
	}
}

// warnings names what was ignored and keys that are asked for but not there.
func (r *reader) warnings(cfg Config) []string {
	var warnings []string
	for _, name := range slices.Sorted(slices.Values(r.ignored)) {
		if !slices.ContainsFunc(cfg.Upstreams, func(u UpstreamConfig) bool { return u.APIKeyEnv == name }) {
			warnings = append(warnings, fmt.Sprintf("the environment variable %s is no setting and is ignored", name))
		}
	}
	if cfg.Tenant != "" && len(cfg.Keys) > 0 {
		warnings = append(warnings, "tenant is not used, because there are keys: a call without one is refused, and each key has its own tenant:")
	}
	for _, u := range cfg.Upstreams {
		if u.APIKeyEnv != "" && r.env[u.APIKeyEnv] == "" && !cfg.ReplayOnly {
			effect := "the client's own Authorization goes through"
			if len(cfg.Keys) > 0 {
				effect = "llmproxy has no key for it, and clients send their key to llmproxy"
			}
			warnings = append(warnings, fmt.Sprintf("%s of upstream %q is not set: %s", u.APIKeyEnv, u.Name, effect))
		}
	}
	return warnings
}
