package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"llmproxy/guard"
)

// decisionFlags are those of commands by which a person changes an effect.
type decisionFlags struct {
	target     guardFlags
	force, yes bool
	format     string
}

func (f *decisionFlags) add(cmd *cobra.Command, force string) {
	f.target.add(cmd)
	cmd.Flags().BoolVar(&f.force, "force", false, force)
	cmd.Flags().BoolVar(&f.yes, "yes", false, "do not ask")
	addFormatFlag(cmd, &f.format, keyFormats())
}

// decide finds the effect, asks the question, and lets act change the effect.
func (f *decisionFlags) decide(a *app, cmd *cobra.Command, prefix, question string, act func(context.Context, *guard.Client, string) (*guard.Effect, error)) error {
	if err := checkFormat(f.format, keyFormats()); err != nil {
		return err
	}
	client, done, err := a.openGuard(cmd, &f.target, toDecide)
	if err != nil {
		return err
	}
	defer done()
	e, err := findEffect(cmd.Context(), client, f.target.namespace, prefix)
	if err != nil {
		return err
	}
	name := fmt.Sprintf("step %s, key %s, %s", e.Step, e.Key[:shownDigits], e.State)
	if len(e.Attempts) > 0 {
		name += " (attempts: " + attemptsText(e.Attempts) + ")"
	}
	if !f.yes {
		agreed, err := confirm(cmd, fmt.Sprintf("Effect of %s. %s", shown(name, 300), question))
		if err != nil {
			return err
		}
		if !agreed {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "Nothing was changed.")
			return err
		}
	}
	after, err := act(cmd.Context(), client, e.Key)
	if problem, refused := errors.AsType[*guard.Problem](err); refused {
		switch guard.Refusal(problem.Code) {
		case guard.InProgress:
			return &exitError{exitInProgress, fmt.Errorf("a run may still be acting; do it again in %d s, or now with --force", problem.RetryAfter)}
		case guard.Undecided:
			return &exitError{exitUndecided, errors.New("it is not known whether it happened: resolve it first, or forget it all the same with --force")}
		}
	}
	if err != nil {
		return err
	}
	if f.format == "json" {
		return printJSON(cmd.OutOrStdout(), after.Raw)
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is %s now.\n", after.Key[:shownDigits], after.State)
	return err
}

func newGuardResolveCmd(a *app) *cobra.Command {
	var f decisionFlags
	var outcome, reason, by, resourceID string
	var rotate bool
	outcomes := []string{"done", "not_done", "reopen"}
	cmd := &cobra.Command{
		Use:   "resolve KEY",
		Short: "Say what became of an effect, as a person who has looked",
		Long: `Resolve decides an effect after asking: done, and later runs get it as a result;
not_done, and the next run acts; reopen, and what was done is done once more. The
beginning of the key is enough where no other one begins so.

While a run may still be acting it is refused; --force decides all the same, and
the run's lease is lost.`,
		Example: `  llmproxy guard resolve 3f9a --outcome done --reason "found it in the outbox" --resource-id msg_123
  llmproxy guard resolve 3f9a --outcome not_done --reason "the service has no trace of it"`,
		Args: effectKey,
		RunE: func(cmd *cobra.Command, args []string) error {
			verdict, err := guard.ParseVerdict(outcome)
			switch {
			case outcome == "":
				return usagef("--outcome is missing; say %s", choices(outcomes))
			case err != nil:
				return unknownChoice("--outcome", outcome, outcomes)
			case strings.TrimSpace(reason) == "":
				return usagef("--reason is missing; say how you know, for whoever looks later")
			case resourceID != "" && verdict != guard.VerdictDone:
				return usagef("--resource-id belongs to --outcome done")
			}
			questions := map[guard.Verdict]string{
				guard.VerdictDone:    "Say that it is done, so that no run acts again?",
				guard.VerdictNotDone: "Say that it did not happen, so that the next run acts?",
				guard.VerdictReopen:  "Let the next run act once more?",
			}
			return f.decide(a, cmd, args[0], questions[verdict], func(ctx context.Context, client *guard.Client, key string) (*guard.Effect, error) {
				return client.Resolve(ctx, f.target.namespace, key, guard.Resolve{Verdict: verdict, By: orDefault(by, a.env["USER"]), Reason: reason,
					Force: f.force, Rotate: rotate, Result: guard.Result{ResourceID: resourceID}}, "")
			})
		},
	}
	f.add(cmd, "decide although a run may still be acting")
	flags := cmd.Flags()
	flags.StringVar(&outcome, "outcome", "", "what became of it (required): "+choices(outcomes))
	flags.StringVar(&reason, "reason", "", "`text` that says how you know (required)")
	flags.StringVar(&by, "by", "", "`name` of who decides (default $USER)")
	flags.StringVar(&resourceID, "resource-id", "", "`id` of what the effect made, for later runs")
	flags.BoolVar(&rotate, "rotate-downstream-key", false, "give the next run another downstream key, where the service repeats its answer to the old one")
	return cmd
}

func newGuardPurgeCmd(a *app) *cobra.Command {
	var f decisionFlags
	cmd := &cobra.Command{
		Use:   "purge KEY",
		Short: "Forget the result of an effect",
		Long: `Purge deletes after asking: of a completed effect the result, not that it is done,
so that it is still never repeated; of a failed one everything. With --force it
forgets all there is, and the same work would be done again.`,
		Example: `  llmproxy guard purge 3f9a
  llmproxy guard purge 3f9a --force --yes`,
		Args: effectKey,
		RunE: func(cmd *cobra.Command, args []string) error {
			question := "Forget its result?"
			if f.force {
				question = "Forget all of it, so that the same work would be done again?"
			}
			return f.decide(a, cmd, args[0], question, func(ctx context.Context, client *guard.Client, key string) (*guard.Effect, error) {
				return client.Purge(ctx, f.target.namespace, key, f.force)
			})
		},
	}
	f.add(cmd, "forget also that it was done, or may have been")
	return cmd
}
