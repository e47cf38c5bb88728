package main

import (
	"bytes"
	"strings"
	"testing"
)

// TestDifferencesFail: a count that differs for no named reason is shown and
// fails the run, one that is named is only counted.
func TestDifferencesFail(t *testing.T) {
	wrongOn := func(bad string) counter {
		return func(texts []string) ([][]int, error) {
			counts, err := ours(texts)
			for i, text := range texts {
				if text == bad {
					counts[i][1]++
				}
			}
			return counts, err
		}
	}
	named := []difference{{"it is odd", func(text string) bool { return text == "odd" }}}
	for bad, want := range map[string]string{"": "", "odd": "because it is odd", "plain": `o200k_base "plain": 1 tokens, other says 2`} {
		var out bytes.Buffer
		c := &comparison{&out, []string{"odd", "plain", "other"}}
		err := c.compare(reference{"other", wrongOn(bad), named})
		if (err != nil) != (bad == "plain") {
			t.Errorf("wrong on %q: %v", bad, err)
		}
		if !strings.Contains(out.String(), want) {
			t.Errorf("wrong on %q: the report lacks %q:\n%s", bad, want, &out)
		}
	}
}

func TestAgainstTiktokenGo(t *testing.T) {
	t.Setenv("PATH", t.TempDir()) // no node
	var out bytes.Buffer
	err := run(t.Context(), []string{"-strings", "300", "-points=false"}, &out)
	if err == nil || !strings.Contains(err.Error(), "node is not installed") || strings.Contains(err.Error(), "differ") {
		t.Errorf("error %v, want one that says what is missing\n%s", err, &out)
	}
	if !strings.Contains(out.String(), "o200k_harmony") {
		t.Errorf("the report lacks an encoding:\n%s", &out)
	}
}

func TestUnassigned(t *testing.T) {
	for text, want := range map[string]bool{"plain, é中 \x00\ufffd\ue000\u200d😀": false, "\U0001366f": true, "a\U000d0000": true} {
		if got := hasUnassigned(text); got != want {
			t.Errorf("%q: %t, want %t", text, got, want)
		}
	}
}
