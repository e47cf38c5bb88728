package budget

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"llmproxy/store"
)

const (
	// One statement adds what a call needs and tells what the counter then
	// holds, under the counter's lock: of two calls one sees the other. Whether
	// the rules admit that is judged on the answer, and undone where they do not.
	holdSQL = `INSERT INTO counter (tenant_id, step_id, run_id, unit, per, window_start, used, reserved)
VALUES ($1, $2, $3, $4, $5, $6, 0, $7)
ON CONFLICT (tenant_id, step_id, run_id, unit, per, window_start)
DO UPDATE SET reserved = counter.reserved + excluded.reserved
RETURNING id, used, reserved`

	reserveSQL = `INSERT INTO reservation (call_id, counter_id, unit, amount, if_lost, charged)
VALUES ($1, $2, $3, $4, $5, 0)`

	takeSQL = `DELETE FROM reservation WHERE call_id = $1 RETURNING counter_id, unit, amount, charged`

	// A lost call keeps its rows, to be corrected if it settles after all. The
	// first statement locks the rows while amount still tells what they hold.
	loseSQL  = `UPDATE reservation SET charged = if_lost WHERE call_id = $1 AND amount > 0 RETURNING counter_id, unit, amount, charged`
	emptySQL = `UPDATE reservation SET amount = 0 WHERE call_id = $1`

	// used - charged + spent, and reserved - amount, neither ever below 0.
	chargeSQL = `UPDATE counter
SET used = CASE WHEN used > $1 THEN used - $2 ELSE 0 END + $3,
    reserved = CASE WHEN reserved > $4 THEN reserved - $5 ELSE 0 END
WHERE id = $6`

	pruneSQL = `DELETE FROM counter WHERE per BETWEEN 3 AND 7 AND reserved = 0 AND window_start < $1`
	// Ids of counters may be given again, so no reservation outlives its counter.
	orphanSQL = `DELETE FROM reservation WHERE NOT EXISTS (SELECT 1 FROM counter WHERE counter.id = reservation.counter_id)`
)

// counterKey is the identity of a counter: the columns of its unique index.
type counterKey struct {
	tenant, step, run int64
	unit              Unit
	per               Period
	start             int64 // Unix seconds, 0 for run and total
}

// counter is what a counter held before the call in hand.
type counter struct {
	key            counterKey
	used, reserved int64
}

// Reserve holds what a call needs in the counter of every rule that matches it:
// its input exactly, its output as far as it may go, one call, its highest cost.
// Negative needs count as 0.
//
// Either every rule admits the call, or the error is an [*Exceeded] and nothing
// is held; the transaction can go on in both cases. Any other error is the
// store's. Rules that only flag count as well and never refuse; rules per call
// are checked first, because no waiting helps against them.
//
// Each call reserves once and then ends in one of Settle, Release and Lose.
func (p *Policy) Reserve(tx *store.Tx, callID int64, s Scope, need Amounts) (Verdict, error) {
	need = need.clamped()
	verdict, err := p.perCall(s, need)
	if err != nil {
		return Verdict{}, err
	}
	if err := tx.Try(func(tx *store.Tx) error {
		return p.reserve(tx, callID, s, need, &verdict)
	}); err != nil {
		if _, refused := errors.AsType[*Exceeded](err); !refused {
			err = fmt.Errorf("reserving budget: %w", err)
		}
		return Verdict{}, err
	}
	return verdict, nil
}

func (p *Policy) reserve(tx *store.Tx, callID int64, s Scope, need Amounts, verdict *Verdict) error {
	now := time.UnixMilli(tx.Now)
	var held []counter
	for rule, allSteps := range p.matching(s.StepName) {
		if rule.Per == PerCall {
			continue
		}
		key, resetsAt, err := p.counterOf(rule, allSteps, s, now)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(held, func(c counter) bool { return c.key == key })
		if i < 0 {
			c, err := hold(tx, callID, key, need)
			if err != nil {
				return err
			}
			i, held = len(held), append(held, c)
		}
		note := Note{
			Step: s.StepName, Run: s.RunName, AllSteps: allSteps, Rule: rule,
			Used: held[i].used, Reserved: held[i].reserved, Needed: need.Of(rule.Unit), ResetsAt: resetsAt,
		}
		note.judge()
		if err := verdict.add(note); err != nil {
			return err
		}
	}
	return nil
}

