// Package tokens counts how many input tokens a request costs, before it is
// sent, as the vendor bills it.
//
// Text is counted exactly as the vendor's tokenizer does; text that spells a
// special token is text. What stands around the text (the frame of a
// message, tool definitions, response formats, images, audio) is counted by
// named rules, fitted on billed requests. What cannot be known from the
// request alone (an image behind a URL, a file, state the upstream keeps) is
// charged a stated amount and marked as an estimate: never nothing, and never
// an error. Each figure says on which Basis it stands.
//
// The package does no I/O: the vocabularies are embedded.
package tokens

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
)

// An Endpoint is the path of a counted endpoint below /v1/.
type Endpoint string

const (
	ChatCompletions Endpoint = "chat/completions"
	Completions     Endpoint = "completions"
	Embeddings      Endpoint = "embeddings"
	Responses       Endpoint = "responses"
)

// A Basis says how well a count is known. Bases are ordered from best to
// worst; a sum has the worst basis of its parts.
type Basis uint8

const (
	Exact            Basis = iota // as the vendor counts it
	Rule                          // by a rule fitted on billed requests: near, often equal
	Estimated                     // a part was charged by a constant or an upper bound, or the model is known not to follow the rules
	FallbackEncoding              // the model's encoding is not known, as with other vendors' models
)

// String returns the basis as reports print it.
func (b Basis) String() string {
	switch b {
	case Exact:
		return "exact"
	case Rule:
		return "rule"
	case Estimated:
		return "estimate"
	case FallbackEncoding:
		return "fallback-encoding"
	}
	return fmt.Sprintf("Basis(%d)", uint8(b))
}

// A Request is what is to be counted.
type Request struct {
	Endpoint Endpoint
	Model    string // as the upstream will read it
	Body     []byte // the raw JSON body; not kept, not changed

	// Previous is how many tokens the response that previous_response_id names
	// stands for: those of its input and its output, without its reasoning,
	// and without its instructions, which the upstream does not carry over. 0
	// means that they are not known.
	Previous int
}

// An Estimate is the count of one Request.
type Estimate struct {
	Tokens   int    // input tokens, all parts together
	Basis    Basis  // the worst of the parts' and the model's
	Raw      int    // Tokens before a learned factor: what Factors.Learn takes
	Encoding string // name of the encoding, such as "o200k_base"

	// Low and High bound Tokens as the latest bills of the model did, nine of
	// ten of them. They are 0 where no factor was applied.
	Low, High int

	// Messages holds the tokens of each element of messages (or of input,
	// where that is an array of items), its frame included. What is no
	// message (tools, response format, reply priming) is in Parts only.
	Messages []int

	// Parts holds every charge, in the order of the request; they add up to
	// Tokens.
	Parts []Part
}

// A Part is one charge of an Estimate.
type Part struct {
	Path   string // where it stands in the body: "messages[3].content[1]", "tools"
	Tokens int
	Rule   string // the name of the rule that gave Tokens
	Basis  Basis
}

// Uncounted returns the paths of the parts that could not be counted and were
// charged by a constant or an upper bound instead.
func (e *Estimate) Uncounted() []string {
	var paths []string
	for _, p := range e.Parts {
		if p.Basis == Estimated && !strings.HasPrefix(p.Rule, learnedFactor) {
			paths = append(paths, p.Path)
		}
	}
	return paths
}

// A Counter counts requests, and remembers the counts of the long texts it has
// seen. The zero value is ready for use. A Counter may be used by many
// goroutines at once and must not be copied after first use.
type Counter struct {
	// Charges are for what cannot be counted.
	Charges Charges

	// Factors, if set, corrects the counts of models that no rule is known for.
	Factors *Factors

	memory memory
}

// Count returns the input tokens of r. It fails only if the body is not JSON
// of the endpoint's shape, or the endpoint is none of the four.
func (c *Counter) Count(r Request) (Estimate, error) {
	doc, err := parseDocument(r.Body)
	if err != nil {
		return Estimate{}, fmt.Errorf("reading request body: %w", err)
	}
	if !doc.root.isObject() {
		return Estimate{}, errors.New("reading request body: not a JSON object")
	}
	body := doc.object(doc.root)
	m := modelOf(r.Model)
	e := vocabulary(m.encoding)
	t := &tally{
		doc:      doc,
		model:    m,
		enc:      e,
		scratch:  e.scratch.Get().(*scratch),
		memory:   &c.memory,
		charges:  c.Charges.orDefault(),
		previous: r.Previous,
		est:      Estimate{Basis: m.basis, Encoding: m.encoding},
	}
	defer e.scratch.Put(t.scratch)
	switch r.Endpoint {
	case ChatCompletions:
		err = t.chat(body)
	case Responses:
		err = t.responses(body)
	case Completions:
		err = t.completions(body)
	case Embeddings:
		err = t.plain("input", body["input"])
	default:
		err = fmt.Errorf("counting: unknown endpoint %q", r.Endpoint)
	}
	if err != nil {
		return Estimate{}, err
	}
	t.est.Raw = t.est.Tokens
	if c.Factors != nil && m.basis == FallbackEncoding {
		if f, ok := c.Factors.Of(r.Model); ok {
			t.correct(f)
		}
	}
	return t.est, nil
}

