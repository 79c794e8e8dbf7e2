package redistest

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// frame is one reply as it came over the wire.
type frame struct {
	raw  []byte
	kind byte // of the value itself, behind its attributes
	// words are the elements of the outermost array or push that are strings,
	// "" for the others; nil for every other kind.
	words []string
}

// pubsub reports whether the frame is part of a subscription's stream, not the
// answer to a command. Before RESP3 only its first word tells.
func (f *frame) pubsub(subscribed bool) bool {
	if f.kind == '>' {
		return true
	}
	if f.kind != '*' || !subscribed || len(f.words) == 0 {
		return false
	}
	switch f.words[0] {
	case "message", "pmessage", "smessage":
		return true
	}
	return f.confirmation()
}

// confirmation reports whether the frame confirms a change of a subscription.
func (f *frame) confirmation() bool {
	if len(f.words) == 0 {
		return false
	}
	return strings.HasSuffix(f.words[0], "subscribe")
}

// maxNesting bounds what a broken backend can make readValue recurse.
const maxNesting = 64

// readFrame reads one reply of RESP2 or RESP3.
func readFrame(r *bufio.Reader) (*frame, error) {
	var f frame
	var b bytes.Buffer
	if err := readValue(r, &b, &f, 0); err != nil {
		return nil, err
	}
	f.raw = b.Bytes()
	return &f, nil
}

func readLine(r *bufio.Reader) ([]byte, error) {
	line, err := r.ReadBytes('\n')
	if err != nil {
		return nil, err
	}
	if len(line) < 3 || line[len(line)-2] != '\r' {
		return nil, fmt.Errorf("redistest: not RESP: %q", line)
	}
	return line, nil
}

// readValue copies one value to b. At depth 0 it notes the kind in f, at depth
// 1 the words.
func readValue(r *bufio.Reader, b *bytes.Buffer, f *frame, depth int) error {
	if depth > maxNesting {
		return fmt.Errorf("redistest: reply nested deeper than %d", maxNesting)
	}
	line, err := readLine(r)
	if err != nil {
		return err
	}
	b.Write(line)
	kind, text := line[0], string(line[1:len(line)-2])
	if depth == 0 {
		f.kind = kind
	}
	word := ""
	switch kind {
	case '+':
		word = text
	case '-', ':', '_', '#', ',', '(':
	case '$', '=', '!':
		n, err := strconv.Atoi(text)
		if err != nil {
			return fmt.Errorf("redistest: not RESP: %q", line)
		}
		if n >= 0 {
			from := b.Len()
			if _, err := io.CopyN(b, r, int64(n)+2); err != nil {
				return err
			}
			if depth == 1 {
				word = string(b.Bytes()[from : from+n])
			}
		}
	case '*', '~', '>', '%', '|':
		n, err := strconv.Atoi(text)
		if err != nil {
			return fmt.Errorf("redistest: not RESP: %q", line)
		}
		if kind == '%' || kind == '|' {
			n *= 2
		}
		inner := depth + 1
		if kind == '|' {
			inner = depth + 2 // no words of attributes
		}
		for range n {
			if err := readValue(r, b, f, inner); err != nil {
				return err
			}
		}
		if kind == '|' { // the value proper follows
			return readValue(r, b, f, depth)
		}
	default:
		return fmt.Errorf("redistest: not RESP: %q", line)
	}
	if depth == 1 {
		f.words = append(f.words, word)
	}
	return nil
}

// readRequest reads one command, as an array of bulk strings or inline, and
// returns it together with its bytes.
func readRequest(r *bufio.Reader) (args []string, raw []byte, err error) {
	line, err := readLine(r)
	if err != nil {
		return nil, nil, err
	}
	if line[0] != '*' {
		return strings.Fields(string(line)), line, nil
	}
	n, err := strconv.Atoi(string(line[1 : len(line)-2]))
	if err != nil {
		return nil, nil, fmt.Errorf("redistest: not a request: %q", line)
	}
	b := bytes.NewBuffer(line)
	for range n {
		if line, err = readLine(r); err != nil {
			return nil, nil, err
		}
		size, err := strconv.Atoi(string(line[1 : len(line)-2]))
		if line[0] != '$' || err != nil || size < 0 {
			return nil, nil, fmt.Errorf("redistest: not a request: %q", line)
		}
		b.Write(line)
		from := b.Len()
		if _, err := io.CopyN(b, r, int64(size)+2); err != nil {
			return nil, nil, err
		}
		args = append(args, string(b.Bytes()[from:from+size]))
	}
	return args, b.Bytes(), nil
}
