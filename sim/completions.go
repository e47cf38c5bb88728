package sim

type textChoice struct {
	Text     string `json:"text"`
	Index    int    `json:"index"`
	Logprobs any    `json:"logprobs"`
	Finish   any    `json:"finish_reason"`
}

// completion answers /v1/completions: n choices for each prompt, in order. The
// last prompt holds the directives for all.
func (m *Model) completion(b *body) (*answer, error) {
	o, err := b.options("max_tokens")
	if err != nil {
		return nil, err
	}
	inputs, err := m.inputs(b, "prompt")
	if err != nil {
		return nil, err
	}
	p := &prompt{}
	if p.plan, p.question, err = parsePlan(inputs[len(inputs)-1].text); err != nil {
		return nil, err
	}
	if err := p.plan.refuse("completions", "tool", "reasoning"); err != nil {
		return nil, err
	}
	p.salt = b.salt(p.plan, "prompt")
	for _, in := range inputs {
		p.tokens += in.tokens
	}
	if o.n *= len(inputs); o.n > maxChoices {
		return nil, badRequest("n", "n times the number of prompts is more than %d", maxChoices)
	}
	replies, err := m.replies(p, o)
	if err != nil {
		return nil, err
	}
	head := envelope{ID: "cmpl-sim" + b.id, Object: "text_completion", Created: b.created, Model: o.model, Fingerprint: "sim"}
	usage := usageOf(p.plan, p.tokens, replies)
	if !o.stream {
		choices := make([]textChoice, len(replies))
		for i, r := range replies {
			choices[i] = textChoice{Text: r.text, Index: i, Finish: orNull(r.finish)}
		}
		head.Choices, head.Usage = choices, usage
		return &answer{plan: p.plan, object: head}, nil
	}
	if !o.includeUsage {
		usage = nil
	}
	chunks := make([][]textChoice, len(replies))
	for i, r := range replies {
		for _, piece := range split(r.text, p.plan.chunks) {
			chunks[i] = append(chunks[i], textChoice{Text: piece, Index: i})
		}
		chunks[i] = append(chunks[i], textChoice{Index: i, Finish: orNull(r.finish)})
	}
	return &answer{plan: p.plan, broken: errorChunk, events: func(yield func(event) bool) {
		playChunks(head, chunks, usage, yield)
	}}, nil
}
