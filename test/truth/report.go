package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"llmproxy/tokens"
)

// A score is how near the counts of some recordings come.
type score struct{ all, exact, percent, three int }

func (s *score) add(r *result) {
	off := max(r.off(), -r.off())
	s.all++
	if off == 0 {
		s.exact++
	}
	if off*100 <= r.Billed {
		s.percent++
	}
	if off <= 3 {
		s.three++
	}
}

func share(n, all int) string { return fmt.Sprintf("%d\t%.1f %%", n, 100*float64(n)/float64(all)) }

func (s *score) row(w io.Writer, name string) {
	if s.all > 0 {
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t\n", name, s.all, share(s.exact, s.all), share(s.percent, s.all), share(s.three, s.all))
	}
}

// A table holds scores by name.
type table struct {
	title string
	names []string
	score map[string]*score
}

func newTable(title string) *table { return &table{title: title, score: map[string]*score{}} }

func (t *table) add(name string, r *result) {
	if t.score[name] == nil {
		t.names = append(t.names, name)
		t.score[name] = new(score)
	}
	t.score[name].add(r)
}

// print writes the rows in the given order, and those that it does not name
// last, by name.
func (t *table) print(w io.Writer, order []string) error {
	slices.SortFunc(t.names, func(a, b string) int {
		at := func(name string) int { return (slices.Index(order, name) + len(order) + 1) % (len(order) + 1) }
		return cmp.Or(cmp.Compare(at(a), at(b)), strings.Compare(a, b))
	})
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(tw, "%s\trecordings\texact\t\twithin 1 %%\t\twithin 3\t\t\n", t.title)
	for _, name := range t.names {
		t.score[name].row(tw, name)
	}
	fmt.Fprintln(tw)
	return tw.Flush()
}

// report writes the tables and the misses.
func report(w io.Writer, results []result) error {
	whole, computable := newTable("all"), newTable("computable, by endpoint")
	byBasis, byFeature := newTable("by basis"), newTable("computable, by feature")
	var missed, edits []result
	for _, r := range results {
		if r.edited != "" {
			edits = append(edits, r)
			continue
		}
		whole.add("recordings", &r)
		byBasis.add(fmt.Sprintf("%s %s", r.Endpoint, r.Basis), &r)
		if r.Basis <= tokens.Rule {
			computable.add("all", &r)
			computable.add(string(r.Endpoint), &r)
			for _, f := range r.features {
				byFeature.add(f, &r)
			}
		}
		if r.off() != 0 {
			missed = append(missed, r)
		}
	}
	fmt.Fprint(w, "A recording is computable if nothing in it had to be charged by a constant or an upper bound.\n\n")
	for _, t := range []*table{whole, computable, byFeature, byBasis} {
		if err := t.print(w, append([]string{"all"}, features...)); err != nil {
			return err
		}
	}
	if err := printMisses(w, missed); err != nil {
		return err
	}
	if len(edits) > 0 {
		fmt.Fprintln(w, "\nLeft out, as the file does not hold what was billed:")
	}
	for _, r := range edits {
		fmt.Fprintf(w, "  %s (billed %d, counted %d): %s\n", r.name(), r.Billed, r.Tokens, r.edited)
	}
	return nil
}

// printMisses lists what is not exact, the computable first, the farthest off
// first.
func printMisses(w io.Writer, missed []result) error {
	slices.SortStableFunc(missed, func(a, b result) int {
		return cmp.Or(cmp.Compare(a.Basis, b.Basis), cmp.Compare(max(b.off(), -b.off()), max(a.off(), -a.off())))
	})
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(tw, "counted\tbilled\toff\tbasis\tmodel\tfeatures\trecording\n")
	for _, r := range missed {
		fmt.Fprintf(tw, "%d\t%d\t%+d\t%s\t%s\t%s\t%s\n", r.Tokens, r.Billed, r.off(), r.Basis, r.Model, strings.Join(r.features, ", "), r.name())
	}
	return tw.Flush()
}
