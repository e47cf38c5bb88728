package sim

import (
	"fmt"
	"math/rand/v2"
	"sort"
	"strings"
	"unicode/utf8"
)

// reply is one choice of an answer.
type reply struct {
	text   string
	tools  []toolCall
	finish string // empty: none
	tokens int    // output
}

// replies makes the n choices for a prompt.
func (m *Model) replies(p *prompt, o options) ([]reply, error) {
	if words := max(p.plan.words, 0); words*o.n > 2*maxWords {
		return nil, badRequest("n", "n choices of %d words are more than %d words", words, 2*maxWords)
	}
	replies := make([]reply, o.n)
	for i := range replies {
		replies[i] = m.reply(p, o, i)
	}
	return replies, nil
}

func (m *Model) reply(p *prompt, o options, choice int) reply {
	r := reply{finish: "stop"}
	if !p.result {
		r.tools = p.plan.tools
	}
	switch {
	case p.plan.say != nil:
		r.text = *p.plan.say
	case len(r.tools) == 0:
		r.text = compose(p, choice)
		if o.json && r.text != "" {
			r.text = string(marshal(object{"simulated": true, "answer": r.text}))
		}
	}
	if len(r.tools) > 0 {
		r.finish = "tool_calls"
	}
	if o.limit > 0 && m.count(r.text) > o.limit {
		r.text, r.finish = m.truncate(r.text, o.limit), "length"
	}
	switch p.plan.finish {
	case "":
	case "none":
		r.finish = ""
	default:
		r.finish = p.plan.finish
	}
	r.tokens = m.count(r.text) + p.plan.reasoning
	for _, call := range r.tools {
		r.tokens += m.count(call.name) + m.count(call.arguments)
	}
	return r
}

// truncate returns the longest beginning of text, in whole words, that counts
// at most limit tokens.
func (m *Model) truncate(text string, limit int) string {
	words := strings.SplitAfter(text, " ")
	ends := make([]int, len(words)+1) // ends[n]: where the first n words end
	for i, word := range words {
		ends[i+1] = ends[i] + len(word)
	}
	n := sort.Search(len(words), func(n int) bool { return m.count(text[:ends[n+1]]) > limit })
	return strings.TrimRight(text[:ends[n]], " ")
}

// echoed is how many words of the question an answer repeats.
const echoed = 8

// compose writes the text of a choice: so many words as the plan says, or by
// default whole sentences, 25 words and a few.
func compose(p *prompt, choice int) string {
	if p.plan.words == 0 {
		return ""
	}
	rng := rand.New(rand.NewPCG(p.salt, uint64(choice)))
	words := []string{"[simulated]"}
	if quote := strings.Fields(p.question); len(quote) > 0 {
		lead := []string{"You", "asked:"}
		if p.result {
			lead = []string{"The", "tool", "said:"}
		}
		if len(quote) > echoed {
			quote = quote[:echoed]
			quote[echoed-1] += "…"
		}
		quote[0] = "“" + quote[0]
		quote[len(quote)-1] += "”"
		words = append(append(words, lead...), quote...)
	}
	n := p.plan.words
	for len(words) < n || n < 0 && len(words) < 25 {
		words = append(words, strings.Fields(sentence(rng))...)
	}
	if 0 < n && n < len(words) {
		words = words[:n]
		words[n-1] = strings.TrimRight(words[n-1], ".,:") + "."
	}
	return strings.Join(words, " ")
}

// sentence makes one of some 200,000 sentences that say nothing in earnest.
func sentence(rng *rand.Rand) string {
	pick := func(words ...string) string { return words[rng.IntN(len(words))] }
	subject := func() string {
		return pick("the report", "the first draft", "a short summary", "the customer", "the second message",
			"the order", "the schedule", "a careful reader", "the attached list", "the team", "the invoice", "the last reply")
	}
	verb := func() string {
		return pick("shows", "confirms", "explains", "mentions", "leaves out", "repeats", "supports", "settles", "questions")
	}
	thing := func() string {
		return pick("the main point", "two open questions", "the date of delivery", "a small difference", "the agreed price",
			"the next step", "most of the details", "one exception", "the reason for the delay", "what was decided")
	}
	opener := pick("", "", "In short, ", "As a rule, ", "On balance, ", "For now, ", "At first, ")
	s := opener + subject() + " " + verb() + " " + thing()
	switch rng.IntN(3) {
	case 0:
		s += fmt.Sprintf(", and %s %s %s", subject(), verb(), thing())
	case 1:
		s += fmt.Sprintf(" in %d of %d cases", 1+rng.IntN(5), 6+rng.IntN(7))
	}
	return strings.ToUpper(s[:1]) + s[1:] + "."
}

// split cuts text into n pieces of about the same length at rune boundaries,
// or fewer where it has fewer runes; n = 0 cuts it into words, each with the
// blank before it.
func split(text string, n int) []string {
	if text == "" {
		return nil
	}
	var pieces []string
	if n == 0 {
		for start := 0; start < len(text); {
			end := strings.IndexByte(text[start+1:], ' ') + start + 1
			if end == start {
				end = len(text)
			}
			pieces = append(pieces, text[start:end])
			start = end
		}
		return pieces
	}
	runes := utf8.RuneCountInString(text)
	n = min(n, runes)
	for i := range n {
		size := runes*(i+1)/n - runes*i/n
		end := 0
		for range size {
			_, width := utf8.DecodeRuneInString(text[end:])
			end += width
		}
		pieces = append(pieces, text[:end])
		text = text[end:]
	}
	return pieces
}
