package tokens

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"image"
	"image/gif"
	"image/jpeg"
	"image/png"
	"io"
	"math"
)

// An imageRule is how a model charges images: by tiles of 512×512 pixels or
// by patches of 32×32. The zero value is that of a model without images.
type imageRule struct {
	base, tile int // tile models: tokens per image and per tile
	percent    int // patch models: tokens per hundred patches
	budget     int // patch models: largest number of patches
}

func tiles(base, tile int) imageRule        { return imageRule{base: base, tile: tile} }
func patches(percent, budget int) imageRule { return imageRule{percent: percent, budget: budget} }

// largest is the charge of the largest image there can be.
func (r imageRule) largest() int {
	if r.percent > 0 {
		return (r.budget*r.percent + 99) / 100
	}
	return r.base + 8*r.tile // 2048×768
}

// tokens returns the charge of an image of w×h pixels, both at least 1.
func (r imageRule) tokens(w, h int) int {
	if r.percent > 0 {
		return (r.patches(w, h)*r.percent + 99) / 100
	}
	fw, fh := float64(w), float64(h)
	scale := min(1, 2048/max(fw, fh))
	scale = min(scale, 768/min(fw, fh))
	across := int(math.Ceil(math.Round(fw*scale) / 512))
	down := int(math.Ceil(math.Round(fh*scale) / 512))
	return r.base + r.tile*max(across, 1)*max(down, 1)
}

// patches returns the number of patches that cover w×h pixels, after the
// image was scaled down to fit the budget.
func (r imageRule) patches(w, h int) int {
	cover := func(w, h float64) int { return int(math.Ceil(w/32)) * int(math.Ceil(h/32)) }
	fw, fh := float64(w), float64(h)
	if n := cover(fw, fh); n <= r.budget {
		return n
	}
	s := math.Sqrt(32 * 32 * float64(r.budget) / (fw * fh))
	pw, ph := fw*s/32, fh*s/32
	s *= min(max(math.Floor(pw), 1)/pw, max(math.Floor(ph), 1)/ph)
	return min(max(cover(fw*s, fh*s), 1), r.budget)
}

// image charges an image given by url (a data: URL, or any other, whose size
// is then unknown) and detail ("low", "high", "auto" or empty).
func (t *tally) image(path string, url node, detail string) {
	rule := t.model.images
	if detail == "low" && rule.base > 0 {
		t.charge(path, "image-low", Rule, rule.base)
		return
	}
	w, h, ok := dataURLSize(url)
	if !ok || rule == (imageRule{}) {
		t.estimate(path, "image-largest", t.charges.image(rule))
		return
	}
	t.charge(path, "image", Rule, rule.tokens(w, h))
}

// dataURLSize returns the size in pixels of the image in a base64 data: URL.
func dataURLSize(url node) (w, h int, ok bool) {
	if !url.isString() {
		return 0, 0, false
	}
	s := []byte(url[1 : len(url)-1])
	if bytes.IndexByte(s, '\\') >= 0 {
		s = url.appendStr(nil)
	}
	if !bytes.HasPrefix(s, []byte("data:")) {
		return 0, 0, false
	}
	_, data, found := bytes.Cut(s, []byte(";base64,"))
	if !found {
		return 0, 0, false
	}
	decode := func(f func(io.Reader) (image.Config, error)) (int, int, bool) {
		c, err := f(base64.NewDecoder(base64.StdEncoding, bytes.NewReader(data)))
		return c.Width, c.Height, err == nil && c.Width > 0 && c.Height > 0
	}
	switch {
	case bytes.HasPrefix(data, []byte("iVBORw0KGgo")):
		return decode(png.DecodeConfig)
	case bytes.HasPrefix(data, []byte("/9j/")):
		return decode(jpeg.DecodeConfig)
	case bytes.HasPrefix(data, []byte("R0lGOD")):
		return decode(gif.DecodeConfig)
	case bytes.HasPrefix(data, []byte("UklGR")):
		return decode(webpConfig)
	}
	return 0, 0, false
}

// webpConfig reads the size from the first chunk of a WebP file.
func webpConfig(r io.Reader) (c image.Config, err error) {
	var b [30]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return c, err
	}
	u16 := func(i int) int { return int(binary.LittleEndian.Uint16(b[i:])) }
	switch string(b[8:16]) {
	case "WEBPVP8 ":
		c.Width, c.Height = u16(26)&0x3fff, u16(28)&0x3fff
	case "WEBPVP8L":
		bits := binary.LittleEndian.Uint32(b[21:])
		c.Width, c.Height = int(bits&0x3fff)+1, int(bits>>14&0x3fff)+1
	case "WEBPVP8X":
		c.Width, c.Height = u16(24)|int(b[26])<<16, u16(27)|int(b[29])<<16
		c.Width++
		c.Height++
	default:
		return c, image.ErrFormat
	}
	return c, nil
}
