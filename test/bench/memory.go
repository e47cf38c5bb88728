package main

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"time"
)

const (
	memorySize    = 512 * KB // of the bodies of the memory section
	memoryClients = 64
)

// memory reads the server's memory at rest and after load with large bodies,
// first hits, then misses.
func (b *bench) memory(ctx context.Context) error {
	role := roleM
	if b.bin == "" {
		role = roleH // answers only what is in the working set
	}
	return b.withPair(ctx, role, func(_, ours, _ *process) error {
		t := newTable("Memory of the server", ours.name, "")
		select {
		case <-time.After(b.plan.rest):
		case <-ctx.Done():
			return ctx.Err()
		}
		rest, err := ours.memory("VmRSS")
		if err != nil {
			return err
		}
		of := fmt.Sprintf("at rest, %s after the start", b.plan.rest)
		t.figure(of, "resident", float64(rest), mebi, atMost(64<<20))

		set := workSet(memorySize)
		server := b.expect(ours, "hit")
		if err := b.warm(ctx, server, set); err != nil {
			return err
		}
		of = fmt.Sprintf("%d clients × %d KB, hits", memoryClients, memorySize/KB)
		if err := b.peak(ctx, t, of, server, func(worker int) ask { return repeatAsk(server.state, set, worker) }); err != nil {
			return err
		}
		if b.bin != "" {
			server = b.expect(ours, "miss")
			work := newFresh(chat, kindFresh, memorySize, new(atomic.Int64))
			of = fmt.Sprintf("%d clients × %d KB, then misses", memoryClients, memorySize/KB)
			if err := b.peak(ctx, t, of, server, func(int) ask { return freshAsk(server.state, work) }); err != nil {
				return err
			}
		}
		return t.print(b.out)
	})
}

// peak drives the server for two rounds' time and adds its peak so far.
func (b *bench) peak(ctx context.Context, t *table, of string, server target, newAsk func(worker int) ask) error {
	s, err := server.measure(ctx, memoryClients, limit{time: 2 * b.plan.round}, newAsk)
	if err != nil {
		return err
	}
	b.noteWrong(server, s)
	peak, err := server.memory("VmHWM")
	if err != nil {
		return err
	}
	t.figure(of, "peak so far", float64(peak), mebi, atMost(200<<20))
	t.errors(of, []sample{s}, nil)
	return nil
}

// start times starts on an empty database and weighs the binary.
func (b *bench) start(ctx context.Context) (err error) {
	mock, err := b.startRole(ctx, "the upstream", roleMock)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, mock.stop()) }()
	name := "llmproxy"
	start := func() (*process, error) { return b.startServer(ctx, "http://"+mock.addr+"/v1") }
	if b.bin == "" {
		name = "M"
		start = func() (*process, error) { return b.startRole(ctx, name, roleM, "http://"+mock.addr) }
	}
	launches := make([]time.Duration, b.plan.starts)
	for i := range launches {
		p, err := start()
		if err != nil {
			return err
		}
		launches[i] = p.launch
		if err := p.stop(); err != nil {
			return err
		}
	}
	t := newTable("Start and size", name, "")
	of := fmt.Sprintf("%d starts on an empty database", b.plan.starts)
	t.figure(of, "to the first healthy answer, median", quantile(launches, 0.5).Seconds(), millis, atMost(0.5))
	t.figure(of, "to the first healthy answer, max", quantile(launches, 1).Seconds(), millis, bound{})
	if b.bin != "" {
		if err := t.binarySize(b.bin); err != nil {
			return err
		}
	}
	return t.print(b.out)
}

// binarySize adds the size of the binary as it is and stripped: less the
// sections that strip removes, the symbol table and the debug information.
func (t *table) binarySize(path string) (err error) {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	file, err := elf.Open(path)
	if err != nil {
		return fmt.Errorf("weighing the binary: %w", err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	stripped := info.Size()
	for _, s := range file.Sections {
		if s.Name == ".symtab" || s.Name == ".strtab" || strings.HasPrefix(s.Name, ".debug_") {
			stripped -= int64(s.FileSize)
		}
	}
	t.figure("binary", "size", float64(info.Size()), mega, bound{})
	t.figure("binary", "stripped", float64(stripped), mega, atMost(30e6))
	return nil
}
