package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"llmproxy/tokens"
)

// lineReader reads lines of at most limit bytes.
type lineReader struct {
	r      *bufio.Reader
	limit  int
	number int   // of the line read last, from 1
	offset int64 // bytes read
	line   []byte
}

func newLineReader(r io.Reader) *lineReader {
	return &lineReader{r: bufio.NewReaderSize(r, 1<<16), limit: maxBody}
}

// errLongLine is the error of a line that is too long; the one after it can be
// read.
var errLongLine = errors.New("is longer than 32 MiB, which no server takes as a request; leave it out")

// next returns the next line without its end, valid until the next call. At the
// end it returns io.EOF.
func (l *lineReader) next() ([]byte, error) {
	l.line = l.line[:0]
	l.number++
	size := 0
	most := l.limit + len("\r\n")
	for {
		part, err := l.r.ReadSlice('\n')
		size += len(part)
		l.offset += int64(len(part))
		if size <= most {
			l.line = append(l.line, part...)
		}
		switch {
		case err == bufio.ErrBufferFull:
			continue
		case err == io.EOF && size > 0: // a last line without an end
		case err != nil:
			return nil, err
		}
		line := bytes.TrimRight(l.line, "\r\n")
		if size > most || len(line) > l.limit {
			return nil, errLongLine
		}
		if l.number == 1 {
			line = bytes.TrimPrefix(line, []byte("\ufeff"))
		}
		return line, nil
	}
}

// countLines prints the tokens of each line of a file, a JSON string. It stops
// at the first that is none, because those who read the counts go by lines.
func countLines(cmd *cobra.Command, f tokensFlags, name string) (err error) {
	encoding, _ := f.textEncoding()
	r, label, _, err := openInput(cmd, name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	out := bufio.NewWriter(cmd.OutOrStdout())
	defer func() { err = errors.Join(err, out.Flush()) }()
	for lines := newLineReader(r); ; {
		line, err := lines.next()
		if err == io.EOF {
			return nil
		}
		var text string
		if err == nil && json.Unmarshal(line, &text) != nil || err == nil && bytes.Equal(bytes.TrimSpace(line), []byte("null")) {
			err = errors.New("is no JSON string; write each text in double quotes on a line of its own")
		}
		if err != nil {
			return fmt.Errorf("%s:%d: %w", label, lines.number, err)
		}
		n, err := tokens.TextIn(encoding, text)
		if err != nil {
			return err
		}
		if _, err := out.WriteString(strconv.Itoa(n) + "\n"); err != nil {
			return err
		}
		if lines.r.Buffered() == 0 { // whoever writes line by line waits for it
			if err := out.Flush(); err != nil {
				return err
			}
		}
	}
}

// progress tells on a terminal how far a long reading is. The zero value tells
// nothing.
type progress struct {
	w     io.Writer
	next  time.Time
	shown bool
}

const progressEvery = 500 * time.Millisecond

// newProgress tells on standard error if it is a terminal.
func newProgress(cmd *cobra.Command) *progress {
	p := &progress{next: time.Now().Add(progressEvery)}
	if isTerminal(cmd.ErrOrStderr()) {
		p.w = cmd.ErrOrStderr()
	}
	return p
}

// tell shows a text in place of the one before, from time to time.
func (p *progress) tell(text func() string) {
	if p.w == nil || time.Now().Before(p.next) {
		return
	}
	fmt.Fprintf(p.w, "\r\x1b[K%s", text())
	p.next, p.shown = time.Now().Add(progressEvery), true
}

// clear takes away what is shown.
func (p *progress) clear() {
	if p.shown {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.shown = false
	}
}

// portion says how much of something is read.
func portion(read, whole int64) string {
	if whole == 0 {
		return size(read)
	}
	return fmt.Sprintf("%s of %s", size(read), size(whole))
}
