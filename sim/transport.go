package sim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strconv"
)

// Transport returns an http.RoundTripper that answers each request by running
// h in this process, with no socket between.
//
// It streams: a response is returned as soon as h writes its header, and each
// Write of h waits until the reader of the body has taken it, so there is no
// buffer and Flush only makes sure that the header is out. The context that h
// sees ends when the request's context ends, when the response body is closed,
// or when h returns; whichever comes first, a Write that waits returns with an
// error, so that a handler which heeds its context or its writes is never left
// behind.
//
// As with a real server, http.ErrAbortHandler cuts the connection: RoundTrip,
// or reading the body, then fails with io.ErrUnexpectedEOF. Any other panic is
// reported there as an error too. Of a client trace (net/http/httptrace) only
// GotConn is called. Trailers, 1xx responses and content sniffing are not
// supported.
func Transport(h http.Handler) http.RoundTripper {
	return transport{h}
}

type transport struct{ handler http.Handler }

// RoundTrip implements http.RoundTripper. The request's body is closed once
// the handler is through with it, which may be after RoundTrip has returned.
func (t transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := req.Context().Err(); err != nil {
		closeBody(req)
		return nil, err
	}
	ctx, cancel := context.WithCancel(req.Context())
	pr, pw := io.Pipe()
	w := &responseWriter{
		req:    req,
		header: make(http.Header),
		ready:  make(chan *http.Response, 1),
		failed: make(chan error, 1),
		body:   &responseBody{PipeReader: pr, cancel: cancel},
		pipe:   pw,
	}
	// Only the first close of a pipe counts: after a complete answer this
	// changes nothing for the reader.
	context.AfterFunc(ctx, func() {
		pw.CloseWithError(context.Cause(ctx))
		closeBody(req)
	})
	if trace := httptrace.ContextClientTrace(ctx); trace != nil && trace.GotConn != nil {
		trace.GotConn(httptrace.GotConnInfo{}) // from here on the handler may have worked
	}
	go w.run(t.handler, serverRequest(ctx, req), cancel)

	select {
	case resp := <-w.ready:
		return resp, nil
	case err := <-w.failed:
		return nil, err
	case <-req.Context().Done():
		return nil, context.Cause(req.Context())
	}
}

// serverRequest is req as a server would have read it off the wire.
func serverRequest(ctx context.Context, req *http.Request) *http.Request {
	r := req.Clone(ctx)
	r.RequestURI = req.URL.RequestURI()
	r.URL.Scheme, r.URL.Host, r.URL.User, r.URL.Fragment = "", "", nil, ""
	if r.URL.Path == "" {
		r.URL.Path = "/"
	}
	if r.Host == "" {
		r.Host = req.URL.Host
	}
	if r.Body == nil {
		r.Body = http.NoBody
	}
	if r.Method == "" {
		r.Method = http.MethodGet
	}
	r.Proto, r.ProtoMajor, r.ProtoMinor = "HTTP/1.1", 1, 1
	r.RemoteAddr = "127.0.0.1:0"
	r.GetBody, r.Response = nil, nil
	return r
}

func closeBody(req *http.Request) {
	if req.Body != nil {
		req.Body.Close()
	}
}

// responseWriter hands the handler's header to RoundTrip and its body to the
// pipe. Only the handler's goroutine uses it.
type responseWriter struct {
	req    *http.Request
	header http.Header
	wrote  bool
	ready  chan *http.Response // the response, once
	failed chan error          // or why there is none, once
	body   io.ReadCloser
	pipe   *io.PipeWriter
}

// run calls the handler and ends the exchange, however the handler ends.
func (w *responseWriter) run(h http.Handler, r *http.Request, cancel context.CancelFunc) {
	err := io.ErrUnexpectedEOF // unless the handler returns
	defer func() {
		v := recover()
		if cause, ok := v.(error); v != nil && !(ok && errors.Is(cause, http.ErrAbortHandler)) {
			err = fmt.Errorf("running the handler: panic: %v", v)
		}
		switch {
		case err == nil:
			w.WriteHeader(http.StatusOK)
		case !w.wrote:
			w.failed <- err
		}
		w.pipe.CloseWithError(err)
		cancel()
	}()
	h.ServeHTTP(w, r)
	err = context.Cause(r.Context()) // a handler that was called off has not finished
}

func (w *responseWriter) Header() http.Header { return w.header }

func (w *responseWriter) WriteHeader(status int) {
	if w.wrote || status < 200 {
		return
	}
	w.wrote = true
	resp := &http.Response{
		Status:     strconv.Itoa(status) + " " + http.StatusText(status),
		StatusCode: status,
		Proto:      "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header:        w.header.Clone(),
		Body:          w.body,
		ContentLength: -1,
		Request:       w.req,
	}
	if n, err := strconv.ParseInt(w.header.Get("Content-Length"), 10, 64); err == nil && n >= 0 {
		resp.ContentLength = n
	}
	w.ready <- resp
}

func (w *responseWriter) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	if w.req.Method == http.MethodHead {
		return len(p), nil
	}
	return w.pipe.Write(p)
}

func (w *responseWriter) Flush() { w.WriteHeader(http.StatusOK) }

// responseBody ends the exchange when it is closed.
type responseBody struct {
	*io.PipeReader
	cancel context.CancelFunc
}

func (b *responseBody) Close() error {
	err := b.PipeReader.Close()
	b.cancel()
	return err
}
