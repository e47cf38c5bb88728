package proxytest

import (
	"bufio"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	openai "github.com/sashabaranov/go-openai"
)

// client makes connections of its own for a test and never decompresses.
func client(t *testing.T) *http.Client {
	tr := &http.Transport{DisableCompression: true}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// fetch posts a body and reads the answer.
func fetch(t *testing.T, c *http.Client, url, body string) (*http.Response, string, error) {
	t.Helper()
	resp, err := c.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	return resp, string(data), err
}

func TestScript(t *testing.T) {
	up := New(t)
	up.Reply(RateLimited("2"), JSON(200, "first").Header("X-Test", "yes"), Empty(), InvalidJSON().Status(201))
	c := client(t)
	for i, want := range []struct {
		status int
		body   string
	}{{429, errorObject("slow down")}, {200, "first"}, {200, ""}, {201, `{"id":"chatcmpl-1","choices":[{"index":0,`}, {201, `{"id":"chatcmpl-1","choices":[{"index":0,`}} {
		resp, body, err := fetch(t, c, up.URL+"/chat/completions?a=b", "request")
		if err != nil || resp.StatusCode != want.status || body != want.body || resp.ContentLength != int64(len(body)) {
			t.Errorf("%d: %v %v %q", i, resp, err, body)
		}
		if i == 0 && resp.Header.Get("Retry-After") != "2" || i == 1 && resp.Header.Get("X-Test") != "yes" {
			t.Errorf("%d: header %v", i, resp.Header)
		}
	}
	up.Always(JSON(200, "always"))
	if _, body, err := fetch(t, c, up.URL, ""); body != "always" || err != nil {
		t.Errorf("%q, %v; want always", body, err)
	}
	list := up.WaitFor(6)
	if r := list[0]; up.Count() != 6 || r.Method != "POST" || r.Path != "/v1/chat/completions" || r.Query.Get("a") != "b" ||
		string(r.Body) != "request" || r.Header.Get("Content-Type") != "application/json" || !strings.HasPrefix(up.URL, "http://"+r.Host) {
		t.Errorf("%d requests, the first %+v", up.Count(), r)
	}
	for i, r := range list {
		select {
		case <-r.Gone:
			t.Errorf("request %d: the client has gone before its answer", i)
		default:
		}
	}
}

func TestEndings(t *testing.T) {
	frames := []string{Data("1"), Data("2"), Done}
	for _, tt := range []struct {
		name   string
		reply  Reply
		header bool
		body   string
		err    error
	}{
		{"whole", Stream(frames...), true, "data: 1\n\ndata: 2\n\n" + Done, nil},
		{"no frames", Stream(), true, "", nil},
		{"reset, nothing sent", Reset(), false, "", syscall.ECONNRESET},
		{"dropped, nothing sent", Drop(), false, "", io.EOF},
		{"reset, header sent", Stream(frames...).ResetAfter(0), true, "", syscall.ECONNRESET},
		{"reset", Stream(frames...).ResetAfter(1), true, "data: 1\n\n", syscall.ECONNRESET},
		{"reset after all", Stream(frames...).ResetAfter(9), true, "data: 1\n\ndata: 2\n\n" + Done, syscall.ECONNRESET},
		{"dropped", Stream(frames...).DropAfter(2), true, "data: 1\n\ndata: 2\n\n", io.ErrUnexpectedEOF},
		{"ended", Stream(frames...).EndAfter(2), true, "data: 1\n\ndata: 2\n\n", nil},
		{"endless, ended", Endless(Data("1")).EndAfter(2), true, "data: 1\n\ndata: 1\n\n", nil},
		{"JSON dropped", JSON(200, "abcdef").SplitEvery(2).DropAfter(1), true, "ab", io.ErrUnexpectedEOF},
		{"JSON ended", JSON(200, "abcdef").SplitEvery(2).EndAfter(2), true, "abcd", nil},
		{"error event", Stream(frames[0], ErrorEvent("broken")), true, "data: 1\n\ndata: " + errorObject("broken") + "\n\n", nil},
		{"comments and names", Stream(Comment("wait"), Event("a", "b")), true, ": wait\n\nevent: a\ndata: b\n\n", nil},
		{"CRLF", Stream(frames[0]).CRLF(), true, "data: 1\r\n\r\n", nil},
		{"early", JSON(200, "early").Early(), true, "early", nil},
		{"early, dropped", Stream(frames...).Early().DropAfter(1), true, "data: 1\n\n", io.ErrUnexpectedEOF},
	} {
		t.Run(tt.name, func(t *testing.T) {
			up := New(t)
			up.Reply(tt.reply)
			resp, body, err := fetch(t, client(t), up.URL, "")
			if !errors.Is(err, tt.err) || (resp != nil) != tt.header || body != tt.body {
				t.Errorf("%q, %v; want %q, %v", body, err, tt.body, tt.err)
			}
		})
	}
}

// What stands before a gate is on the wire while the gate is closed.
func TestPiecesAreSentApart(t *testing.T) {
	up := New(t)
	gate := NewGate()
	up.Reply(Stream("data: é\n\n", Done).SplitEvery(7).HoldAfter(1, gate))
	resp, err := client(t).Post(up.URL, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	Wait(t, gate.Reached(), "a reply at the gate")
	piece := make([]byte, 7)
	if _, err := io.ReadFull(resp.Body, piece); err != nil || string(piece) != "data: \xc3" {
		t.Errorf("the first piece is %q, %v", piece, err)
	}
	gate.Open()
	gate.Open()
	if rest, err := io.ReadAll(resp.Body); err != nil || string(rest) != "\xa9\n\n"+Done {
		t.Errorf("the rest is %q, %v", rest, err)
	}
}

func TestGzip(t *testing.T) {
	up := New(t)
	gate := NewGate()
	up.Reply(Stream(Data("1"), Data("2")).Gzip().HoldAfter(1, gate))
	resp, err := client(t).Post(up.URL, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	zr, err := gzip.NewReader(resp.Body)
	if err != nil || resp.Header.Get("Content-Encoding") != "gzip" {
		t.Fatal(err, resp.Header)
	}
	in := bufio.NewReader(zr)
	if line, err := in.ReadString('\n'); line != "data: 1\n" || err != nil {
		t.Errorf("before the gate opens: %q, %v", line, err)
	}
	gate.Open()
	if rest, err := io.ReadAll(in); string(rest) != "\ndata: 2\n\n" || err != nil {
		t.Errorf("the rest: %q, %v", rest, err)
	}
}

func TestGone(t *testing.T) {
	for name, reply := range map[string]Reply{
		"never":   Never(),
		"delayed": Empty().Delay(time.Hour),
		"body":    Stream(Done).DelayBody(time.Hour),
		"between": Endless(Data("1")).Every(time.Hour),
		"endless": Endless(Data("1")),
	} {
		t.Run(name, func(t *testing.T) {
			up := New(t)
			up.Reply(reply)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				req, _ := http.NewRequestWithContext(ctx, "POST", up.URL, strings.NewReader("x"))
				if resp, err := client(t).Do(req); err == nil {
					<-ctx.Done()
					resp.Body.Close()
				}
			}()
			r := up.WaitFor(1)[0]
			select {
			case <-r.Gone:
				t.Error("the client has gone before it left")
			default:
			}
			cancel()
			Wait(t, r.Gone, "the client gone")
			<-ended
		})
	}
}

// An early answer is on the wire while the request's body is not.
func TestEarly(t *testing.T) {
	up := New(t)
	up.Reply(JSON(200, "early").Early())
	conn, err := net.Dial("tcp", up.listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	in := bufio.NewReader(conn)
	for range 2 {
		io.WriteString(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n")
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		if body, err := io.ReadAll(resp.Body); string(body) != "early" || err != nil {
			t.Errorf("%q, %v", body, err)
		}
		io.WriteString(conn, "late")
	}
	if r := up.WaitFor(2)[1]; string(r.Body) != "late" {
		t.Errorf("body = %q", r.Body)
	}
}

func TestClosedPorts(t *testing.T) {
	if _, _, err := fetch(t, client(t), RefusedURL(t), ""); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("refused: %v", err)
	}
	if _, _, err := fetch(t, client(t), ClosingURL(t), ""); err == nil {
		t.Error("a connection that is closed at once gave an answer")
	}
	up := New(t)
	up.Close()
	if _, _, err := fetch(t, client(t), up.URL, ""); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("after Close: %v", err)
	}
}

// failing is a testing.TB that notes its errors.
type failing struct {
	testing.TB
	errors chan string
}

func (f failing) Errorf(format string, _ ...any) { f.errors <- format }

func TestUnscripted(t *testing.T) {
	f := failing{t, make(chan string, 1)}
	up := New(f)
	if _, _, err := fetch(t, client(t), up.URL, ""); err == nil {
		t.Error("an unscripted request was answered")
	}
	if message := <-f.errors; !strings.Contains(message, "no reply is scripted") {
		t.Errorf("message = %q", message)
	}
}

func TestCompletion(t *testing.T) {
	var answer openai.ChatCompletionResponse
	body := Completion("<héllo>", Model("m"), ID("i"), Usage(3, 4), ToolCall("c", "f", `{"a":1}`), Finish("length"))
	if err := json.Unmarshal([]byte(body), &answer); err != nil {
		t.Fatal(err)
	}
	choice := answer.Choices[0]
	if answer.ID != "i" || answer.Model != "m" || answer.Usage.TotalTokens != 7 || choice.FinishReason != "length" ||
		choice.Message.Content != "<héllo>" || choice.Message.ToolCalls[0].Function.Arguments != `{"a":1}` || !strings.Contains(body, "<héllo>") {
		t.Errorf("answer = %s", body)
	}
	if body := Completion("x", NoUsage(), Finish("")); strings.Contains(body, "usage") || !strings.Contains(body, `"finish_reason":null`) {
		t.Errorf("answer = %s", body)
	}
}

func TestChunks(t *testing.T) {
	up := New(t)
	up.Reply(Stream(slices.Insert(Chunks("one two é", 3, ToolCall("c", "f", `{"a":1}`)), 2, Comment("wait"))...))
	config := openai.DefaultConfig("key")
	config.BaseURL, config.HTTPClient = up.URL, client(t)
	stream, err := openai.NewClientWithConfig(config).CreateChatCompletionStream(t.Context(),
		openai.ChatCompletionRequest{Model: "m", Messages: []openai.ChatCompletionMessage{{Role: "user", Content: "hi"}}})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	var text []string
	var arguments, finish string
	var usage *openai.Usage
	for {
		part, err := stream.Recv()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		usage = part.Usage
		for _, choice := range part.Choices {
			if choice.Delta.Content != "" {
				text = append(text, choice.Delta.Content)
			}
			for _, call := range choice.Delta.ToolCalls {
				arguments += call.Function.Arguments
			}
			finish += string(choice.FinishReason)
		}
	}
	if !slices.Equal(text, []string{"one ", "two", " é"}) || arguments != `{"a":1}` || finish != "tool_calls" || usage == nil || usage.TotalTokens != 18 {
		t.Errorf("text %q, arguments %s, finish %s, usage %+v", text, arguments, finish, usage)
	}
	frames := Chunks("x", 0, NoUsage(), Finish(""))
	if len(frames) != 3 || frames[2] != Done || strings.Contains(strings.Join(frames, ""), "usage") {
		t.Errorf("frames = %q", frames)
	}
}
