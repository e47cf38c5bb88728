package main

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
)

func newKeysCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "keys",
		Short:   "Make keys for clients",
		Example: "  llmproxy keys new ci",
	}
	cmd.AddCommand(newKeysNewCmd(a))
	return cmd
}

func newKeysNewCmd(*app) *cobra.Command {
	var key KeyConfig
	cmd := &cobra.Command{
		Use:   "new NAME",
		Short: "Print a new key, once, and the line that lets it in",
		Long: `New prints a key and the line that lets it in. Give the key to the client as its
API key, and put the line under keys in the configuration. The line holds the
key's SHA-256 only: a lost key cannot be shown again, make a new one.

The scope llm may call the model, admin may also change what the server holds.`,
		Example: `  llmproxy keys new ci
  llmproxy keys new n8n --tenant sales --step draft-reply
  llmproxy keys new ops --scopes llm,admin`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("keys new takes one name, but got %d arguments", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			key.Name = args[0]
			if err := checkNewKey(key); err != nil {
				return err
			}
			secret := newKey()
			key.Hash = hashKey(secret)
			line, err := configLine(key)
			if err != nil {
				return fmt.Errorf("writing the line for the configuration: %w", err)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), `The key, shown this once; the client sends it as its API key:

  %s

The line to put under keys in the configuration:

  %s
`, secret, line)
			return err
		},
	}
	cmd.Flags().StringVar(&key.Tenant, "tenant", "", "`tenant` that the answers belong to (default: this key alone)")
	cmd.Flags().StringVar(&key.Step, "step", "", "`step` of calls that name none")
	cmd.Flags().StringSliceVar(&key.Scopes, "scopes", defaultScopes(), "what the key may do: "+enumerate(keyScopes(), "and"))
	return cmd
}

// checkNewKey reports what the configuration would refuse.
func checkNewKey(key KeyConfig) error {
	for _, field := range []struct{ noun, value string }{{"NAME", key.Name}, {"--tenant", key.Tenant}, {"--step", key.Step}} {
		if err := labelError(field.value); err != nil && (field.value != "" || field.noun == "NAME") {
			return usagef("%s %q %w", field.noun, field.value, err)
		}
	}
	for _, scope := range key.Scopes {
		if !slices.Contains(keyScopes(), scope) {
			return usagef("--scopes: %q is no scope; use %s", scope, enumerate(keyScopes(), "and"))
		}
	}
	if len(key.Scopes) == 0 {
		return usagef("--scopes is empty; use %s", enumerate(keyScopes(), "and"))
	}
	return nil
}

// newKey makes a key of 256 random bits.
func newKey() string {
	var secret [32]byte
	rand.Read(secret[:]) // never fails: it ends the process rather than return an error
	return "lp_" + base64.RawURLEncoding.EncodeToString(secret[:])
}

// hashKey is what the configuration knows of a key: "sha256:" and the SHA-256 of
// the whole key, prefix included, in lower-case hex. A key is random, so a fast
// hash without salt is enough.
func hashKey(key string) string {
	sum := sha256.Sum256([]byte(key))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// parseKeyHash reads what hashKey writes.
func parseKeyHash(hash string) (sum [sha256.Size]byte, ok bool) {
	digits, ok := strings.CutPrefix(hash, "sha256:")
	decoded, err := hex.DecodeString(digits)
	ok = ok && err == nil && len(decoded) == len(sum) && strings.ToLower(digits) == digits
	copy(sum[:], decoded)
	return sum, ok
}

// configLine writes the list entry for a key on one line.
func configLine(key KeyConfig) (string, error) {
	var n yaml.Node
	if err := n.Encode(key); err != nil {
		return "", err
	}
	finishNode(&n)
	n.Style = yaml.FlowStyle
	text, err := yaml.Marshal(&yaml.Node{Kind: yaml.SequenceNode, Content: []*yaml.Node{&n}})
	return strings.TrimSpace(string(text)), err
}
