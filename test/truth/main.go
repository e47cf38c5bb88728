// Command truth measures package tokens against requests whose input tokens a
// vendor has billed: it counts each and compares.
//
//	truth [recorded.jsonl]
//
// Each line of the file is one recording: an object of source (where it comes
// from), endpoint, host, model (that the answer named), recorded_prompt_tokens
// and request (the body). The recordings are other projects' and no part of
// this one.
//
// It exits with 2 if the file cannot be read, and with 1 if a recording cannot
// be counted.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"

	"llmproxy/tokens"
)

// usual is where the recordings lie if no path is given.
const usual = "../shared/cases/recorded-usage.jsonl"

func main() {
	file := usual
	if len(os.Args) > 1 {
		file = os.Args[1]
	}
	recordings, err := read(file)
	if errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintf(os.Stderr, "truth: no recordings at %s; say where they are: make truth RECORDED=path\n", file)
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "truth: %v\n", err)
		os.Exit(2)
	}
	if err := run(os.Stdout, recordings); err != nil {
		fmt.Fprintf(os.Stderr, "truth: %v\n", err)
		os.Exit(1)
	}
}

// A recording is one line of the file.
type recording struct {
	Source   string          `json:"source"`
	Endpoint tokens.Endpoint `json:"endpoint"`
	Host     string          `json:"host"`
	Model    string          `json:"model"`
	Billed   int             `json:"recorded_prompt_tokens"`
	Request  json.RawMessage `json:"request"`
}

// model returns the name of the model as the upstream reads it. On Azure the
// request names a deployment, so there it is that of the answer.
func (r *recording) model() (string, error) {
	if r.Host == "azure" {
		return r.Model, nil
	}
	var body struct {
		Model string `json:"model"`
	}
	if err := json.Unmarshal(r.Request, &body); err != nil {
		return "", err
	}
	if body.Model == "" {
		return r.Model, nil
	}
	return body.Model, nil
}

// name returns the last two elements of the source, which tell recordings
// apart.
func (r *recording) name() string {
	return path.Join(path.Base(path.Dir(r.Source)), path.Base(r.Source))
}

func read(file string) ([]recording, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var recordings []recording
	lines := bufio.NewReader(f)
	for n := 1; ; n++ {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var r recording
			if err := json.Unmarshal(line, &r); err != nil {
				return nil, fmt.Errorf("%s:%d: %w", file, n, err)
			}
			recordings = append(recordings, r)
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
	}
	if len(recordings) == 0 {
		return nil, fmt.Errorf("%s holds no recordings", file)
	}
	return recordings, nil
}

// A result is a recording with our count of it.
type result struct {
	recording
	tokens.Estimate
	features []string
	edited   string // why it is no truth, or ""
}

func (r *result) off() int { return r.Tokens - r.Billed }

func run(w io.Writer, recordings []recording) error {
	var counter tokens.Counter
	var results []result
	for _, r := range recordings {
		model, err := r.model()
		if err != nil {
			return fmt.Errorf("%s: %w", r.Source, err)
		}
		estimate, err := counter.Count(tokens.Request{Endpoint: r.Endpoint, Model: model, Body: r.Request})
		if err != nil {
			return fmt.Errorf("%s: %w", r.Source, err)
		}
		features, err := featuresOf(r.Request)
		if err != nil {
			return fmt.Errorf("%s: %w", r.Source, err)
		}
		results = append(results, result{r, estimate, features, edited[r.name()]})
	}
	return report(w, results)
}
