package main

import (
	"bytes"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strings"
)

// KB is the unit of the body sizes.
const KB = 1024

// A marker is the name of one piece of work: markerLen bytes that stand in the
// request at the start of every message, so that no two share a prefix, and in
// its answer, so that an answer given to the wrong request is seen. The first
// byte says what the mock upstream answers.
const (
	markerLen   = 16
	markerTag   = "[bench " // stands before each marker in a request
	kindHit     = 'h'       // JSON, asked again and again
	kindFresh   = 'm'       // JSON, asked once
	kindStream  = 's'       // stream, all chunks at once
	kindPaced   = 'p'       // stream, chunkGap between chunks
	modelName   = "gpt-4.1-mini"
	workingSet  = 64 // distinct bodies of one size in the hit section
	answerBytes = 1200
)

// hitMarker names body i of the working set of a size.
func hitMarker(size, i int) string { return fmt.Sprintf("%c%06d-%08d", kindHit, size/KB, i) }

// freshMarker names the n-th piece of work of a kind that is asked only once.
func freshMarker(kind byte, n int64) string { return fmt.Sprintf("%c%015d", kind, n) }

// template is a text with places for a marker.
type template struct {
	text  []byte
	marks []int // offsets of the markers
}

// newTemplate finds the places of blank, a marker that the text was made with.
func newTemplate(text []byte, blank string) template {
	t := template{text: text}
	for at := 0; ; {
		i := bytes.Index(text[at:], []byte(blank))
		if i < 0 {
			return t
		}
		t.marks = append(t.marks, at+i)
		at += i + len(blank)
	}
}

// stamp writes marker into the places of the template. The text is shared with
// every earlier result.
func (t template) stamp(marker string) []byte {
	for _, at := range t.marks {
		copy(t.text[at:], marker)
	}
	return t.text
}

// copied returns a template with a text of its own.
func (t template) copied() template {
	return template{text: bytes.Clone(t.text), marks: t.marks}
}

// isStream says whether the answer to a kind is a stream.
func isStream(kind byte) bool { return kind == kindStream || kind == kindPaced }

// request returns a request to the endpoint of exactly size bytes, the same for the same
// arguments: a system prompt of a fifth (at most 2 KB), then user and assistant
// messages of English prose of up to 4 KB each.
func request(api endpoint, size int, marker string) []byte {
	messages, limit := "messages", "max_tokens"
	if api == responses {
		messages, limit = "input", "max_output_tokens"
	}
	head := `{"model":"` + modelName + `","` + messages + `":[`
	tail := `],"temperature":0.2,"` + limit + `":800`
	if isStream(marker[0]) {
		tail += `,"stream":true`
	}
	tail += "}"
	seed := fnv.New64a()
	seed.Write([]byte(marker))
	rnd := rand.New(rand.NewPCG(uint64(size), seed.Sum64()))
	body := append(make([]byte, 0, size), head...)
	role, length := "system", min(size/5, 2*KB)
	for n := 0; ; n++ {
		open := `{"role":"` + role + `","content":"` + markerTag + marker + `] `
		left := size - len(body) - len(open) - len(`"}`) - len(tail)
		last := left < length+512 // no room for one more
		if last {
			length = left
		}
		body = append(body, open...)
		body = appendProse(body, rnd, length)
		body = append(body, `"}`...)
		if last {
			return append(body, tail...)
		}
		body = append(body, ',')
		role, length = []string{"user", "assistant"}[n%2], min(size/3, 4*KB)
	}
}

