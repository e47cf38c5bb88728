package guard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const (
	probeTimeout = 10 * time.Second
	maxProbeBody = 1 << 20
)

// probePart is a piece of a probe's URL: text as it is, the key, or a value of
// the input.
type probePart struct {
	text    string
	key     bool
	pointer *selector
}

func (rt *forwardRoute) prepareProbe() error {
	p := rt.Probe
	if p == nil {
		return nil
	}
	if p.Method != "" && p.Method != strings.ToUpper(p.Method) || !isToken(or(p.Method, http.MethodGet)) {
		return fmt.Errorf("the probe's method %q is none; write it in capitals", p.Method)
	}
	if p.Found != "" {
		found, err := parsePointer(p.Found)
		if err != nil {
			return err
		}
		rt.found = &found
	}
	rest := p.URL
	for rest != "" {
		text, after, opened := strings.Cut(rest, "{")
		rt.probe = append(rt.probe, probePart{text: text})
		if !opened {
			break
		}
		name, after, closed := strings.Cut(after, "}")
		if rest = after; !closed {
			return fmt.Errorf("the probe's URL %q has a { without a }", p.URL)
		}
		if name == "key" {
			rt.probe = append(rt.probe, probePart{key: true})
			continue
		}
		pointer, err := parsePointer(name)
		if err != nil {
			return fmt.Errorf("the probe's URL: {%s} is neither {key} nor {/pointer}: %w", name, err)
		}
		rt.probe = append(rt.probe, probePart{pointer: &pointer})
	}
	u, err := url.Parse(rt.probeURL(func(probePart) string { return "x" }))
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil {
		return fmt.Errorf("the probe's URL %q is not one", p.URL)
	}
	if !strings.HasPrefix(rt.probe[0].text, u.Scheme+"://"+u.Host) {
		return fmt.Errorf("the probe's URL %q takes its host from the input", p.URL)
	}
	return nil
}

func (rt *forwardRoute) probeURL(fill func(probePart) string) string {
	var b strings.Builder
	for _, part := range rt.probe {
		if part.key || part.pointer != nil {
			b.WriteString(fill(part))
		}
		b.WriteString(part.text)
	}
	return b.String()
}

// prober asks the downstream about the effect of a call, with the credential that
// the call came with.
func (f *Forwarder) prober(c *forwardCall) func(context.Context, Answer) (Verdict, Result, error) {
	return func(ctx context.Context, a Answer) (Verdict, Result, error) {
		ctx, cancel := context.WithTimeout(ctx, probeTimeout)
		defer cancel()
		req, err := c.probe(ctx, a.Downstream)
		if err != nil {
			return 0, Result{}, err
		}
		resp, err := f.passing(c.route.AllowPrivate).RoundTrip(req)
		if err != nil {
			return 0, Result{}, err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(io.LimitReader(resp.Body, maxProbeBody+1))
		if err != nil {
			return 0, Result{}, err
		}
		return c.route.verdict(resp.StatusCode, body)
	}
}

func (c *forwardCall) probe(ctx context.Context, key Key) (*http.Request, error) {
	text := c.input
	if len(text) == 0 {
		text = c.body
	}
	input, unread := parseJSON(text) // a probe by the key alone needs no input
	format := ""
	if i := c.route.Idempotency; i != nil && i.Format != "sf" {
		format = i.Format
	}
	var missing error
	target := c.route.probeURL(func(part probePart) string {
		if part.key {
			return spelt(key, format)
		}
		v, ok := part.pointer.find(&input)
		text := ""
		if ok {
			text = v.scalar()
		}
		if unread != nil || text == "" || strings.Trim(text, ".") == "" {
			missing = errors.Join(missing, fmt.Errorf("the input has no text or number to ask for at %s", part.pointer.pointer), unread)
		}
		return strings.ReplaceAll(url.QueryEscape(text), "+", "%20")
	})
	if missing != nil {
		return nil, missing
	}
	req, err := http.NewRequestWithContext(ctx, or(c.route.Probe.Method, http.MethodGet), target, nil)
	if err != nil {
		return nil, err
	}
	req.Header = c.header.Clone()
	for _, name := range []string{"Content-Type", "Content-Encoding", "If-Match", "If-None-Match"} {
		req.Header.Del(name)
	}
	return req, nil
}

// scalar is a string or a number as text, and empty for anything else.
func (v *value) scalar() string {
	if v.kind == kindString || v.kind == kindNumber {
		return v.text
	}
	return ""
}

// verdict reads the answer to a probe; an error says why it can't tell.
func (rt *forwardRoute) verdict(status int, body []byte) (Verdict, Result, error) {
	switch {
	case status == http.StatusNotFound, status == http.StatusGone:
		return VerdictNotDone, Result{}, nil
	case status < 200 || status > 299:
		return 0, Result{}, fmt.Errorf("the probe was answered with HTTP %d", status)
	case rt.found == nil:
		return VerdictDone, Result{}, nil
	case len(body) > maxProbeBody:
		return 0, Result{}, errors.New("the probe's answer is larger than 1 MiB")
	}
	v, err := parseJSON(body)
	if err != nil {
		return 0, Result{}, fmt.Errorf("the probe's answer: %w", err)
	}
	found, ok := rt.found.find(&v)
	if !ok || found.empty() || found.kind == kindBool && !found.isTrue() {
		return VerdictNotDone, Result{}, nil
	}
	id := found.scalar()
	if !printable(id, true) {
		id = ""
	}
	return VerdictDone, Result{ResourceID: id}, nil
}
