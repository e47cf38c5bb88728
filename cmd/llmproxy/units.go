package main

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Duration is a time.Duration as the configuration writes it: Go's form with a
// unit for days, such as 90s, 1h30m, 24h or 30d. It is never negative.
type Duration time.Duration

const day = 24 * time.Hour

var leadingDays = regexp.MustCompile(`^([0-9]+)d`)

// UnmarshalText reads a duration. A day is 24 hours and may only lead: 1d12h.
func (d *Duration) UnmarshalText(text []byte) error {
	rest := string(text)
	total := time.Duration(0)
	if m := leadingDays.FindStringSubmatch(rest); m != nil {
		days, err := strconv.ParseInt(m[1], 10, 64)
		if err != nil || days > int64(math.MaxInt64/day) {
			return errors.New("is too long; the most is 106751d")
		}
		total, rest = time.Duration(days)*day, rest[len(m[0]):]
	}
	if rest != "" || total == 0 && len(text) == 0 {
		parsed, err := time.ParseDuration(rest)
		switch {
		case err != nil && isNumber(rest):
			return fmt.Errorf("has no unit; write %ss for seconds", rest)
		case err != nil:
			return errors.New("is no duration; write one such as 90s, 24h or 30d")
		case parsed < 0 || rest[0] == '-':
			return errors.New("is negative; write 0s or more")
		case parsed > math.MaxInt64-total:
			return errors.New("is too long; the most is 106751d")
		}
		total += parsed
	}
	*d = Duration(total)
	return nil
}

// MarshalText writes the shortest form that reads back as the same duration.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

func (d Duration) String() string {
	t := time.Duration(d)
	if t >= 2*day && t%day == 0 {
		return strconv.FormatInt(int64(t/day), 10) + "d"
	}
	text := t.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// Bytes is a size in bytes. The configuration writes it with a unit, decimal
// (64KB is 64,000 bytes) or binary (32MiB is 32 × 2^20), or as a plain count.
type Bytes int64

// byteUnits are the units of Bytes, largest first.
func byteUnits() []struct {
	name string
	size int64
} {
	return []struct {
		name string
		size int64
	}{
		{"TiB", 1 << 40}, {"TB", 1e12},
		{"GiB", 1 << 30}, {"GB", 1e9},
		{"MiB", 1 << 20}, {"MB", 1e6},
		{"KiB", 1 << 10}, {"KB", 1e3},
		{"B", 1},
	}
}

var sizeForm = regexp.MustCompile(`^([0-9]+) ?([A-Za-z]*)$`)

// UnmarshalText reads a size. Units are read in any case: 32mib is 32MiB.
func (b *Bytes) UnmarshalText(text []byte) error {
	form := sizeForm.FindStringSubmatch(string(text))
	if form == nil {
		if strings.HasPrefix(string(text), "-") {
			return errors.New("is negative; write 0 or more")
		}
		return errors.New("is no size; write a whole number with a unit, such as 32MiB, 1GiB or 64KB")
	}
	unit := int64(0)
	for _, u := range byteUnits() {
		if form[2] == "" || strings.EqualFold(form[2], u.name) {
			unit = u.size
		}
	}
	if unit == 0 {
		return errors.New("has an unknown unit; use B, KB, KiB, MB, MiB, GB, GiB, TB or TiB")
	}
	count, err := strconv.ParseInt(form[1], 10, 64)
	if err != nil || count > math.MaxInt64/unit {
		return errors.New("is too large; the most is 8388607TiB")
	}
	*b = Bytes(count * unit)
	return nil
}

// MarshalText writes the size in the largest unit that is exact.
func (b Bytes) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

func (b Bytes) String() string {
	for _, u := range byteUnits() {
		if b != 0 && int64(b)%u.size == 0 {
			return strconv.FormatInt(int64(b)/u.size, 10) + u.name
		}
	}
	return "0"
}

var (
	wholeNumber = regexp.MustCompile(`^(0|[1-9][0-9_]*)$`)
	anyNumber   = regexp.MustCompile(`^[-+]?\.?[0-9][0-9_]*(\.[0-9]*)?([eE][-+]?[0-9]+)?$`)
)

func isNumber(text string) bool { return anyNumber.MatchString(text) }

// parseCount reads a count of tokens or calls: a whole number from 0 up, which
// may be grouped with underscores (2_000_000). The error says what to write
// instead and is meant to follow the quoted text.
func parseCount(text string) (int64, error) {
	switch {
	case strings.HasPrefix(text, "-") && isNumber(text):
		return 0, errors.New("is negative; write 0 or more")
	case !wholeNumber.MatchString(text):
		return 0, errors.New("is no whole number; write digits only, such as 60000")
	}
	n, err := strconv.ParseInt(strings.ReplaceAll(text, "_", ""), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("is too large; the most is %d", int64(math.MaxInt64))
	}
	return n, nil
}

// parseFlagAt reads the point at which a budget warns early, an absolute count
// or a whole percentage of limit, and returns it as a count. Percentages are
// rounded up, so that a warning never comes before the share it names.
func parseFlagAt(text string, limit int64) (int64, error) {
	digits, percent := strings.CutSuffix(text, "%")
	n, err := parseCount(digits)
	switch {
	case err != nil && percent:
		return 0, errors.New("is no whole percentage; write one such as 80%")
	case err != nil:
		return 0, err
	case n == 0:
		return 0, errors.New("would warn from the start; leave the line out for no early warning")
	case percent && n > 100:
		return 0, errors.New("is above 100%")
	case percent:
		return limit/100*n + (limit%100*n+99)/100, nil
	case n > limit:
		return 0, fmt.Errorf("is above the limit of %d", limit)
	}
	return n, nil
}
