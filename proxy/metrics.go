package proxy

import (
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"llmproxy/ledger"
)

// maxStepLabels bounds the series that clients can make by naming steps.
const maxStepLabels = 200

type metrics struct {
	registry *prometheus.Registry

	calls       *prometheus.CounterVec   // step, outcome
	tokens      *prometheus.CounterVec   // step, direction
	avoided     *prometheus.CounterVec   // step, direction
	flagged     *prometheus.CounterVec   // step, state
	upstream    *prometheus.HistogramVec // upstream, status
	retries     *prometheus.CounterVec   // upstream
	firstByte   prometheus.Histogram
	counting    prometheus.Histogram
	admitting   prometheus.Histogram
	finishing   prometheus.Histogram
	storeErrors *prometheus.CounterVec // what
	unstored    *prometheus.CounterVec // reason
	evicted     *prometheus.CounterVec // why
	rowsDropped prometheus.Counter

	mu    sync.Mutex
	steps map[string]bool // step names that have series of their own
	hot   sync.Map        // step → *stepSeries
}

func newMetrics(s *Server) *metrics {
	reg := prometheus.NewRegistry()
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "llmproxy_" + name, Help: help}, labels)
		reg.MustRegister(c)
		return c
	}
	histogram := func(name, help string) prometheus.Histogram {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "llmproxy_" + name, Help: help,
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 10)})
		reg.MustRegister(h)
		return h
	}
	m := &metrics{
		registry:    reg,
		calls:       counter("calls_total", "Calls by step and outcome.", "step", "outcome"),
		tokens:      counter("tokens_total", "Tokens paid for.", "step", "direction"),
		avoided:     counter("avoided_tokens_total", "Tokens that served answers did not cost again.", "step", "direction"),
		flagged:     counter("budget_flags_total", "Calls over or near a budget that only flags.", "step", "state"),
		retries:     counter("upstream_retries_total", "Attempts after the first of an exchange.", "upstream"),
		firstByte:   histogram("upstream_first_byte_seconds", "From the start of an upstream exchange to its first event."),
		counting:    histogram("count_seconds", "Time to count a request's input tokens."),
		admitting:   histogram("admit_seconds", "Time of the admitting transaction, its wait included."),
		finishing:   histogram("finish_seconds", "Time of the finishing transaction, its wait included."),
		storeErrors: counter("store_errors_total", "Database errors by what they hit.", "what"),
		unstored:    counter("unstored_answers_total", "Complete answers that were not kept, by reason.", "reason"),
		evicted:     counter("evicted_entries_total", "Entries deleted by the sweeper.", "why"),
		steps:       map[string]bool{},
	}
	m.upstream = prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "llmproxy_upstream_seconds",
		Help: "Duration of upstream exchanges.", Buckets: prometheus.ExponentialBuckets(0.01, 2.5, 12)}, []string{"upstream", "status"})
	m.rowsDropped = prometheus.NewCounter(prometheus.CounterOpts{Name: "llmproxy_ledger_rows_dropped_total",
		Help: "Rows of calls that cost nothing, dropped because the database could not be written for long."})
	gauge := func(name, help string, value func() float64) {
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "llmproxy_" + name, Help: help}, value))
	}
	gauge("flights", "Upstream exchanges under way that calls can join.", func() float64 { n, _ := s.Cache.Flights.Count(); return float64(n) })
	gauge("detached_flights", "Upstream exchanges that nobody reads.", func() float64 { _, n := s.Cache.Flights.Count(); return float64(n) })
	reg.MustRegister(m.upstream, m.rowsDropped, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// Registry is where others of this process add their metrics.
func (s *Server) Registry() prometheus.Registerer { return s.metrics.registry }

// stepLabel is the step's name, or "other" for the many that clients may make up.
func (m *metrics) stepLabel(step string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.steps[step] {
		if len(m.steps) >= maxStepLabels {
			return "other"
		}
		m.steps[step] = true
	}
	return step
}

// stepSeries are the series of one step, looked up once: labels cost more than
// counting.
type stepSeries struct {
	calls                       [ledger.Lost + 1]prometheus.Counter // by outcome
	input, output               prometheus.Counter
	avoidedInput, avoidedOutput prometheus.Counter
	over, near                  prometheus.Counter
}

// of returns the series of a step.
func (m *metrics) of(step string) *stepSeries {
	if s, ok := m.hot.Load(step); ok {
		return s.(*stepSeries)
	}
	label := m.stepLabel(step)
	s := &stepSeries{
		input: m.tokens.WithLabelValues(label, "input"), output: m.tokens.WithLabelValues(label, "output"),
		avoidedInput: m.avoided.WithLabelValues(label, "input"), avoidedOutput: m.avoided.WithLabelValues(label, "output"),
		over: m.flagged.WithLabelValues(label, "over"), near: m.flagged.WithLabelValues(label, "near"),
	}
	for outcome := range s.calls {
		s.calls[outcome] = m.calls.WithLabelValues(label, ledger.Outcome(outcome).String())
	}
	if label == step {
		m.hot.Store(step, s)
	}
	return s
}

// count adds a finished call.
func (m *metrics) count(c *ledger.Call) {
	s := m.of(c.Step)
	s.calls[c.Outcome].Inc()
	s.avoidedInput.Add(float64(c.AvoidedInput))
	s.avoidedOutput.Add(float64(c.AvoidedOutput))
	if u := c.Usage; u != nil {
		s.input.Add(float64(u.Input))
		s.output.Add(float64(u.Output))
	}
	switch {
	case c.Flags&ledger.OverBudget != 0:
		s.over.Inc()
	case c.Flags&ledger.NearBudget != 0:
		s.near.Inc()
	}
}

// unstoredLabel bounds the series that upstreams can make by their wording.
func unstoredLabel(reason string) string {
	switch {
	case reason == "finish reason length", reason == "finish reason content_filter":
		return reason
	case strings.HasPrefix(reason, "finish reason "):
		return "finish reason other"
	case strings.HasPrefix(reason, "choices missing"):
		return "choices missing"
	}
	return reason
}

func (m *metrics) exchange(upstream string, status int, took time.Duration) {
	label := "none"
	if status > 0 {
		label = strconv.Itoa(status)
	}
	m.upstream.WithLabelValues(upstream, label).Observe(took.Seconds())
}
