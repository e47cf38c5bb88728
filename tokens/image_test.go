package tokens

import (
	"bytes"
	"encoding/base64"
	"image"
	"image/gif"
	"image/jpeg"
	"image/png"
	"strconv"
	"testing"
)

func TestImageTokens(t *testing.T) {
	for _, c := range []struct {
		model      string
		w, h, want int
	}{
		// The vendor's own examples.
		{"gpt-4o", 1024, 1024, 765},
		{"gpt-4o", 2048, 4096, 1105},
		{"gpt-4.1-mini", 1024, 1024, 1659}, // 1024 patches × 1.62
		{"gpt-4.1-mini", 1800, 2400, 2353}, // 1452 patches × 1.62
		// Small images are not scaled up.
		{"gpt-4o", 800, 400, 85 + 2*170},
		{"gpt-4o", 1, 1, 85 + 170},
		{"gpt-4o", 100000, 1, 85 + 4*170},
		{"gpt-4o-mini", 512, 512, 2833 + 5667},
		{"gpt-5-nano", 128, 128, 24},
		{"gpt-5.2", 1, 100000, 1536},
	} {
		if got := modelOf(c.model).images.tokens(c.w, c.h); got != c.want {
			t.Errorf("%s, %d×%d: %d tokens, want %d", c.model, c.w, c.h, got, c.want)
		}
	}
}

func TestNoImageAboveLargest(t *testing.T) {
	for _, m := range models {
		r := m.model.images
		for _, w := range []int{1, 31, 511, 513, 768, 1025, 2049, 4000, 65535} {
			for _, h := range []int{1, 33, 512, 767, 2000, 5000, 65535} {
				if got := r.tokens(w, h); got > r.largest() {
					t.Errorf("%s, %d×%d: %d tokens, largest is %d", m.prefix, w, h, got, r.largest())
				}
			}
		}
	}
}

func TestDataURLSize(t *testing.T) {
	img := image.NewGray(image.Rect(0, 0, 300, 200))
	encoded := map[string]*bytes.Buffer{"png": {}, "jpeg": {}, "gif": {}}
	for kind, err := range map[string]error{
		"png":  png.Encode(encoded["png"], img),
		"jpeg": jpeg.Encode(encoded["jpeg"], img, nil),
		"gif":  gif.Encode(encoded["gif"], img, nil),
	} {
		if err != nil {
			t.Fatal(kind, err)
		}
	}
	const riff = "RIFF\x00\x00\x00\x00WEBP"
	encoded["webp lossy"] = bytes.NewBufferString(riff + "VP8 \x00\x00\x00\x00\x00\x00\x00\x9d\x01\x2a\x2c\x01\xc8\x00")
	encoded["webp lossless"] = bytes.NewBufferString(riff + "VP8L\x00\x00\x00\x00\x2f\x2b\xc1\x31\x00\x00\x00\x00\x00\x00")
	encoded["webp extended"] = bytes.NewBufferString(riff + "VP8X\x00\x00\x00\x00\x00\x00\x00\x00\x2b\x01\x00\xc7\x00\x00")
	for kind, b := range encoded {
		url := "data:image/x;base64," + base64.StdEncoding.EncodeToString(b.Bytes())
		if w, h, ok := dataURLSize(node(strconv.Quote(url))); w != 300 || h != 200 || !ok {
			t.Errorf("%s: %d×%d, %t; want 300×200", kind, w, h, ok)
		}
	}
	for _, url := range []string{"", "https://x/y.png", "data:image/png;base64,iVBORw0KGgo=", "data:image/png,abc"} {
		if w, h, ok := dataURLSize(node(strconv.Quote(url))); ok {
			t.Errorf("%q: %d×%d, want none", url, w, h)
		}
	}
}
