package sim

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"testing"
	"testing/synctest"
)

// Every test here runs in a synctest bubble, which fails when a goroutine is
// left blocked at its end.

func get(t *testing.T, ctx context.Context, h http.HandlerFunc) (*http.Response, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, "POST", "http://sim.test/v1/x?q=1", strings.NewReader("body"))
	if err != nil {
		t.Fatal(err)
	}
	return Transport(h).RoundTrip(req)
}

func TestTransportStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		next := make(chan bool)
		resp, err := get(t, t.Context(), func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Test", "yes")
			w.WriteHeader(http.StatusAccepted)
			w.Header().Set("X-Late", "no")
			for _, line := range []string{"one\n", "two\n"} {
				<-next
				io.WriteString(w, line)
				if err := http.NewResponseController(w).Flush(); err != nil {
					t.Errorf("Flush: %v", err)
				}
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != 202 || resp.Status != "202 Accepted" || resp.ContentLength != -1 ||
			resp.Header.Get("X-Test") != "yes" || resp.Header.Get("X-Late") != "" {
			t.Errorf("response = %+v", resp)
		}
		body := bufio.NewReader(resp.Body)
		for _, want := range []string{"one\n", "two\n"} {
			next <- true
			if line, err := body.ReadString('\n'); line != want || err != nil {
				t.Errorf("read %q, %v; want %q", line, err, want)
			}
		}
		if _, err := body.ReadByte(); err != io.EOF {
			t.Errorf("at the end: %v, want EOF", err)
		}
	})
}

func TestTransportShowsARequestAsAServerReadsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		resp, err := get(t, t.Context(), func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil || string(body) != "body" {
				t.Errorf("body = %q, %v", body, err)
			}
			if r.RequestURI != "/v1/x?q=1" || r.URL.String() != "/v1/x?q=1" || r.Host != "sim.test" || r.Method != "POST" {
				t.Errorf("request = %s %s %s host %s", r.Method, r.RequestURI, r.URL, r.Host)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		if body, err := io.ReadAll(resp.Body); resp.StatusCode != 200 || len(body) != 0 || err != nil {
			t.Errorf("a handler that writes nothing: %d %q %v, want 200 and no body", resp.StatusCode, body, err)
		}
	})
}

func TestTransportClosedEarlyEndsTheHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var writeErr error
		ended := make(chan error, 1)
		resp, err := get(t, t.Context(), func(w http.ResponseWriter, r *http.Request) {
			for writeErr == nil {
				_, writeErr = io.WriteString(w, "more")
			}
			<-r.Context().Done()
			ended <- r.Context().Err()
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(resp.Body, make([]byte, 6)); err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if err := <-ended; !errors.Is(err, context.Canceled) || !errors.Is(writeErr, io.ErrClosedPipe) {
			t.Errorf("context %v, write %v; want canceled and a closed pipe", err, writeErr)
		}
		if _, err := resp.Body.Read(make([]byte, 1)); err == nil {
			t.Error("a closed body was read")
		}
	})
}

func TestTransportContextEnds(t *testing.T) {
	t.Run("before the header", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			_, err := get(t, ctx, func(w http.ResponseWriter, r *http.Request) {
				cancel()
				<-r.Context().Done()
			})
			if !errors.Is(err, context.Canceled) {
				t.Errorf("err = %v, want canceled", err)
			}
		})
	})
	t.Run("in the body", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			resp, err := get(t, ctx, func(w http.ResponseWriter, r *http.Request) {
				io.WriteString(w, "half")
				<-r.Context().Done()
			})
			if err != nil {
				t.Fatal(err)
			}
			io.ReadFull(resp.Body, make([]byte, 4))
			cancel()
			if _, err := io.ReadAll(resp.Body); !errors.Is(err, context.Canceled) {
				t.Errorf("err = %v, want canceled", err)
			}
		})
	})
	t.Run("before the start", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := get(t, ctx, func(http.ResponseWriter, *http.Request) { t.Error("the handler ran") })
		if !errors.Is(err, context.Canceled) {
			t.Errorf("err = %v, want canceled", err)
		}
	})
	t.Run("while the handler reads a body that never comes", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			body, feed := io.Pipe()
			defer feed.Close()
			req, _ := http.NewRequestWithContext(ctx, "POST", "http://sim.test/", body)
			read := make(chan error, 1)
			_, err := Transport(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				cancel()
				_, err := io.ReadAll(r.Body)
				read <- err
			})).RoundTrip(req)
			if readErr := <-read; !errors.Is(err, context.Canceled) || readErr == nil {
				t.Errorf("round trip %v, read %v; want two errors", err, readErr)
			}
		})
	})
}

func TestTransportPanics(t *testing.T) {
	for _, tt := range []struct {
		name  string
		value any
		want  string
	}{
		{"abort", http.ErrAbortHandler, "unexpected EOF"},
		{"bug", "index out of range", "running the handler: panic: index out of range"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, err := get(t, t.Context(), func(http.ResponseWriter, *http.Request) { panic(tt.value) })
				if err == nil || err.Error() != tt.want {
					t.Errorf("before the header: %v, want %q", err, tt.want)
				}
				resp, err := get(t, t.Context(), func(w http.ResponseWriter, r *http.Request) {
					io.WriteString(w, "half")
					panic(tt.value)
				})
				if err != nil {
					t.Fatal(err)
				}
				body, err := io.ReadAll(resp.Body)
				if string(body) != "half" || err == nil || err.Error() != tt.want {
					t.Errorf("in the body: %q, %v; want %q", body, err, tt.want)
				}
			})
		})
	}
}

func TestTransportHead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := &http.Client{Transport: Transport(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "4")
			io.WriteString(w, "body")
		}))}
		resp, err := client.Head("http://sim.test")
		if err != nil {
			t.Fatal(err)
		}
		if body, err := io.ReadAll(resp.Body); len(body) != 0 || err != nil || resp.ContentLength != 4 {
			t.Errorf("body %q, %v, length %d; want none, 4", body, err, resp.ContentLength)
		}
	})
}

// Who sends a request must know whether the handler may have worked, also where
// no answer comes.
func TestTransportReportsTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		connected := false
		trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected = true }}
		_, err := get(t, httptrace.WithClientTrace(t.Context(), trace), func(http.ResponseWriter, *http.Request) {
			if !connected {
				t.Error("the handler runs before GotConn")
			}
			panic(http.ErrAbortHandler)
		})
		if err == nil || !connected {
			t.Errorf("error %v, connected %v; want an error after GotConn", err, connected)
		}
	})
}
