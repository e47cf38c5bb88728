package proxy

import (
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
)

// Bodies are read into pooled buffers: a hit gives its buffer back, a call that
// goes upstream keeps it, because the flight outlives the request.
var bodies = sync.Pool{New: func() any { return new([]byte) }}

// maxPooled keeps one huge body from staying in memory for ever.
const maxPooled = 4 << 20

func giveBack(buf *[]byte) {
	if buf != nil && cap(*buf) <= maxPooled {
		*buf = (*buf)[:0]
		bodies.Put(buf)
	}
}

// readBody reads a whole request body of at most limit bytes, decoded. It is
// read before the upstream is dialled: a proxy that streams it on loses answers
// of upstreams that reply at once.
func readBody(r *http.Request, limit int64) (*[]byte, error) {
	var src io.Reader = r.Body
	size := r.ContentLength
	switch encoding := strings.ToLower(strings.TrimSpace(r.Header.Get("Content-Encoding"))); encoding {
	case "", "identity":
	case "gzip", "x-gzip":
		zr, err := gzip.NewReader(src)
		if err != nil {
			return nil, invalidRequest("The body is announced as gzip but is none: %v", err)
		}
		src, size = zr, -1
	default:
		return nil, &Error{Status: http.StatusUnsupportedMediaType, Type: "invalid_request_error", Code: "invalid_request",
			Message: "Content-Encoding " + encoding + " is not read here; send the body plain or as gzip"}
	}
	if size > limit {
		return nil, tooLarge(limit)
	}
	buf := bodies.Get().(*[]byte)
	if int64(cap(*buf)) < size+1 {
		*buf = make([]byte, 0, size+1)
	}
	err := readInto(buf, src, limit)
	if err != nil {
		giveBack(buf)
		return nil, err
	}
	return buf, nil
}

func readInto(buf *[]byte, src io.Reader, limit int64) error {
	b := (*buf)[:0]
	for {
		if len(b) == cap(b) {
			b = append(b, 0)[:len(b)]
		}
		n, err := src.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		*buf = b
		switch {
		case int64(len(b)) > limit:
			return tooLarge(limit)
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return invalidRequest("The request body could not be read to its end: %v", err)
		}
	}
}

func tooLarge(limit int64) error {
	return &Error{Status: http.StatusRequestEntityTooLarge, Type: "invalid_request_error", Code: "request_too_large", Retry: &no,
		Message: "The request body is larger than " + commas(limit) + " bytes; send less, or raise limits.request_body"}
}
