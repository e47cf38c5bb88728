package main

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"llmproxy/guard"
)

// maxGuardSteps bounds the series that callers can make by naming steps.
const maxGuardSteps = 200

// guardMetrics counts what happens to effects, by step.
func guardMetrics(reg prometheus.Registerer) func(guard.Transition) {
	events := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "llmproxy_guard_events_total",
		Help: "What happened to guarded effects, by step."}, []string{"step", "event"})
	reg.MustRegister(events)
	var mu sync.Mutex
	steps := map[string]bool{}
	label := func(step string) string {
		mu.Lock()
		defer mu.Unlock()
		if !steps[step] {
			if len(steps) >= maxGuardSteps {
				return "other"
			}
			steps[step] = true
		}
		return step
	}
	return func(t guard.Transition) {
		step := label(t.After.Step)
		for _, event := range guardEvents(t) {
			events.WithLabelValues(step, event).Inc()
		}
	}
}

// guardEvents names what a transition was.
func guardEvents(t guard.Transition) (names []string) {
	note := func(name string, happened bool) {
		if happened {
			names = append(names, name)
		}
	}
	_, failed := t.Event.(guard.Fail)
	_, completed := t.Event.(guard.Complete)
	_, resolved := t.Event.(guard.Resolve)
	done := t.Reply.Refusal == ""
	note("granted", t.Reply.Decision == guard.Proceed)
	note("takeover", t.Reply.Takeover)
	note("replayed", t.Reply.Decision == guard.Replay)
	note("drift", t.Reply.Drift && t.Reply.Decision == guard.Replay)
	note("in_progress", t.Reply.Refusal == guard.InProgress)
	note("held", t.Reply.Refusal == guard.Undecided)
	note("mismatch", t.Reply.Refusal == guard.InputMismatch)
	note("lease_lost", t.Reply.Refusal == guard.LeaseLost)
	note("unknown_entered", t.Before.State != guard.Unknown && t.After.State == guard.Unknown)
	note("completed", completed && done && t.Reply.First)
	note("late_completion", completed && done && t.Reply.Late)
	note("duplicate_effect", t.Reply.Duplicate)
	note("failed_none", failed && done && t.After.State == guard.Failed)
	note("resolved", resolved && done)
	return names
}
