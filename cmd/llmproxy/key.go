package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"llmproxy/cache"
	"llmproxy/proxy"
	"llmproxy/store"
	"llmproxy/tokens"
)

// keyFlags say whose request it is.
type keyFlags struct {
	step, tenant, sample, format string
}

// keyFormats are the formats of commands that print a line.
func keyFormats() []string { return []string{"text", "json"} }

func (f *keyFlags) add(cmd *cobra.Command) {
	addConfigFlags(cmd, "database")
	cmd.Flags().StringVar(&f.step, "step", "", "`step` that sends the body (default: the one its metadata names, else default)")
	addFormatFlag(cmd, &f.format, keyFormats())
}

func newKeyCmd(a *app) *cobra.Command {
	var f keyFlags
	cmd := &cobra.Command{
		Use:   "key FILE",
		Short: "Print the key of a request body, and what sets two bodies apart",
		Long: `Key prints the key that the server gives a request with this body: requests with
equal keys are the same work and get the same answer. Where it is sent (chat,
responses, completions or embeddings) is told from its members. FILE may be - for
standard input.

The key also depends on the step, on the tenant that the answer belongs to, and
on the sample that was asked for. Tenants are named as in reports; where the
database knows one tenant only, it is that one. Requests that carry headers for an
organization, a project or beta features, or a query string, have other keys.`,
		Example: `  llmproxy key body.json --step summarize-ticket
  llmproxy cache show "$(llmproxy key body.json --step summarize-ticket)"
  llmproxy key diff monday.json tuesday.json --step summarize-ticket`,
		Args: func(cmd *cobra.Command, args []string) error { return bodies(cmd, args, 1) },
		RunE: func(cmd *cobra.Command, args []string) error {
			settings, policy, err := a.keySettings(cmd, f)
			if err != nil {
				return err
			}
			if f.tenant == "" && len(settings.Keys) == 0 {
				f.tenant = settings.Tenant
			}
			if f.tenant == "" {
				if f.tenant, err = onlyTenant(cmd.Context(), settings); err != nil {
					return err
				}
			}
			id, err := f.identify(cmd, policy, args[0])
			if err != nil {
				return err
			}
			if f.format == "json" {
				return printJSON(cmd.OutOrStdout(), struct {
					Key      string `json:"key"`
					Tenant   string `json:"tenant"`
					Step     string `json:"step"`
					Model    string `json:"model"`
					Upstream string `json:"upstream"`
				}{id.Key.String(), id.Context.Tenant, id.Step, id.Model, id.Context.Upstream})
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), id.Key)
			return err
		},
	}
	f.add(cmd)
	cmd.Flags().StringVar(&f.tenant, "tenant", "", "`tenant` that the answer belongs to")
	cmd.Flags().StringVar(&f.sample, "sample", "", "the `sample` that X-LLMProxy-Sample asks for")
	cmd.AddCommand(newKeyDiffCmd(a))
	return cmd
}

func newKeyDiffCmd(a *app) *cobra.Command {
	var f keyFlags
	cmd := &cobra.Command{
		Use:   "diff FILE FILE",
		Short: "Name what makes two request bodies different work",
		Long: `Diff names the members and the messages that set two bodies apart for the key,
as the step's normalisers and the members left out of the key leave them. What it
does not name makes no difference: white space, the order of members, whether the
answer is streamed.`,
		Example: `  llmproxy key diff monday.json tuesday.json --step summarize-ticket`,
		Args:    func(cmd *cobra.Command, args []string) error { return bodies(cmd, args, 2) },
		RunE: func(cmd *cobra.Command, args []string) error {
			_, policy, err := a.keySettings(cmd, f)
			if err != nil {
				return err
			}
			first, err := f.identify(cmd, policy, args[0])
			if err != nil {
				return err
			}
			second, err := f.identify(cmd, policy, args[1])
			if err != nil {
				return err
			}
			return printDiff(cmd.OutOrStdout(), first, second, f.format)
		},
	}
	f.add(cmd)
	return cmd
}

