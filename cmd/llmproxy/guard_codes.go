package main

import (
	"strconv"
	"strings"

	"llmproxy/guard"
)

// exitCodes says what an exit code of a command means.
type exitCodes struct {
	success, notDone, unknown codeSet
}

// codeSet holds exit codes, 0 to 255.
type codeSet [256]bool

// parseExitCodes reads the three lists. A code that is success and not done at
// once is refused; one that is unknown is so whatever else it is.
func parseExitCodes(success, notDone, unknown string) (c exitCodes, err error) {
	for _, list := range []struct {
		flag, text string
		into       *codeSet
	}{{"--success-codes", success, &c.success}, {"--not-done-codes", notDone, &c.notDone}, {"--unknown-codes", unknown, &c.unknown}} {
		if err := list.into.parse(list.flag, list.text); err != nil {
			return c, err
		}
	}
	for code := range c.success {
		if c.success[code] && c.notDone[code] && !c.unknown[code] {
			return c, usagef("exit code %d is in --success-codes and in --not-done-codes; leave it in one", code)
		}
	}
	return c, nil
}

// parse reads a list such as 0,3-5.
func (s *codeSet) parse(flag, text string) error {
	if text == "" {
		return nil
	}
	for part := range strings.SplitSeq(text, ",") {
		first, last, isRange := strings.Cut(strings.TrimSpace(part), "-")
		if !isRange {
			last = first
		}
		from, err := strconv.ParseUint(first, 10, 8)
		to, err2 := strconv.ParseUint(last, 10, 8)
		if err != nil || err2 != nil || from > to {
			return usagef("%s: %q is no exit code; write codes from 0 to 255 such as 0,3-5", flag, part)
		}
		for code := from; code <= to; code++ {
			s[code] = true
		}
	}
	return nil
}

// outcome is what the end of a command says of its effect.
func (c *exitCodes) outcome(code int) guard.Outcome {
	switch {
	case code < 0 || code > 255 || c.unknown[code]:
		return guard.OutcomeUnknown
	case c.notDone[code]:
		return guard.OutcomeNone
	case c.success[code]:
		return guard.OutcomeDone
	}
	return guard.OutcomeUnknown
}
