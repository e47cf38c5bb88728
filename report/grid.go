package report

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

const (
	tableWidth = 100
	nameWidth  = 28 // longest name shown whole
	gap        = "  "
)

// column is one figure of a row for people.
type column[R any] struct {
	head  string
	group int // columns of a group stay together
	left  bool
	text  func(*R) string
	zero  func(*R) bool // tells whether the column says nothing about the row; nil: never
}

func count[R any](head string, of func(*R) int64) column[R] {
	return column[R]{head: head,
		text: func(r *R) string { return grouped(of(r)) },
		zero: func(r *R) bool { return of(r) == 0 }}
}

func (c column[R]) in(group int) column[R] { c.group = group; return c }

// telling leaves out the columns that say nothing about any row.
func telling[R any](columns []column[R], rows []R, total *R) []column[R] {
	return slices.DeleteFunc(columns, func(c column[R]) bool {
		if c.zero == nil || !c.zero(total) {
			return false
		}
		return !slices.ContainsFunc(rows, func(row R) bool { return !c.zero(&row) })
	})
}

// withTotal adds the total to the rows, where it says more than the one row.
func withTotal[R any](rows []R, total *R, omitted int) []*R {
	all := make([]*R, 0, len(rows)+1)
	for i := range rows {
		all = append(all, &rows[i])
	}
	if len(rows) > 1 || omitted > 0 {
		all = append(all, total)
	}
	return all
}

// writeBlocks writes the columns as tables below one another, each with the
// first names columns, so that none is wider than tableWidth and no figure is
// left out.
func writeBlocks[R any](b *strings.Builder, columns []column[R], names int, rows []*R) {
	cells := make([][]string, len(columns)) // column → its head and cells, of one width
	for i, c := range columns {
		cells[i] = c.cells(rows)
	}
	for _, block := range pack(columns, cells, names) {
		b.WriteString("\n")
		for line := range len(rows) + 1 {
			parts := make([]string, len(block))
			for i, n := range block {
				parts[i] = cells[n][line]
			}
			b.WriteString(strings.TrimRight(strings.Join(parts, gap), " ") + "\n")
		}
	}
}

// cells writes the column's head and its text for each row, padded to one width.
func (c column[R]) cells(rows []*R) []string {
	cells := make([]string, 0, len(rows)+1)
	cells = append(cells, c.head)
	for _, row := range rows {
		cells = append(cells, c.text(row))
	}
	widest := 0
	for _, cell := range cells {
		widest = max(widest, textWidth(cell))
	}
	for i, cell := range cells {
		padding := strings.Repeat(" ", widest-textWidth(cell))
		if c.left {
			cells[i] = cell + padding
		} else {
			cells[i] = padding + cell
		}
	}
	return cells
}

// pack distributes the columns over blocks, the first names columns into each.
// A group that does not fit beside what stands in a block begins the next one,
// and one that fits in no block is wrapped.
func pack[R any](columns []column[R], cells [][]string, names int) (blocks [][]int) {
	size := func(i int) int { return textWidth(cells[i][0]) + len(gap) }
	var block []int
	used := 0
	add := func(i int) {
		block = append(block, i)
		used += size(i)
	}
	next := func() {
		if len(block) > names {
			blocks = append(blocks, block)
		}
		block, used = nil, 0
		for i := range names {
			add(i)
		}
	}
	next()
	for i := names; i < len(columns); i++ {
		if columns[i].group != columns[i-1].group {
			needed := 0
			for j := i; j < len(columns) && columns[j].group == columns[i].group; j++ {
				needed += size(j)
			}
			if used+needed > tableWidth+len(gap) {
				next()
			}
		}
		if used+size(i) > tableWidth+len(gap) {
			next()
		}
		add(i)
	}
	return append(blocks, block)
}

