package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// target is a server to drive, and the cache state its answers must state.
type target struct {
	*process
	state string   // X-LLMProxy-Cache: "hit" or "miss"; "" where the server has no cache
	api   endpoint // asked of it, where a section asks more than one
}

// sample is what one stretch of load showed.
type sample struct {
	answered int   // right answers
	failed   int   // requests without one
	failure  error // of the first of them
	wrong    error // the first wrong answer, if there was one

	elapsed   time.Duration
	serverCPU time.Duration
	clientCPU time.Duration
	latencies []time.Duration // of right answers, to the last byte

	// Of streams only.
	first  []time.Duration // to the first content chunk
	delays []time.Duration // from the writing of a content chunk upstream to its arrival
	held   int             // chunks that came after the next one was written
}

// wrongAnswer is a whole answer that is not the one due.
type wrongAnswer string

func (w wrongAnswer) Error() string { return "wrong answer: " + string(w) }

// ask makes one request on a worker's connection, checks the answer and notes
// in s what only this kind of request has. Its error is a wrongAnswer or a
// failure of transport.
type ask func(c *conn, s *sample) error

// limit ends a stretch of load: after a time or after a number of requests.
type limit struct {
	time     time.Duration
	requests int64
}

// measure drives the target with so many clients at once. newAsk makes each
// worker's ask. The error says that measuring failed; whatever the target did
// wrong stands in the sample.
func (t target) measure(ctx context.Context, clients int, l limit, newAsk func(worker int) ask) (sample, error) {
	conns := make([]*conn, clients)
	for i := range conns {
		c, err := dial(t.addr)
		if err != nil {
			return sample{}, fmt.Errorf("connecting to %s: %w%s", t.name, err, t.logTail())
		}
		defer func() { c.nc.Close() }()
		conns[i] = c
	}
	serverBefore, err1 := t.cpu()
	clientBefore, err2 := cpuTime("self")
	began := time.Now()
	var asked atomic.Int64
	more := func() bool {
		if ctx.Err() != nil {
			return false
		}
		if l.requests > 0 {
			return asked.Add(1) <= l.requests
		}
		return time.Since(began) < l.time
	}
	parts := make([]sample, clients)
	lost := make([]error, clients) // the target could not be reached any more
	var workers sync.WaitGroup
	for i, c := range conns {
		ask := newAsk(i)
		workers.Go(func() { lost[i] = parts[i].drive(c, ask, more) })
	}
	workers.Wait()
	s := merge(parts)
	s.elapsed = time.Since(began)
	serverAfter, err3 := t.cpu()
	clientAfter, err4 := cpuTime("self")
	s.serverCPU, s.clientCPU = serverAfter-serverBefore, clientAfter-clientBefore
	err := errors.Join(append(lost, err1, err2, err3, err4, ctx.Err())...)
	if err == nil && s.answered == 0 {
		err = errors.Join(errors.New("no request was answered"), s.failure)
	}
	if err != nil {
		return s, fmt.Errorf("driving %s: %w%s", t.name, err, t.logTail())
	}
	return s, nil
}

// drive asks as long as there is more to ask.
func (s *sample) drive(c *conn, ask ask, more func() bool) error {
	for more() {
		began := time.Now()
		err := ask(c, s)
		if err == nil {
			s.answered++
			s.latencies = append(s.latencies, time.Since(began))
			continue
		}
		s.failed++
		s.failure = cmp.Or(s.failure, err)
		if _, ok := errors.AsType[wrongAnswer](err); ok {
			s.wrong = cmp.Or(s.wrong, err)
		}
		if err := c.redial(); err != nil {
			return err
		}
	}
	return nil
}

// merge adds up the samples of the workers.
func merge(parts []sample) sample {
	var s sample
	for _, p := range parts {
		s.answered += p.answered
		s.failed += p.failed
		s.held += p.held
		s.latencies = append(s.latencies, p.latencies...)
		s.first = append(s.first, p.first...)
		s.delays = append(s.delays, p.delays...)
		s.failure = cmp.Or(s.failure, p.failure)
		s.wrong = cmp.Or(s.wrong, p.wrong)
	}
	return s
}

// duel drives the sides in turn for the rounds of the plan, after a short
// stretch each that does not count, and returns the samples of each side.
func (b *bench) duel(ctx context.Context, clients int, newAsk func(t target, worker int) ask, sides ...target) ([][]sample, error) {
	samples := make([][]sample, len(sides))
	for round := range b.plan.rounds + 1 {
		l := limit{time: b.plan.round}
		if round == 0 {
			l.time /= 4
		}
		for i, t := range sides {
			s, err := t.measure(ctx, clients, l, func(worker int) ask { return newAsk(t, worker) })
			if err != nil {
				return nil, err
			}
			b.noteWrong(t, s)
			if round > 0 {
				samples[i] = append(samples[i], s)
			}
		}
	}
	return samples, nil
}

// noteWrong keeps the first wrong answer of the run, which then ends in failure.
func (b *bench) noteWrong(t target, s sample) {
	if s.wrong != nil && b.wrong == nil {
		b.wrong = fmt.Errorf("%s: %w", t.name, s.wrong)
	}
}
