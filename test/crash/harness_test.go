package crash

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"llmproxy/store"
)

// patience bounds the waiting for what never comes. Nothing is measured by it.
const patience = 30 * time.Second

// process is a server process, or the command, under a test.
type process struct {
	t      *testing.T
	name   string
	url    string // http://host:port
	cmd    *exec.Cmd
	log    *output
	exited chan struct{} // closed when the process has ended
}

// start starts a server process of the test binary and waits until it serves.
func start(t *testing.T, s setup) *process {
	t.Helper()
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), setupVariable+"="+string(text))
	p := &process{t: t, name: s.Instance, cmd: cmd}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.launch()
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatalf("the server %s did not start: %v", s.Instance, err)
	}
	p.url = strings.TrimSpace(line)
	return p
}

// launch starts the command and sees to its end with the test.
func (p *process) launch() {
	p.t.Helper()
	p.log, p.exited = &output{}, make(chan struct{})
	p.cmd.Stderr = p.log
	if _, err := p.cmd.StdinPipe(); err != nil { // held open as long as the test lives
		p.t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		p.kill()
		switch log := p.log.String(); {
		case strings.Contains(log, "DATA RACE"):
			p.t.Errorf("%s:\n%s", p.name, log)
		case p.t.Failed():
			p.t.Logf("%s:\n%s", p.name, log[max(0, len(log)-4000):])
		}
	})
	go func() {
		p.cmd.Wait() //nolint:errcheck // how it ended is read from the state
		close(p.exited)
	}()
}

func (p *process) signal(sig syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Errorf("sending %v to %s: %v", sig, p.name, err)
	}
}

// kill ends the process as the kernel would, and waits until it is gone.
func (p *process) kill() {
	p.t.Helper()
	p.signal(syscall.SIGKILL)
	p.wait()
}

func (p *process) wait() {
	p.t.Helper()
	select {
	case <-p.exited:
	case <-time.After(patience):
		p.t.Fatalf("%s does not end", p.name)
	}
}

// response is what a client got.
type response struct {
	status int
	header http.Header
	body   string
}

func (r response) cache() string { return r.header.Get("X-LLMProxy-Cache") }

// whole tells whether the client has seen the end of the answer.
func (r response) whole() bool {
	stream := strings.HasPrefix(r.header.Get("Content-Type"), "text/event-stream")
	return r.status == http.StatusOK && (!stream || strings.HasSuffix(r.body, "data: [DONE]\n\n"))
}

// send sends a chat request on a connection of its own and returns when the
// answer's header is there; headers are name, value, name, value …
func (p *process) send(ctx context.Context, body string, headers ...string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Close = true
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	return http.DefaultClient.Do(req)
}

// read reads an answer to its end. What came before an error is returned with it.
func read(resp *http.Response) (response, error) {
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	return response{resp.StatusCode, resp.Header, string(data)}, err
}

// post sends a chat request and reads the answer.
func (p *process) post(ctx context.Context, body string, headers ...string) (response, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	resp, err := p.send(ctx, body, headers...)
	if err != nil {
		return response{}, err
	}
	return read(resp)
}

// ask is post where nothing may go wrong on the way.
func (p *process) ask(body string, headers ...string) response {
	p.t.Helper()
	r, err := p.post(p.t.Context(), body, headers...)
	if err != nil {
		p.t.Errorf("asking %s: %v", p.name, err)
		r.header = http.Header{}
	}
	return r
}

// metric is the sum of a metric's series, so that a test can wait for a state
// instead of sleeping.
func (p *process) metric(name string) (sum float64) {
	p.t.Helper()
	resp, err := http.Get(p.url + "/metrics")
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	found := false
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if series, _, _ := strings.Cut(fields[0], "{"); series != name {
			continue
		}
		var value float64
		if err := json.Unmarshal([]byte(fields[len(fields)-1]), &value); err != nil {
			p.t.Fatalf("%s: %v", lines.Text(), err)
		}
		sum, found = sum+value, true
	}
	if !found {
		p.t.Fatalf("there is no metric %s", name)
	}
	return sum
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for this: %s", what)
		}
	}
}

// inStep names the step of a request.
func inStep(name string) []string { return []string{"X-LLMProxy-Step", name} }

// chat is a small request whose content is text.
func chat(text string, more ...string) string {
	content, err := json.Marshal(text)
	if err != nil {
		panic(err) // a string
	}
	return `{"model":"gpt-4","messages":[{"role":"user","content":` + string(content) + `}]` + strings.Join(more, "") + `}`
}

const stream = `,"stream":true`

// database is a server's database as an onlooker reads it.
type database struct {
	t      *testing.T
	path   string
	reader *store.Store
}

func newPath(t *testing.T) string { return filepath.Join(t.TempDir(), "crash.db") }

// look opens a database that a server has made.
func look(t *testing.T, path string) *database {
	t.Helper()
	reader, err := store.OpenReader(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := reader.CloseReader(); err != nil {
			t.Error(err)
		}
	})
	return &database{t, path, reader}
}

