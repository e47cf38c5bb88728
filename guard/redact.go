package guard

import (
	"bytes"
	"slices"
)

// redacted stands where a value was that must not be stored.
const redacted = `"[redacted]"`

// CheckPointers tells what is wrong with pointers that [Guard.Redact] is to have.
func CheckPointers(pointers []string) error {
	_, err := parseSelectors(pointers)
	return err
}

// clean is an event without the values of its result that must not be stored.
func (g *Guard) clean(e Event) Event {
	if len(g.redact) == 0 {
		return e
	}
	switch e := e.(type) {
	case Complete:
		e.Result = cleaned(e.Result, g.redact)
		return e
	case Resolve:
		e.Result = cleaned(e.Result, g.redact)
		return e
	}
	return e
}

// cleaned replaces what the selectors point at in a JSON body. A body that begins
// as JSON and cannot be read is not kept: who knows what stands in it.
func cleaned(r Result, selectors []selector) Result {
	text := bytes.TrimSpace(r.Body)
	if len(text) == 0 || text[0] != '{' && text[0] != '[' {
		return r
	}
	whole, err := parseJSON(text)
	if err != nil {
		r.Body, r.Truncated = nil, true
		return r
	}
	type span struct{ from, to int }
	var spans []span
	for i := range selectors {
		if v, ok := selectors[i].find(&whole); ok {
			from := cap(text) - cap(v.raw) // raw is a part of text
			spans = append(spans, span{from, from + len(v.raw)})
		}
	}
	slices.SortFunc(spans, func(a, b span) int { return a.from - b.from })
	var out []byte
	at := 0
	for _, s := range spans {
		if s.from < at { // within one that is gone already
			continue
		}
		out = append(append(out, text[at:s.from]...), redacted...)
		at = s.to
	}
	if at > 0 {
		r.Body = append(out, text[at:]...)
	}
	return r
}
