package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httputil"
	"strconv"
	"time"
)

// requestLimit bounds one exchange, so that a request that hangs is counted.
const requestLimit = 30 * time.Second

// conn is a keep-alive HTTP/1.1 client connection. It knows as much of HTTP as
// our servers speak and costs a fraction of net/http's client.
type conn struct {
	addr     string
	nc       net.Conn
	br       *bufio.Reader
	lastRead time.Time // when the bytes last read from the network came
	body     []byte    // of the last response, reused
	parts    [2][]byte
	head     []byte // request head for bodies of headFor bytes to headTo
	headFor  int
	headTo   endpoint
}

// response is the head of an answer. Its body is read by readBody, or line by
// line from lines.
type response struct {
	status int
	cache  string // X-LLMProxy-Cache
	length int    // -1: chunked
	last   bool   // the server closes the connection after this answer
}

func dial(addr string) (*conn, error) {
	nc, err := net.DialTimeout("tcp", addr, requestLimit)
	if err != nil {
		return nil, err
	}
	c := &conn{addr: addr, nc: nc, headFor: -1}
	c.br = bufio.NewReaderSize(c, 16*KB)
	return c, nil
}

// Read reads from the network and notes the time.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.nc.Read(p)
	c.lastRead = time.Now()
	return n, err
}

// redial replaces a connection that has failed or was closed by the server.
func (c *conn) redial() error {
	c.nc.Close() // it is broken already: nothing to learn from the error
	fresh, err := dial(c.addr)
	if err != nil {
		return err
	}
	fresh.body = c.body
	*c = *fresh
	c.br.Reset(c)
	return nil
}

// post sends a request to the endpoint and reads the head of the answer.
func (c *conn) post(api endpoint, body []byte) (response, error) {
	if c.headFor != len(body) || c.headTo != api {
		c.headFor, c.headTo = len(body), api
		c.head = fmt.Appendf(c.head[:0], "POST %s HTTP/1.1\r\nHost: %s\r\n"+
			"Authorization: Bearer %s\r\nContent-Type: application/json\r\nX-LLMProxy-Step: bench\r\n"+
			"Content-Length: %d\r\n\r\n", api, c.addr, clientKey, len(body))
	}
	if err := c.nc.SetDeadline(time.Now().Add(requestLimit)); err != nil {
		return response{}, err
	}
	c.parts = [2][]byte{c.head, body}
	buffers := net.Buffers(c.parts[:])
	_, writeErr := buffers.WriteTo(c.nc) // one writev
	// A server may refuse before it has read everything; then its answer says
	// more than the failed write.
	r, err := c.readHead()
	if err != nil && writeErr != nil {
		return r, writeErr
	}
	return r, err
}

// readHead reads the status line and the headers.
func (c *conn) readHead() (response, error) {
	r := response{length: -1}
	line, err := c.br.ReadSlice('\n')
	if err != nil {
		return r, err
	}
	if len(line) < len("HTTP/1.1 200") || !bytes.HasPrefix(line, []byte("HTTP/1.1 ")) {
		return r, fmt.Errorf("not a status line: %q", line)
	}
	if r.status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return r, fmt.Errorf("not a status line: %q", line)
	}
	for {
		line, err := c.br.ReadSlice('\n')
		if err != nil {
			return r, err
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			return r, nil
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimSpace(value)
		switch {
		case bytes.EqualFold(name, []byte("Content-Length")):
			if r.length, err = strconv.Atoi(string(value)); err != nil {
				return r, fmt.Errorf("not a length: %q", line)
			}
		case bytes.EqualFold(name, []byte("X-LLMProxy-Cache")):
			r.cache = string(value)
		case bytes.EqualFold(name, []byte("Connection")):
			r.last = bytes.EqualFold(value, []byte("close"))
		}
	}
}

// readBody reads the body of the answer; it is valid until the next request.
func (c *conn) readBody(r response) ([]byte, error) {
	if r.length < 0 {
		var err error
		buf := bytes.NewBuffer(c.body[:0])
		if _, err = buf.ReadFrom(httputil.NewChunkedReader(c.br)); err == nil {
			err = c.endChunks()
		}
		c.body = buf.Bytes()
		return c.body, err
	}
	if cap(c.body) < r.length {
		c.body = make([]byte, r.length)
	}
	c.body = c.body[:r.length]
	_, err := io.ReadFull(c.br, c.body)
	return c.body, err
}

// lines returns a reader of the answer's body that returns what has come
// without waiting for more.
func (c *conn) lines(r response) *bufio.Reader {
	if r.length < 0 {
		return bufio.NewReader(httputil.NewChunkedReader(c.br))
	}
	return bufio.NewReader(io.LimitReader(c.br, int64(r.length)))
}

// endChunks reads the empty trailer after the last chunk, which the chunked
// reader leaves.
func (c *conn) endChunks() error {
	line, err := c.br.ReadSlice('\n')
	if err == nil && len(bytes.TrimRight(line, "\r\n")) > 0 {
		err = errors.New("a trailer after the last chunk")
	}
	return err
}
