package guard

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// maxInteger is the largest integer that every JSON reader keeps apart from
// its neighbours (2^53 − 1).
const maxInteger = 1<<53 - 1

// unsafeNumber is a number that does not survive, and where it stands: the
// members and indices on the way to it, the innermost first.
type unsafeNumber struct {
	literal string
	path    []string
}

func (u *unsafeNumber) within(token string) *unsafeNumber {
	u.path = append(u.path, token)
	return u
}

func (u *unsafeNumber) input() *InputError {
	where := ""
	for _, token := range u.path {
		where = "/" + strings.ReplaceAll(strings.ReplaceAll(token, "~", "~0"), "/", "~1") + where
	}
	where = or(where, "/")
	return &InputError{Code: "unsafe_number", Param: where, Message: fmt.Sprintf(
		"The number %.40s at %s is not kept exactly by every JSON reader (integers up to 2^53−1, decimals of up to 15 digits are); send it as a string", u.literal, where)}
}

// appendNumber appends a number as ECMAScript writes it, which RFC 8785 asks
// for. Numbers that lose their value on the way through a double are refused:
// two ids that become one would be one key, and the second effect would be
// taken for the first.
func appendNumber(b []byte, literal string) ([]byte, *unsafeNumber) {
	f, err := strconv.ParseFloat(literal, 64)
	if err != nil || math.Abs(f) > maxInteger && f == math.Trunc(f) {
		return nil, &unsafeNumber{literal: literal}
	}
	if len(literal) <= 15 && !strings.ContainsAny(literal, ".eE-") {
		return append(b, literal...), nil // an integer is spelt in one way only
	}
	shortest := strconv.FormatFloat(f, 'e', -1, 64)
	if decimalOf(literal) != decimalOf(shortest) {
		return nil, &unsafeNumber{literal: literal}
	}
	return appendECMA(b, f, shortest), nil
}

// decimalOf is the exact value of a JSON number in one spelling per value:
// its significant digits and the power of ten of the last of them.
func decimalOf(literal string) (d struct {
	negative bool
	digits   string
	exponent int64
}) {
	literal, d.negative = strings.CutPrefix(literal, "-")
	mantissa, exponent, _ := strings.Cut(strings.ToLower(literal), "e")
	if exponent != "" {
		var err error
		if d.exponent, err = strconv.ParseInt(exponent, 10, 32); err != nil {
			d.exponent = math.MaxInt32 // far from that of any double, so unequal to it
		}
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	d.exponent -= int64(len(fraction))
	d.digits = strings.TrimLeft(whole+fraction, "0")
	significant := strings.TrimRight(d.digits, "0")
	d.exponent += int64(len(d.digits) - len(significant))
	if d.digits = significant; significant == "" {
		d.negative, d.exponent = false, 0
	}
	return d
}

// appendECMA writes f as ECMA-262's Number::toString does; shortest is f in Go's
// 'e' format with the fewest digits.
func appendECMA(b []byte, f float64, shortest string) []byte {
	if f == 0 {
		return append(b, '0')
	}
	if abs := math.Abs(f); abs >= 1e-6 && abs < 1e21 {
		return strconv.AppendFloat(b, f, 'f', -1, 64)
	}
	mantissa, exponent, _ := strings.Cut(shortest, "e")
	sign, digits := exponent[:1], strings.TrimLeft(exponent[1:], "0")
	return append(b, mantissa+"e"+sign+digits...)
}
