package proxy

import "testing"

func TestUpstreamsDoNotMakeSeries(t *testing.T) {
	for reason, want := range map[string]string{
		"finish reason length":    "finish reason length",
		"finish reason anything":  "finish reason other",
		"choices missing: 3 of 9": "choices missing",
		"empty":                   "empty",
	} {
		if got := unstoredLabel(reason); got != want {
			t.Errorf("%q: label %q, want %q", reason, got, want)
		}
	}
}
