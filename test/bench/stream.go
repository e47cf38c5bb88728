package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

const pacedClients = 16

// pair holds the rounds of the server and those of its baseline.
type pair struct{ ours, base []sample }

// stream compares streams with M: the time to the first chunk, the delay of
// each chunk, and how many of many streams are lost or cut when the upstream
// answers at once. It does so for chat and for Responses in turn, and compares
// what the server adds to the two.
func (b *bench) stream(ctx context.Context) error {
	return b.withPair(ctx, roleM, func(_, ours, base *process) error {
		t := newTable("Streams against M, each a miss of 1 KB", ours.name, base.name)
		n := new(atomic.Int64)
		for _, load := range []struct {
			kind    byte
			clients int
			of      string
		}{
			{kindStream, 1, fmt.Sprintf("%d chunks at once × 1 client", burstChunks)},
			{kindPaced, pacedClients, fmt.Sprintf("%d chunks, %s apart after %s × %d clients", paceChunks, chunkGap, firstWait, pacedClients)},
		} {
			viaChat, viaResponses, err := b.streamDuel(ctx, load.clients, load.kind, ours, base, n)
			if err != nil {
				return err
			}
			t.streams(chat.name()+", "+load.of, load.kind, viaChat)
			t.streams(responses.name()+", "+load.of, load.kind, viaResponses)
			of := "responses to chat, " + load.of
			t.added(of, firstP50, viaResponses, viaChat, atMost(1.15))
			t.added(of, delayP50, viaResponses, viaChat, atMost(1.15))
			t.added(of, cpuPerRequest, viaResponses, viaChat, bound{})
			t.added(of, firstP99, viaResponses, viaChat, bound{})
			t.added(of, delayP99, viaResponses, viaChat, bound{})
			t.gap()
		}
		for _, api := range []endpoint{chat, responses} {
			if err := b.manyStreams(ctx, t, newFresh(api, kindStream, missSize, n), b.expect(ours, "miss")); err != nil {
				return err
			}
		}
		return t.print(b.out)
	})
}

// streamDuel drives streams of both endpoints through the server and through
// its baseline, in turn.
func (b *bench) streamDuel(ctx context.Context, clients int, kind byte, ours, base *process, n *atomic.Int64) (viaChat, viaResponses pair, err error) {
	var sides []target
	for _, api := range []endpoint{chat, responses} {
		server, m := b.expect(ours, "miss"), target{process: base}
		server.api, m.api = api, api
		sides = append(sides, server, m)
	}
	samples, err := b.duel(ctx, clients, func(t target, worker int) ask {
		next := streamAsk(t.state, newFresh(t.api, kind, missSize, n))
		if kind == kindPaced {
			return later(paceChunks*chunkGap*time.Duration(worker)/time.Duration(clients), next)
		}
		return next
	}, sides...)
	if err != nil {
		return pair{}, pair{}, err
	}
	return pair{samples[0], samples[1]}, pair{samples[2], samples[3]}, nil
}

// streams adds the rows of one endpoint's streams of a kind.
func (t *table) streams(of string, kind byte, p pair) {
	t.ratio(of, firstP50, p.ours, p.base, atMost(1.5))
	t.ratio(of, firstP99, p.ours, p.base, bound{})
	for _, m := range []measure{firstP50, firstP99, delayP50, delayP99, delayMax} {
		t.difference(of, measure{m.name + ", added", m.of, m.show}, p.ours, p.base, bound{})
	}
	t.ratio(of, cpuPerRequest, p.ours, p.base, bound{})
	if kind == kindPaced {
		t.held(of, p.ours, p.base)
	} else {
		t.ratio(of, latencyP50, p.ours, p.base, bound{})
		t.ratio(of, chunkRate, p.ours, p.base, bound{})
	}
	t.errors(of, p.ours, p.base)
	t.gap()
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

// manyStreams counts the streams that are lost or cut, 64 at a time.
func (b *bench) manyStreams(ctx context.Context, t *table, f fresh, server target) error {
	s, err := server.measure(ctx, 64, limit{requests: int64(b.plan.streams)}, func(int) ask {
		return streamAsk(server.state, f)
	})
	if err != nil {
		return err
	}
	b.noteWrong(server, s)
	of := fmt.Sprintf("%s, %d streams × 64 clients", f.api.name(), b.plan.streams)
	t.figure(of, "lost or cut", float64(b.plan.streams-s.answered), whole, atMost(0))
	t.figure(of, throughput.name, throughput.of(s), rate, bound{})
	t.figure(of, cpuPerRequest.name, cpuPerRequest.of(s), micros, bound{})
	if s.failure != nil {
		t.note("%s: %v", of, s.failure)
	}
	t.gap()
	return nil
}
