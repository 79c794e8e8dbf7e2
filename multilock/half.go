package multilock

import (
	"reflect"

	"github.com/relock-go/relock/rlock"
)

// half tells apart what stands at one key and is not one lock. They are in the order
// in which they are taken: of both halves of a read-write lock the write half has to
// be first, because a reader cannot become a writer.
type half int

const (
	whole half = iota
	write
	unsaid // it may be any
	read
)

// halfOf is what l asks for, where its type says so: that of a lock of rlock, or a
// user's around one. What a type embeds is what its methods come from, and the name
// of a type says nothing: a user may take any.
func halfOf(l rlock.Locker) half {
	level := []reflect.Value{reflect.ValueOf(l)}
	seen := map[reflect.Type]bool{} // a type may embed a pointer to itself
	for len(level) > 0 {
		var found []half
		var next []reflect.Value
		for _, v := range level {
			for v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface {
				v = v.Elem()
			}
			if v.Kind() != reflect.Struct || seen[v.Type()] {
				continue
			}
			seen[v.Type()] = true
			if h := halfOfType(v.Type()); h != unsaid {
				found = append(found, h)
				continue
			}
			for i := range v.NumField() {
				if v.Type().Field(i).Anonymous {
					next = append(next, v.Field(i))
				}
			}
		}
		if len(found) == 1 {
			return found[0]
		} else if len(found) > 1 { // the methods are of its own
			return unsaid
		}
		level = next
	}
	return unsaid
}

// halfOfType is what t is, if it is a lock of rlock.
func halfOfType(t reflect.Type) half {
	switch t {
	case reflect.TypeFor[rlock.WriteLock]():
		return write
	case reflect.TypeFor[rlock.ReadLock]():
		return read
	case reflect.TypeFor[rlock.Lock](), reflect.TypeFor[rlock.FairLock](),
		reflect.TypeFor[rlock.FencedLock](), reflect.TypeFor[rlock.SpinLock]():
		return whole
	}
	return unsaid
}
