package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
)

func newConfigCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "config",
		Short:   "Check the configuration and show what is in force",
		Example: "  llmproxy config check",
	}
	cmd.AddCommand(newConfigCheckCmd(a))
	return cmd
}

func newConfigCheckCmd(a *app) *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Print the configuration in force, or every mistake in it",
		Long: `Check reads the configuration as "llmproxy serve" does: the file, over it the
environment (LLMPROXY_LISTEN, LLMPROXY_CACHE__TTL and so on), over both the
flags. It prints every setting with the value in force, secrets masked, as a
valid configuration file. Where something is wrong it prints all mistakes, each
with its place, and exits with 1. Nothing is started or written.`,
		Example: `  llmproxy config check
  llmproxy config check --config /etc/llmproxy/config.yaml
  LLMPROXY_CACHE__TTL=1h llmproxy config check --format json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if format != "yaml" && format != "json" {
				return usagef("--format %q is no format; use yaml or json", format)
			}
			settings, err := a.loadSettings(cmd.Flags())
			if err != nil {
				return err
			}
			for _, warning := range settings.Warnings {
				fmt.Fprintf(cmd.ErrOrStderr(), "warning: %s\n", warning)
			}
			text, err := printConfig(settings, format)
			if err != nil {
				return fmt.Errorf("printing the configuration: %w", err)
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		},
	}
	addConfigFlags(cmd, servingFlags()...)
	cmd.Flags().StringVar(&format, "format", "yaml", "output `format`: yaml or json")
	return cmd
}

// masked stands where a secret was.
const masked = "***"

// printConfig writes the settings as a configuration file that loads again,
// except that its secrets are masked.
func printConfig(settings Settings, format string) ([]byte, error) {
	var doc yaml.Node
	if err := doc.Encode(maskSecrets(settings.Config)); err != nil {
		return nil, err
	}
	finishNode(&doc)
	if format == "json" {
		var values map[string]any
		if err := doc.Decode(&values); err != nil {
			return nil, err
		}
		var out bytes.Buffer
		encoder := json.NewEncoder(&out)
		encoder.SetEscapeHTML(false)
		encoder.SetIndent("", "  ")
		err := encoder.Encode(values)
		return out.Bytes(), err
	}
	out := bytes.NewBufferString("# The configuration in force, from " + cmp.Or(settings.File, "the defaults") + ", the environment and the flags.\n")
	encoder := yaml.NewEncoder(out)
	encoder.SetIndent(2)
	if err := encoder.Encode(&doc); err != nil {
		return nil, err
	}
	return out.Bytes(), encoder.Close()
}

// maskSecrets returns cfg without what must not be shown. Key hashes stay: the
// keys behind them cannot be found.
func maskSecrets(cfg Config) Config {
	upstreams := make([]UpstreamConfig, len(cfg.Upstreams))
	for i, u := range cfg.Upstreams {
		if u.APIKey != "" {
			u.APIKey = masked
		}
		headers := make([]HeaderConfig, len(u.Headers))
		for j, h := range u.Headers {
			if holdsSecret(h.Name) {
				h.Value = masked
			}
			headers[j] = h
		}
		u.Headers = headers
		upstreams[i] = u
	}
	cfg.Upstreams = upstreams
	cfg.Webhooks = slices.Clone(cfg.Webhooks)
	for i, hook := range cfg.Webhooks {
		if u, err := url.Parse(hook.URL); err == nil && u.Path != "" { // some hold their secret there
			cfg.Webhooks[i].URL = u.Scheme + "://" + u.Host + "/" + masked
		}
	}
	return cfg
}

// holdsSecret tells whether a header of that name is likely to carry a secret.
func holdsSecret(header string) bool {
	name := strings.ToLower(header)
	for _, word := range []string{"auth", "key", "token", "secret", "cookie", "password", "credential", "signature"} {
		if strings.Contains(name, word) {
			return true
		}
	}
	return false
}

// finishNode makes a tree ready to be read by people and by the loader: short
// lists on one line, and a literal ${ written as $${.
func finishNode(n *yaml.Node) {
	plain := n.Kind == yaml.SequenceNode
	for _, child := range n.Content {
		finishNode(child)
		plain = plain && child.Kind == yaml.ScalarNode
	}
	if plain {
		n.Style = yaml.FlowStyle
	}
	if n.Kind == yaml.ScalarNode {
		n.Style &^= yaml.DoubleQuotedStyle // set for "on"; the encoder quotes where this YAML needs it
		n.Value = escapeVariables(n.Value)
	}
}

// escapeVariables writes text so that the loader reads it back unchanged.
func escapeVariables(text string) string {
	return variable.ReplaceAllStringFunc(text, func(found string) string {
		if name := strings.TrimSuffix(found[2:], "}"); isDigits(name) && strings.HasSuffix(found, "}") {
			return found
		}
		return "$" + found
	})
}
