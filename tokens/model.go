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

// The families of models. The priming is as billed: 3 tokens, and 2 with models
// that reason.
var (
	gpt35  = model{encoding: cl100k, priming: 3}
	gpt4   = model{encoding: cl100k, priming: 3, images: tiles(85, 170)}
	gpt4o  = model{encoding: o200k, priming: 3, images: tiles(85, 170)}
	oModel = model{encoding: o200k, priming: 2, reasoning: true, images: tiles(75, 150)}
	gpt5   = model{encoding: o200k, priming: 2, reasoning: true, harmony: true, images: tiles(70, 140)}
	legacy = model{encoding: cl100k} // completions and embeddings: plain text

	newestGPT = gpt5.seeing(patches(100, 2500))
)

func (m model) in(encoding string) model { m.encoding = encoding; return m }
func (m model) seeing(r imageRule) model { m.images = r; return m }
func (m model) known(b Basis) model      { m.basis = b; return m }

// models maps prefixes of model names to what is known of them; the longest
// prefix that ends at a name's end or before a separator wins. A prefix
// that ends in a separator stands for members of the family that are not
// known yet: they take the newest known encoding.
//
// Sources: encodings, the vendor's tiktoken (model.py); images, its guide to
// vision, but gpt-5-mini and gpt-5-nano as billed, which is less than it says.
var models = []struct {
	prefix string
	model  model
}{
	{"gpt-3.5", gpt35},
	{"gpt-35", gpt35}, // as Azure spells it
	{"gpt-3.5-turbo-instruct", legacy},
	{"gpt-35-turbo-instruct", legacy},
	{"davinci-002", legacy},
	{"babbage-002", legacy},
	{"text-embedding-3-small", legacy},
	{"text-embedding-3-large", legacy},
	{"text-embedding-ada-002", legacy},
	{"text-embedding-", legacy.known(FallbackEncoding)}, // so do others name theirs
	{"text-davinci-003", legacy.in(p50k)},
	{"text-davinci-002", legacy.in(p50k)},
	{"code-davinci", legacy.in(p50k)},
	{"code-cushman", legacy.in(p50k)},
	{"text-davinci-001", legacy.in(r50k)},
	{"text-curie", legacy.in(r50k)},
	{"text-babbage", legacy.in(r50k)},
	{"text-ada", legacy.in(r50k)},
	{"text-similarity", legacy.in(r50k)},
	{"text-search", legacy.in(r50k)},
	{"code-search", legacy.in(r50k)},
	{"davinci", legacy.in(r50k)},
	{"curie", legacy.in(r50k)},
	{"babbage", legacy.in(r50k)},
	{"ada", legacy.in(r50k)},
	{"gpt2", legacy.in(r50k)},
	{"gpt-2", legacy.in(r50k)},

	{"gpt-4", gpt4},
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

	{"gpt-5", gpt5},
	{"gpt-5-chat", gpt5.known(Rule)}, // does not reason; no bills seen
	{"gpt-5-mini", gpt5.seeing(patches(120, 1536))},
	{"gpt-5-nano", gpt5.seeing(patches(150, 1536))},
	{"gpt-5.1", gpt5},
	{"gpt-5.2", gpt5.seeing(patches(100, 1536))},
	{"gpt-5.3", gpt5.seeing(patches(100, 1536))},
	{"gpt-5.4", newestGPT},
	{"gpt-5.4-mini", gpt5.seeing(patches(162, 1536))},
	{"gpt-5.4-nano", gpt5.seeing(patches(246, 1536))},
	{"gpt-5.5", newestGPT},
	{"gpt-5.6", newestGPT},
	{"gpt-5.", newestGPT.known(FallbackEncoding)},
	{"gpt-oss", gpt5.in(harmony).known(Rule)}, // each server frames messages in its own way
	{"gpt-", newestGPT.known(FallbackEncoding)},
	{"chatgpt-", newestGPT.known(FallbackEncoding)},
}

// maxName is the longest name in bytes that is looked at.
const maxName = 256

// modelOf returns what is known of the model called name, in any case. The
// name may carry those of providers (azure/gpt-4o, openrouter/openai/gpt-4o,
// openai.gpt-oss-120b) and be that of a fine-tuned model (ft:gpt-4o:org::id).
//
// The basis is FallbackEncoding where the encoding is not known for sure: with
// other vendors' models, which are counted as gpt-4o; with models newer than
// this table, which are counted as the newest of their family; and with names
// of deployments that only contain a model's (prod-gpt-4o), for whoever named
// them was free to. So Estimated is left to models whose encoding is known, but
// which are billed otherwise than their family.
func modelOf(name string) model {
	if len(name) > maxName {
		return gpt4o.known(FallbackEncoding)
	}
	name = strings.ToLower(strings.TrimSpace(name))
	name = name[strings.LastIndexByte(name, '/')+1:]
	for _, p := range []string{"openai.", "ft:"} {
		name = strings.TrimPrefix(name, p)
	}
	if m, ok := lookUp(name); ok {
		return m
	}
	if isOSeries(name) {
		return oModel.known(FallbackEncoding)
	}
	if m, ok := deployed(name); ok {
		return m.known(FallbackEncoding)
	}
	return gpt4o.known(FallbackEncoding)
}

// lookUp returns the model with the longest prefix of name in models.
func lookUp(name string) (found model, ok bool) {
	length := 0
	for _, m := range models {
		if len(m.prefix) > length && hasPrefix(name, m.prefix) {
			found, length = m.model, len(m.prefix)
		}
	}
	return found, length > 0
}

// hasPrefix reports whether name starts with prefix and prefix ends where a
// word ends, so that gpt-4 is no prefix of gpt-4o or gpt-4.1.
func hasPrefix(name, prefix string) bool {
	rest, ok := strings.CutPrefix(name, prefix)
	if !ok {
		return false
	}
	last := prefix[len(prefix)-1]
	return rest == "" || last == '.' || last == '-' || strings.IndexByte("-:@_", rest[0]) >= 0
}

// isOSeries reports whether name is o, a digit and maybe more words, as those
// of the vendor's first reasoning models.
func isOSeries(name string) bool {
	return len(name) >= 2 && name[0] == 'o' && '1' <= name[1] && name[1] <= '9' && hasPrefix(name, name[:2])
}

// deployed returns the model whose name a deployment's name contains, with or
// without the hyphen after gpt: prod-gpt-4o-mini, gpt4o, team_gpt-5.
func deployed(name string) (model, bool) {
	for from := 0; ; {
		i := strings.Index(name[from:], "gpt")
		if i < 0 {
			return model{}, false
		}
		from += i + len("gpt")
		if m, ok := lookUp("gpt-" + strings.TrimLeft(name[from:], "-_ ")); ok {
			return m, true
		}
	}
}
