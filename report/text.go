package report

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"

	"golang.org/x/text/width"
)

// grouped writes a count with separators of thousands.
func grouped(n int64) string {
	digits := strconv.FormatInt(n, 10)
	sign := ""
	if n < 0 {
		sign, digits = "-", digits[1:]
	}
	var b strings.Builder
	for i, digit := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(digit)
	}
	return sign + b.String()
}

// short writes a count for a sentence: whole up to a million, then rounded.
func short(n int64) string {
	switch {
	case n >= 1e9:
		return fmt.Sprintf("%.1f G", float64(n)/1e9)
	case n >= 1e6:
		return fmt.Sprintf("%.1f M", float64(n)/1e6)
	}
	return grouped(n)
}

// counted writes a count and what is counted, in the right number.
func counted(n int64, one, many string) string { return grouped(n) + " " + pick(n, one, many) }

func pick(n int64, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// signed writes a difference, whole from ten up.
func signed(n float64) string {
	sign := "+"
	if n < 0 {
		sign = "-"
	}
	size := math.Abs(n)
	if size == 0 {
		return "0"
	}
	if size >= 9.95 || size == math.Trunc(size) {
		return sign + grouped(int64(math.Round(size)))
	}
	return fmt.Sprintf("%s%.1f", sign, size)
}

// rounded is a figure to four decimals, for programs.
func rounded(n float64) float64 { return math.Round(n*1e4) / 1e4 }

// percentage writes a share in whole percent, without hiding a small one.
func percentage(share float64) string {
	if share > 0 && share < 0.005 {
		return "<1%"
	}
	return fmt.Sprintf("%.0f%%", share*100)
}

// moneyFormat writes micro-dollars with the decimals that suit the largest
// amount of a column, and without showing a small one as nothing.
func moneyFormat(largest int64) func(micros int64) string {
	decimals := 6
	switch {
	case largest >= 10e6:
		decimals = 2
	case largest >= 1e3:
		decimals = 4
	}
	unit := int64(math.Pow10(6 - decimals)) // micro-dollars in the last decimal
	return func(micros int64) string {
		if micros == 0 {
			return "$0"
		}
		last := (micros + unit/2) / unit
		least := ""
		if last == 0 && micros > 0 {
			last, least = 1, "<"
		}
		whole := int64(math.Pow10(decimals))
		return fmt.Sprintf("%s$%s.%0*d", least, grouped(last/whole), decimals, last%whole)
	}
}

// duration writes a latency in the unit that suits it.
func duration(d time.Duration) string {
	switch {
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.1f ms", d.Seconds()*1e3)
	case d < time.Second:
		return fmt.Sprintf("%.0f ms", d.Seconds()*1e3)
	case d < time.Minute:
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
	return d.Round(time.Second).String()
}

// bar draws a share of 0 to 1 in eighths of a cell.
func bar(share float64, cells int) string {
	eighths := int(math.Round(share * float64(cells) * 8))
	if eighths == 0 && share > 0 {
		eighths = 1
	}
	partial := []rune(" ▏▎▍▌▋▊▉")
	drawn := strings.Repeat("█", eighths/8)
	if eighths%8 > 0 {
		drawn += string(partial[eighths%8])
	}
	return drawn
}

// visible writes what a terminal or a page would act on instead of showing it,
// control characters and marks that turn the direction of text, as Go escapes.
// Names of models come from clients.
func visible(name string) string {
	var b strings.Builder
	for _, c := range name {
		const joiner = '\u200d' // joins emoji
		if unicode.IsPrint(c) || c == joiner {
			b.WriteRune(c)
		} else {
			b.WriteString(strings.Trim(strconv.QuoteRune(c), "'"))
		}
	}
	return b.String()
}

// textWidth is how many columns a terminal gives to text.
func textWidth(text string) int {
	n := 0
	for _, c := range text {
		n += runeWidth(c)
	}
	return n
}

func runeWidth(c rune) int {
	if unicode.In(c, unicode.Mn, unicode.Me, unicode.Cf) {
		return 0
	}
	if kind := width.LookupRune(c).Kind(); kind == width.EastAsianWide || kind == width.EastAsianFullwidth {
		return 2
	}
	return 1
}

// shorten cuts text to a width and shows that it did.
func shorten(text string, most int) string {
	if textWidth(text) <= most {
		return text
	}
	used := 0
	for i, c := range text {
		if used += runeWidth(c); used > most-1 {
			return text[:i] + "…"
		}
	}
	return text
}
