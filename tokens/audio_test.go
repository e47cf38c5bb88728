package tokens

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"strconv"
	"strings"
	"testing"
	"time"
)

// wav returns a WAV file of 16 kHz, 16 bits and one channel, with a chunk
// before its data, which it says are of the given size.
func wav(claimed uint32, data int) []byte {
	b := []byte("RIFF\x00\x00\x00\x00WAVELIST\x03\x00\x00\x00abc\x00fmt \x10\x00\x00\x00\x01\x00\x01\x00")
	b = binary.LittleEndian.AppendUint32(b, 16_000)
	b = binary.LittleEndian.AppendUint32(b, 2*16_000)
	b = append(b, "\x02\x00\x10\x00data"...)
	b = binary.LittleEndian.AppendUint32(b, claimed)
	return append(b, make([]byte, data)...)
}

// mp3 returns frames of MPEG-1 layer III, 128 kbit/s and 44.1 kHz, behind a tag
// of 20 bytes.
func mp3(frames int) []byte {
	b := append([]byte("ID3\x04\x00\x00\x00\x00\x00\x14"), make([]byte, 20)...)
	frame := make([]byte, 417)
	copy(frame, "\xff\xfb\x90\x00")
	return append(b, bytes.Repeat(frame, frames)...)
}

func TestWAVLength(t *testing.T) {
	const second = 2 * 16_000
	for _, c := range []struct {
		name string
		file []byte
		want time.Duration
		ok   bool
	}{
		{"two seconds", wav(2*second, 2*second), 2 * time.Second, true},
		{"more claimed than there", wav(1<<32-1, second), time.Second, true},
		{"more there than claimed", wav(second, 3*second), time.Second, true},
		{"none", wav(0, 0), 0, true},
		{"no data", wav(0, 0)[:40], 0, false},
		{"no format", []byte("RIFF\x00\x00\x00\x00WAVEdata\x00\x00\x00\x00"), 0, false},
		{"not RIFF", []byte("RIFX\x00\x00\x00\x00WAVEdata\x00\x00\x00\x00"), 0, false},
		{"empty", nil, 0, false},
	} {
		if got, ok := wavLength(c.file); got != c.want || ok != c.ok {
			t.Errorf("%s: %v, %t; want %v, %t", c.name, got, ok, c.want, c.ok)
		}
	}
}

func TestMP3Length(t *testing.T) {
	const frame = 1152 * time.Second / 44_100
	lower := make([]byte, 2*(576/8*64000/22050)) // MPEG-2, 64 kbit/s, 22.05 kHz
	copy(lower, "\xff\xf3\x80\x00")
	copy(lower[len(lower)/2:], "\xff\xf3\x80\x00")
	for _, c := range []struct {
		name string
		file []byte
		want time.Duration
		ok   bool
	}{
		{"a hundred frames", mp3(100), 100 * frame, true},
		{"the last one cut", mp3(3)[:30+2*417+100], 3 * frame, true},
		{"a tag at the end", append(mp3(2), "TAGtitle"...), 2 * frame, true},
		{"lower rate", lower, 2 * (576 * time.Second / 22_050), true},
		{"only a tag", mp3(0), 0, false},
		{"a tag that claims more", []byte("ID3\x04\x00\x00\x7f\x7f\x7f\x7fabc"), 0, false},
		{"one frame that claims more", mp3(1)[:100], 0, false},
		{"no bit rate", []byte("\xff\xfb\x00\x00" + strings.Repeat("x", 500)), 0, false},
		{"text", []byte("some text that is no sound"), 0, false},
		{"empty", nil, 0, false},
	} {
		if got, ok := mp3Length(c.file); got != c.want || ok != c.ok {
			t.Errorf("%s: %v, %t; want %v, %t", c.name, got, ok, c.want, c.ok)
		}
	}
}

func TestCountAudio(t *testing.T) {
	encoded := func(b []byte) string { return strconv.Quote(base64.StdEncoding.EncodeToString(b)) }
	for _, c := range []struct {
		name, data string
		want       int
		basis      Basis
	}{
		{"seven seconds and a bit", encoded(wav(0xffffffff, 2*16_000*7+3000)), 5 + 70, Rule},
		{"MP3", encoded(mp3(100)), 5 + 26, Rule},
		{"data: URL", `"data:audio/mp3;base64,` + strings.Trim(encoded(mp3(100)), `"`) + `"`, 5 + 26, Rule},
		{"another format", encoded(make([]byte, 12_000)), 5 + 30, Estimated},
		{"no base64", `"` + strings.Repeat("%", 16_000) + `"`, 5 + 30, Estimated},
		{"empty", `""`, 5, Estimated},
	} {
		body := `{"messages":[{"role":"user","content":[{"type":"input_audio","input_audio":{"format":"wav","data":` + c.data + `}}]}]}`
		e, err := Count(Request{Endpoint: ChatCompletions, Model: "gpt-audio", Body: []byte(body)})
		if err != nil || e.Tokens != 3+4+c.want || e.Basis != c.basis {
			t.Errorf("%s: %d %s, %v; want %d %s", c.name, e.Tokens, e.Basis, err, 3+4+c.want, c.basis)
		}
	}
}