// counterOf names the counter in which a rule counts a call.
func (p *Policy) counterOf(rule Rule, allSteps bool, s Scope, now time.Time) (key counterKey, resetsAt time.Time, err error) {
	key = counterKey{tenant: s.Tenant, unit: rule.Unit, per: rule.Per}
	if !allSteps {
		if s.Step == 0 {
			return key, resetsAt, errors.New("a call without a step would be counted among all steps")
		}
		key.step = s.Step
	}
	if rule.Per == PerRun {
		key.run = s.Run
	}
	start, end := Window(rule.Per, now, p.location())
	key.start = unixStart(start)
	return key, end, nil
}

// unixStart is a window's start as counters keep it: 0 where it has none.
func unixStart(start time.Time) int64 {
	if start.IsZero() {
		return 0
	}
	return start.Unix()
}

// hold adds what the call needs to a counter, and returns what that held before.
func hold(tx *store.Tx, callID int64, key counterKey, need Amounts) (counter, error) {
	needed, c, id := need.Of(key.unit), counter{key: key}, int64(0)
	args := []any{key.tenant, key.step, key.run, int64(key.unit), int64(key.per), key.start, needed}
	if _, err := tx.Get(holdSQL, args, &id, &c.used, &c.reserved); err != nil {
		return c, err
	}
	c.reserved -= needed
	_, err := tx.Exec(reserveSQL, callID, id, int64(key.unit), needed, need.ifLost().Of(key.unit))
	return c, err
}

// reservation is what a call holds in one counter.
type reservation struct {
	counter         int64
	unit            Unit
	amount, charged int64
}

// Settle replaces what a call holds by what it has used, in the windows it was
// reserved in. Calls in spent is 1 for a call that reached its upstream. A call
// that holds nothing is left alone, so settling twice charges once; a call that
// was given up as lost is corrected.
func Settle(tx *store.Tx, callID int64, spent Amounts) error {
	spent = spent.clamped()
	taken, err := reservations(tx, takeSQL, callID)
	for _, r := range taken {
		if err == nil {
			err = charge(tx, r, r.charged, spent.Of(r.unit))
		}
	}
	if err != nil {
		return fmt.Errorf("settling budget: %w", err)
	}
	return nil
}

// Release gives back what a call holds: its upstream was never reached.
func Release(tx *store.Tx, callID int64) error { return Settle(tx, callID, Amounts{}) }

// Lose charges a call whose process died: the input and the call itself, and
// the cost, are taken for spent, the output held for it is freed. A Settle that
// comes after all corrects this. Losing twice charges once.
func Lose(tx *store.Tx, callID int64) error {
	lost, err := reservations(tx, loseSQL, callID)
	for _, r := range lost {
		if err == nil {
			err = charge(tx, r, 0, r.charged)
		}
	}
	if err == nil && len(lost) > 0 {
		_, err = tx.Exec(emptySQL, callID)
	}
	if err != nil {
		return fmt.Errorf("charging a lost call: %w", err)
	}
	return nil
}

// Prune forgets the windows that ended before a time. Counters of runs and of
// totals have no end and stay.
func Prune(tx *store.Tx, before time.Time) error {
	// A window is known by its start; the longest lasts 31 days and an hour.
	_, err := tx.Exec(pruneSQL, before.Add(-(31*24+1)*time.Hour).Unix())
	if err == nil {
		_, err = tx.Exec(orphanSQL)
	}
	if err != nil {
		return fmt.Errorf("pruning budget windows: %w", err)
	}
	return nil
}

func reservations(tx *store.Tx, query string, callID int64) (rs []reservation, err error) {
	err = tx.Each(query, []any{callID}, func(scan func(...any) error) error {
		var r reservation
		if err := scan(&r.counter, &r.unit, &r.amount, &r.charged); err != nil {
			return err
		}
		rs = append(rs, r)
		return nil
	})
	return rs, err
}

// charge frees what r holds in its counter and puts spent in the place of what
// was charged before.
func charge(tx *store.Tx, r reservation, before, spent int64) error {
	_, err := tx.Exec(chargeSQL, before, before, spent, r.amount, r.amount, r.counter)
	return err
}
