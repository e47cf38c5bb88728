package main

import (
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestMain lets scripts run the command itself as llmproxy.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"llmproxy": main})
}

// TestScripts runs testdata/script/*.txtar. Each starts in an empty folder with
// its files, without a home folder and without LLMPROXY_ variables.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{Dir: "testdata/script"})
}
