// Command oracle compares our token counts with other tokenizers:
//
//	go run ./test/oracle
//
// The reference is the vendor's own code as the npm package tiktoken, which it
// installs into a temporary folder; beside it stands tiktoken-go. Compared are
// random texts (every script, control characters, white space, contractions in
// odd case, special tokens, broken UTF-8) and every code point in three
// contexts. It ends in failure if a count differs for no reason that is named,
// or if Node.js is missing.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"text/tabwriter"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "oracle: %v\n", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) (err error) {
	flags := flag.NewFlagSet("oracle", flag.ContinueOnError)
	n := flags.Int("strings", 100_000, "`number` of random texts")
	points := flags.Bool("points", true, "compare every code point")
	seed := flags.Uint64("seed", 0, "`seed` of the random texts (default a random one)")
	dir := flags.String("npm", "", "`folder` with, or for, the npm package (default a temporary one)")
	if err := flags.Parse(args); err != nil {
		return err
	}
	*seed = cmp.Or(*seed, rand.Uint64())
	c := &comparison{out: out}
	r, scripts := rand.New(rand.NewPCG(*seed, 0)), allScripts()
	for range *n {
		c.texts = append(c.texts, randomText(r, scripts))
	}
	fmt.Fprintf(out, "%d random texts of seed %d", *n, *seed)
	if *points {
		c.texts = append(c.texts, everyCodePoint()...)
		fmt.Fprintf(out, ", and each code point in %d contexts: %q", len(contexts), contexts)
	}
	fmt.Fprintf(out, ".\n\n")

	goReference, err := tiktokenGo()
	if err != nil {
		return err
	}
	failures := []error{c.compare(goReference)}
	if *dir == "" {
		if *dir, err = os.MkdirTemp("", "oracle-"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(*dir)) }()
	}
	reference, node, stop, err := npm(ctx, *dir)
	if err != nil {
		return errors.Join(append(failures, err)...)
	}
	fmt.Fprintf(out, "%s is run by node %s.\n", reference.name, node)
	failures = append(failures, c.compare(reference), c.unicode(reference, goReference), stop())
	return errors.Join(failures...)
}

// comparison compares references with our counts of texts.
type comparison struct {
	out   io.Writer
	texts []string
}

const (
	batch = 20_000 // texts counted at once
	shown = 10     // differences printed for each reference
)

// compare prints a table of how often the counts of r are ours. It fails if one
// is not, for no reason that is named.
func (c *comparison) compare(r reference) error {
	same := make([]int, len(encodings))
	unnamed := make([]int, len(encodings))
	named := make([][]int, len(encodings)) // encoding → difference → texts
	for e := range named {
		named[e] = make([]int, len(r.named))
	}
	printed := 0
	for at := 0; at < len(c.texts); at += batch {
		texts := c.texts[at:min(at+batch, len(c.texts))]
		our, err1 := ours(texts)
		their, err2 := r.count(texts)
		if err := errors.Join(err1, err2); err != nil {
			return fmt.Errorf("counting with %s: %w", r.name, err)
		}
		for i, text := range texts {
			for e := range encodings {
				switch d := r.nameOf(text); {
				case our[i][e] == their[i][e]:
					same[e]++
				case d >= 0:
					named[e][d]++
				default:
					unnamed[e]++
					if printed++; printed <= shown {
						fmt.Fprintf(c.out, "%s %q: %d tokens, %s says %d\n", encodings[e].name, text, our[i][e], r.name, their[i][e])
					}
				}
			}
		}
	}
	if err := c.print(r, same, named, unnamed); err != nil {
		return err
	}
	for _, n := range unnamed {
		if n > 0 {
			return fmt.Errorf("counts differ from %s", r.name)
		}
	}
	return nil
}

// nameOf returns the named difference that text may show, or -1.
func (r reference) nameOf(text string) int {
	for d := range r.named {
		if r.named[d].stands(text) {
			return d
		}
	}
	return -1
}

func (c *comparison) print(r reference, same []int, named [][]int, unnamed []int) error {
	tw := tabwriter.NewWriter(c.out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(tw, "%s\ttexts\tsame count\tother count\n", r.name)
	for e := range encodings {
		fmt.Fprintf(tw, "  %s\t%d\t%d\t%d\n", encodings[e].name, len(c.texts), same[e], unnamed[e])
		for d, n := range named[e] {
			if n > 0 {
				fmt.Fprintf(tw, "    because %s\t\t\t%d\n", r.named[d].name, n)
			}
		}
	}
	fmt.Fprintln(tw)
	return tw.Flush()
}

// newest holds a letter that each version of Unicode added.
var newest = []struct {
	version string
	letter  rune
}{{"14.0", 0x10570}, {"15.0", 0x1E030}, {"15.1", 0x2EBF0}, {"16.0", 0x1C8A}, {"17.0", 0x16EA0}}

// unicode prints which version of Unicode each tokenizer splits words by, and
// fails if ours is not that of the reference.
func (c *comparison) unicode(r, goReference reference) error {
	versions := map[string]string{}
	sides := []reference{{name: "ours", count: ours}, r, goReference}
	for _, side := range sides {
		versions[side.name] = "13.0 or older"
		for _, v := range newest {
			counts, err := side.count([]string{string(v.letter), string(v.letter) + "'s"})
			if err != nil {
				return err
			}
			if counts[1][0] == counts[0][0]+1 { // 's is one token only after a letter
				versions[side.name] = v.version
			}
		}
	}
	fmt.Fprintf(c.out, "Letters, marks and numbers are those of Unicode %s; %s has %s, %s %s. The version that counts is the\n"+
		"reference's: our table (tokens/tables/classes.bin) is made of Go's and a list of what later versions added.\n",
		versions["ours"], r.name, versions[r.name], goReference.name, versions[goReference.name])
	if versions["ours"] != versions[r.name] {
		return fmt.Errorf("our Unicode version is not that of %s", r.name)
	}
	return nil
}