// writeText writes sentences, a table and notes for people.
func writeText(w io.Writer, lines []string, table func(*strings.Builder), notes []string) error {
	var b strings.Builder
	b.WriteString(strings.Join(lines, "\n") + "\n")
	table(&b)
	for i, note := range notes {
		if i == 0 {
			b.WriteString("\n")
		}
		b.WriteString(note + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// writeMarkdown is writeText in paragraphs of Markdown.
func writeMarkdown(w io.Writer, lines []string, table func(*strings.Builder), notes []string) error {
	var b strings.Builder
	b.WriteString(escapeMarkdown(strings.Join(lines, "\n\n")) + "\n")
	table(&b)
	for _, note := range notes {
		b.WriteString("\n" + escapeMarkdown(note) + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// markdownTable writes the columns as one table.
func markdownTable[R any](b *strings.Builder, columns []column[R], rows []*R) {
	heads, rules := make([]string, len(columns)), make([]string, len(columns))
	for i, c := range columns {
		heads[i], rules[i] = c.head, "---:"
		if c.left {
			rules[i] = "---"
		}
	}
	fmt.Fprintf(b, "\n| %s |\n| %s |\n", strings.Join(heads, " | "), strings.Join(rules, " | "))
	for _, row := range rows {
		cells := make([]string, len(columns))
		for i, c := range columns {
			cells[i] = escapeMarkdown(strings.TrimSpace(c.text(row)))
		}
		fmt.Fprintf(b, "| %s |\n", strings.Join(cells, " | "))
	}
}

// escapeMarkdown keeps text from being read as markup.
func escapeMarkdown(text string) string {
	return markdownEscapes.Replace(text)
}

var markdownEscapes = strings.NewReplacer(
	`\`, `\\`, `|`, `\|`, "`", "\\`", `*`, `\*`, `_`, `\_`, `[`, `\[`, `]`, `\]`, `<`, `\<`, `>`, `\>`, `~`, `\~`, `$`, `\$`, `&`, `\&`)

// field is one figure or name of a row for programs: an int64, a float64 or a
// string. One that is not known is nil: null in JSON, empty in CSV.
type field[R any] struct {
	name  string
	value func(*R) any
}

func figure[R any](name string, of func(*R) int64) field[R] {
	return field[R]{name, func(r *R) any { return of(r) }}
}

// nameField names the rows.
func nameField[R any](of func(*R) string) []field[R] {
	return []field[R]{{"name", func(r *R) any { return of(r) }}}
}

func known[T any](value T, is bool) any {
	if is {
		return value
	}
	return nil
}

// jsonRow writes a row as an object whose members keep the order of fields.
type jsonRow[R any] struct {
	fields []field[R]
	row    *R
}

func jsonRows[R any](fields []field[R], rows []R) []jsonRow[R] {
	out := make([]jsonRow[R], len(rows))
	for i := range rows {
		out[i] = jsonRow[R]{fields, &rows[i]}
	}
	return out
}

func (j jsonRow[R]) MarshalJSON() ([]byte, error) {
	out := []byte{'{'}
	for i, f := range j.fields {
		text, err := json.Marshal(f.value(j.row))
		if err != nil {
			return nil, err
		}
		if i > 0 {
			out = append(out, ',')
		}
		out = strconv.AppendQuote(out, f.name)
		out = append(append(out, ':'), text...)
	}
	return append(out, '}'), nil
}

func writeIndented(w io.Writer, value any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(value)
}

// writeCSV writes a header and the rows, without a total, so that a sum over a
// column is right.
func writeCSV[R any](w io.Writer, fields []field[R], rows []R) error {
	out := csv.NewWriter(w)
	record := make([]string, len(fields))
	for i, f := range fields {
		record[i] = f.name
	}
	if err := out.Write(record); err != nil {
		return err
	}
	for i := range rows {
		for n, f := range fields {
			record[n] = csvCell(f.value(&rows[i]))
		}
		if err := out.Write(record); err != nil {
			return err
		}
	}
	out.Flush()
	return out.Error()
}

func csvCell(value any) string {
	switch v := value.(type) {
	case nil:
		return ""
	case string:
		return inertCell(visible(v))
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64)
	}
	return fmt.Sprint(value)
}

// inertCell keeps a spreadsheet from running a name as a formula.
func inertCell(name string) string {
	if name != "" && strings.ContainsRune("=+-@＝＋－＠", []rune(name)[0]) {
		return "'" + name
	}
	return name
}
