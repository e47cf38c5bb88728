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
// counts as not set.
func (r *reader) variables() map[string]any {
	values := map[string]any{}
	var names []string
	r.source = sourceVariable
	for key, value := range leaves(reflect.ValueOf(defaultConfig()), "") {
		name, typ := variableName(key), reflect.TypeOf(value)
		r.where = name
		text := r.env[name]
		switch {
		case typ.Kind() == reflect.Slice && typ.Elem().Kind() == reflect.Struct:
			if text != "" {
				r.add("", "stands for a list that only the file can hold; move it there")
			}
			continue
		case text != "":
			if v := r.value(plainNode(text, typ), typ, key); v != nil {
				put(values, strings.Split(key, "."), v)
			}
		}
		names = append(names, name)
	}
	r.strayVariables(names)
	return values
}

// strayVariables reports variables that are almost the name of a setting. Others
// that begin with LLMPROXY_ may be meant for somebody else, and are a warning.
func (r *reader) strayVariables(settings []string) {
	for name, text := range r.env {
		known := slices.Contains(settings, name) || r.used[name]
		if known || text == "" || !strings.HasPrefix(name, "LLMPROXY_") || kubernetesVariable.MatchString(name) {
			continue
		}
		r.where = name
		if near, ok := nearest(name, settings); ok {
			r.add("", "is no setting; did you mean %s?", near)
		} else if strings.Contains(name, "__") {
			r.add("", "is no setting; llmproxy config check shows them all")
		} else {
			r.ignored = append(r.ignored, name)
		}
	}
}

// kubernetesVariable matches what Kubernetes sets in every container beside a
// service that is called llmproxy.
var kubernetesVariable = regexp.MustCompile(`^LLMPROXY_(SERVICE_(HOST|PORT.*)|PORT(_[0-9]+_.*)?)$`)

// plainNode is text from outside the file as the file would hold it. A list is
// written with commas.
func plainNode(text string, t reflect.Type) *yaml.Node {
	if t.Kind() != reflect.Slice {
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: text} // null is a word here
	}
	list := &yaml.Node{Kind: yaml.SequenceNode}
	for item := range strings.SplitSeq(text, ",") {
		list.Content = append(list.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: strings.TrimSpace(item)})
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
