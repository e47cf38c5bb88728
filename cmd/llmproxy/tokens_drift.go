package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"llmproxy/report"
	"llmproxy/store"
	"llmproxy/tokens"
)

func newTokensDriftCmd(a *app) *cobra.Command {
	f := reportFlags{by: string(report.ByModel)}
	cmd := &cobra.Command{
		Use:   "drift",
		Short: "Show how far upstreams' bills lie from what was counted",
		Long: `Drift sets the input tokens that upstreams reported beside what the server had
counted before the call, for each model, endpoint and shape of request (text,
tools, tool-calls, images, audio, structured), the kinds that are off most first.
Differences are billed less counted. It only reads, and works while the server
runs.

Where the drift of a kind is steady, MEND names what would make its counts right:
a constant where at least 90% of 20 or more calls differ by the very same tokens,
a factor where nine of ten of them lie within 1% of their median ratio. Nothing
of that is applied by itself to models that are counted by rule. Counts of other
vendors' models are multiplied by a factor learned from their latest bills, which
is shown below the table; what remains of their drift is shown in it.`,
		Example: `  llmproxy tokens drift --since 30d
  llmproxy tokens drift --step summarize-ticket --format csv`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			settings, query, err := a.question(cmd, f)
			if err != nil {
				return err
			}
			drift, err := readDrift(cmd.Context(), settings.Database, query)
			if err != nil {
				return err
			}
			return drift.Write(cmd.OutOrStdout(), report.Format(f.format))
		},
	}
	addConfigFlags(cmd, "database", "timezone")
	f.addRange(cmd)
	cmd.Flags().IntVar(&f.limit, "limit", 0, "most `rows`, 0 for all")
	return cmd
}

// readDrift answers a query from the database file, which it only reads.
func readDrift(ctx context.Context, database string, query report.Query) (drift *report.Drift, err error) {
	s, err := store.OpenReader(ctx, database)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.CloseReader()) }()
	if drift, err = report.ReadDrift(ctx, s, query); err != nil {
		return nil, withNearName(err)
	}
	factors := new(tokens.Factors)
	err = s.View(ctx, func(tx *store.Tx) error {
		models, err := learnFrom(tx, factors)
		for _, model := range models {
			if f, ok := factors.Of(model); ok {
				drift.Factors = append(drift.Factors, report.Factor{Model: model, Ratio: f.Ratio, Low: f.Low, High: f.High, Calls: f.Calls})
			}
		}
		return err
	})
	return drift, err
}
