package main

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"llmproxy/budget"
	"llmproxy/guard"
)

// The events that webhooks are told of.
const (
	eventBudgetNear    = "budget_near"
	eventBudgetOver    = "budget_over"
	eventEffectUnknown = "effect_unknown"
)

func webhookEvents() []string { return []string{eventBudgetNear, eventBudgetOver, eventEffectUnknown} }

// signatureHeader holds "sha256=" and the HMAC-SHA-256 of the body in hex, where
// the webhook has a secret.
const signatureHeader = "X-LLMProxy-Signature"

const (
	noticesQueued = 256
	noticeTimeout = 10 * time.Second
	noticesKnown  = 10_000 // after which a notice may be sent again
)

// webhooks tells others what a person should look at. Each thing is told once:
// a budget once in its window, an effect once each time it becomes unknown. What
// cannot be delivered is logged and dropped: nothing waits for a webhook.
type webhooks struct {
	targets []webhookTarget
	client  *http.Client
	log     *slog.Logger
	queue   chan notice
	pauses  []time.Duration // before each repeat of a notice that was not taken

	mu   sync.Mutex
	told map[string]bool // guarded by mu
}

type webhookTarget struct {
	url    string
	events []string
	secret string
}

// notice is one event. Its body is JSON.
type notice struct {
	event string
	body  []byte
}

func newWebhooks(configured []WebhookConfig, env map[string]string, log *slog.Logger) *webhooks {
	w := &webhooks{client: &http.Client{Timeout: noticeTimeout}, log: log, queue: make(chan notice, noticesQueued), told: map[string]bool{},
		pauses: []time.Duration{time.Second, 5 * time.Second, 25 * time.Second}}
	for _, c := range configured {
		w.targets = append(w.targets, webhookTarget{url: c.URL, events: c.Events, secret: env[c.SecretEnv]})
	}
	return w
}

// budgetFlagged tells of a rule that is near its limit or over it.
func (w *webhooks) budgetFlagged(n budget.Note) {
	event := eventBudgetNear
	if n.State == budget.Over {
		event = eventBudgetOver
	}
	once := fmt.Sprint(n.Step, n.AllSteps, n.Rule.Unit, n.Rule.Per, n.ResetsAt.Unix())
	if n.Rule.Per == budget.PerRun {
		once += n.Run
	}
	members := map[string]any{"step": n.Step, "all_steps": n.AllSteps, "unit": n.Rule.Unit.String(), "per": n.Rule.Per.String(),
		"limit": n.Rule.Limit, "used": n.Used, "reserved": n.Reserved, "needed": n.Needed}
	if n.Run != "" {
		members["run"] = n.Run
	}
	if !n.ResetsAt.IsZero() {
		members["resets_at"] = n.ResetsAt.Format(time.RFC3339)
	}
	w.tell(event, once, members)
}

// effectChanged tells of an effect that nobody knows the outcome of any more.
func (w *webhooks) effectChanged(t guard.Transition) {
	if t.Before.State == guard.Unknown || t.After.State != guard.Unknown {
		return
	}
	key := t.ID.Key.String()
	w.tell(eventEffectUnknown, fmt.Sprint(key, t.After.Fence), map[string]any{"step": t.After.Step, "key": key, "fence": t.After.Fence,
		"look": "llmproxy guard status " + key})
}

// tell queues an event for those who want it, unless once was told already.
func (w *webhooks) tell(event, once string, members map[string]any) {
	if !slices.ContainsFunc(w.targets, func(t webhookTarget) bool { return slices.Contains(t.events, event) }) {
		return
	}
	once = event + "\x00" + once
	w.mu.Lock()
	known := w.told[once]
	if len(w.told) >= noticesKnown {
		clear(w.told)
	}
	w.told[once] = true
	w.mu.Unlock()
	if known {
		return
	}
	members["event"], members["at"] = event, time.Now().UTC().Format(time.RFC3339)
	body, err := json.Marshal(members)
	if err != nil { // every member is a string, a number or a bool
		panic(err)
	}
	select {
	case w.queue <- notice{event, body}:
	default:
		w.log.Error("too many notices wait for their webhooks; one is dropped", "event", event, "notice", string(body))
	}
}

// run delivers notices until ctx ends, and then those that wait, once.
func (w *webhooks) run(ctx context.Context) {
	for {
		select {
		case n := <-w.queue:
			w.deliver(ctx, n)
		case <-ctx.Done():
			for len(w.queue) > 0 {
				w.deliver(ctx, <-w.queue)
			}
			return
		}
	}
}

func (w *webhooks) deliver(ctx context.Context, n notice) {
	var all sync.WaitGroup
	for _, t := range w.targets {
		if slices.Contains(t.events, n.event) {
			all.Go(func() { w.post(ctx, t, n) })
		}
	}
	all.Wait()
}

// post sends a notice until it is taken or was tried often enough.
func (w *webhooks) post(ctx context.Context, t webhookTarget, n notice) {
	for attempt := 0; ; attempt++ {
		err := w.try(context.WithoutCancel(ctx), t, n)
		if err == nil {
			return
		}
		if attempt == len(w.pauses) || ctx.Err() != nil {
			var failed *url.Error // names the address, which may be a secret
			if errors.As(err, &failed) {
				err = failed.Err
			}
			w.log.Error("a webhook took no notice; it is dropped", "host", hostOf(t.url), "event", n.event, "err", err)
			return
		}
		select {
		case <-time.After(w.pauses[attempt]):
		case <-ctx.Done():
		}
	}
}

// hostOf is what of an address may be shown: some hold their secret in the path.
func hostOf(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	return u.Host
}

func (w *webhooks) try(ctx context.Context, t webhookTarget, n notice) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, t.url, bytes.NewReader(n.body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "llmproxy")
	if t.secret != "" {
		mac := hmac.New(sha256.New, []byte(t.secret))
		mac.Write(n.body)
		req.Header.Set(signatureHeader, "sha256="+hex.EncodeToString(mac.Sum(nil)))
	}
	resp, err := w.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10)) //nolint:errcheck // only to reuse the connection
	if resp.StatusCode >= 300 {
		return fmt.Errorf("it answered %s", resp.Status)
	}
	return nil
}
