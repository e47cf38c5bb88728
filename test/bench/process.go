package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// The roles this program plays when it is run as one of its own children.
const (
	roleMock = "role-mock" // the upstream
	roleH    = "role-h"    // baseline H
	roleM    = "role-m"    // baseline M; argument: the upstream's scheme and host
)

const (
	clientKey  = "llmproxy-bench-key"
	startLimit = 20 * time.Second // to the first successful /healthz
	stopLimit  = 40 * time.Second // to the exit after SIGTERM
	dumpLimit  = 5 * time.Second  // to the exit after SIGQUIT
	// clockTick is the unit of /proc/PID/stat: USER_HZ is 100 on every Linux.
	clockTick = 10 * time.Millisecond
)

func isRole(arg string) bool {
	return arg == roleMock || arg == roleH || arg == roleM || arg == roleReady
}

// playRole serves one role on a free port, prints the address as the only line
// of stdout and ends when stdin does, so when its parent has gone.
func playRole(role string, args []string) error {
	var handler http.Handler
	switch {
	case role == roleReady:
		return playReady(os.Stdout)
	case role == roleMock:
		handler = mockUpstream()
	case role == roleH:
		handler = baselineH()
	case len(args) == 1:
		handler = baselineM(args[0])
	default:
		return fmt.Errorf("%s needs the upstream's scheme and host", role)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr())
	failed := make(chan error, 1)
	go func() { failed <- http.Serve(listener, handler) }()
	go func() {
		_, err := io.Copy(io.Discard, os.Stdin)
		failed <- err
	}()
	return <-failed
}

// process is a running server.
type process struct {
	name   string        // heading of its column
	addr   string        // host:port
	log    string        // file with its stderr
	launch time.Duration // from exec to the first successful /healthz
	cmd    *exec.Cmd
	exited chan error // receives the result of Wait once
}

// startRole starts this program again in a role.
func (b *bench) startRole(ctx context.Context, name, role string, args ...string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	b.started++
	p := &process{name: name, log: filepath.Join(b.dir, fmt.Sprintf("%d-%s.log", b.started, role))}
	cmd := exec.CommandContext(ctx, self, append([]string{role}, args...)...)
	if _, err := cmd.StdinPipe(); err != nil { // held open as long as we live
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.exec(cmd, func() (string, error) {
		line, err := bufio.NewReader(out).ReadString('\n')
		return strings.TrimSpace(line), err
	}); err != nil {
		return nil, err
	}
	return p, nil
}

// startServer starts llmproxy on a fresh database, before the upstream at base.
func (b *bench) startServer(ctx context.Context, base string) (*process, error) {
	b.started++
	dir := filepath.Join(b.dir, fmt.Sprintf("%d-llmproxy", b.started))
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	config := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(config, serverConfig(addr, dir, base), 0o600); err != nil {
		return nil, err
	}
	p := &process{name: "llmproxy", log: filepath.Join(dir, "stderr.log")}
	cmd := exec.CommandContext(ctx, b.bin, "serve", "--config", config)
	if err := p.exec(cmd, func() (string, error) { return addr, nil }); err != nil {
		return nil, err
	}
	return p, nil
}

// serverConfig is the configuration of the measured server: everything on.
func serverConfig(addr, dir, base string) []byte {
	return fmt.Appendf(nil, `listen: %s
database: %s
log: {level: info, format: json}
upstreams:
  - {name: mock, base_url: %q, models: ["*"]}
keys:
  - {name: bench, hash: "sha256:%x", tenant: bench, scopes: [llm]}
`, addr, strconv.Quote(filepath.Join(dir, "bench.db")), base, sha256.Sum256([]byte(clientKey)))
}

// freeAddr returns a loopback address that was free a moment ago.
func freeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// exec starts cmd and waits until it is healthy. addr is asked for its address
// after the start.
func (p *process) exec(cmd *exec.Cmd, addr func() (string, error)) error {
	log, err := os.Create(p.log)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd.Stderr = log
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = stopLimit
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting %s: %w", p.name, err)
	}
	p.cmd, p.exited = cmd, make(chan error, 1)
	if p.addr, err = addr(); err == nil {
		go func() { p.exited <- cmd.Wait() }()
		err = p.waitHealthy(began)
	}
	if err != nil {
		cmd.Process.Kill()
		return fmt.Errorf("starting %s: %w%s", p.name, err, p.logTail())
	}
	p.launch = time.Since(began)
	return nil
}

// waitHealthy asks /healthz every 2 ms until it answers 200.
func (p *process) waitHealthy(began time.Time) error {
	transport := &http.Transport{DisableKeepAlives: true}
	client := http.Client{Transport: transport, Timeout: time.Second}
	for {
		resp, err := client.Get("http://" + p.addr + "/healthz")
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
			err = errors.New(resp.Status)
		}
		if time.Since(began) > startLimit {
			return fmt.Errorf("not healthy after %s: %w", startLimit, err)
		}
		select {
		case err := <-p.exited:
			return fmt.Errorf("it ended: %v", err)
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// stop ends the process as an operator would, with SIGTERM. One that stays is
// killed, which is an error like any failing exit; first it gets SIGQUIT, upon
// which a Go program writes the stacks of its goroutines to its log.
func (p *process) stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stopping %s: %w%s", p.name, err, p.logTail())
	}
	select {
	case err := <-p.exited:
		exit, ok := errors.AsType[*exec.ExitError](err)
		if ok && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGTERM {
			return nil // it has no handler of the signal
		}
		if err != nil {
			return fmt.Errorf("stopping %s: %w%s", p.name, err, p.logTail())
		}
		return nil
	case <-time.After(stopLimit):
		tail := p.logTail()
		p.cmd.Process.Signal(syscall.SIGQUIT)
		select {
		case <-p.exited:
		case <-time.After(dumpLimit):
			p.cmd.Process.Kill()
		}
		return fmt.Errorf("%s did not end %s after SIGTERM; its goroutines are at the end of %s%s", p.name, stopLimit, p.log, tail)
	}
}

// logTail returns the end of the log, led by a line break, for an error message.
func (p *process) logTail() string {
	log, err := os.ReadFile(p.log)
	if err != nil || len(log) == 0 {
		return ""
	}
	return "\n" + string(log[max(0, len(log)-2*KB):])
}

// cpu returns the user and system time the process has used.
func (p *process) cpu() (time.Duration, error) { return cpuTime(strconv.Itoa(p.cmd.Process.Pid)) }

// cpuTime reads the CPU time of a process, or of this one as "self".
func cpuTime(pid string) (time.Duration, error) {
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return 0, err
	}
	// The second field is a name in brackets that may hold anything; utime and
	// stime are fields 14 and 15.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) < 13 {
		return 0, fmt.Errorf("reading /proc/%s/stat: %q", pid, stat)
	}
	user, err1 := strconv.ParseInt(fields[11], 10, 64)
	system, err2 := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * clockTick, errors.Join(err1, err2)
}

// memory reads a field of /proc/PID/status, VmRSS or VmHWM, in bytes.
func (p *process) memory(field string) (int64, error) {
	path := fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid)
	status, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, field+":"); ok {
			kb, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
			return kb * KB, err
		}
	}
	return 0, fmt.Errorf("no %s in %s", field, path)
}
