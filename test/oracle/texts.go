package main

import (
	"math/rand/v2"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// atoms are what the encodings and their patterns treat apart, by kind.
var atoms = [][]string{
	strings.Split("a b e Z LL The hello world ing getUserName HTTPServer ABCdef iPhone don't x1y2 naïve", " "),
	strings.Split("'s 'S 'ſ 'T 'll 'LL 'lL 'Ll 'VE 'vE 're 'RE 'rE 'm 'M 'd 'D ' '' ''s 'K 'K ’s", " "),
	{" ", "  ", "   ", "\t", "\t\t", "\n", "\n\n", "\r\n", "\r", " \n", "\n ", "\v", "\f", "\u0085", "\u00a0", "\u1680", "\u2003", "\u2028", "\u3000", "\u200b", "\ufeff"},
	{"1", "12", "345", "6789", "3.14", "1,000", "٣", "½", "Ⅳ", "²", "१२३"},
	strings.Split(`. , ! ? () [] {" "} \n \" / // /* -> :: <|> === --- *** ... … — “ ” $ € % # @ _ ~ ^ | \ `, " "),
	{"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|fim_prefix|>", "<|endofprompt|>", "<|start|>", "<|channel|>", "<|endof", "|>"},
	{"中文", "的", "，", "。", "日本語", "か", "カタカナ", "ー", "한국어", "안녕", "привет", "ΑΒΓ", "שלום", "مرحبا", "ไทย", "हिन्दी", "ქართული", "Ǆ", "ǅ", "ʰ", "ª", "ẞ", "İ"},
	{"\u0301", "\u0308", "\u20dd", "\ufe0f", "ि", "\u3099", "\u0e33", "\u0488"},
	{"😀", "👩\u200d💻", "👍🏽", "🇩🇪", "→", "𝒜", "𠀀", "♥️"},
	{"\x00", "\x01", "\x1b", "\x7f", "\u009f", "\ue000", "\U0010ffff", "\ufffd"},
	{"\xff", "\x80", "\xc3", "\xe4\xbd", "\xf0\x9f\x98", "\xed\xa0\x80", "\xc0\xaf"},
	{strings.Repeat("a", 40), strings.Repeat(" ", 90), strings.Repeat("=", 70), strings.Repeat("-", 130), strings.Repeat("\n", 20), strings.Repeat("哈", 30), strings.Repeat("0", 25)},
}

// randomText returns up to 40 atoms and characters of any script.
func randomText(r *rand.Rand, scripts []*unicode.RangeTable) string {
	var b strings.Builder
	script := scripts[r.IntN(len(scripts))]
	for range 1 + r.IntN(40) {
		switch r.IntN(8) {
		case 0:
			b.WriteRune(rune(r.IntN(unicode.MaxRune + 1))) // a surrogate becomes U+FFFD
		case 1, 2:
			for range 1 + r.IntN(6) {
				b.WriteRune(randomRune(r, script))
			}
		case 3:
			b.WriteRune(randomRune(r, scripts[r.IntN(len(scripts))]))
		default:
			kind := atoms[r.IntN(len(atoms))]
			b.WriteString(kind[r.IntN(len(kind))])
		}
	}
	return b.String()
}

// allScripts returns the scripts in an order that does not change.
func allScripts() []*unicode.RangeTable {
	var names []string
	for name := range unicode.Scripts {
		names = append(names, name)
	}
	slices.Sort(names)
	var tables []*unicode.RangeTable
	for _, name := range names {
		tables = append(tables, unicode.Scripts[name])
	}
	return tables
}

func randomRune(r *rand.Rand, t *unicode.RangeTable) rune {
	n := r.IntN(len(t.R16) + len(t.R32))
	if n < len(t.R16) {
		g := t.R16[n]
		return rune(g.Lo) + rune(g.Stride)*rune(r.IntN(int((g.Hi-g.Lo)/g.Stride)+1))
	}
	g := t.R32[n-len(t.R16)]
	return rune(g.Lo) + rune(g.Stride)*rune(r.IntN(int((g.Hi-g.Lo)/g.Stride)+1))
}

// contexts show the class of the character put for * in the count: whether a
// contraction follows a word, whether a digit fills up three, and whether
// white space or punctuation goes on.
var contexts = []string{"*'s", "*123", " *\n a"}

// everyCodePoint returns the texts of each code point in each context.
func everyCodePoint() []string {
	var texts []string
	for r := rune(0); r <= unicode.MaxRune; r++ {
		if !utf8.ValidRune(r) {
			continue
		}
		for _, context := range contexts {
			texts = append(texts, strings.Replace(context, "*", string(r), 1))
		}
	}
	return texts
}
