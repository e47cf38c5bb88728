package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// tableFormats are the formats of commands that print a table.
func tableFormats() []string { return []string{"table", "json"} }

// addFormatFlag gives cmd --format; formats[0] is the default.
func addFormatFlag(cmd *cobra.Command, format *string, formats []string) {
	cmd.Flags().StringVar(format, "format", formats[0], "output `format`: "+choices(formats))
}

// checkFormat refuses a word that is no format.
func checkFormat(format string, formats []string) error {
	if slices.Contains(formats, format) {
		return nil
	}
	return unknownChoice("--format", format, formats)
}

// column is the head of a column of a table.
type column struct {
	head  string
	right bool // flush right, as figures are
}

// writeTable writes rows of as many cells as there are columns, below the heads.
func writeTable(w io.Writer, columns []column, rows [][]string) error {
	widths := make([]int, len(columns))
	heads := make([]string, len(columns))
	for i, c := range columns {
		heads[i], widths[i] = c.head, utf8.RuneCountInString(c.head)
		for _, row := range rows {
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
	}
	var b strings.Builder
	for _, row := range append([][]string{heads}, rows...) {
		cells := make([]string, len(columns))
		for i, cell := range row {
			padding := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if columns[i].right {
				cells[i] = padding + cell
			} else {
				cells[i] = cell + padding
			}
		}
		b.WriteString(strings.TrimRight(strings.Join(cells, "  "), " ") + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// shown is a name that came from a client as a table shows it: at most so many
// characters, and those that a terminal would act on written as escapes.
func shown(name string, most int) string {
	var b strings.Builder
	for _, c := range name {
		if unicode.IsPrint(c) {
			b.WriteRune(c)
		} else {
			b.WriteString(strings.Trim(strconv.QuoteRune(c), "'"))
		}
	}
	if text := []rune(b.String()); len(text) > most {
		return string(text[:most-1]) + "…"
	}
	return b.String()
}

// thousands writes a count with separators.
func thousands(n int64) string {
	digits := strconv.FormatInt(n, 10)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// counted writes a count and what is counted, in the right number.
func counted(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return thousands(n) + " " + many
}

// span writes a length of time in its largest unit: 45s, 12m, 5h, 3d.
func span(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}
