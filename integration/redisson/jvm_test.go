package redisson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

// answerLimit bounds the wait for an answer of the JVM. It is reached only when
// a test fails.
const answerLimit = 60 * time.Second

// words is a command for the Java program, or what one begins with. See
// java/src/main/java/relock/peer/Command.java.
type words map[string]string

// with is w with more words.
func (w words) with(more ...string) words {
	all := words{}
	for k, v := range w {
		all[k] = v
	}
	for i := 0; i < len(more); i += 2 {
		all[more[i]] = more[i+1]
	}
	return all
}

// answer is what the Java program answers.
type answer struct {
	ID      int64
	Thread  int64 // Java's id of the thread that the command was for
	Value   json.RawMessage
	Error   string // the exception's class
	Message string
}

// jvm is the Java program. Any goroutine may use it.
type jvm struct {
	proc   *redistest.Process
	stderr bytes.Buffer // to be read when proc has ended
	serial atomic.Int64 // of the names that clients and threads are given

	mu    sync.Mutex // guards what follows, and writing to in
	in    io.WriteCloser
	last  int64
	open  map[int64]chan<- answer // commands that are not answered yet
	ended bool
}

// startJVM starts the Java program. It ends with t.
func startJVM(t testing.TB) *jvm {
	t.Helper()
	// A small heap, and quick code soon rather than the best code later: a JVM
	// that starts fast and leaves the machine to what is measured.
	cmd := exec.Command("java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
		"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-jar", jar(t))
	j := &jvm{open: map[int64]chan<- answer{}}
	out, stdout := io.Pipe()
	cmd.Stdout, cmd.Stderr = stdout, &j.stderr
	var err error
	j.in, err = cmd.StdinPipe()
	require.NoError(t, err)
	j.proc, err = redistest.StartProcess(cmd)
	require.NoError(t, err)
	read := make(chan struct{})
	go func() {
		defer close(read)
		j.read(out)
	}()
	t.Cleanup(func() {
		j.mu.Lock()
		_ = j.in.Close() // the program ends with its input
		j.mu.Unlock()
		select {
		case <-j.proc.Exited():
		case <-time.After(10 * time.Second):
			t.Error("the JVM does not end with its input")
			j.proc.Kill()
		}
		_ = stdout.Close()
		<-read
		if t.Failed() {
			t.Logf("the JVM's standard error:\n%s", j.stderr.Bytes())
		}
	})
	go func() {
		<-j.proc.Exited()
		_ = stdout.Close()
	}()
	return j
}

// read delivers the answers until the program has ended.
func (j *jvm) read(out io.Reader) {
	in := json.NewDecoder(out)
	for {
		var a answer
		err := in.Decode(&a)
		j.mu.Lock()
		if err != nil {
			for id, c := range j.open {
				c <- answer{Error: "the JVM has ended", Message: err.Error()}
				delete(j.open, id)
			}
			j.ended = true
			j.mu.Unlock()
			return
		}
		if c := j.open[a.ID]; c != nil {
			c <- a
			delete(j.open, a.ID)
		}
		j.mu.Unlock()
	}
}

// send sends a command; its answer comes over the channel.
func (j *jvm) send(w words) <-chan answer {
	c := make(chan answer, 1)
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.ended {
		c <- answer{Error: "the JVM has ended"}
		return c
	}
	j.last++
	line := url.Values{"id": {strconv.FormatInt(j.last, 10)}}
	for k, v := range w {
		line.Set(k, v)
	}
	j.open[j.last] = c
	if _, err := io.WriteString(j.in, line.Encode()+"\n"); err != nil {
		delete(j.open, j.last)
		c <- answer{Error: "no way to the JVM", Message: err.Error()}
	}
	return c
}

// call sends a command and waits for its answer, which it decodes into value
// unless that is nil.
func (j *jvm) call(w words, value any) (thread int64, err error) {
	limit := answerLimit
	if ms, err := strconv.Atoi(w["millis"]); err == nil { // it is to take so long
		limit += time.Duration(ms) * time.Millisecond
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case a := <-j.send(w):
		if a.Error != "" {
			return a.Thread, &javaError{class: a.Error, message: a.Message}
		}
		if value == nil {
			return a.Thread, nil
		}
		return a.Thread, json.Unmarshal(a.Value, value)
	case <-timer.C:
		return 0, fmt.Errorf("the JVM has not answered %v within %v", w, limit)
	}
}

// javaError is an exception.
type javaError struct{ class, message string }

func (e *javaError) Error() string { return e.class + ": " + e.message }

// Is lets a cell ask for what an error means without knowing whose it is.
func (e *javaError) Is(target error) bool {
	for _, m := range meanings {
		if e.class == m.class && errors.Is(m.err, target) {
			return true
		}
	}
	return false
}
