package sim

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
)

const (
	defaultDimensions = 1536
	maxDimensions     = 8192
	maxInputs         = 2048
)

// embedding answers /v1/embeddings. A vector has length 1 and depends on the
// model, the seed, the input and the number of dimensions alone; near meanings
// do not make near vectors.
func (m *Model) embedding(b *body) (*answer, error) {
	o, err := b.options()
	if err != nil {
		return nil, err
	}
	format, dimensions := "float", defaultDimensions
	if err := b.get("encoding_format", &format); err != nil {
		return nil, err
	}
	if format != "float" && format != "base64" {
		return nil, badRequest("encoding_format", "encoding_format is neither float nor base64")
	}
	if err := b.get("dimensions", &dimensions); err != nil {
		return nil, err
	}
	if dimensions < 1 || dimensions > maxDimensions {
		return nil, badRequest("dimensions", "dimensions is not a number from 1 to %d", maxDimensions)
	}
	inputs, err := m.inputs(b, "input")
	if err != nil {
		return nil, err
	}
	if len(inputs) > maxInputs {
		return nil, badRequest("input", "input has more than %d texts", maxInputs)
	}
	p, _, err := parsePlan(inputs[len(inputs)-1].text)
	if err != nil {
		return nil, err
	}
	if err := p.refuse("embeddings", "chunk_delay", "words", "say", "chunks", "tool", "finish", "cached", "reasoning"); err != nil {
		return nil, err
	}
	tokens := 0
	data := make([]object, len(inputs))
	for i, in := range inputs {
		tokens += in.tokens
		v := vector(fmt.Sprintf("%s\n%s\n%s", o.model, p.seed, in.raw), dimensions)
		data[i] = object{"object": "embedding", "index": i, "embedding": v}
		if format == "base64" {
			data[i]["embedding"] = littleEndian(v)
		}
	}
	result := object{"object": "list", "data": data, "model": o.model}
	if !p.noUsage {
		result["usage"] = object{"prompt_tokens": tokens, "total_tokens": tokens}
	}
	return &answer{plan: p, object: result}, nil
}

// vector returns a direction in n dimensions that depends on text alone.
func vector(text string, n int) []float32 {
	rng := rand.New(rand.NewChaCha8(sha256.Sum256([]byte(text))))
	v, sum := make([]float32, n), 0.0
	for i := range v {
		x := rng.NormFloat64()
		v[i] = float32(x)
		sum += x * x
	}
	for i := range v {
		v[i] /= float32(math.Sqrt(sum))
	}
	return v
}

// littleEndian is v as base64 of its little-endian 32-bit floats.
func littleEndian(v []float32) string {
	data := make([]byte, 0, 4*len(v))
	for _, x := range v {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(x))
	}
	return base64.StdEncoding.EncodeToString(data)
}
