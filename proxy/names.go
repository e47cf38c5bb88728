package proxy

import (
	"net/http"

	"llmproxy/cache"
)

// Names are what a request says of itself: where it goes and whose it is.
type Names struct {
	Path      string // below /v1, such as "chat/completions"
	Step, Run string // Step is never empty
	Named     bool   // Step is not the one of calls that name none
}

// NamesOf reads the step and the run of a request as a server does, from its
// headers, its escaped path and its body's metadata in this order. It knows no
// configuration, and so neither keys' default steps nor aliases. The error is
// what a server would answer.
func NamesOf(h http.Header, escapedPath string, body *cache.Document) (n Names, err error) {
	rt, err := parseRoute(escapedPath)
	if err != nil {
		return n, err
	}
	_, step, run, err := takeOwnMetadata(body)
	if err != nil {
		return n, err
	}
	n.Path = rt.path
	n.Step, n.Run = namesOf(h, rt, "")
	n.Step = firstOf(n.Step, step)
	n.Named = n.Step != ""
	n.Step, n.Run, err = checkNames(n.Step, firstOf(n.Run, run))
	return n, err
}

// namesOf reads the names that the headers, the path or else the credential
// give, empty where none does.
func namesOf(h http.Header, rt route, fallback string) (step, run string) {
	fromContext := parseContext(h.Get(headerContext))
	return firstOf(h.Get(headerStep), fromContext["step"], rt.step, fallback),
		firstOf(h.Get(headerRun), fromContext["run"], rt.run)
}

// checkNames trims and checks the names of a call; an empty step is the default
// one, an empty run none.
func checkNames(step, run string) (checkedStep, checkedRun string, err error) {
	if checkedStep, err = checkName("step", firstOf(step, defaultStep)); err != nil {
		return "", "", err
	}
	if run != "" {
		checkedRun, err = checkName("run", run)
	}
	return checkedStep, checkedRun, err
}
