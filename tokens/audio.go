package tokens

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"time"
)

// How sound is charged: a token for each 100 ms that are full, and a few for
// the part's frame. Source: the vendor's price page ("1 token per 100 ms of
// user audio"); two bills of 6.961 s and 3.7 s give 69 and 37 tokens of audio,
// and 4 to 5 beside them.
const (
	audioFrame = 5
	audioToken = 100 * time.Millisecond
)

// lowestRate is the lowest usual bit rate of speech, in bytes a second.
const lowestRate = 32_000 / 8

// audio charges an audio part (data in base64, format). How long it is, WAV
// and MP3 files tell. Other data are taken for speech of the lowest usual bit
// rate, which overestimates them.
func (t *tally) audio(path string, audio node) {
	encoded := audio.get("data")
	if !encoded.isString() {
		t.estimate(path, "audio-unknown", t.charges.Audio)
		return
	}
	data := decodeBase64(encoded.appendStr(nil))
	if length, ok := wavLength(data); ok {
		t.charge(path, "audio", Rule, audioFrame+int(length/audioToken))
		return
	}
	if length, ok := mp3Length(data); ok {
		t.charge(path, "audio", Rule, audioFrame+int(length/audioToken))
		return
	}
	size := max(len(data), base64.StdEncoding.DecodedLen(len(encoded)-2))
	t.estimate(path, "audio-longest", audioFrame+size*int(time.Second/audioToken)/lowestRate)
}

// decodeBase64 decodes in place what it can of b, which may stand in a data:
// URL.
func decodeBase64(b []byte) []byte {
	if _, data, found := bytes.Cut(b, []byte(";base64,")); found && bytes.HasPrefix(b, []byte("data:")) {
		b = data
	}
	n, _ := base64.StdEncoding.Decode(b, b) // what follows an error is no sound
	return b[:n]
}

// wavLength returns how long a RIFF WAVE file plays. It believes no chunk that
// claims to be longer than the file.
func wavLength(b []byte) (length time.Duration, ok bool) {
	if len(b) < 12 || string(b[:4]) != "RIFF" || string(b[8:12]) != "WAVE" {
		return 0, false
	}
	rate := 0 // bytes a second
	for b = b[12:]; len(b) >= 8; {
		kind, size := string(b[:4]), int(binary.LittleEndian.Uint32(b[4:]))
		b = b[8:]
		chunk := b[:min(size, len(b))]
		switch {
		case kind == "fmt " && len(chunk) >= 12:
			rate = int(binary.LittleEndian.Uint32(chunk[8:]))
		case kind == "data" && rate > 0:
			return time.Duration(float64(len(chunk)) / float64(rate) * float64(time.Second)), true
		}
		b = b[min(size+size&1, len(b)):] // chunks start at even places
	}
	return 0, false
}

// mp3Length returns how long an MPEG layer III stream plays: the sum of its
// frames, of which each states its own bit rate. Tags around them are skipped.
func mp3Length(b []byte) (length time.Duration, ok bool) {
	b = b[id3Size(b):]
	frames := 0
	for len(b) >= 4 {
		f, ok := readMP3Header(b)
		if !ok || f.size > len(b) && frames == 0 {
			break
		}
		frames++
		length += f.length
		b = b[min(f.size, len(b)):]
	}
	return length, frames > 0
}

// id3Size returns the size of the ID3v2 tag at the start of b, or 0.
func id3Size(b []byte) int {
	if len(b) < 10 || string(b[:3]) != "ID3" {
		return 0
	}
	size := 10
	for i, shift := range []int{21, 14, 7, 0} {
		size += int(b[6+i]&0x7f) << shift
	}
	return min(size, len(b))
}

// An mp3Frame is what a frame's header says.
type mp3Frame struct {
	size   int // in bytes, its header included
	length time.Duration
}

// readMP3Header reads the four bytes of a frame's header (ISO/IEC 11172-3,
// 2.4.1.3, and 13818-3 for the lower sampling rates).
func readMP3Header(b []byte) (f mp3Frame, ok bool) {
	const layer3 = 1
	kbits := [...]int{0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 0}
	samples := 1152
	version, layer := b[1]>>3&3, b[1]>>1&3
	if b[0] != 0xff || b[1]&0xe0 != 0xe0 || version == 1 || layer != layer3 {
		return f, false
	}
	hertz := [...]int{44100, 48000, 32000, 0}[b[2]>>2&3]
	switch version {
	case 2: // MPEG-2
		hertz /= 2
	case 0: // MPEG-2.5
		hertz /= 4
	}
	if version != 3 {
		kbits = [...]int{0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160, 0}
		samples = 576
	}
	kbit := kbits[b[2]>>4]
	if kbit == 0 || hertz == 0 {
		return f, false
	}
	f.size = samples/8*kbit*1000/hertz + int(b[2]>>1&1)
	f.length = time.Duration(samples) * time.Second / time.Duration(hertz)
	return f, true
}
