package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"llmproxy/guard"
)

func newGuardBeginCmd(a *app) *cobra.Command {
	var target guardFlags
	var unit workFlags
	var how beginFlags
	var confirm bool
	var format string
	formats := []string{"json", "env"}
	cmd := &cobra.Command{
		Use:   "begin",
		Short: "Claim a unit of work before acting",
		Long: `Begin asks for the right to act and prints the answer. It exits with 0 only where
the work is to be done now, so "begin && act" never acts twice: with 10 it was done
already, and the answer holds the result; with 75 another run is at it; with 79
one may have acted, and a person must decide.

Report the end with complete or fail, and extend while it takes longer than the
lease. --format env prints shell assignments, of which those commands take key,
token and namespace from the environment.`,
		Example: `  answer=$(llmproxy guard begin --step post --key "ticket 4711" --format env) && eval "$answer" &&
    ./post.sh && llmproxy guard complete
  llmproxy guard begin --step post --key-from item.json --select /id --on-unknown hold`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFormat(format, formats); err != nil {
				return err
			}
			work, err := unit.work(cmd, target.namespace)
			if err != nil {
				return err
			}
			request, err := how.request(work)
			if err != nil {
				return err
			}
			request.Confirm = confirm
			client, done, err := a.openGuard(cmd, &target, toBegin)
			if err != nil {
				return err
			}
			defer done()
			e, err := beginWaiting(cmd.Context(), client, request)
			if err != nil {
				return err
			}
			if err := printBegin(cmd.OutOrStdout(), e, work, format); err != nil {
				return err
			}
			switch e.Decision {
			case guard.Proceed:
				return nil
			case guard.Replay:
				return &exitError{code: exitReplay}
			}
			return refusedBegin(e)
		},
	}
	target.add(cmd)
	unit.add(cmd)
	how.add(cmd)
	cmd.Flags().BoolVar(&confirm, "confirm", false, "promise to extend once more before acting: a claim that lapses before that was not acted on")
	addFormatFlag(cmd, &format, formats)
	return cmd
}

func printBegin(w io.Writer, e *guard.Effect, work guard.Work, format string) error {
	if format == "json" {
		return printJSON(w, e.Raw)
	}
	var b strings.Builder
	for _, v := range append(effectEnv(e, work),
		[2]string{"GUARD_DECISION", string(e.Decision)}, [2]string{"GUARD_TOKEN", e.Token}, [2]string{"GUARD_RESOURCE_ID", e.ResourceID}) {
		fmt.Fprintf(&b, "export %s='%s'\n", v[0], strings.ReplaceAll(v[1], "'", `'\''`))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// effectEnv is what an environment tells of a claim, without the token.
func effectEnv(e *guard.Effect, work guard.Work) [][2]string {
	return [][2]string{{"GUARD_KEY", e.Key}, {"GUARD_DOWNSTREAM_KEY", e.DownstreamKey}, {"GUARD_FENCE", strconv.FormatInt(e.Fence, 10)},
		{"GUARD_TAKEOVER", strconv.FormatBool(e.Takeover)}, {"GUARD_NAMESPACE", orDefault(work.Namespace, "default")}, {"GUARD_STEP", work.Step}}
}

// claimFlags say which attempt a command reports on.
type claimFlags struct {
	guardFlags
	token  string
	format string
}

func (f *claimFlags) add(cmd *cobra.Command) {
	f.guardFlags.add(cmd)
	cmd.Flags().StringVar(&f.token, "token", "", "`token` that begin gave out (default $GUARD_TOKEN, which no other user can see)")
	addFormatFlag(cmd, &f.format, keyFormats())
}

// claim is what args and flags name, and otherwise the environment.
func (f *claimFlags) claim(a *app, args []string) (c guard.Claim, err error) {
	if err := checkFormat(f.format, keyFormats()); err != nil {
		return c, err
	}
	c = guard.Claim{Namespace: orDefault(f.namespace, a.env["GUARD_NAMESPACE"]), Key: a.env["GUARD_KEY"], Token: orDefault(f.token, a.env["GUARD_TOKEN"])}
	if len(args) > 0 {
		c.Key = args[0]
	}
	switch {
	case c.Key == "":
		return c, usagef("give the key that begin returned, or set GUARD_KEY")
	case c.Token == "":
		return c, usagef("give the token that begin returned by GUARD_TOKEN or --token")
	}
	return c, nil
}

// newClaimCmd makes a command that reports on one attempt.
func newClaimCmd(a *app, f *claimFlags, cmd *cobra.Command, report func(*cobra.Command, *guard.Client, guard.Claim) (*guard.Effect, error)) *cobra.Command {
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) > 1 {
			return usagef("%s takes one key at most, but got %d arguments", cmd.CommandPath(), len(args))
		}
		return nil
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		claim, err := f.claim(a, args)
		if err != nil {
			return err
		}
		client, done, err := a.openGuard(cmd, &f.guardFlags, toDecide)
		if err != nil {
			return err
		}
		defer done()
		e, err := report(cmd, client, claim)
		if err != nil {
			return err
		}
		if f.format == "json" {
			return printJSON(cmd.OutOrStdout(), e.Raw)
		}
		text := e.State
		if e.Late {
			text += ", reported late"
		}
		_, err = fmt.Fprintln(cmd.OutOrStdout(), text)
		return err
	}
	f.add(cmd)
	return cmd
}

