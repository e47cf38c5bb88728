package main

import (
	"crypto/sha256"
	"errors"
	"io"
	"net/http"
	"strconv"
	"sync"
)

// bodySizes are the request bodies of the hit section, in bytes.
var bodySizes = []int{1 * KB, 32 * KB, 512 * KB}

// buffers holds *[]byte for request and response bodies.
var buffers sync.Pool

// borrow returns a buffer of n bytes and the func that gives it back.
func borrow(n int) (buf []byte, free func()) {
	p, ok := buffers.Get().(*[]byte)
	if !ok || cap(*p) < n {
		fresh := make([]byte, n)
		p = &fresh
	}
	return (*p)[:n], func() { buffers.Put(p) }
}

// readBody reads a request body of known length into a borrowed buffer.
func readBody(r *http.Request) (body []byte, free func(), err error) {
	if r.ContentLength < 0 {
		return nil, nil, errors.New("the request has no Content-Length")
	}
	body, free = borrow(int(r.ContentLength))
	if _, err := io.ReadFull(r.Body, body); err != nil {
		free()
		return nil, nil, err
	}
	return body, free, nil
}

// reply writes a JSON answer. A failed write means that the client has gone,
// which the client's side of the benchmark counts.
func reply(w http.ResponseWriter, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.Write(body)
}

func healthy(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok\n") }

// baselineH answers the working sets out of a map by the SHA-256 of the raw body.
func baselineH() http.Handler {
	answers := make(map[[sha256.Size]byte][]byte) // digest of the request → answer
	for _, size := range bodySizes {
		for i := range workingSet {
			marker := hitMarker(size, i)
			answers[sha256.Sum256(request(chat, size, marker))] = answer(marker)
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", healthy)
	mux.HandleFunc("POST "+string(chat), func(w http.ResponseWriter, r *http.Request) {
		body, free, err := readBody(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		digest := sha256.Sum256(body)
		free()
		found, ok := answers[digest]
		if !ok {
			http.Error(w, "no answer to this body", http.StatusNotFound)
			return
		}
		reply(w, found)
	})
	return mux
}
