package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// ask is a request as a person would type it.
type ask struct {
	path     string // of the step: /steps/draft-reply/v1, or with a run
	question string
	stream   bool
	patience time.Duration // after which the client gives up; 0: it does not
}

// body is the JSON that is sent, over two lines as it is shown.
func (a ask) body() string {
	question, err := json.Marshal(a.question)
	if err != nil { // a string without a JSON form does not exist
		panic(err)
	}
	stream := ""
	if a.stream {
		stream = ` "stream": true,`
	}
	return `{"model": "sim",` + stream + "\n" + `      "messages": [{"role": "user", "content": ` + string(question) + `}]}`
}

// curl is the command that sends the request.
func (a ask) curl() string {
	patience := ""
	if a.patience > 0 {
		patience = fmt.Sprintf("-m %g ", a.patience.Seconds())
	}
	return "curl " + patience + "$LLM" + a.path + "/chat/completions -d '" + a.body() + "'"
}

// got is what came back.
type got struct {
	status  int
	outcome string // X-LLMProxy-Cache
	budget  string // X-LLMProxy-Budget
	id      string // of the completion
	text    string // of the answer, or the error's message
	code    string // of the error
	in, out int64  // tokens, 0 where the answer does not tell
	events  int    // of a stream, [DONE] not counted
	took    time.Duration
}

// is checks the status and X-LLMProxy-Cache.
func (g got) is(status int, outcome string) error {
	return errors.Join(expect("the status", status, g.status), expect("X-LLMProxy-Cache", outcome, g.outcome))
}

// askTime bounds a request, so that a mistake cannot hold the demonstration up.
const askTime = 15 * time.Second

// ask sends a request and counts what came of it.
func (d *demo) ask(ctx context.Context, a ask) (got, error) {
	g, err := d.send(ctx, a)
	if err == nil {
		d.count(g)
	}
	return g, err
}

// count keeps what the ledger must tell as well.
func (d *demo) count(g got) {
	d.sent++
	d.tally[g.outcome]++
	if g.budget == "over" && g.outcome != "refused" {
		d.over++
	}
}

// send sends a request and reads the whole answer. A client that gives up gets
// context.DeadlineExceeded.
func (d *demo) send(ctx context.Context, a ask) (g got, err error) {
	patience := askTime
	if a.patience > 0 {
		patience = a.patience
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.base+a.path+"/chat/completions", strings.NewReader(a.body()))
	if err != nil {
		return g, err
	}
	begun := time.Now()
	resp, err := d.client.Do(req)
	if err != nil {
		return g, err
	}
	defer resp.Body.Close()
	g = got{status: resp.StatusCode, outcome: resp.Header.Get("X-LLMProxy-Cache"), budget: resp.Header.Get("X-LLMProxy-Budget")}
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		err = g.readStream(resp.Body)
	} else {
		err = g.readWhole(resp.Body)
	}
	g.took = time.Since(begun)
	return g, err
}

// chatAnswer is what the demonstration reads of an answer or of a chunk of one.
type chatAnswer struct {
	ID      string `json:"id"`
	Choices []struct {
		Message, Delta struct {
			Content string `json:"content"`
		}
	} `json:"choices"`
	Usage *struct {
		Input  int64 `json:"prompt_tokens"`
		Output int64 `json:"completion_tokens"`
	} `json:"usage"`
	Error *struct {
		Message string `json:"message"`
		Code    string `json:"code"`
	} `json:"error"`
}

func (g *got) readWhole(body io.Reader) error {
	var answer chatAnswer
	if err := json.NewDecoder(body).Decode(&answer); err != nil {
		return fmt.Errorf("reading the answer: %w", err)
	}
	g.id = answer.ID
	if answer.Error != nil {
		g.text, g.code = answer.Error.Message, answer.Error.Code
	}
	if len(answer.Choices) > 0 {
		g.text = answer.Choices[0].Message.Content
	}
	if answer.Usage != nil {
		g.in, g.out = answer.Usage.Input, answer.Usage.Output
	}
	return nil
}

// readStream reads the events up to [DONE]; a stream without it is an error.
func (g *got) readStream(body io.Reader) error {
	lines := bufio.NewScanner(body)
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !ok {
			continue
		}
		if string(data) == "[DONE]" {
			return nil
		}
		var chunk chatAnswer
		if err := json.Unmarshal(data, &chunk); err != nil {
			return fmt.Errorf("reading a chunk of the stream: %w", err)
		}
		g.id = chunk.ID
		g.events++
		if len(chunk.Choices) > 0 {
			g.text += chunk.Choices[0].Delta.Content
		}
	}
	return errors.Join(lines.Err(), errors.New("the stream ended without [DONE]"))
}
