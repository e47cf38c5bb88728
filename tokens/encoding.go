package tokens

import (
	"fmt"
	"sync"

	"github.com/pkoukk/tiktoken-go"
	loader "github.com/pkoukk/tiktoken-go-loader"
)

// The names of the encodings.
const (
	cl100k = "cl100k_base"
	o200k  = "o200k_base"
)

func known(name string) bool { return name == cl100k || name == o200k }

// An encoding counts the tokens of text. It never changes.
type encoding struct {
	bpe *tiktoken.Tiktoken
}

// count returns the tokens of text, taken as ordinary text throughout.
func (e *encoding) count(text string) int { return len(e.bpe.EncodeOrdinary(text)) }

// vocabulary returns the encoding of that name, which must be known.
func vocabulary(name string) *encoding {
	if name == cl100k {
		return vocabularyCL100K()
	}
	return vocabularyO200K()
}

var (
	vocabularyCL100K = sync.OnceValue(func() *encoding { return load(cl100k) })
	vocabularyO200K  = sync.OnceValue(func() *encoding { return load(o200k) })
	useEmbedded      = sync.OnceFunc(func() { tiktoken.SetBpeLoader(loader.NewOfflineLoader()) })
)

// load panics if the embedded vocabulary is unreadable: the program was built
// wrongly then.
func load(name string) *encoding {
	useEmbedded() // without it, tiktoken would download the vocabulary
	bpe, err := tiktoken.GetEncoding(name)
	if err != nil {
		panic(fmt.Sprintf("tokens: loading embedded vocabulary %s: %v", name, err))
	}
	return &encoding{bpe: bpe}
}
