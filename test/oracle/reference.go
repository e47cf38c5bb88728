package main

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"unicode"

	"github.com/pkoukk/tiktoken-go"
	loader "github.com/pkoukk/tiktoken-go-loader"

	"llmproxy/tokens"
)

// encodings are those compared, each with the name that references know it by.
var encodings = []struct{ name, reference string }{
	{"cl100k_base", "cl100k_base"},
	{"o200k_base", "o200k_base"},
	{"o200k_harmony", "o200k_base"}, // differs in its special tokens only
	{"p50k_base", "p50k_base"},
	{"r50k_base", "r50k_base"},
}

// counter counts texts in all encodings: text → encoding → tokens. Each byte
// that is no UTF-8 counts as U+FFFD.
type counter func(texts []string) ([][]int, error)

// reference is what we are compared with.
type reference struct {
	name  string
	count counter
	named []difference
}

// difference is one that is known and none of ours.
type difference struct {
	name   string
	stands func(text string) bool // whether text may show it
}

func ours(texts []string) ([][]int, error) {
	counts := make([][]int, len(texts))
	for i, text := range texts {
		for _, e := range encodings {
			n, err := tokens.TextIn(e.name, text)
			if err != nil {
				return nil, err
			}
			counts[i] = append(counts[i], n)
		}
	}
	return counts, nil
}

func tiktokenGo() (reference, error) {
	tiktoken.SetBpeLoader(loader.NewOfflineLoader()) // or it downloads the vocabularies
	known := map[string]*tiktoken.Tiktoken{}
	for _, e := range encodings {
		if known[e.reference] != nil {
			continue
		}
		var err error
		if known[e.reference], err = tiktoken.GetEncoding(e.reference); err != nil {
			return reference{}, err
		}
	}
	count := func(texts []string) ([][]int, error) {
		counts := make([][]int, len(texts))
		for i, text := range texts {
			done := map[string]int{}
			for _, e := range encodings {
				if _, ok := done[e.reference]; !ok {
					done[e.reference] = len(known[e.reference].EncodeOrdinary(text))
				}
				counts[i] = append(counts[i], done[e.reference])
			}
		}
		return counts, nil
	}
	return reference{"tiktoken-go", count, []difference{
		{"it does not take U+017F for an s in a contraction", func(text string) bool { return strings.Contains(text, "'\u017f") }},
		{"its Unicode " + unicode.Version + " does not have a code point", hasUnassigned},
	}}, nil
}

// hasUnassigned reports whether Go's Unicode tables lack a character of text.
func hasUnassigned(text string) bool {
	return strings.ContainsFunc(text, func(r rune) bool {
		return !unicode.In(r, unicode.L, unicode.M, unicode.N, unicode.P, unicode.S, unicode.Z, unicode.Cc, unicode.Cf, unicode.Co)
	})
}

// npmPackage is the reference implementation: the vendor's own code, compiled
// to WebAssembly.
const npmPackage = "tiktoken@1.0.22"

//go:embed oracle.mjs
var script []byte

// npm starts the npm package, installed into dir if it is not there.
func npm(ctx context.Context, dir string) (r reference, version string, stop func() error, err error) {
	for _, program := range []string{"node", "npm"} {
		if _, err := exec.LookPath(program); err != nil {
			return r, "", nil, fmt.Errorf("%s is not installed: only tiktoken-go was compared; install Node.js 18 or newer", program)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "node_modules", "tiktoken")); errors.Is(err, os.ErrNotExist) {
		install := exec.CommandContext(ctx, "npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", dir, npmPackage)
		if out, err := install.CombinedOutput(); err != nil {
			return r, "", nil, fmt.Errorf("installing %s: %w: %s", npmPackage, err, bytes.TrimSpace(out))
		}
	}
	path := filepath.Join(dir, "oracle.mjs")
	if err := os.WriteFile(path, script, 0o600); err != nil {
		return r, "", nil, err
	}
	out, err := exec.CommandContext(ctx, "node", "--version").Output()
	if err != nil {
		return r, "", nil, fmt.Errorf("asking node for its version: %w", err)
	}
	args := []string{path}
	for _, e := range encodings {
		args = append(args, e.reference)
	}
	cmd := exec.CommandContext(ctx, "node", args...)
	cmd.Stderr = os.Stderr
	in, err1 := cmd.StdinPipe()
	answers, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		return r, "", nil, fmt.Errorf("starting node: %w", err)
	}
	stop = func() error { return errors.Join(in.Close(), cmd.Wait()) }
	node := bufio.NewReader(answers)
	r = reference{name: "npm " + npmPackage, count: func(texts []string) ([][]int, error) { return askNode(in, node, texts) }}
	return r, strings.TrimSpace(string(out)), stop, nil
}

func askNode(in io.Writer, out io.Reader, texts []string) ([][]int, error) {
	var asked []byte
	for _, text := range texts {
		text = string([]rune(text)) // an invalid byte becomes U+FFFD
		asked = append(binary.LittleEndian.AppendUint32(asked, uint32(len(text))), text...)
	}
	written := make(chan error, 1)
	go func() {
		_, err := in.Write(asked)
		written <- err
	}()
	answer := make([]byte, 4*len(encodings)*len(texts))
	if _, err := io.ReadFull(out, answer); err != nil {
		return nil, fmt.Errorf("reading counts from node: %w", err)
	}
	counts := make([][]int, len(texts))
	for i := range counts {
		for range encodings {
			counts[i] = append(counts[i], int(binary.LittleEndian.Uint32(answer)))
			answer = answer[4:]
		}
	}
	return counts, <-written
}
