package guard

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/text/unicode/norm"
)

// selector names one value of an input: a JSON pointer (RFC 6901), optional if
// a "?" follows, with the changes to make to it, as in "/email?|trim|lower".
type selector struct {
	pointer    string
	tokens     []string
	optional   bool
	transforms []string
}

// maxSelectors bounds what one key may be made of.
const maxSelectors = 64

func parseSelectors(texts []string) ([]selector, error) {
	if len(texts) > maxSelectors {
		return nil, badInput("select", "select names %d values; %d are the most", len(texts), maxSelectors)
	}
	selectors := make([]selector, 0, len(texts))
	for _, text := range texts {
		s, err := parseSelector(text)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(selectors, func(other selector) bool { return other.pointer == s.pointer }) {
			return nil, badInput("select", "select names %s twice; name it once", s.pointer)
		}
		selectors = append(selectors, s)
	}
	return selectors, nil
}

func parseSelector(text string) (s selector, err error) {
	parts := strings.Split(text, "|")
	s.pointer, s.optional = strings.CutSuffix(parts[0], "?")
	s.transforms = parts[1:]
	for _, t := range s.transforms {
		if !slices.Contains([]string{"trim", "lower", "nfc"}, t) {
			return s, badInput("select", "In %.80q, %q is no transform; use trim, lower or nfc", text, t)
		}
	}
	if !strings.HasPrefix(s.pointer, "/") {
		return s, badInput("select", "%.80q is no JSON pointer; write /member or /member/0", text)
	}
	for token := range strings.SplitSeq(s.pointer[1:], "/") {
		token = strings.ReplaceAll(token, "~1", "/")
		if strings.Count(token, "~") != strings.Count(token, "~0") {
			return s, badInput("select", "In %.80q, write ~ as ~0 and / as ~1", text)
		}
		s.tokens = append(s.tokens, strings.ReplaceAll(token, "~0", "~"))
	}
	return s, nil
}

// find is the value the selector points at.
func (s *selector) find(v *value) (*value, bool) {
	for _, token := range s.tokens {
		switch v.kind {
		case kindObject:
			next, ok := v.member(token)
			if !ok {
				return nil, false
			}
			v = next
		case kindArray:
			i, err := strconv.Atoi(token)
			if err != nil || i < 0 || i >= len(v.items) || strconv.Itoa(i) != token {
				return nil, false
			}
			v = &v.items[i]
		default:
			return nil, false
		}
	}
	return v, true
}

// transformed is v with the selector's changes; only strings change.
func (s *selector) transformed(v *value) *value {
	if v.kind != kindString || len(s.transforms) == 0 {
		return v
	}
	changed := *v
	changed.tidy = false
	for _, t := range s.transforms {
		switch t {
		case "trim":
			changed.text = strings.TrimSpace(changed.text)
		case "lower":
			changed.text = strings.ToLower(changed.text)
		case "nfc":
			changed.text = norm.NFC.String(changed.text)
		}
	}
	return &changed
}

// selected is the object from pointer to value that a key is made of. A value
// that is missing is an error: without it, different work would have one key.
func selected(input *value, selectors []selector) (value, error) {
	object := value{kind: kindObject}
	said := false
	for i := range selectors {
		s := &selectors[i]
		v, ok := s.find(input)
		if !ok {
			if s.optional {
				continue
			}
			return value{}, &InputError{Code: "missing_key_field", Param: s.pointer, Message: fmt.Sprintf(
				"The input has no value at %s, of which the key is made; send it, or write %s? in select if it may be missing", s.pointer, s.pointer)}
		}
		said = said || v.kind != kindNull
		object.members = append(object.members, member{s.pointer, *s.transformed(v)})
	}
	if !said {
		return value{}, &InputError{Code: "missing_key_field", Param: "select", Message: "All values that the key is made of are null or missing; select one that tells this work from other work"}
	}
	return object, nil
}
