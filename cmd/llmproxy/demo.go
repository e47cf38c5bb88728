package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"llmproxy/guard"
	"llmproxy/report"
	"llmproxy/sim"
	"llmproxy/tokens"
)

// demoConfig is the configuration that the demonstration runs with, but for the
// database's path.
const demoConfig = `listen: 127.0.0.1:0
upstreams:
  - {name: sim, base_url: "builtin:sim"}
steps:
  - name: plan-trip
    budget: [{input_tokens: 30, per: run, action: reject}]
  - name: tag-photo
    budget: [{input_tokens: 10, per: call, action: flag}]
guard:
  forward:
    - step: send-note
      target: MAIL
      allow_private: true
      select: [/for]
      on_unknown: probe
      probe: {url: "MAIL/messages?for={/for}", found: /messages/0/id}
`

// demoDrain is how long the demonstration's guard lets a request that was sent
// take effect. The default is longer than anybody would watch.
const demoDrain = 300 * time.Millisecond

func newDemoCmd(a *app) *cobra.Command {
	var keep bool
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show what llmproxy does, without a key and without a network",
		Long: `Demo starts the real server on a free local port, with a real database in a
temporary folder and the simulated model as its upstream, and sends it the calls
that automations send: retries, time-outs, parallel calls, streams, calls over a
budget; then e-mails whose runs are killed between the act and saying so. It shows
each request and what came back, and the report at the end.

Every scene is checked, by the headers and ids of the answers, by the number of
calls that the simulated model received, and by the ledger. Where something is
not as it must be, demo says what and exits with 1.`,
		Example: `  llmproxy demo
  llmproxy demo --keep     # and look at what is stored afterwards`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelWarn}))
			out := cmd.OutOrStdout()
			return runDemo(cmd.Context(), out, paint{on: colourful(out, a.env)}, log, keep)
		},
	}
	cmd.Flags().BoolVar(&keep, "keep", false, "keep the temporary folder with the database and its configuration")
	return cmd
}

// runDemo opens the server, plays the scenes against it and closes it again.
func runDemo(ctx context.Context, out io.Writer, paint paint, log *slog.Logger, keep bool) (err error) {
	folder, err := os.MkdirTemp("", "llmproxy-demo-")
	if err != nil {
		return err
	}
	file := filepath.Join(folder, "config.yaml")
	defer func() {
		if keep {
			fmt.Fprintf(out, "\nKept: llmproxy cache list --config %s\n", file)
			return
		}
		err = errors.Join(err, os.RemoveAll(folder))
	}()
	mailbox := &sim.Mailbox{}
	mail := httptest.NewServer(mailbox)
	defer mail.Close()
	config := []byte(strings.ReplaceAll(demoConfig, "MAIL", mail.URL) + "database: " + strconv.Quote(filepath.Join(folder, "llmproxy.db")) + "\n")
	if err := os.WriteFile(file, config, 0o600); err != nil {
		return err
	}
	// The demonstration is the same whatever else is configured on this machine.
	settings, err := parseSettings(file, config, map[string]string{}, pflag.NewFlagSet("demo", pflag.ContinueOnError))
	if err != nil {
		return err
	}
	s, err := open(ctx, settings, map[string]string{}, log)
	if err != nil {
		return err
	}
	// It counts tokens as the proxy does, so that the report shows no drift.
	model := &sim.Model{CountText: func(text string) int { return tokens.Text("sim", text) }}
	policy, err := newPolicy(settings.Config, map[string]string{})
	if err != nil {
		return errors.Join(err, s.listener.Close(), s.store.Close())
	}
	policy.Upstreams[0].Transport = sim.Transport(model)
	s.proxy.SetPolicy(policy)
	s.guard.Step = func(string) guard.Step { return guard.Step{Drain: demoDrain} }

	serving, stop := context.WithCancel(ctx)
	served := make(chan error, 1)
	go func() { served <- s.run(serving) }()
	d := &demo{
		out: out, paint: paint, model: model, database: settings.Database,
		base: "http://" + s.listener.Addr().String(), mailbox: mailbox, mail: mail.URL, client: &http.Client{Transport: &http.Transport{}},
	}
	err = d.play(ctx)
	d.client.CloseIdleConnections()
	stop()
	return errors.Join(err, <-served)
}

// demo is one run of the demonstration.
type demo struct {
	out      io.Writer
	paint    paint
	model    *sim.Model
	database string
	base     string // http://host:port
	mailbox  *sim.Mailbox
	mail     string // http://host:port of it
	client   *http.Client

	first got              // the answer of the first scene
	sent  int64            // requests
	tally map[string]int64 // what X-LLMProxy-Cache said of them → how often
	over  int64            // answers that were let through with X-LLMProxy-Budget: over
}

// play runs every scene and then the report. Its error names the scene, what
// was expected and what happened.
func (d *demo) play(ctx context.Context) error {
	d.tally = map[string]int64{}
	d.say("A real server on "+d.base+" with a SQLite file, and a simulated model behind it.",
		"No key and no network are needed. [[sim: …]] in a question tells the model how to behave.",
		"", "  $ "+d.paint.bold("LLM="+d.base+" MAIL="+d.mail))
	for i, scene := range append(scenes(), guardScenes()...) {
		d.say("", d.paint.bold(fmt.Sprintf("%d  %s", i+1, scene.title)))
		if err := scene.play(d, ctx); err != nil {
			return fmt.Errorf("scene %d (%s): %w", i+1, scene.title, err)
		}
	}
	d.say("", d.paint.bold("The report, from the ledger of the running server"), "  $ "+d.paint.bold("llmproxy report --since all"), "")
	if err := d.report(ctx); err != nil {
		return fmt.Errorf("the report: %w", err)
	}
	return nil
}

// report shows the ledger's report and checks it against what was seen.
func (d *demo) report(ctx context.Context) error {
	r, err := d.settledReport(ctx)
	if err != nil {
		return err
	}
	var table bytes.Buffer
	if err := r.Write(&table, report.Table); err != nil {
		return err
	}
	for line := range strings.Lines(table.String()) {
		d.say(wrap(strings.TrimSuffix(line, "\n"), demoWidth)...)
	}
	t, received := r.Total, d.model.Calls()
	for _, figure := range []struct {
		what      string
		want, got int64
	}{
		{"calls in the ledger", d.sent, t.Calls},
		{"hits", d.tally["hit"], t.Hits},
		{"collapsed calls", d.tally["collapsed"], t.Collapsed},
		{"refused calls", d.tally["refused"], t.Refused},
		{"flagged calls", d.over, t.Flagged},
		{"calls that the simulated model received", t.Upstream, received},
	} {
		if err := expect(figure.what, figure.want, figure.got); err != nil {
			return err
		}
	}
	d.say("", fmt.Sprintf("%d requests came in. The simulated model received %d calls, and the ledger has %d paid ones:", t.Calls, received, t.Upstream),
		"nothing was paid for twice.")
	return nil
}

// settledReport reads the ledger as "llmproxy report" does, once the rows are
// there that the server writes in groups.
func (d *demo) settledReport(ctx context.Context) (*report.Report, error) {
	deadline := time.Now().Add(3 * time.Second)
	for {
		r, err := readReport(ctx, d.database, report.Query{})
		if err != nil || (r.Total.Calls >= d.sent && r.Running == 0) || time.Now().After(deadline) {
			return r, err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// expect is an error unless got is what was wanted.
func expect[T comparable](what string, want, got T) error {
	if want == got {
		return nil
	}
	return fmt.Errorf("%s: expected %v, got %v", what, want, got)
}