// Count counts r with a Counter of its own.
func Count(r Request) (Estimate, error) { return new(Counter).Count(r) }

// Text returns the tokens of plain text in the encoding of model, for output
// that came without usage.
func Text(model, text string) int {
	return vocabulary(modelOf(model).encoding).text(text)
}

// TextIn returns the tokens of plain text in the encoding of that name.
func TextIn(encoding, text string) (int, error) {
	if !known(encoding) {
		return 0, fmt.Errorf("unknown encoding %q", encoding)
	}
	return vocabulary(encoding).text(text), nil
}

// Warm loads the vocabularies, which otherwise happens at first use, and
// returns when they are ready.
func Warm() {
	var wg sync.WaitGroup
	wg.Go(func() { loadCL100K() })
	wg.Go(func() { loadO200K() })
	wg.Wait()
}

// A tally adds up one Estimate.
type tally struct {
	doc      *document
	model    model
	enc      *encoding
	scratch  *scratch
	memory   *memory
	charges  Charges
	previous int // Request.Previous
	est      Estimate
	names    map[string]string // tool call id → name of the called function
}

// maxParts bounds the parts of an Estimate. No request that a model could take
// has as many; what a request of many empty messages has beyond is added to the
// last part.
const maxParts = 1 << 14

// charge adds one part.
func (t *tally) charge(path, rule string, basis Basis, n int) {
	if len(t.est.Parts) < maxParts {
		t.est.Parts = append(t.est.Parts, Part{Path: path, Tokens: n, Rule: rule, Basis: basis})
	} else {
		last := &t.est.Parts[maxParts-1]
		last.Path, last.Rule = "…", "the rest"
		last.Tokens += n
		last.Basis = max(last.Basis, basis)
	}
	t.est.Tokens += n
	t.est.Basis = max(t.est.Basis, basis)
}

// at returns the path of the ith element of the array at path, or nothing if
// there is no part left that it could name.
func (t *tally) at(path string, i int) string {
	if len(t.est.Parts) >= maxParts {
		return ""
	}
	return path + "[" + strconv.Itoa(i) + "]"
}

// estimate adds a part that cannot be counted.
func (t *tally) estimate(path, rule string, n int) { t.charge(path, rule, Estimated, n) }

// unknown adds a part of a kind that is not known.
func (t *tally) unknown(path string) { t.estimate(path, "unknown-part", t.charges.Part) }

// text counts the value of a JSON string; any other value has no text.
func (t *tally) text(n node) int {
	if len(n) < memorable {
		return t.countNode(n)
	}
	d := t.memory.digest(t.scratch, t.enc, n)
	count, ok := t.memory.get(d)
	if !ok {
		count = t.countNode(n)
		t.memory.set(d, count)
	}
	return count
}

// texts counts texts that stand side by side: as one.
func (t *tally) texts(run []node) int {
	switch len(run) {
	case 0:
		return 0
	case 1:
		return t.text(run[0])
	}
	t.scratch.text = t.scratch.text[:0]
	for _, n := range run {
		t.scratch.text = n.appendStr(t.scratch.text)
	}
	return t.enc.count(t.scratch, t.scratch.text)
}

func (t *tally) countNode(n node) int {
	t.scratch.text = n.appendStr(t.scratch.text[:0])
	return t.enc.count(t.scratch, t.scratch.text)
}

// count counts text.
func (t *tally) count(text string) int {
	t.scratch.text = append(t.scratch.text[:0], text...)
	return t.enc.count(t.scratch, t.scratch.text)
}

// completions counts the body of the legacy endpoint: its prompts, with
// nothing added.
func (t *tally) completions(body map[string]node) error {
	if suffix := body["suffix"]; suffix.isString() {
		t.charge("suffix", "suffix", Rule, t.text(suffix))
	}
	return t.plain("prompt", body["prompt"])
}

// plain counts the member called name, which is a text, an array of texts, an
// array of token ids or an array of those.
func (t *tally) plain(name string, n node) error {
	sum := 0
	switch {
	case n.isString():
		sum = t.text(n)
	case n.isArray():
		for i, e := range n.elements() {
			switch {
			case e.isString():
				sum += t.text(e)
			case e.isNumber():
				sum++
			case e.isArray():
				for range e.elements() {
					sum++
				}
			default:
				return fmt.Errorf("reading request body: %s[%d] is neither a text nor tokens", name, i)
			}
		}
	default:
		return fmt.Errorf("reading request body: %s is neither a string nor an array", name)
	}
	t.charge(name, "text", Exact, sum)
	return nil
}
