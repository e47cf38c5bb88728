package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"unicode/utf8"
)

// An export keeps every byte of an answer, and shows JSON as JSON where it can:
// what is changed in it can then be seen, and made, in a line of text.

// bodyJSON is a JSON answer. A body of one line stands as it came. A body of many
// lines stands on one, with the indentation and the end that make it the same
// again. What is no JSON object, or is spelled in another way, is a string, and
// base64 where it is no UTF-8.
type bodyJSON struct {
	Indent string          `json:"body_indent,omitempty"`
	End    string          `json:"body_end,omitempty"`
	Body   json.RawMessage `json:"body,omitempty"`
	Base64 []byte          `json:"body_base64,omitempty"`
}

// fill takes in a body, but for the member body itself, which it returns with a
// comma before it.
func (b *bodyJSON) fill(raw []byte) (member []byte) {
	const name = `,"body":`
	if oneLineObject(raw) {
		return append([]byte(name), raw...)
	}
	if !utf8.Valid(raw) {
		b.Base64 = raw
		return nil
	}
	if compact, indent, end, ok := unindent(raw); ok {
		b.Indent, b.End = indent, end
		return append([]byte(name), compact...)
	}
	return appendString([]byte(name), raw)
}

// raw is the body as it came.
func (b *bodyJSON) raw() ([]byte, error) {
	switch {
	case b.Body == nil:
		return b.Base64, nil
	case b.Base64 != nil:
		return nil, errors.New("body: stands beside body_base64; keep one of them")
	case b.Indent != "" || b.End != "":
		return indented(b.Body, b.Indent, b.End)
	case b.Body[0] == '"':
		var text string
		err := json.Unmarshal(b.Body, &text)
		return []byte(text), err
	case b.Body[0] != '{':
		return nil, errors.New("body: is no JSON object; write any other answer as a string")
	}
	return b.Body, nil
}

// oneLineObject tells whether raw is a JSON object that may stand in a line as it
// is, and be read again byte for byte.
func oneLineObject(raw []byte) bool {
	return len(raw) > 1 && raw[0] == '{' && raw[len(raw)-1] == '}' && !bytes.ContainsAny(raw, "\r\n") && utf8.Valid(raw) && json.Valid(raw)
}

// unindent writes a JSON object of many lines on one, if indented makes the same
// of it again.
func unindent(raw []byte) (compact []byte, indent, end string, ok bool) {
	object := bytes.TrimRight(raw, " \t\r\n")
	end = string(raw[len(object):])
	if len(object) < 2 || object[0] != '{' || !json.Valid(object) {
		return nil, "", "", false
	}
	if first, found := bytes.CutPrefix(object, []byte("{\n")); found {
		indent = string(first[:len(first)-len(bytes.TrimLeft(first, " \t"))])
	}
	var b bytes.Buffer
	if indent == "" { // as it is, but for what follows it
		b.Write(object)
	} else if err := json.Compact(&b, object); err != nil {
		return nil, "", "", false
	}
	again, err := indented(b.Bytes(), indent, end)
	return b.Bytes(), indent, end, err == nil && oneLineObject(b.Bytes()) && bytes.Equal(again, raw)
}

func indented(object []byte, indent, end string) ([]byte, error) {
	if strings.Trim(indent+end, " \t\r\n") != "" {
		return nil, errors.New("body_indent or body_end is more than white space; leave the rest out")
	}
	if indent == "" {
		return append(bytes.Clone(object), end...), nil
	}
	var b bytes.Buffer
	err := json.Indent(&b, object, "", indent)
	b.WriteString(end)
	return b.Bytes(), err
}

// eventJSON is an event of a stream that carries a JSON object in one line, with a
// name or without. Any other event is a string, or base64 where it is no UTF-8.
type eventJSON struct {
	Event  string          `json:"event,omitempty"`
	Data   json.RawMessage `json:"data,omitempty"`
	Base64 []byte          `json:"base64,omitempty"`
}

func (e eventJSON) appendTo(dst []byte) []byte {
	if e.Event != "" {
		dst = append(append(append(dst, "event: "...), e.Event...), '\n')
	}
	return append(append(append(dst, "data: "...), e.Data...), "\n\n"...)
}

func appendEvent(dst, raw []byte) []byte {
	var e eventJSON
	rest := raw
	if named, ok := bytes.CutPrefix(rest, []byte("event: ")); ok {
		var name []byte
		name, rest, _ = bytes.Cut(named, []byte("\n"))
		e.Event = string(name)
	}
	data, hasData := bytes.CutPrefix(rest, []byte("data: "))
	data, ended := bytes.CutSuffix(data, []byte("\n\n"))
	if hasData && ended && oneLineObject(data) {
		e.Data = data
	}
	switch {
	case e.Data != nil && utf8.ValidString(e.Event) && bytes.Equal(e.appendTo(nil), raw):
		if e.Event != "" {
			dst = append(appendString(append(dst, `{"event":`...), []byte(e.Event)), ',')
		} else {
			dst = append(dst, '{')
		}
		return append(append(append(dst, `"data":`...), e.Data...), '}')
	case utf8.Valid(raw):
		return appendString(dst, raw)
	}
	encoded, err := json.Marshal(eventJSON{Base64: raw})
	if err != nil { // bytes have a form
		panic(err)
	}
	return append(dst, encoded...)
}

// parseEvent reads an event. An error follows its place.
func parseEvent(text json.RawMessage) (raw []byte, err error) {
	var e eventJSON
	switch {
	case text[0] == '"':
		var s string
		if err := json.Unmarshal(text, &s); err != nil {
			return nil, err
		}
		raw = []byte(s)
	case text[0] == '{':
		decoder := json.NewDecoder(bytes.NewReader(text))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&e); err != nil {
			return nil, errors.New("is no event; it has data and may have event, or base64")
		}
		switch {
		case (e.Data == nil) == (e.Base64 == nil) || e.Base64 != nil && e.Event != "":
			return nil, errors.New("is no event; it has data and may have event, or base64")
		case e.Base64 != nil:
			raw = e.Base64
		case !oneLineObject(e.Data) || strings.ContainsAny(e.Event, "\r\n"):
			return nil, errors.New("has data that is no JSON object on one line; write the whole event as a string")
		default:
			raw = e.appendTo(nil)
		}
	default:
		return nil, errors.New("is neither a string nor an object")
	}
	for _, end := range []string{"\n\n", "\r\r", "\n\r", "\n\r\n"} {
		if bytes.HasSuffix(raw, []byte(end)) {
			return raw, nil
		}
	}
	return nil, errors.New(`does not end in a blank line, so clients would join it with the next; write \n\n at its end`)
}

// appendString appends text as a JSON string.
func appendString(dst, text []byte) []byte {
	quoted, err := plainJSON(string(text))
	if err != nil { // strings have a form
		panic(err)
	}
	return append(dst, quoted...)
}
