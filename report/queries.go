package report

import (
	"fmt"

	"llmproxy/ledger"
)

const (
	// firstCall reads both tables, because either may outlive the other.
	firstCall = `SELECT (SELECT min(id) FROM call), (SELECT min(hour) FROM rollup)`

	// nextSlice finds the id at which a slice of $3 calls ends.
	nextSlice = `SELECT id FROM call WHERE id >= $1 AND id < $2 ORDER BY id LIMIT 1 OFFSET $3`

	// runningCalls joins crosswise because SQLite keeps that order: the few open
	// calls first.
	runningCalls = `SELECT count(*) FROM open_call o CROSS JOIN call c
		WHERE c.id = o.call_id AND o.call_id >= $1 AND o.call_id < $2
		AND ($3 = 0 OR c.step_id = $3) AND ($4 = 0 OR c.tenant_id = $4)`

	// hourlySums are the sums as the ledger keeps them, from hour $1 to before hour $2.
	hourlySums = `SELECT step_id, model_id, 0, 0, outcome, calls, upstream, flagged,
			input, cached, output, reasoning, counted, resent, cost, unpriced,
			avoided_input, avoided_output, avoided_cost
		FROM rollup
		WHERE hour >= $1 AND hour < $2 AND ($3 = 0 OR step_id = $3) AND ($4 = 0 OR tenant_id = $4)`
)

var (
	// singleCalls are the closed calls from id $1 to before $2, each in the shape
	// of an hourly sum and by the rule the ledger sums by: a call reached an
	// upstream if its row has usage, and only such a call has sent its input.
	singleCalls = closedCalls("run_id", "call")
	workCalls   = closedCalls("work_id", ofWork)

	// latencies are how long callers waited for an answer, if only an error.
	// Refused calls did not wait, and lost ones were not answered.
	latencies     = answerTimes("run_id", "call")
	workLatencies = answerTimes("work_id", ofWork)
)

// ofWork are the calls that were made for a unit of work that they named.
const ofWork = "call JOIN work_call ON work_call.call_id = call.id"

func closedCalls(run, calls string) string {
	return fmt.Sprintf(`SELECT step_id, model_id, %s, key64, outcome, 1,
			CASE WHEN up_input IS NULL THEN 0 ELSE 1 END,
			CASE WHEN flags & %d = 0 THEN 0 ELSE 1 END,
			coalesce(up_input, 0), coalesce(up_cached, 0), coalesce(up_output, 0), coalesce(up_reasoning, 0),
			CASE WHEN up_input IS NULL THEN 0 ELSE input END,
			CASE WHEN up_input IS NULL THEN 0 ELSE resent END,
			CASE WHEN up_input IS NULL THEN 0 ELSE coalesce(cost, 0) END,
			CASE WHEN up_input IS NULL OR cost IS NOT NULL THEN 0 ELSE 1 END,
			avoided_input, avoided_output, avoided_cost
		FROM %s
		WHERE id >= $1 AND id < $2 AND ($3 = 0 OR step_id = $3) AND ($4 = 0 OR tenant_id = $4) AND outcome <> %d`,
		run, ledger.OverBudget, calls, ledger.Open)
}

func answerTimes(run, calls string) string {
	return fmt.Sprintf(`SELECT step_id, model_id, %s, key64, outcome, total_us FROM %s
		WHERE id >= $1 AND id < $2 AND ($3 = 0 OR step_id = $3) AND ($4 = 0 OR tenant_id = $4)
		AND outcome NOT IN (%d, %d, %d)`, run, calls, ledger.Open, ledger.Refused, ledger.Lost)
}

// traits are what calls are grouped by; run is the work where that is asked for.
type traits struct {
	step, model, run, key int64
	outcome               ledger.Outcome
}

// of picks the trait that the dimension groups by. Days and hours are told
// apart by their spans alone.
func (d Dimension) of(t *traits) int64 {
	switch d {
	case ByStep:
		return t.step
	case ByModel:
		return t.model
	case ByRun, ByWork:
		return t.run
	case ByKey:
		return t.key
	case ByOutcome:
		return int64(t.outcome)
	}
	return 0
}
