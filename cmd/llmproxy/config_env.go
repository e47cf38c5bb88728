package main

import (
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// variableName is the environment variable that overrides key.
func variableName(key string) string {
	return "LLMPROXY_" + strings.ToUpper(strings.ReplaceAll(key, ".", "__"))
}

// variables reads the environment variables that stand for keys. An empty one
// counts as not set. One that is almost the name of a setting is a mistake;
// others that begin with LLMPROXY_ may be anybody's and become a warning.
func (r *reader) variables() map[string]any {
	values := map[string]any{}
	var names []string
	for key, value := range leaves(reflect.ValueOf(defaultConfig()), "") {
		name := variableName(key)
		names = append(names, name)
		text := r.env[name]
		if text == "" {
			continue
		}
		r.source, r.where = sourceVariable, name
		typ := reflect.TypeOf(value)
		if typ.Kind() == reflect.Slice && typ.Elem().Kind() == reflect.Struct {
			r.add("", "stands for a list that only the file can hold; move it there")
			continue
		}
		if v := r.value(plainNode(text, typ), typ, key); v != nil {
			put(values, strings.Split(key, "."), v)
		}
	}
	for name, text := range r.env {
		if text == "" || !strings.HasPrefix(name, "LLMPROXY_") || slices.Contains(names, name) || r.used[name] {
			continue
		}
		near, ok := nearest(name, names)
		switch {
		case ok:
			r.source, r.where = sourceVariable, name
			r.add("", "is no setting; did you mean %s?", near)
		case strings.Contains(name, "__"):
			r.source, r.where = sourceVariable, name
			r.add("", "is no setting; llmproxy config check shows them all")
		case !kubernetesVariable.MatchString(name):
			r.ignored = append(r.ignored, name)
		}
	}
	return values
}

// kubernetesVariable matches what Kubernetes sets in every container beside a
// service that is called llmproxy.
var kubernetesVariable = regexp.MustCompile(`^LLMPROXY_(SERVICE_(HOST|PORT.*)|PORT(_[0-9]+_.*)?)$`)

// plainNode is text from outside the file as the file would hold it. A list is
// written with commas.
func plainNode(text string, t reflect.Type) *yaml.Node {
	if t.Kind() != reflect.Slice {
		return &yaml.Node{Kind: yaml.ScalarNode, Value: text}
	}
	list := &yaml.Node{Kind: yaml.SequenceNode}
	for item := range strings.SplitSeq(text, ",") {
		list.Content = append(list.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: strings.TrimSpace(item)})
	}
	return list
}

// put stores value under a path of nested maps.
func put(values map[string]any, path []string, value any) {
	for _, key := range path[:len(path)-1] {
		inner, ok := values[key].(map[string]any)
		if !ok {
			inner = map[string]any{}
			values[key] = inner
		}
		values = inner
	}
	values[path[len(path)-1]] = value
}

// flags notes which settings come from the command line. Their values are
// strings, which validate checks like any other.
func (r *reader) flags(flags *pflag.FlagSet) {
	for _, f := range settingFlags() {
		if flag := flags.Lookup(f.name); flag != nil && flag.Changed {
			r.source, r.where = sourceFlag, "--"+f.name
			r.note(f.key, 0, flag.Value.String())
		}
	}
}
