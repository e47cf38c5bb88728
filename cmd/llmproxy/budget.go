package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"llmproxy/budget"
	"llmproxy/store"
)

func newBudgetCmd(a *app) *cobra.Command {
	var step, format string
	cmd := &cobra.Command{
		Use:   "budget",
		Short: "Show each budget rule with what is used, reserved and when it resets",
		Long: `Budget shows every rule of the configuration with what its window has used and
what running calls hold in reserve. It only reads, and works while the server
runs. SHARE is used and reserved together, as a part of the limit. A rule per
call has nothing to add up; of a rule per run the run that has used most is
shown. The step "*" stands for every step without rules of its own, each of
which is counted for itself. Changing a limit never changes what was used.`,
		Example: `  llmproxy budget
  llmproxy budget --step summarize-ticket
  llmproxy budget --format json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFormat(format, tableFormats()); err != nil {
				return err
			}
			settings, err := a.loadSettings(cmd.Flags())
			if err != nil {
				return err
			}
			policy, err := newPolicy(settings.Config, a.env)
			if err != nil {
				return err
			}
			rules := policy.Budget
			if step != "" {
				rules = rulesFor(rules, properStep(settings.Config, step))
			}
			var lines []budget.Line
			var now time.Time
			err = view(cmd.Context(), settings, func(tx *store.Tx) (err error) {
				now = time.UnixMilli(tx.Now).In(rules.Location)
				lines, err = rules.Status(tx)
				return err
			})
			if err != nil {
				return err
			}
			if format == "json" {
				return printJSON(cmd.OutOrStdout(), newBudgetJSON(lines, now))
			}
			return printBudget(cmd.OutOrStdout(), lines, now)
		},
	}
	addConfigFlags(cmd, "database", "timezone")
	cmd.Flags().StringVar(&step, "step", "", "only the rules that calls of this `step` meet")
	addFormatFlag(cmd, &format, tableFormats())
	return cmd
}

// properStep is the name of the step that may be given by an alias.
func properStep(cfg Config, name string) string {
	for _, s := range cfg.Steps {
		if slices.Contains(s.Aliases, name) {
			return s.Name
		}
	}
	return name
}

// rulesFor are the rules that calls of a step meet: its own, or the default
// ones, and those over all steps.
func rulesFor(p *budget.Policy, step string) *budget.Policy {
	own := p.Steps[step]
	if len(own) == 0 {
		own = p.Default
	}
	return &budget.Policy{Location: p.Location, Steps: map[string][]budget.Rule{step: own}, Global: p.Global}
}

func printBudget(w io.Writer, lines []budget.Line, now time.Time) error {
	if len(lines) == 0 {
		_, err := fmt.Fprintln(w, "There are no budget rules: nothing is limited. Rules stand in the configuration,\nunder budget: of a step or of all steps.")
		return err
	}
	tenants := map[string]bool{}
	reserved := false
	for _, l := range lines {
		if l.Tenant != "" {
			tenants[l.Tenant] = true
		}
		reserved = reserved || l.Reserved > 0
	}
	columns := []column{{head: "STEP"}, {head: "TENANT"}, {head: "RULE"}, {"USED", true}, {"RESERVED", true}, {head: "SHARE"}, {head: "RESETS"}}
	rows := make([][]string, len(lines))
	for i, l := range lines {
		step := "(all steps)"
		if l.Step != "" {
			step = shown(l.Step, 24)
		}
		used, held := amount(l.Rule.Unit, l.Used), amount(l.Rule.Unit, l.Reserved)
		if l.Rule.Per == budget.PerCall {
			used, held = "–", "–"
		}
		rows[i] = []string{step, shown(l.Tenant, 18), ruleText(l.Rule), used, held, shareText(l), resetText(l, now)}
	}
	columns, rows = without(columns, rows, "TENANT", len(tenants) < 2)
	columns, rows = without(columns, rows, "RESERVED", !reserved)
	return writeTable(w, columns, rows)
}

// without leaves a column out if it says nothing.
func without(columns []column, rows [][]string, head string, idle bool) ([]column, [][]string) {
	i := slices.IndexFunc(columns, func(c column) bool { return c.head == head })
	if !idle || i < 0 {
		return columns, rows
	}
	for r := range rows {
		rows[r] = slices.Delete(rows[r], i, i+1)
	}
	return slices.Delete(columns, i, i+1), rows
}

func ruleText(r budget.Rule) string {
	unit := strings.ReplaceAll(r.Unit.String(), "_", " ")
	switch {
	case r.Unit == budget.USD:
		unit = "USD"
	case r.Limit == 1:
		unit = strings.TrimSuffix(unit, "s")
	}
	text := fmt.Sprintf("%s %s per %s", amount(r.Unit, r.Limit), unit, r.Per)
	if r.Per == budget.PerTotal {
		text = strings.TrimSuffix(text, "per total") + "in total"
	}
	if r.Action == budget.Flag {
		text += ", flags"
	}
	return text
}

// amount writes a count, or micro-dollars as dollars.
func amount(unit budget.Unit, n int64) string {
	if unit == budget.USD {
		return fmt.Sprintf("%s.%04d", thousands(n/1e6), n%1e6/100)
	}
	return thousands(n)
}

// shareText draws the used and reserved part of the limit.
func shareText(l budget.Line) string {
	const cells = 8
	if l.Rule.Per == budget.PerCall {
		return "–"
	}
	held, part := l.Used+l.Reserved, 1.0
	if l.Rule.Limit > 0 {
		part = float64(held) / float64(l.Rule.Limit)
	}
	percent := fmt.Sprintf("%d%%", int(min(part*100, 999)))
	if part > 0 && part < 0.01 {
		percent = "<1%"
	}
	text := fmt.Sprintf("%-*s %4s", cells, bar(min(part, 1), cells), percent)
	switch {
	case held > l.Rule.Limit:
		text += " over"
	case held == l.Rule.Limit:
		text += " full"
	case l.Rule.FlagAt > 0 && held >= l.Rule.FlagAt:
		text += " near"
	}
	return text
}

// bar draws a share of 0 to 1 in eighths of a cell; what is not nothing shows.
func bar(share float64, cells int) string {
	eighths := int(share * float64(cells) * 8)
	if eighths == 0 && share > 0 {
		eighths = 1
	}
	drawn := strings.Repeat("█", eighths/8)
	if rest := eighths % 8; rest > 0 {
		drawn += string([]rune("▏▎▍▌▋▊▉")[rest-1])
	}
	return drawn
}

func resetText(l budget.Line, now time.Time) string {
	switch {
	case l.Rule.Per == budget.PerCall:
		return "each call"
	case l.Rule.Per == budget.PerTotal:
		return "never"
	case l.Rule.Per == budget.PerRun && l.Run != "":
		return "run " + shown(l.Run, 16)
	case l.Rule.Per == budget.PerRun && l.Tenant != "":
		return "calls without a run"
	case l.Rule.Per == budget.PerRun:
		return "each run"
	case l.End.Sub(now) < 24*time.Hour:
		return l.End.Format("15:04 MST")
	}
	return l.End.Format("Jan 2 15:04")
}

type budgetJSON struct {
	At       string     `json:"at"`
	Timezone string     `json:"timezone"`
	Rules    []ruleJSON `json:"rules"`
}

// ruleJSON is a rule in one window. Amounts are in the unit, usd in
// micro-dollars. Times are null for windows that time does not end.
type ruleJSON struct {
	Step     string  `json:"step"` // empty: over all steps; "*": the default of steps, before its first use
	Tenant   string  `json:"tenant"`
	Run      string  `json:"run"`
	Unit     string  `json:"unit"`
	Per      string  `json:"per"`
	Action   string  `json:"action"`
	Limit    int64   `json:"limit"`
	FlagAt   *int64  `json:"flag_at"`
	Used     int64   `json:"used"`
	Reserved int64   `json:"reserved"`
	Begins   *string `json:"window_begins"`
	Resets   *string `json:"resets_at"`
}

func newBudgetJSON(lines []budget.Line, now time.Time) budgetJSON {
	at := func(t time.Time) *string {
		if t.IsZero() {
			return nil
		}
		text := t.Format(time.RFC3339)
		return &text
	}
	out := budgetJSON{At: *at(now), Timezone: now.Location().String(), Rules: []ruleJSON{}}
	for _, l := range lines {
		r := ruleJSON{
			Step: l.Step, Tenant: l.Tenant, Run: l.Run, Unit: l.Rule.Unit.String(), Per: l.Rule.Per.String(),
			Action: l.Rule.Action.String(), Limit: l.Rule.Limit, Used: l.Used, Reserved: l.Reserved,
			Begins: at(l.Start), Resets: at(l.End),
		}
		if l.Rule.FlagAt > 0 {
			r.FlagAt = &l.Rule.FlagAt
		}
		out.Rules = append(out.Rules, r)
	}
	return out
}
