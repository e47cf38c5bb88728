package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// guardScenes are runs that are killed between an act and saying so.
func guardScenes() []scene {
	return []scene{
		{"A run is killed after its e-mail is sent, and the act is held", (*demo).held},
		{"The same, before a service that honours the key", (*demo).takenOver},
		{"A forwarded act whose answer is lost, and a probe", (*demo).probed},
	}
}

// effect is what the guard, or the mailbox, said.
type effect struct {
	status   int
	Decision string `json:"decision"`
	State    string `json:"state"`
	Key      string `json:"key"`
	Token    string `json:"token"`
	Down     string `json:"downstream_key"`
	Takeover bool   `json:"takeover"`
	Resource string `json:"resource_id"`
	Fence    int64  `json:"fence"`
	ID       string `json:"id"` // of a message
	Error    struct {
		Message string `json:"message"`
		Code    string `json:"code"`
	} `json:"error"`
}

// call posts JSON as it is shown, and shows what came back.
func (d *demo) call(ctx context.Context, place, path, body string, headers ...string) (e effect, err error) {
	shown := "curl $" + place + path
	base := map[string]string{"LLM": d.base, "MAIL": d.mail}[place]
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+path, strings.NewReader(body))
	if err != nil {
		return e, err
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
		shown += fmt.Sprintf(" -H '%s: %.12s…'", headers[i], headers[i+1])
	}
	d.types(shown + " \\\n      -d '" + strings.ReplaceAll(body, `, "outcome"`, ",\n           \"outcome\"") + "'")
	return d.fetch(req)
}

func (d *demo) fetch(req *http.Request) (e effect, err error) {
	req.Header.Set("Content-Type", "application/json")
	resp, err := d.client.Do(req)
	if err != nil {
		return e, err
	}
	defer resp.Body.Close()
	var raw bytes.Buffer
	if _, err := raw.ReadFrom(resp.Body); err != nil {
		return e, err
	}
	if err := json.Unmarshal(raw.Bytes(), &e); err != nil {
		return e, fmt.Errorf("reading the answer %.200q: %w", raw.String(), err)
	}
	e.status = resp.StatusCode
	e.State = orDefault(e.State, resp.Header.Get("Guard-State"))
	d.showsEffect(e, resp.Header.Get("Idempotent-Replayed") == "true")
	return e, nil
}

func (d *demo) showsEffect(e effect, replayed bool) {
	parts := []string{fmt.Sprint(e.status)}
	add := func(text string, there bool) {
		if there {
			parts = append(parts, text)
		}
	}
	add(d.paint.bold(e.Decision), e.Decision != "")
	add("state "+e.State, e.State != "")
	add(fmt.Sprintf("fence %d", e.Fence), e.Fence > 0)
	add("takeover", e.Takeover)
	add("replayed", replayed)
	add("resource "+e.Resource, e.Resource != "")
	add("message "+e.ID, e.ID != "")
	d.say("  " + d.paint.dim("←") + " " + strings.Join(parts, "  "))
	if e.Error.Message != "" {
		for _, line := range wrap(e.Error.Message, demoWidth-4) {
			d.say("    " + line)
		}
	}
}

// killed says what an automation's crash looks like from here: nothing comes.
func (d *demo) killed() {
	d.say("  " + d.paint.dim("✗ the run is killed here; it never says that it has sent"))
}

// again begins anew until the guard has an answer other than to wait.
func (d *demo) again(ctx context.Context, body string) (e effect, err error) {
	d.say("  " + d.paint.dim("… the lease of 1 s ends"))
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	d.types("curl $LLM/guard/v1/begin …    # the retried run asks the same")
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.base+"/guard/v1/begin", strings.NewReader(body))
		if err != nil {
			return e, err
		}
		quiet := *d
		quiet.out = &bytes.Buffer{}
		if e, err = quiet.fetch(req); err != nil {
			return e, err
		}
		if e.Decision != "wait" {
			d.showsEffect(e, e.Decision == "replay")
			return e, nil
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return e, fmt.Errorf("the guard has said nothing but wait: %w", ctx.Err())
		}
	}
}