// words by falling frequency in the prose.
var words = strings.Fields(`the of and to a in that is for it with as was on be at by this have from or had not are but
they which one you were all her she there would their we him been has when who will no more if out so up said what
its about than into them can only other time new some could these two may first then do any like my now over such
our man me even most made after also did many off before must well back through years much where your way down
should because long each just those people too state good very make world still see own work men day get here old
life both between being under three never know same last another while us might great year come since against right
customer invoice delivery refund contract account payment warehouse engineer schedule meeting quarterly analysis
summary ticket response priority department regarding attached following unfortunately approximately understanding
configuration deployment performance temperature international responsibility documentation authentication
Berlin Tuesday Martinez GmbH ACME-4471 2024-11-05 €1,299.00 14:30 v2.7.1 #88213 p.m. don't we'll customer's e-mail`)

// sentences of the prose, 4,000 of them, each the inside of a JSON string.
var sentences = func() [][]byte {
	rnd := rand.New(rand.NewPCG(1, 2))
	made := make([][]byte, 4000)
	for i := range made {
		made[i] = sentence(rnd)
	}
	return made
}()

// sentence makes a sentence of 5 to 18 words; one in six is a quotation and one
// in five ends a paragraph, so that there are \" and \n.
func sentence(rnd *rand.Rand) []byte {
	text := make([]string, 5+rnd.IntN(14))
	for i := range text {
		text[i] = words[int(float64(len(words))*rnd.Float64()*rnd.Float64())] // frequent words first
		if rnd.IntN(12) == 0 && i < len(text)-1 {
			text[i] += ","
		}
	}
	made := strings.Join(text, " ")
	if c := made[0]; 'a' <= c && c <= 'z' {
		made = string(c-'a'+'A') + made[1:]
	}
	made += "."
	if rnd.IntN(6) == 0 {
		made = `\"` + made + `\"`
	}
	if rnd.IntN(5) == 0 {
		return []byte(made + `\n\n`)
	}
	return []byte(made + " ")
}

// appendProse appends length bytes of sentences.
func appendProse(dst []byte, rnd *rand.Rand, length int) []byte {
	end := len(dst) + length
	for len(dst) < end {
		dst = append(dst, sentences[rnd.IntN(len(sentences))]...)
	}
	return trimProse(dst, end)
}

// trimProse cuts the text to end bytes without leaving half an escape or half
// a character.
func trimProse(dst []byte, end int) []byte {
	dst = dst[:end]
	for i := end - 1; i >= 0 && (dst[i] >= 0x80 || dst[i] == '\\'); i-- {
		dst[i] = '.'
	}
	return dst
}

// answer is the upstream's JSON answer to the request with that marker.
func answer(marker string) []byte {
	prose := appendProse(nil, rand.New(rand.NewPCG(1, 2)), answerBytes)
	return fmt.Appendf(nil, `{"id":"chatcmpl-%s","object":"chat.completion","created":1764579600,"model":"%s-2025-04-14",`+
		`"choices":[{"index":0,"message":{"role":"assistant","content":"%s %s","refusal":null,"annotations":[]},`+
		`"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":231,"completion_tokens":262,"total_tokens":493,`+
		`"prompt_tokens_details":{"cached_tokens":0,"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":0,`+
		`"audio_tokens":0,"accepted_prediction_tokens":0,"rejected_prediction_tokens":0}},"service_tier":"default",`+
		`"system_fingerprint":"fp_bench"}`, marker, modelName, marker, prose)
}

// blankMarker is the marker that templates are made with.
func blankMarker(kind byte) string { return freshMarker(kind, 0) }

// requestTemplate is a request of size bytes that can be made fresh by a stamp.
func requestTemplate(api endpoint, size int, kind byte) template {
	return newTemplate(request(api, size, blankMarker(kind)), blankMarker(kind))
}

// answerTemplate is the answer to any marker.
func answerTemplate() template {
	return newTemplate(answer(blankMarker(kindFresh)), blankMarker(kindFresh))
}

// findMarker returns the marker of a request body.
func findMarker(body []byte) (string, error) {
	_, rest, found := bytes.Cut(body, []byte(markerTag))
	if !found || len(rest) < markerLen {
		return "", fmt.Errorf("no %q in the request", markerTag)
	}
	return string(rest[:markerLen]), nil
}