// snapshot lets read take single integers out of one state of the database.
func (d *database) snapshot(read func(number func(query string, args ...any) int64)) {
	d.t.Helper()
	err := d.reader.View(context.Background(), func(tx *store.Tx) (err error) {
		read(func(query string, args ...any) (n int64) {
			if err == nil {
				_, err = tx.Get(query, args, &n)
			}
			return n
		})
		return err
	})
	if err != nil {
		d.t.Fatal(err)
	}
}

func (d *database) number(query string, args ...any) (n int64) {
	d.t.Helper()
	d.snapshot(func(number func(string, ...any) int64) { n = number(query, args...) })
	return n
}

// outcomes counts the ledger's rows by outcome.
func (d *database) outcomes() map[string]int {
	d.t.Helper()
	counts := map[string]int{}
	err := d.reader.View(context.Background(), func(tx *store.Tx) error {
		return tx.Each(`SELECT outcome, count(*) FROM v_calls GROUP BY outcome`, nil, func(scan func(...any) error) error {
			var outcome string
			var n int
			err := scan(&outcome, &n)
			counts[outcome] = n
			return err
		})
	})
	if err != nil {
		d.t.Fatal(err)
	}
	return counts
}

// write changes the database behind the servers' backs, as a person would.
func (d *database) write(query string, args ...any) {
	d.t.Helper()
	db, err := sql.Open("sqlite3", d.path+"?_busy_timeout=5000")
	if err != nil {
		d.t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(query, args...); err != nil {
		d.t.Fatal(err)
	}
}

// freeze stops a server, but not while it writes: it would hold everybody up.
func (d *database) freeze(p *process) {
	d.t.Helper()
	db, err := sql.Open("sqlite3", d.path+"?_txlock=immediate&_busy_timeout=5000")
	if err != nil {
		d.t.Fatal(err)
	}
	defer db.Close()
	lock, err := db.Begin()
	if err != nil {
		d.t.Fatal(err)
	}
	defer lock.Rollback() //nolint:errcheck // nothing was written
	p.signal(syscall.SIGSTOP)
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(p.cmd.Process.Pid, &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() {
		d.t.Fatalf("%s did not stop: %v %v", p.name, status, err)
	}
}

// lapse makes the time of an instance pass, as half a minute without a sign of
// life would.
func (d *database) lapse(instance string) {
	d.t.Helper()
	d.write(`UPDATE instance SET alive_until = 0 WHERE name = ?`, instance)
}

// mustBeNone are figures that are 0 while no call runs.
var mustBeNone = map[string]string{
	"tokens reserved": `SELECT coalesce(sum(reserved), 0) FROM counter`,
	"tokens held":     `SELECT coalesce(sum(amount), 0) FROM reservation`,
	"leases":          `SELECT count(*) FROM lease`,
	"open calls":      `SELECT count(*) FROM open_call`,
	"open rows":       `SELECT count(*) FROM call WHERE outcome = 0`,
}

// sameSums are figures of the rows and of the hourly sums.
var sameSums = map[string][2]string{
	"calls":          {`SELECT count(*) FROM call`, `SELECT coalesce(sum(calls), 0) FROM rollup`},
	"upstream calls": {`SELECT count(up_input) FROM call`, `SELECT coalesce(sum(upstream), 0) FROM rollup`},
	"input":          {`SELECT coalesce(sum(up_input), 0) FROM call`, `SELECT coalesce(sum(input), 0) FROM rollup`},
	"output":         {`SELECT coalesce(sum(up_output), 0) FROM call`, `SELECT coalesce(sum(output), 0) FROM rollup`},
}

// charges are what a step's budget is charged for its rows, by unit.
var charges = map[int]string{
	1: `SELECT coalesce(sum(up_input), 0) FROM v_calls WHERE step = $1`,
	3: `SELECT coalesce(sum(up_input + up_output), 0) FROM v_calls WHERE step = $1`,
	4: `SELECT count(up_input) FROM v_calls WHERE step = $1`,
}

const usedOf = `SELECT coalesce(sum(used), 0) FROM counter WHERE unit = $1 AND step_id = (SELECT id FROM step WHERE name = $2)`

// faults lists what is wrong with the books while no call runs: something is
// still held, the hourly sums are not those of the rows, or a budget was not
// charged what its step's rows say.
func (d *database) faults() (faults []string) {
	d.t.Helper()
	note := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	d.snapshot(func(number func(string, ...any) int64) {
		for what, query := range mustBeNone {
			if n := number(query); n != 0 {
				note("%d %s are left", n, what)
			}
		}
		for what, query := range sameSums {
			if rows, sums := number(query[0]), number(query[1]); rows != sums {
				note("%s: %d in the rows, %d in the hourly sums", what, rows, sums)
			}
		}
		for _, step := range []string{hardStep, softStep} {
			for unit, query := range charges {
				if rows, used := number(query, step), number(usedOf, unit, step); rows != used {
					note("step %s, unit %d: %d in the rows, %d used", step, unit, rows, used)
				}
			}
		}
	})
	return faults
}

// balanced fails the test where the books have faults.
func (d *database) balanced() {
	d.t.Helper()
	for _, fault := range d.faults() {
		d.t.Error(fault)
	}
}

// output collects what a process writes.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}
