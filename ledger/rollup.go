package ledger

import (
	"time"

	"llmproxy/store"
)

func microseconds(us int64) time.Duration { return time.Duration(us) * time.Microsecond }

// hourKey is the primary key of the sums.
type hourKey struct {
	hour, tenant, step, model int64
	outcome                   Outcome
}

func (c *Call) hourKey(n names) hourKey {
	return hourKey{Time(c.ID).Unix() / 3600, n.tenant, n.step, n.model, c.Outcome}
}

// sums are the columns of the rollup, in their order.
type sums [16]int64

const (
	sumCalls = iota
	sumUpstream
	sumRetries
	sumFlagged
	sumInput
	sumCached
	sumOutput
	sumReasoning
	sumCounted
	sumResent
	sumCost
	sumUnpriced
	sumAvoidedInput
	sumAvoidedOutput
	sumAvoidedCost
	sumTotalUS
)

func (c *Call) sums() sums {
	s := sums{
		sumCalls:         1,
		sumAvoidedInput:  c.AvoidedInput,
		sumAvoidedOutput: c.AvoidedOutput,
		sumAvoidedCost:   c.AvoidedCost,
		sumTotalUS:       c.Total.Microseconds(),
	}
	if c.Attempt > 1 {
		s[sumRetries] = 1
	}
	if c.Flags&OverBudget != 0 {
		s[sumFlagged] = 1
	}
	if u := c.Usage; u != nil {
		s[sumUpstream] = 1
		s[sumInput], s[sumCached], s[sumOutput], s[sumReasoning] = u.Input, u.Cached, u.Output, u.Reasoning
		s[sumCounted], s[sumResent] = c.Input, c.Resent
		switch {
		case c.Cost != nil:
			s[sumCost] = *c.Cost
		case u.Input+u.Output > 0: // what used nothing needs no price
			s[sumUnpriced] = 1
		}
	}
	return s
}

func (s sums) plus(t sums) sums {
	for i := range s {
		s[i] += t[i]
	}
	return s
}

func (s sums) times(n int64) sums {
	for i := range s {
		s[i] *= n
	}
	return s
}

const addRollup = `INSERT INTO rollup AS r (hour, tenant_id, step_id, model_id, outcome,
	calls, upstream, retries, flagged, input, cached, output, reasoning, counted, resent, cost, unpriced,
	avoided_input, avoided_output, avoided_cost, total_us)
	VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21)
	ON CONFLICT (hour, tenant_id, step_id, model_id, outcome) DO UPDATE SET
	calls = r.calls + excluded.calls, upstream = r.upstream + excluded.upstream, retries = r.retries + excluded.retries,
	flagged = r.flagged + excluded.flagged, input = r.input + excluded.input, cached = r.cached + excluded.cached,
	output = r.output + excluded.output, reasoning = r.reasoning + excluded.reasoning, counted = r.counted + excluded.counted,
	resent = r.resent + excluded.resent, cost = r.cost + excluded.cost, unpriced = r.unpriced + excluded.unpriced,
	avoided_input = r.avoided_input + excluded.avoided_input, avoided_output = r.avoided_output + excluded.avoided_output,
	avoided_cost = r.avoided_cost + excluded.avoided_cost, total_us = r.total_us + excluded.total_us`

func addUp(tx *store.Tx, byHour map[hourKey]sums) error {
	for key, s := range byHour {
		args := make([]any, 0, 5+len(s))
		args = append(args, key.hour, key.tenant, key.step, key.model, int64(key.outcome))
		for _, v := range s {
			args = append(args, v)
		}
		if _, err := tx.Exec(addRollup, args...); err != nil {
			return err
		}
	}
	return nil
}
