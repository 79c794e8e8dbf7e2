package multilock

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"

	"github.com/relock-go/relock/rlock"
)

// known is what every lock of rlock has beside rlock.Locker.
type known interface {
	rlock.Locker
	Key() string
	Client() *rlock.Client
	Info(ctx context.Context) (rlock.Info, error)
}

// member is one lock of a group.
type member struct {
	rlock.Locker
	lock  known  // the same; nil where that does not say its key and client
	place int    // among the arguments of New, from 1
	key   string // as it stands in Redis; the name, where that is not known
	half  half
}

func newMember(l rlock.Locker, place int) member {
	m := member{Locker: l, place: place, key: l.Name(), half: halfOf(l)}
	if lock, ok := l.(known); ok {
		m.lock, m.key = lock, lock.Key()
	}
	return m
}

// same tells whether m and other are one lock, as far as they say.
func (m member) same(other member) bool {
	if m.lock != nil && other.lock != nil && m.half != unsaid && other.half != unsaid {
		return m.lock.Client() == other.lock.Client() && m.key == other.key && m.half == other.half
	}
	a, b := reflect.ValueOf(m.Locker), reflect.ValueOf(other.Locker)
	return a.Comparable() && b.Comparable() && m.Locker == other.Locker
}

// beside tells whether m and other are at one key of one server. What does not say its
// client may be at any: a write half, and the read half that has to come after it, count
// as being at one.
func (m member) beside(other member) bool {
	if m.key != other.key {
		return false
	}
	if m.lock == nil || other.lock == nil {
		return m.half == write && other.half == read
	}
	return m.lock.Client() == other.lock.Client()
}

// named is err with the member's name; nil stays nil.
func (m member) named(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("member %d (%q): %w", m.place, m.Name(), err)
}

// isNil also finds a nil pointer behind the interface.
func isNil(l rlock.Locker) bool {
	if l == nil {
		return true
	}
	switch v := reflect.ValueOf(l); v.Kind() {
	case reflect.Pointer, reflect.Map, reflect.Func, reflect.Chan, reflect.Slice:
		return v.IsNil()
	}
	return false
}

// part is a member that was taken.
type part struct {
	member
	lost  <-chan struct{} // of the hold that it was taken with
	outer bool            // the owner held the member already, without the group
}

func (p part) isLost() bool { return isDone(p.lost) }

// errors is what f says of each of parts, with its name. They are asked all at once,
// in goroutines of their own, so f's ctx has to carry the owner. A panic in one of
// them goes on here, when all have ended.
func each(parts []part, f func(part) error) []error {
	errs := make([]error, len(parts))
	panics := make(chan any, len(parts))
	var all sync.WaitGroup
	for i, p := range parts {
		all.Go(func() {
			returned := false
			defer func() {
				if v := recover(); v != nil {
					panics <- v
				} else if !returned {
					errs[i] = p.named(errGoexit)
				}
			}()
			errs[i] = p.named(f(p))
			returned = true
		})
	}
	all.Wait()
	select {
	case v := <-panics:
		panic(v)
	default:
		return errs
	}
}

var errGoexit = errors.New("multilock: the call ended its goroutine")