func (d *demo) held(ctx context.Context) error {
	const order = "order A-1"
	begin := `{"step": "send-mail", "key": "` + order + `", "on_unknown": "hold", "lease_seconds": 1}`
	granted, err := d.call(ctx, "LLM", "/guard/v1/begin", begin)
	if err != nil {
		return err
	}
	sent, err := d.call(ctx, "MAIL", "/messages", `{"for": "`+order+`"}`)
	if err != nil {
		return err
	}
	d.killed()
	held, err := d.again(ctx, begin)
	if err != nil {
		return err
	}
	d.say("  " + d.paint.dim("a person looks into the mailbox, and decides"))
	resolved, err := d.call(ctx, "LLM", "/guard/v1/resolve", `{"key": "`+granted.Key+`", "outcome": "done", "resource_id": "`+sent.ID+`", "reason": "seen in the mailbox", "by": "demo"}`)
	if err != nil {
		return err
	}
	replay, err := d.call(ctx, "LLM", "/guard/v1/begin", begin)
	if err != nil {
		return err
	}
	return d.means("Nobody knew whether the mail was sent, so nobody sent it again.",
		expect("the first decision", "proceed", granted.Decision),
		expect("the decision after the crash", "hold", held.Decision),
		expect("the error's code", "effect_outcome_unknown", held.Error.Code),
		expect("the status of the decision", http.StatusOK, resolved.status),
		expect("the last decision", "replay", replay.Decision),
		expect("the resource", sent.ID, replay.Resource),
		expect("mails sent", 1, d.mailbox.Sent(order)))
}

func (d *demo) takenOver(ctx context.Context) error {
	const order = "order A-2"
	begin := `{"step": "send-mail", "key": "` + order + `", "on_unknown": "retry", "lease_seconds": 1}`
	message := `{"for": "` + order + `"}`
	granted, err := d.call(ctx, "LLM", "/guard/v1/begin", begin)
	if err != nil {
		return err
	}
	first, err := d.call(ctx, "MAIL", "/messages", message, "Idempotency-Key", granted.Down)
	if err != nil {
		return err
	}
	d.killed()
	taken, err := d.again(ctx, begin)
	if err != nil {
		return err
	}
	second, err := d.call(ctx, "MAIL", "/messages", message, "Idempotency-Key", taken.Down)
	if err != nil {
		return err
	}
	done, err := d.call(ctx, "LLM", "/guard/v1/complete", `{"key": "`+taken.Key+`", "token": "`+taken.Token+`", "resource_id": "`+second.ID+`"}`)
	if err != nil {
		return err
	}
	return d.means("The retry acts again under the same downstream key, and the service makes one mail of both.",
		expect("the first decision", "proceed", granted.Decision),
		expect("the decision after the crash", "proceed", taken.Decision),
		expect("takeover", true, taken.Takeover),
		expect("the downstream key", granted.Down, taken.Down),
		expect("the message", first.ID, second.ID),
		expect("the state", "completed", done.State),
		expect("mails sent", 1, d.mailbox.Sent(order)))
}

func (d *demo) probed(ctx context.Context) error {
	const lead = "lead L-1"
	body := `{"for": "` + lead + `", "vanish": true}`
	lost, err := d.call(ctx, "LLM", "/guard/v1/forward/send-note/messages", body)
	if err != nil {
		return err
	}
	time.Sleep(2 * demoDrain) // what was sent may still take effect for so long
	d.say("  " + d.paint.dim("… the retry comes, and llmproxy asks the service whether it was done"))
	found, err := d.call(ctx, "LLM", "/guard/v1/forward/send-note/messages", body)
	if err != nil {
		return err
	}
	return d.means("The answer was lost, the act was not: the probe found it, and nothing was sent again.",
		expect("the first status", http.StatusGatewayTimeout, lost.status),
		expect("the first state", "unknown", lost.State),
		expect("the state in the end", "completed", found.State),
		expect("mails sent", 1, d.mailbox.Sent(lead)))
}
