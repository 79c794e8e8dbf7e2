package owner

import (
	"bytes"
	"fmt"
	"runtime"
	"strconv"
	"sync"

	"github.com/petermattis/goid"
)

// goroutineID is the function that Goroutine uses. It is chosen once per
// process, at the first call: the layout of the runtime, which the fast way
// depends on, does not change while the process runs.
var goroutineID = sync.OnceValue(func() func() int64 { return choose(goid.Get) })

// Goroutine returns the id of the calling goroutine. Ids are positive and are
// not used again within a process.
//
// It takes a few nanoseconds where petermattis/goid knows this version of Go.
// Elsewhere it parses a stack trace, which takes microseconds, and more the
// deeper the stack is.
func Goroutine() int64 {
	return goroutineID()()
}

// choose returns fast if it agrees with the runtime's own answer, else parse.
//
// It asks on two goroutines, as a wrong offset may hit a constant that is
// right by chance on one of them.
func choose(fast func() int64) func() int64 {
	here := agrees(fast)
	there := make(chan bool)
	go func() { there <- agrees(fast) }()
	if <-there && here {
		return fast
	}
	return parse
}

func agrees(fast func() int64) bool {
	id := fast()
	return id > 0 && id == parse()
}

// parse reads the id from the first line of the goroutine's stack trace, which
// begins like "goroutine 18 [running]:".
//
// It panics if there is none. Any answer would be wrong then, and a wrong one
// lets two goroutines hold one lock.
func parse() int64 {
	var buf [64]byte
	line := buf[:runtime.Stack(buf[:], false)]
	text, _, _ := bytes.Cut(bytes.TrimPrefix(line, []byte("goroutine ")), []byte(" "))
	id, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil || id <= 0 {
		panic(fmt.Sprintf("owner: no goroutine id in %q: this version of Go needs an explicit owner", line))
	}
	return id
}