func newGuardCompleteCmd(a *app) *cobra.Command {
	var f claimFlags
	var resourceID, result string
	cmd := newClaimCmd(a, &f, &cobra.Command{
		Use:   "complete [KEY]",
		Short: "Report that the effect happened",
		Long: `Complete stores what the effect returned: from now on each begin of the same work
gets it. It may be repeated, and counts after the lease is over as well.`,
		Example: `  llmproxy guard complete --resource-id msg_123
  ./post.sh | llmproxy guard complete --result -`,
	}, func(cmd *cobra.Command, client *guard.Client, claim guard.Claim) (*guard.Effect, error) {
		text := []byte(result)
		if result == "-" {
			var err error
			if text, err = readInput(cmd, "-"); err != nil {
				return nil, err
			}
		}
		if len(text) > 0 && !json.Valid(text) {
			return nil, &exitError{exitBadWork, fmt.Errorf("the result is no JSON; leave it out, or put it in quotes")}
		}
		return client.Complete(cmd.Context(), claim, resourceID, text)
	})
	cmd.Flags().StringVar(&resourceID, "resource-id", "", "`id` of what the effect made, such as that of a message")
	cmd.Flags().StringVar(&result, "result", "", "`JSON` to give to later runs, - to read it from standard input")
	return cmd
}

func newGuardFailCmd(a *app) *cobra.Command {
	var f claimFlags
	var effect, reason string
	var retryAfter Duration
	cmd := newClaimCmd(a, &f, &cobra.Command{
		Use:   "fail [KEY]",
		Short: "Report that the attempt ended without a success",
		Long: `Fail ends an attempt. Say --effect none only where the effect certainly did not
happen, as after a refused connection: then the next run acts. Otherwise it is
unknown, and the policy decides.`,
		Example: `  llmproxy guard fail --effect none --reason "connection refused"`,
	}, func(cmd *cobra.Command, client *guard.Client, claim guard.Claim) (*guard.Effect, error) {
		if effect != "none" && effect != "unknown" {
			return nil, unknownChoice("--effect", effect, []string{"none", "unknown"})
		}
		return client.Fail(cmd.Context(), claim, effect == "none", reason, time.Duration(retryAfter))
	})
	cmd.Flags().StringVar(&effect, "effect", "unknown", "none: it did not happen; unknown: it may have")
	cmd.Flags().StringVar(&reason, "reason", "", "`text` for people")
	cmd.Flags().Var(&durationFlag{&retryAfter}, "retry-after", "how long no other run may begin, with --effect none")
	return cmd
}

func newGuardExtendCmd(a *app) *cobra.Command {
	var f claimFlags
	var lease Duration
	cmd := newClaimCmd(a, &f, &cobra.Command{
		Use:   "extend [KEY]",
		Short: "Renew the lease of an attempt that goes on",
		Long: `Extend renews the lease, and confirms a claim that was begun with --confirm. Where
it exits with 79, the lease is lost: do not act, or stop.`,
		Example: `  llmproxy guard extend && ./post.sh`,
	}, func(cmd *cobra.Command, client *guard.Client, claim guard.Claim) (*guard.Effect, error) {
		return client.Extend(cmd.Context(), claim, time.Duration(lease))
	})
	cmd.Flags().Var(&durationFlag{&lease}, "lease", "length of the lease from now (default: as before)")
	return cmd
}
