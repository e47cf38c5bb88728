package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

const missSize = 1 * KB // of the request bodies in the miss and stream sections

// miss compares misses, each a request never asked before, with M.
func (b *bench) miss(ctx context.Context) error {
	return b.withPair(ctx, roleM, func(mock, ours, base *process) error {
		t := newTable("Miss with both commits against M (net/http, one RoundTrip), 1 KB bodies", ours.name, base.name)
		work := newFresh(chat, kindFresh, missSize, new(atomic.Int64))
		newAsk := func(t target, _ int) ask { return freshAsk(t.state, work) }
		server, m := b.expect(ours, "miss"), target{process: base}
		// The first counts load the vocabulary, which is no part of a miss.
		if _, err := server.measure(ctx, 16, limit{time: b.plan.round / 2}, func(worker int) ask { return newAsk(server, worker) }); err != nil {
			return err
		}
		for _, clients := range []int{16, 256} {
			if err := b.missLoad(ctx, t, clients, newAsk, server, m); err != nil {
				return err
			}
		}
		samples, err := b.duel(ctx, 1, newAsk, server, m, target{process: mock})
		if err != nil {
			return err
		}
		a, viaM, direct := samples[0], samples[1], samples[2]
		t.ratio("1 client", latencyP50, a, viaM, bound{})
		t.ratio("1 client", latencyP99, a, viaM, bound{})
		alone := measure{"latency p50 (right: direct)", latencyP50.of, millis}
		t.difference("1 client", alone, a, direct, atMost(0.7e-3))
		return t.print(b.out)
	})
}

// missLoad compares the misses of so many clients, and how long the server
// says it counted tokens for them.
func (b *bench) missLoad(ctx context.Context, t *table, clients int, newAsk func(target, int) ask, server, m target) error {
	before, err := countingOf(ctx, server.process)
	if err != nil {
		return err
	}
	samples, err := b.duel(ctx, clients, newAsk, server, m)
	if err != nil {
		return err
	}
	after, err := countingOf(ctx, server.process)
	if err != nil {
		return err
	}
	a, base := samples[0], samples[1]
	of := fmt.Sprintf("%d clients", clients)
	t.ratio(of, cpuPerRequest, a, base, atMost(3))
	t.row(of, "  of it counting", after.since(before).String(), "", "", "", "")
	t.ratio(of, throughput, a, base, bound{})
	t.ratio(of, latencyP50, a, base, bound{})
	t.ratio(of, latencyP99, a, base, bound{})
	t.ratio(of, clientCost, a, base, bound{})
	t.errors(of, a, base)
	t.gap()
	return nil
}

// counting is the time a server says it spent counting tokens, over how many
// counts. It is wall time, so on a busy machine more than the CPU time.
type counting struct {
	seconds, counts float64
	reported        bool
}

func (c counting) since(before counting) counting {
	return counting{c.seconds - before.seconds, c.counts - before.counts, c.reported}
}

func (c counting) String() string {
	if !c.reported || c.counts == 0 {
		return "not reported"
	}
	return micros(c.seconds/c.counts) + " wall"
}

// countingOf reads llmproxy_count_seconds from a server's /metrics, all series
// added up. A server without /metrics reports nothing.
func countingOf(ctx context.Context, p *process) (c counting, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.addr+"/metrics", nil)
	if err != nil {
		return c, err
	}
	req.Header.Set("Authorization", "Bearer "+clientKey)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return c, fmt.Errorf("reading the metrics of %s: %w", p.name, err)
	}
	defer func() { err = errors.Join(err, resp.Body.Close()) }()
	if resp.StatusCode != http.StatusOK {
		return c, nil
	}
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		name, value, ok := series(lines.Text())
		if !ok {
			continue
		}
		switch name {
		case "llmproxy_count_seconds_sum":
			c.seconds += value
		case "llmproxy_count_seconds_count":
			c.counts += value
			c.reported = true
		}
	}
	return c, lines.Err()
}

// series splits a line of the Prometheus text format into the metric's name,
// without its labels, and its value.
func series(line string) (name string, value float64, ok bool) {
	if strings.HasPrefix(line, "#") {
		return "", 0, false
	}
	name, number := line, ""
	if i := strings.LastIndexByte(line, ' '); i >= 0 {
		name, number = line[:i], line[i+1:]
	}
	name, _, _ = strings.Cut(name, "{")
	value, err := strconv.ParseFloat(number, 64)
	return name, value, err == nil
}
