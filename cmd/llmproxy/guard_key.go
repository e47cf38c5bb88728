package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"llmproxy/guard"
)

func newGuardKeyCmd(a *app) *cobra.Command {
	var target guardFlags
	var unit workFlags
	var compare, format string
	cmd := &cobra.Command{
		Use:   "key",
		Short: "Print the key of a unit of work, and what sets it apart from another",
		Long: `Key prints the key that the other commands and the API make of the same flags, and
stores nothing. With --format json it also prints what the key is made of; saved to
a file, that can be compared with --compare later: before a step is renamed or its
selection changed, it shows that the new key is another one, under which nothing
is done yet.`,
		Example: `  llmproxy guard key --step post --key-from item.json --select /id
  llmproxy guard key --step post --key-from item.json --format json > before.json
  llmproxy guard key --step post --key-from item.json --select /id --compare before.json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFormat(format, keyFormats()); err != nil {
				return err
			}
			work, err := unit.work(cmd, target.namespace)
			if err != nil {
				return err
			}
			client, done, err := a.openGuard(cmd, &target, toDerive)
			if err != nil {
				return err
			}
			defer done()
			made, err := client.Derive(cmd.Context(), work)
			switch {
			case err != nil:
				return err
			case compare != "":
				return compareKeys(cmd.OutOrStdout(), compare, made, format)
			case format == "json":
				return printJSON(cmd.OutOrStdout(), made)
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), made.Key)
			return err
		},
	}
	target.add(cmd)
	unit.add(cmd)
	cmd.Flags().StringVar(&compare, "compare", "", "`file` with what this command printed earlier with --format json; say what has changed")
	addFormatFlag(cmd, &format, keyFormats())
	return cmd
}

// compareKeys tells what sets the key now apart from an earlier one.
func compareKeys(w io.Writer, file string, now guard.Preimage, format string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("reading the earlier key: %w", err)
	}
	var before guard.Preimage
	if err := json.Unmarshal(text, &before); err != nil || before.Key == "" || before.Preimage == "" {
		return fmt.Errorf("%s is not what \"llmproxy guard key --format json\" prints", file)
	}
	changes := []string{}
	was, err := preimageParts(before.Preimage)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	is, err := preimageParts(now.Preimage)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(merged(was, is))) {
		if was[name] != is[name] {
			changes = append(changes, fmt.Sprintf("%s: %s, now %s", name, shown(orDefault(was[name], "absent"), 60), shown(orDefault(is[name], "absent"), 60)))
		}
	}
	same := before.Key == now.Key
	if !same && len(changes) == 0 {
		changes = append(changes, "the secret that keys are made with")
	}
	if format == "json" {
		return printJSON(w, struct {
			Same    bool     `json:"same"`
			Key     string   `json:"key"`
			Before  string   `json:"before"`
			Changes []string `json:"changes"`
		}{same, now.Key, before.Key, changes})
	}
	answer := "The same key: what was done counts.\n"
	if !same {
		answer = "Another key: what was done under the earlier one does not count. What changed:\n  " + strings.Join(changes, "\n  ") + "\n"
	}
	_, err = io.WriteString(w, answer)
	return err
}

// preimageParts maps each value in a preimage from its path to its JSON.
func preimageParts(preimage string) (map[string]string, error) {
	decoder := json.NewDecoder(strings.NewReader(preimage))
	decoder.UseNumber()
	var root map[string]any
	if err := decoder.Decode(&root); err != nil {
		return nil, fmt.Errorf("reading what a key is made of: %w", err)
	}
	names := map[string]string{"in": "input", "ns": "tenant/namespace", "occ": "occurrence"}
	parts := map[string]string{}
	for name, v := range root {
		if err := addParts(parts, orDefault(names[name], name), v); err != nil {
			return nil, err
		}
	}
	return parts, nil
}

func addParts(parts map[string]string, path string, v any) error {
	switch v := v.(type) {
	case map[string]any:
		for name, inner := range v {
			if err := addParts(parts, path+"."+name, inner); err != nil {
				return err
			}
		}
		if len(v) > 0 {
			return nil
		}
	case []any:
		for i, inner := range v {
			if err := addParts(parts, path+"["+strconv.Itoa(i)+"]", inner); err != nil {
				return err
			}
		}
		if len(v) > 0 {
			return nil
		}
	}
	text, err := json.Marshal(v)
	parts[path] = string(text)
	return err
}

func merged(a, b map[string]string) map[string]string {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}
