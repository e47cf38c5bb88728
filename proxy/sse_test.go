package proxy

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

func TestEventReader(t *testing.T) {
	for _, test := range []struct {
		name, stream string
		want         []string
	}{
		{"LF", "data: a\n\ndata: b\n\n", []string{"data: a\n\n", "data: b\n\n"}},
		{"CRLF", "data: a\r\n\r\ndata: b\r\n\r\n", []string{"data: a\r\n\r\n", "data: b\r\n\r\n"}},
		{"CR", "data: a\r\rdata: b\r\r", []string{"data: a\r\r", "data: b\r\r"}},
		{"line ends mixed", "event: x\r\ndata: a\n\r\ndata: b\r\ndata: c\r\n\ndata: d\r\n\n", []string{"event: x\r\ndata: a\n\r\n", "data: b\r\ndata: c\r\n\n", "data: d\r\n\n"}},
		{"LF after a blank CR line", "data: a\r\r\ndata: b\n\n", []string{"data: a\r\r", "\ndata: b\n\n"}},
		{"several lines", "event: e\ndata: a\ndata: b\n\n", []string{"event: e\ndata: a\ndata: b\n\n"}},
		{"comments", ": ping\n\n:\n\ndata: a\n\n", []string{": ping\n\n", ":\n\n", "data: a\n\n"}},
		{"blank lines between", "\n\ndata: a\n\n\n\r\ndata: b\n\n\n\n", []string{"\n\ndata: a\n\n", "\n\r\ndata: b\n\n"}},
		{"no line end", "data: a", []string{"data: a\n\n"}},
		{"no blank line", "data: a\n\ndata: b\n", []string{"data: a\n\n", "data: b\n\n"}},
		{"no blank line, CRLF", "data: a\r\n", []string{"data: a\r\n\n"}},
		{"half a line end", "data: a\r", []string{"data: a\r\n\n"}},
		{"half a blank line", "data: a\r\n\r", []string{"data: a\r\n\r\n"}},
		{"nothing", "", nil},
		{"only blank lines", "\n\r\n\r", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			var got []string
			for _, raw := range readEvents(t, strings.NewReader(test.stream)) {
				got = append(got, string(raw))
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// An event is returned as soon as its blank line is there: a reader that asks for
// more before would hold back the answer.
func TestEventReaderDoesNotWait(t *testing.T) {
	for _, event := range []string{"data: a\n\n", "data: a\r\n\r\n", "data: a\r\r", "data: a\r\ndata: b\n\n"} {
		r := newEventReader(io.MultiReader(strings.NewReader(event), iotest.ErrReader(errors.New("read on"))), 100)
		if raw, err := r.next(); err != nil || string(raw) != event {
			t.Errorf("%q: got %q, %v", event, raw, err)
		}
		if raw, err := r.next(); err == nil || err.Error() != "read on" {
			t.Errorf("%q: then got %q, %v", event, raw, err)
		}
	}
}

// What a broken connection left unfinished is no event.
func TestEventReaderBrokenStream(t *testing.T) {
	stream := io.MultiReader(strings.NewReader("data: a\n\ndata: b\n"), iotest.ErrReader(io.ErrUnexpectedEOF))
	r := newEventReader(stream, 100)
	if raw, err := r.next(); err != nil || string(raw) != "data: a\n\n" {
		t.Fatalf("got %q, %v", raw, err)
	}
	for range 2 {
		if raw, err := r.next(); err != io.ErrUnexpectedEOF {
			t.Errorf("got %q, %v", raw, err)
		}
	}
	if _, err := newEventReader(idle{}, 100).next(); err != io.ErrNoProgress {
		t.Errorf("reading nothing: %v", err)
	}
}

type idle struct{}

func (idle) Read([]byte) (int, error) { return 0, nil }

func TestEventTooLarge(t *testing.T) {
	fits := "data: " + strings.Repeat("x", 10000) + "\n\n"
	for name, wrap := range map[string]func(io.Reader) io.Reader{
		"whole": func(r io.Reader) io.Reader { return r }, "bytes": iotest.OneByteReader,
	} {
		r := newEventReader(wrap(strings.NewReader(fits+"data: x"+fits[6:]+"data: b\n\n")), len(fits))
		if raw, err := r.next(); err != nil || string(raw) != fits {
			t.Fatalf("%s: got %d bytes, %v", name, len(raw), err)
		}
		for range 2 {
			if raw, err := r.next(); err != errEventTooLarge {
				t.Errorf("%s: got %d bytes, %v", name, len(raw), err)
			}
		}
		endless := newEventReader(wrap(io.LimitReader(neverEnding('\n'), 1<<16)), 100)
		if _, err := endless.next(); err != errEventTooLarge {
			t.Errorf("%s: blank lines: %v", name, err)
		}
	}
}

type neverEnding byte

func (b neverEnding) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(b)
	}
	return len(p), nil
}

func TestEventsAreFresh(t *testing.T) {
	r := newEventReader(strings.NewReader("data: a\n\ndata: b\n\ndata: c"), 100)
	var events [][]byte
	for {
		raw, err := r.next()
		if err != nil {
			break
		}
		events = append(events, raw)
	}
	for i := range events {
		_ = append(events[i], "XXXXXXXXX"...)
		events[i][0] = '!'
	}
	if got := string(bytes.Join(events, nil)); got != "!ata: a\n\n!ata: b\n\n!ata: c\n\n" {
		t.Errorf("events share memory: %q", got)
	}
}

func TestEventData(t *testing.T) {
	for _, test := range []struct {
		raw, data string
		ok        bool
	}{
		{"data: a\n\n", "a", true},
		{"data:a\n\n", "a", true},
		{"data:  a \r\n\r\n", " a ", true},
		{"data: a\r\r", "a", true},
		{"event: e\nid: 1\ndata: a\nretry: 5\n\n", "a", true},
		{"data: {\ndata:  \"a\":1\ndata\ndata:}\n\n", "{\n \"a\":1\n\n}", true},
		{"data: a:b\n\n", "a:b", true},
		{"\xef\xbb\xbfdata: a\n\n", "a", true},
		{"\r\n\ndata: a\n\n", "a", true},
		{"data: a", "a", true},
		{": data: a\n\n", "", false},
		{"Data: a\n\n", "", false},
		{"database: a\n\n", "", false},
		{" data: a\n\n", "", false},
		{"data\n\n", "", false},
		{"data: \n\n", "", false},
		{"event: e\n\n", "", false},
		{"\n\n", "", false},
		{"", "", false},
	} {
		raw := []byte(test.raw)
		data, ok := eventData(raw)
		if ok != test.ok || ok && string(data) != test.data {
			t.Errorf("%q: got %q, %v", test.raw, data, ok)
		}
		if string(raw) != test.raw {
			t.Errorf("%q was written to: %q", test.raw, raw)
		}
	}
	usual := []byte("event: message\ndata: {\"a\":1}\n\n")
	if n := testing.AllocsPerRun(100, func() { eventData(usual) }); n != 0 {
		t.Errorf("%v allocations for a single line", n)
	}
	for data, want := range map[string]bool{"[DONE]": true, " [DONE] ": true, "[done]": false, `"[DONE]"`: false, "": false} {
		if isDone([]byte(data)) != want {
			t.Errorf("isDone(%q) is %v", data, !want)
		}
	}
}

// referenceData reads a stream the way the standard words it: lines first, then
// events. It has the data of each event that a client would dispatch.
func referenceData(stream string) (all []string) {
	var data []string
	for _, line := range regexp.MustCompile("\r\n|\n|\r").Split(stream, -1) {
		if line == "" {
			if joined := strings.Join(data, "\n"); strings.TrimSpace(joined) != "" {
				all = append(all, joined)
			}
			data = nil
		} else if line == "data" {
			data = append(data, "")
		} else if value, ok := strings.CutPrefix(line, "data:"); ok {
			data = append(data, strings.TrimPrefix(value, " "))
		}
	}
	return all
}

// randomReader returns as many bytes at a time as it likes.
type randomReader struct {
	src io.Reader
	rnd *rand.Rand
}

func (r randomReader) Read(p []byte) (int, error) {
	return r.src.Read(p[:min(len(p), 1+r.rnd.IntN(20))])
}

func FuzzEventReader(f *testing.F) {
	for _, seed := range []string{
		"data: a\n\ndata: b\n\n", "data: a\r\n\r\n: c\r\n\r\ndata: b\r\n\r\n", "data: a\r\rdata: b\r\r\n", "\r\n\r\rdata: a\n\rdata\ndata: b\r\n\r",
		"event: e\ndata: {\ndata: }\n\nx\n\ndata: [DONE]", "\xef\xbb\xbfdata: a\r",
	} {
		f.Add([]byte(seed), uint64(1))
	}
	f.Fuzz(func(t *testing.T, stream []byte, seed uint64) {
		events := readEvents(t, bytes.NewReader(stream))
		for name, r := range map[string]io.Reader{
			"bytes":     iotest.OneByteReader(bytes.NewReader(stream)),
			"halves":    iotest.HalfReader(bytes.NewReader(stream)),
			"early EOF": iotest.DataErrReader(bytes.NewReader(stream)),
			"random":    randomReader{bytes.NewReader(stream), rand.New(rand.NewPCG(seed, 0))},
		} {
			if got := readEvents(t, r); !reflect.DeepEqual(got, events) {
				t.Errorf("%s: got %q, want %q", name, got, events)
			}
		}
		joined := string(bytes.Join(events, nil))
		if got, want := strings.TrimRight(joined, "\r\n"), strings.TrimRight(string(stream), "\r\n"); got != want {
			t.Errorf("joined %q, want %q", got, want)
		}
		var data []string
		for _, raw := range events {
			if d, ok := eventData(raw); ok {
				data = append(data, string(d))
			}
			// A final CR, read alone, is taken for half of a CRLF.
			if again := readEvents(t, bytes.NewReader(raw)); len(again) != 1 || !bytes.Equal(again[0], raw) && string(again[0]) != string(raw)+"\n" {
				t.Errorf("%q is not one event but %q", raw, again)
			}
		}
		if bytes.Contains(stream, []byte(byteOrderMark)) {
			return // the reference knows none
		}
		if want := referenceData(joined); !slices.Equal(data, want) {
			t.Errorf("data %q, want %q", data, want)
		}
	})
}

func BenchmarkEventReader(b *testing.B) {
	event := "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1764547200,\"model\":\"gpt-4.1-2025-04-14\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" hello\"},\"logprobs\":null,\"finish_reason\":null}],\"usage\":null}\n\n"
	stream := strings.NewReader(strings.Repeat(event, 1000))
	b.SetBytes(stream.Size())
	b.ReportAllocs()
	for b.Loop() {
		stream.Seek(0, io.SeekStart)
		for r := newEventReader(stream, 1<<20); ; {
			raw, err := r.next()
			if err != nil {
				break
			}
			eventData(raw)
		}
	}
}