// printDiff names what sets two requests apart. Besides the bodies these are the
// step, which the metadata may name, and the upstream, which the model decides.
func printDiff(w io.Writer, first, second *proxy.Identity, format string) error {
	differs := []string{}
	if first.Context.Endpoint != second.Context.Endpoint {
		differs = append(differs, "endpoint")
	}
	if first.Context.Scope != second.Context.Scope {
		differs = append(differs, "step")
	}
	if first.Context.Upstream != second.Context.Upstream {
		differs = append(differs, "upstream")
	}
	differs = append(differs, first.Tree.Diff(second.Tree)...)
	same := first.Key == second.Key
	if format == "json" {
		return printJSON(w, struct {
			Same    bool     `json:"same"`
			Differs []string `json:"differs"`
		}{same, differs})
	}
	text := "The same work: one key.\n"
	if !same {
		text = "Different work. What differs:\n  " + strings.Join(differs, "\n  ") + "\n"
	}
	_, err := io.WriteString(w, text)
	return err
}

// bodies is the argument check of a command that reads so many request bodies.
func bodies(cmd *cobra.Command, args []string, n int) error {
	stdin := 0
	for _, arg := range args {
		if arg == "-" {
			stdin++
		}
	}
	switch {
	case len(args) != n:
		return usagef("%s takes %s, but got %d", cmd.CommandPath(), counted(int64(n), "file with a request body", "files with request bodies"), len(args))
	case stdin > 1:
		return usagef("standard input can be read once only; name a file for one of the two")
	}
	return nil
}

// keySettings reads what the key depends on.
func (a *app) keySettings(cmd *cobra.Command, f keyFlags) (Settings, *proxy.Policy, error) {
	if err := checkFormat(f.format, keyFormats()); err != nil {
		return Settings{}, nil, err
	}
	settings, err := a.loadSettings(cmd.Flags())
	if err != nil {
		return Settings{}, nil, err
	}
	policy, err := newPolicy(settings.Config, a.env)
	return settings, policy, err
}

// identify names the request with the body in a file as the server would.
func (f keyFlags) identify(cmd *cobra.Command, policy *proxy.Policy, name string) (*proxy.Identity, error) {
	var body []byte
	var err error
	if name == "-" {
		name = "standard input"
		body, err = io.ReadAll(cmd.InOrStdin())
	} else {
		body, err = os.ReadFile(name)
	}
	if err != nil {
		return nil, fmt.Errorf("reading a request body: %w", err)
	}
	r, err := http.NewRequestWithContext(cmd.Context(), http.MethodPost, "/v1/"+string(endpointOfBody(body)), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("X-LLMProxy-Step", f.step)
	r.Header.Set("X-LLMProxy-Sample", f.sample)
	id, refusal := policy.Identify(r, f.tenant)
	if refusal != nil {
		return nil, fmt.Errorf("%s: the server would refuse this request: %s", name, refusal.Message)
	}
	return id, nil
}

// endpointOfBody guesses where a body is sent, as llmproxy tokens does; one that
// does not tell is taken for a chat request, whose members are then missed.
func endpointOfBody(body []byte) tokens.Endpoint {
	doc, err := cache.Scan(body)
	if err != nil {
		return tokens.ChatCompletions
	}
	var model string
	if raw, ok := doc.Member("model"); ok {
		json.Unmarshal(raw, &model) //nolint:errcheck // the server says what is wrong with it
	}
	return cmp.Or(guessEndpoint(doc, model), tokens.ChatCompletions)
}

// onlyTenant is the one tenant that the database knows.
func onlyTenant(ctx context.Context, settings Settings) (string, error) {
	var names []string
	err := view(ctx, settings, func(tx *store.Tx) (err error) {
		names, err = cache.Tenants(tx)
		return err
	})
	switch {
	case err != nil:
		return "", fmt.Errorf("the key depends on the tenant; name it by --tenant, or let the database tell: %w", err)
	case len(names) == 0:
		return "", errors.New("the key depends on the tenant, and the database knows none yet; name it by --tenant")
	case len(names) > 1:
		return "", fmt.Errorf("the key depends on the tenant; add --tenant with one of %s", strings.Join(names, ", "))
	}
	return names[0], nil
}
