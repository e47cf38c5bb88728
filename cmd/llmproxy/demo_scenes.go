package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// scene is one thing that automations do, and what the proxy makes of it.
type scene struct {
	title string
	play  func(*demo, context.Context) error
}

func scenes() []scene {
	return []scene{
		{"A first call", (*demo).firstCall},
		{"Its retry", (*demo).retry},
		{"A client that times out, and its retry", (*demo).timeOut},
		{"Two equal calls at the same time", (*demo).twins},
		{"A stream, and the same question as JSON", (*demo).stream},
		{"A run that is past its budget", (*demo).refusal},
		{"A call over a budget that only flags", (*demo).flag},
	}
}

// ticket is the call of the first two scenes.
func ticket() ask {
	return ask{path: "/steps/summarize-ticket/v1", question: "Summarise ticket 4711. [[sim: delay=400ms]]"}
}

func (d *demo) firstCall(ctx context.Context) error {
	d.types(ticket().curl())
	g, err := d.ask(ctx, ticket())
	if err != nil {
		return err
	}
	d.shows(g)
	d.first = g
	return d.means("Counted, sent to the model, paid for, and stored before the client saw its end.",
		g.is(http.StatusOK, "miss"),
		expect("calls that reached the model", 1, d.model.Calls()))
}

func (d *demo) retry(ctx context.Context) error {
	paid := d.model.Calls()
	d.types(theSameAgain)
	g, err := d.ask(ctx, ticket())
	if err != nil {
		return err
	}
	d.shows(g)
	return d.means("Out of the store: the same answer with the same id, and nothing was paid.",
		g.is(http.StatusOK, "hit"),
		expect("the id", d.first.id, g.id),
		expect("the text", d.first.text, g.text),
		expect("further calls that reached the model", 0, d.model.Calls()-paid))
}

func (d *demo) timeOut(ctx context.Context) error {
	paid := d.model.Calls()
	a := ask{path: "/steps/draft-reply/v1", question: "Draft a reply. [[sim: delay=1500ms]]", patience: 300 * time.Millisecond}
	d.types(a.curl())
	g, err := d.send(ctx, a)
	d.sent++
	if !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("expected the client to time out after %v, got status %d and the error %v", a.patience, g.status, err)
	}
	d.say("  " + d.paint.dim("←") + " nothing: curl gave up after 0.3 s. The proxy did not, the call goes on")
	a.patience = 0
	d.types("curl …    # the same again, without -m")
	if g, err = d.ask(ctx, a); err != nil {
		return err
	}
	d.shows(g)
	want := "collapsed"
	if g.outcome == "hit" { // on a machine so slow that the call has ended meanwhile
		want = "hit"
	}
	return d.means("The retry got the answer of the call that its client had given up: one paid call, not two.",
		g.is(http.StatusOK, want),
		expect("calls that reached the model", 1, d.model.Calls()-paid))
}

func (d *demo) twins(ctx context.Context) error {
	paid := d.model.Calls()
	a := ask{path: "/steps/classify-mail/v1", question: "Spam or not? [[sim: delay=800ms]]"}
	d.types("for i in 1 2; do " + a.curl() + " & done; wait")
	var both [2]got
	var errs [2]error
	var clients sync.WaitGroup
	for i := range both {
		clients.Go(func() { both[i], errs[i] = d.send(ctx, a) })
	}
	clients.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		return err
	}
	if both[1].outcome == "miss" {
		both[0], both[1] = both[1], both[0]
	}
	for _, g := range both {
		d.count(g)
		d.shows(g)
	}
	return d.means("Both clients have the one answer; the second waited for the first one's call.",
		both[0].is(http.StatusOK, "miss"),
		both[1].is(http.StatusOK, "collapsed"),
		expect("the id", both[0].id, both[1].id),
		expect("calls that reached the model", 1, d.model.Calls()-paid))
}

func (d *demo) stream(ctx context.Context) error {
	paid := d.model.Calls()
	a := ask{path: "/steps/answer-chat/v1", question: "When do you open? [[sim: chunk_delay=15ms]]", stream: true}
	d.types(a.curl())
	streamed, err := d.ask(ctx, a)
	if err != nil {
		return err
	}
	d.shows(streamed)
	a.stream = false
	d.types(a.curl())
	whole, err := d.ask(ctx, a)
	if err != nil {
		return err
	}
	d.shows(whole)
	if streamed.events < 2 {
		return fmt.Errorf("the stream: expected several events, got %d", streamed.events)
	}
	return d.means("One stored answer serves both forms.",
		streamed.is(http.StatusOK, "miss"),
		whole.is(http.StatusOK, "hit"),
		expect("events of the JSON answer", 0, whole.events),
		expect("the id", streamed.id, whole.id),
		expect("the text", streamed.text, whole.text),
		expect("calls that reached the model", 1, d.model.Calls()-paid))
}

func (d *demo) refusal(ctx context.Context) error {
	paid := d.model.Calls()
	a := ask{path: "/steps/plan-trip/runs/8812/v1", question: "Three days in Lisbon, please."}
	d.types(a.curl())
	g, err := d.ask(ctx, a)
	if err != nil {
		return err
	}
	d.shows(g)
	if err := g.is(http.StatusOK, "miss"); err != nil {
		return fmt.Errorf("the call within the budget: %w", err)
	}
	a.question = "Now a week, with two museums a day, by train."
	d.types(a.curl())
	if g, err = d.ask(ctx, a); err != nil {
		return err
	}
	d.shows(g)
	return d.means("Counted and refused before anything was spent; 402 is a status that SDKs do not retry.",
		g.is(http.StatusPaymentRequired, "refused"),
		expect("the error's code", "budget_exceeded", g.code),
		expect("calls that reached the model", 1, d.model.Calls()-paid))
}

func (d *demo) flag(ctx context.Context) error {
	paid := d.model.Calls()
	a := ask{path: "/steps/tag-photo/v1", question: "Tags for a photo of a red bicycle?"}
	d.types(a.curl())
	g, err := d.ask(ctx, a)
	if err != nil {
		return err
	}
	d.shows(g)
	return d.means("Over the 10 input tokens of a call, let through all the same, and flagged in the report.",
		g.is(http.StatusOK, "miss"),
		expect("X-LLMProxy-Budget", "over", g.budget),
		expect("calls that reached the model", 1, d.model.Calls()-paid))
}
