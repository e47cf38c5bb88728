package main

import (
	"bytes"
	"io"
	"net/http"
)

// baselineM reads the request, makes one RoundTrip to the same path of the
// upstream at base (scheme and host) and copies the answer.
func baselineM(base string) http.Handler {
	transport := &http.Transport{MaxIdleConnsPerHost: 512, DisableCompression: true}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", healthy)
	mux.HandleFunc("POST /v1/", func(w http.ResponseWriter, r *http.Request) {
		body, free, err := readBody(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		out, err := http.NewRequestWithContext(r.Context(), http.MethodPost, base+r.URL.Path, bytes.NewReader(body))
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		out.Header.Set("Content-Type", r.Header.Get("Content-Type"))
		resp, err := transport.RoundTrip(out)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer resp.Body.Close()
		copyAnswer(w, resp)
		// Only now: until the answer has ended the transport may still read the body.
		free()
	})
	return mux
}

// copyAnswer passes an answer on; one of unknown length is flushed after each read.
func copyAnswer(w http.ResponseWriter, resp *http.Response) {
	for _, name := range []string{"Content-Type", "Content-Length"} {
		if v := resp.Header.Get(name); v != "" {
			w.Header().Set(name, v)
		}
	}
	w.WriteHeader(resp.StatusCode)
	flush := http.NewResponseController(w)
	buf, free := borrow(32 * KB)
	defer free()
	for {
		n, err := resp.Body.Read(buf)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return // the client has gone
			}
			if resp.ContentLength < 0 {
				flush.Flush()
			}
		}
		if err == io.EOF {
			return
		}
		if err != nil {
			panic(http.ErrAbortHandler) // a cut answer must not look whole
		}
	}
}
