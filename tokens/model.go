package tokens

import "strings"

// A model is what counting needs to know of a model.
type model struct {
	encoding  string
	priming   int  // tokens that prime the reply
	reasoning bool // o1 and later: tools stand in a message of their own
	harmony   bool // gpt-5 and later: messages name their channel
	images    imageRule
	basis     Basis // the best basis any count for this model can have
}

// The families of models.
var (
	gpt35  = model{encoding: cl100k, priming: 3, images: tiles(85, 170)}
	gpt4o  = model{encoding: o200k, priming: 3, images: tiles(85, 170)}
	oModel = model{encoding: o200k, priming: 2, reasoning: true, images: tiles(75, 150)}
	gpt5   = model{encoding: o200k, priming: 2, reasoning: true, harmony: true, images: tiles(70, 140)}
	legacy = model{encoding: cl100k} // completions and embeddings
)

func (m model) seeing(r imageRule) model { m.images = r; return m }
func (m model) known(b Basis) model      { m.basis = b; return m }

// models maps prefixes of model names to what is known of them; the longest
// prefix that ends at a name's end or before a separator wins. A prefix
// that ends in a separator stands for members of the family that are not
// known yet: they take the newest known encoding.
var models = []struct {
	prefix string
	model  model
}{
	{"gpt-3.5", gpt35},
	{"gpt-35", gpt35}, // as Azure spells it
	{"gpt-3.5-turbo-instruct", legacy},
	{"gpt-35-turbo-instruct", legacy},
	{"davinci", legacy},
	{"babbage", legacy},
	{"text-embedding-3-small", legacy},
	{"text-embedding-3-large", legacy},
	{"text-embedding-ada-002", legacy},

	{"gpt-4", gpt35},
	{"gpt-4.", gpt4o.known(FallbackEncoding)},
	{"gpt-4o", gpt4o},
	{"chatgpt-4o", gpt4o},
	{"gpt-4o-mini", gpt4o.seeing(tiles(2833, 5667))},
	{"gpt-4o-search-preview", gpt4o.known(Estimated)}, // counts a few tokens fewer
	{"gpt-4o-mini-search-preview", gpt4o.known(Estimated)},
	{"gpt-4.1", gpt4o},
	{"gpt-4.1-mini", gpt4o.seeing(patches(162, 1536))},
	{"gpt-4.1-nano", gpt4o.seeing(patches(246, 1536))},
	{"gpt-4.5", gpt4o},
	{"gpt-audio", gpt4o.known(Rule)},
	{"gpt-realtime", gpt4o.known(Rule)},
	{"gpt-image", gpt4o.known(Rule)},
	{"computer-use-preview", gpt4o.seeing(tiles(65, 129)).known(Rule)},

	{"o1", oModel},
	{"o1-mini", oModel.known(Estimated)}, // billed figures do not follow the rule
	{"o3", oModel},
	{"o4-mini", oModel.seeing(patches(172, 1536))},
	{"codex-mini", oModel.seeing(patches(172, 1536)).known(Rule)},
	{"o-", oModel.known(FallbackEncoding)},

	{"gpt-5", gpt5},
	{"gpt-5-mini", gpt5.seeing(patches(120, 1536))},
	{"gpt-5-nano", gpt5.seeing(patches(150, 1536))},
	{"gpt-5.1", gpt5},
	{"gpt-5.2", gpt5.seeing(patches(100, 1536))},
	{"gpt-5.3", gpt5.seeing(patches(100, 1536))},
	{"gpt-5.4", gpt5.seeing(patches(100, 2500))},
	{"gpt-5.4-mini", gpt5.seeing(patches(162, 1536))},
	{"gpt-5.4-nano", gpt5.seeing(patches(246, 1536))},
	{"gpt-5.5", gpt5.seeing(patches(100, 2500))},
	{"gpt-5.6", gpt5.seeing(patches(100, 2500))},
	{"gpt-5.", gpt5.seeing(patches(100, 2500)).known(FallbackEncoding)},
	{"gpt-oss", gpt5.known(Rule)},
	{"gpt-", gpt5.seeing(patches(100, 2500)).known(FallbackEncoding)},
}

// modelOf returns what is known of the model called name, which may be that
// of a fine-tuned model (ft:gpt-4o:org::id) or carry the name of a provider
// (azure/gpt-4o, openai/gpt-4o). An unknown one is taken for a relative of
// gpt-4o, with basis FallbackEncoding.
func modelOf(name string) model {
	name = strings.ToLower(name)
	for _, p := range []string{"azure/", "openai/", "ft:"} {
		name = strings.TrimPrefix(name, p)
	}
	found, length := gpt4o.known(FallbackEncoding), 0
	for _, m := range models {
		if len(m.prefix) > length && hasPrefix(name, m.prefix) {
			found, length = m.model, len(m.prefix)
		}
	}
	return found
}

// hasPrefix reports whether name starts with prefix and prefix ends where a
// word ends, so that gpt-4 is no prefix of gpt-4o or gpt-4.1.
func hasPrefix(name, prefix string) bool {
	rest, ok := strings.CutPrefix(name, prefix)
	if !ok {
		return false
	}
	last := prefix[len(prefix)-1]
	return rest == "" || last == '.' || last == '-' || strings.IndexByte("-:@", rest[0]) >= 0
}
