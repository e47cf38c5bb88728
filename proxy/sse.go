package proxy

import (
	"bytes"
	"errors"
	"io"
	"slices"
)

// errEventTooLarge is what an eventReader fails with when one event is larger
// than its limit. The reader is of no use after it.
var errEventTooLarge = errors.New("an event of the stream is larger than the limit")

const (
	eventReadSize  = 4 << 10 // room for one Read, bytes
	maxEmptyReads  = 100     // Reads in a row that give nothing before io.ErrNoProgress
	byteOrderMark  = "\xef\xbb\xbf"
	doneMarker     = "[DONE]"
	eventDataField = "data"
)

// An eventReader cuts a stream of server-sent events into its events and keeps
// every byte of them: what it returns, joined, is the stream. Where an event ends
// depends on the bytes alone, never on how they arrive.
//
// Lines end in LF, CRLF or CR (WHATWG HTML, section 9.2.6). A stream that ends
// its lines in CR alone is not made to wait for the byte after the blank line; a
// LF that follows there after all goes in front of the next event, where it means
// nothing.
type eventReader struct {
	src      io.Reader
	maxEvent int // bytes

	buf     []byte // read and not yet returned
	start   int    // of the event in buf
	line    int    // start of the line that is being looked at
	seen    int    // no line ends between line and here
	filled  bool   // the event has a line that is not blank
	loneCR  bool   // the last line ended in CR without LF
	failure error  // of src, or errEventTooLarge
}

func newEventReader(r io.Reader, maxEvent int) *eventReader {
	return &eventReader{src: r, maxEvent: maxEvent}
}

// next returns the next event exactly as it came: its terminating blank line
// included, blank lines before it too. The slice is the caller's. Events without
// data (comments) are returned as well.
//
// After the last event the error is io.EOF. A last event whose line ends are
// missing is completed with them, so that another event can follow it; a stream
// that breaks off with any other error loses its unfinished event. An event larger
// than maxEvent is errEventTooLarge.
func (r *eventReader) next() (raw []byte, err error) {
	for r.failure != errEventTooLarge {
		if end := r.scan(); end > 0 {
			return r.take(end)
		}
		switch {
		case len(r.buf)-r.start > r.maxEvent:
			r.failure = errEventTooLarge
		case r.failure == io.EOF:
			return r.last()
		case r.failure != nil:
			return nil, r.failure
		default:
			r.fill()
		}
	}
	return nil, errEventTooLarge
}

// scan goes on looking for the end of the event and returns it, or 0 where more
// must be read to tell.
func (r *eventReader) scan() int {
	for {
		i := bytes.IndexAny(r.buf[r.seen:], "\r\n")
		if i < 0 {
			r.seen = len(r.buf)
			return 0
		}
		i += r.seen
		blank, end := i == r.line, i+1
		cr := r.buf[i] == '\r'
		if cr && !(blank && r.loneCR) {
			if end == len(r.buf) {
				r.seen = i
				return 0
			}
			if r.buf[end] == '\n' {
				cr = false
				end++
			}
		}
		r.loneCR, r.line, r.seen = cr, end, end
		if blank && r.filled {
			return end
		}
		r.filled = r.filled || !blank
	}
}

func (r *eventReader) take(end int) ([]byte, error) {
	raw := r.buf[r.start:end]
	r.start, r.filled = end, false
	if len(raw) > r.maxEvent {
		r.failure = errEventTooLarge
		return nil, r.failure
	}
	return bytes.Clone(raw), nil
}

// fill reads once, over the bytes that were returned already.
func (r *eventReader) fill() {
	r.buf = slices.Delete(r.buf, 0, r.start)
	r.line -= r.start
	r.seen -= r.start
	r.start = 0
	r.buf = slices.Grow(r.buf, eventReadSize)
	for range maxEmptyReads {
		n, err := r.src.Read(r.buf[len(r.buf):cap(r.buf)])
		r.buf = r.buf[:len(r.buf)+n]
		r.failure = err
		if n > 0 || err != nil {
			return
		}
	}
	r.failure = io.ErrNoProgress
}

// last returns what is left at the end of the stream, completed.
func (r *eventReader) last() ([]byte, error) {
	rest := r.buf[r.start:]
	if len(bytes.Trim(rest, "\r\n")) == 0 {
		return nil, io.EOF
	}
	missing := "\n\n"
	if tail := r.buf[r.line:]; len(tail) == 0 || tail[0] == '\r' {
		missing = "\n" // only the blank line is, or the LF of its CRLF
	}
	raw := append(bytes.Clone(rest), missing...)
	r.start = len(r.buf)
	return raw, nil
}

// eventData returns the payload of an event: the values of its data lines, joined
// by LF. ok is false where a client dispatches nothing: a comment, no data line, or
// only blank ones. The usual single line is returned as a part of raw.
func eventData(raw []byte) (data []byte, ok bool) {
	raw = bytes.TrimPrefix(bytes.TrimLeft(raw, "\r\n"), []byte(byteOrderMark))
	lines := 0
	for len(raw) > 0 {
		line := raw
		if i := bytes.IndexAny(raw, "\r\n"); i >= 0 {
			// CRLF gives an empty line more, which is no data line.
			line, raw = raw[:i], raw[i+1:]
		} else {
			raw = nil
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		if string(name) != eventDataField {
			continue
		}
		value = bytes.TrimPrefix(value, []byte(" "))
		switch lines++; lines {
		case 1:
			data = value
		case 2: // data is a part of raw, which must not be written to
			data = append(append(bytes.Clone(data), '\n'), value...)
		default:
			data = append(append(data, '\n'), value...)
		}
	}
	return data, len(bytes.TrimSpace(data)) > 0
}

// isDone reports whether the data is the marker that ends a chat stream.
func isDone(data []byte) bool {
	return string(bytes.TrimSpace(data)) == doneMarker
}
