package cache

import "testing"

// However a body is spelled, each of its messages has its hash: also where the
// whole array is canonical as it stands and would be copied in one piece.
func TestEveryMessageHasItsHash(t *testing.T) {
	spellings := []string{
		`{"model":"m","messages":[{"role":"user","content":"a"},{"role":"user","content":"b"}]}`,
		`{"messages":[{"content":"a","role":"user"},{"content":"b","role":"user"}],"model":"m"}`,
		`{"messages": [ {"content":"a","role":"user"} , {"content":"b","role":"user"} ], "model":"m"}`,
	}
	var first Tree
	for i, body := range spellings {
		d, err := Scan([]byte(body))
		if err != nil {
			t.Fatal(err)
		}
		tree := d.Fingerprint(Options{})
		if i == 0 {
			first = tree
		}
		if len(tree.Messages) != 2 || len(first.Diff(tree)) > 0 {
			t.Errorf("%s: the tree is %v, that of the first spelling %v", body, tree, first)
		}
	}
	for _, test := range []struct {
		body string
		want int
	}{
		{`{"input":["a","b"],"model":"m"}`, 2},
		{`{"input":[],"model":"m"}`, 0},
		{`{"input":"a","messages":["b"],"model":"m"}`, 1},
	} {
		d, err := Scan([]byte(test.body))
		if err != nil {
			t.Fatal(err)
		}
		if tree := d.Fingerprint(Options{}); len(tree.Messages) != test.want {
			t.Errorf("%s: the tree is %v, want %d messages", test.body, tree, test.want)
		}
	}
}
