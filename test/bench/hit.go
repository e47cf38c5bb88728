package main

import (
	"context"
	"errors"
	"fmt"
)

// startPair starts the server to measure, before the upstream at base, and the
// baseline of a role beside it; without a binary the baseline is both.
func (b *bench) startPair(ctx context.Context, upstream *process, role string) (ours, base *process, err error) {
	url, name := "http://"+upstream.addr, "M"
	var args []string
	if role == roleM {
		args = []string{url}
	} else {
		name = "H"
	}
	if base, err = b.startRole(ctx, name, role, args...); err != nil {
		return nil, nil, err
	}
	if b.bin == "" {
		ours, err = b.startRole(ctx, name+" again", role, args...)
	} else {
		ours, err = b.startServer(ctx, url+"/v1")
	}
	if err != nil {
		return nil, nil, errors.Join(err, base.stop())
	}
	return ours, base, nil
}

// expect returns the target with the cache state due where it has a cache.
func (b *bench) expect(p *process, state string) target {
	if b.bin == "" {
		state = ""
	}
	return target{process: p, state: state}
}

// withPair runs f with the mock upstream, the server to measure and a baseline,
// and stops them after it.
func (b *bench) withPair(ctx context.Context, role string, f func(mock, ours, base *process) error) (err error) {
	mock, err := b.startRole(ctx, "the upstream", roleMock)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, mock.stop()) }()
	ours, base, err := b.startPair(ctx, mock, role)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ours.stop(), base.stop()) }()
	return f(mock, ours, base)
}

// hitBounds are the bounds of the hit section for one body size.
type hitBounds struct{ cpu, throughput64, p99at64 bound }

// hitWanted: body size → bounds.
var hitWanted = map[int]hitBounds{
	1 * KB:   {cpu: atMost(2.0), throughput64: atLeast(0.55)},
	32 * KB:  {cpu: atMost(1.6), throughput64: atLeast(0.65)},
	512 * KB: {cpu: atMost(1.4), throughput64: atLeast(0.7), p99at64: atMost(2)},
}

// hit compares hits from memory with H.
func (b *bench) hit(ctx context.Context) error {
	return b.withPair(ctx, roleH, func(_, ours, base *process) error {
		t := newTable("Hit from memory against H (net/http, SHA-256 of the body, a map)", ours.name, base.name)
		for _, size := range bodySizes {
			if err := b.hitSize(ctx, t, size, ours, base); err != nil {
				return err
			}
		}
		return t.print(b.out)
	})
}

// hitSize compares the hits of one body size.
func (b *bench) hitSize(ctx context.Context, t *table, size int, ours, base *process) error {
	set := workSet(size)
	server := b.expect(ours, "hit")
	if err := b.warm(ctx, server, set); err != nil {
		return err
	}
	wanted := hitWanted[size]
	for _, clients := range []int{16, 64} {
		samples, err := b.duel(ctx, clients, func(t target, worker int) ask {
			return repeatAsk(t.state, set, worker)
		}, server, target{process: base})
		if err != nil {
			return err
		}
		a, h := samples[0], samples[1]
		of := fmt.Sprintf("%d KB × %d clients", size/KB, clients)
		at64 := hitBounds{}
		if clients == 64 {
			at64 = wanted
		}
		t.ratio(of, cpuPerRequest, a, h, wanted.cpu)
		t.ratio(of, throughput, a, h, at64.throughput64)
		t.ratio(of, latencyP50, a, h, bound{})
		t.ratio(of, latencyP99, a, h, at64.p99at64)
		t.ratio(of, clientCost, a, h, bound{})
		t.errors(of, a, h)
		t.gap()
	}
	return nil
}

// warm asks every body of the set once, so that it is stored, and once more,
// so that it is known to be a hit with the right answer.
func (b *bench) warm(ctx context.Context, t target, set []exchange) error {
	for _, state := range []string{"", t.state} {
		next := 0
		once := func(int) ask {
			return jsonAsk(state, func() exchange { next++; return set[next-1] })
		}
		s, err := t.measure(ctx, 1, limit{requests: int64(len(set))}, once)
		if err != nil {
			return fmt.Errorf("warming: %w", err)
		}
		if s.answered < len(set) {
			return fmt.Errorf("warming: %d of %d bodies answered: %w", s.answered, len(set), s.failure)
		}
	}
	return nil
}
