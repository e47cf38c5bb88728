package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

const pacedClients = 16

// stream compares streams with M: the time to the first chunk, the delay of
// each chunk, and how many of many streams are lost or cut when the upstream
// answers at once.
func (b *bench) stream(ctx context.Context) error {
	return b.withPair(ctx, roleM, func(_, ours, base *process) error {
		t := newTable("Streams against M, each a miss of 1 KB", ours.name, base.name)
		server, m := b.expect(ours, "miss"), target{process: base}
		n := new(atomic.Int64)
		burst := fresh{kindStream, requestTemplate(missSize, kindStream), n}
		paced := fresh{kindPaced, requestTemplate(missSize, kindPaced), n}

		a, viaM, err := b.streamDuel(ctx, 1, burst, server, m)
		if err != nil {
			return err
		}
		of := fmt.Sprintf("%d chunks at once × 1 client", burstChunks)
		t.ratio(of, firstP50, a, viaM, atMost(1.5))
		t.ratio(of, firstP99, a, viaM, bound{})
		t.difference(of, measure{"first chunk p50, added", firstP50.of, millis}, a, viaM, bound{})
		t.ratio(of, latencyP50, a, viaM, bound{})
		t.errors(of, a, viaM)
		t.gap()

		if a, viaM, err = b.streamDuel(ctx, pacedClients, paced, server, m); err != nil {
			return err
		}
		of = fmt.Sprintf("%d chunks, %s apart after %s × %d clients", paceChunks, chunkGap, firstWait, pacedClients)
		t.ratio(of, firstP50, a, viaM, atMost(1.5))
		t.ratio(of, firstP99, a, viaM, bound{})
		for _, delay := range []measure{delayP50, delayP99, delayMax} {
			t.ratio(of, delay, a, viaM, bound{})
		}
		t.held(of, a, viaM)
		t.errors(of, a, viaM)
		t.gap()
		return b.manyStreams(ctx, t, burst, server)
	})
}

func (b *bench) streamDuel(ctx context.Context, clients int, f fresh, server, m target) (ours, base []sample, err error) {
	samples, err := b.duel(ctx, clients, func(t target, worker int) ask {
		if f.kind == kindPaced {
			return later(paceChunks*chunkGap*time.Duration(worker)/time.Duration(clients), streamAsk(t.state, f))
		}
		return streamAsk(t.state, f)
	}, server, m)
	if err != nil {
		return nil, nil, err
	}
	return samples[0], samples[1], nil
}

// later puts off the first request by wait, so that the workers, whose streams
// all take as long, do not ask in step.
func later(wait time.Duration, next ask) ask {
	return func(c *conn, s *sample) error {
		time.Sleep(wait)
		wait = 0
		return next(c, s)
	}
}

// held adds a row with the chunks that were held back: those that came only
// after the upstream had written the next one. A busy machine holds some back
// too, which M shows.
func (t *table) held(of string, ours, base []sample) {
	count := func(side []sample) (held, chunks int) {
		for _, s := range side {
			held += s.held
			chunks += len(s.delays)
		}
		return held, chunks
	}
	held, chunks := count(ours)
	baseHeld, baseChunks := count(base)
	wanted := atMost(0)
	t.row(of, "chunks held back", fmt.Sprintf("%d of %d", held, chunks), fmt.Sprintf("%d of %d", baseHeld, baseChunks),
		"", wanted.format(whole), wanted.met(float64(held)))
}

// manyStreams counts the streams that are lost or cut, 64 at a time, and prints
// the table.
func (b *bench) manyStreams(ctx context.Context, t *table, f fresh, server target) error {
	s, err := server.measure(ctx, 64, limit{requests: int64(b.plan.streams)}, func(int) ask {
		return streamAsk(server.state, f)
	})
	if err != nil {
		return err
	}
	b.noteWrong(server, s)
	of := fmt.Sprintf("%d streams × 64 clients", b.plan.streams)
	t.figure(of, "lost or cut", float64(b.plan.streams-s.answered), whole, atMost(0))
	t.figure(of, throughput.name, throughput.of(s), rate, bound{})
	t.figure(of, cpuPerRequest.name, cpuPerRequest.of(s), micros, bound{})
	if s.failure != nil {
		t.note("%s: %v", of, s.failure)
	}
	return t.print(b.out)
}
