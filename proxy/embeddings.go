package proxy

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"
)

// embeddings is one answer of the embeddings endpoint, which never streams.
type embeddings struct {
	base64 bool // they were asked for in base64
	raw    []byte
	fault  string
}

func (e *embeddings) parse(body []byte) error {
	e.raw = bytes.TrimSpace(body)
	if err := checkAnswer(e.raw, "data"); err != nil {
		e.fault = faultOf(err)
		return err
	}
	if e.base64 {
		return e.encode()
	}
	return nil
}

// encode turns vectors of numbers into base64 where the upstream took no notice
// of the wish: clients that asked read no numbers, and would find nothing.
func (e *embeddings) encode() error {
	list, changed := []byte{'['}, false
	for item := range jsonItems(jsonGet(e.raw, "data")) {
		if vector := jsonGet(item, "embedding"); jsonKind(vector) == '[' {
			packed, err := packVector(vector)
			if err != nil {
				e.fault = "vectors are not numbers"
				return err
			}
			item, changed = withMember(item, "embedding", packed), true
		}
		list = append(append(list, item...), ',')
	}
	if changed {
		e.raw = withMember(e.raw, "data", append(bytes.TrimSuffix(list, []byte{','}), ']'))
	}
	return nil
}

// packVector returns a list of numbers as a JSON string: base64 of 32-bit
// floating-point numbers, little-endian.
func packVector(vector []byte) ([]byte, error) {
	var packed []byte
	for number := range jsonItems(vector) {
		f, err := strconv.ParseFloat(string(number), 32)
		if err != nil {
			return nil, fmt.Errorf("an embedding holds %.20s", number)
		}
		packed = binary.LittleEndian.AppendUint32(packed, math.Float32bits(float32(f)))
	}
	return append(base64.StdEncoding.AppendEncode([]byte{'"'}, packed), '"'), nil
}

func (e *embeddings) event([]byte) (last bool, err error) {
	e.fault = "a stream"
	return false, errors.New("embeddings do not stream")
}

func (e *embeddings) closing() []byte { return nil }

func (e *embeddings) judge(storeRules) (reason string) {
	if e.fault != "" {
		return e.fault
	}
	some := false
	for item := range jsonItems(jsonGet(e.raw, "data")) {
		if jsonEmpty(jsonGet(item, "embedding")) {
			return "empty"
		}
		some = true
	}
	if !some {
		return "empty"
	}
	return ""
}

func (e *embeddings) finish() string { return "" }

// usage has no output tokens, whether the upstream says so or not.
func (e *embeddings) usage() (u usage, odd, ok bool) {
	u.Input, ok = tokenCount(jsonGet(e.raw, "usage", "prompt_tokens"), &odd)
	return u, odd, ok
}

func (e *embeddings) text() string { return "" }

func (e *embeddings) body() ([]byte, error) { return e.raw, nil }

func (e *embeddings) unroll(bool) ([][]byte, error) {
	return nil, errors.New("embeddings do not stream")
}
