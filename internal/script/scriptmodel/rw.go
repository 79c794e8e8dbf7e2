package scriptmodel

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// RW is a Redis with one key, a read-write lock.
type RW struct {
	Now time.Duration

	mode    string
	fields  map[string]int // without mode
	expires time.Duration
	holds   map[string]time.Duration // when the key of a read hold expires
}

// NewRW returns a server on which nobody holds the lock.
func NewRW() *RW { return &RW{fields: map[string]int{}, holds: map[string]time.Duration{}} }

// Advance lets d pass.
func (s *RW) Advance(d time.Duration) {
	s.Now += d
	for key, end := range s.holds {
		if end <= s.Now {
			delete(s.holds, key)
		}
	}
	if s.mode != "" && s.expires <= s.Now {
		s.del()
	}
}

// Mode is "read", "write" or empty.
func (s *RW) Mode() string { return s.mode }

// Depth is the value of field, 0 if there is none.
func (s *RW) Depth(field string) int { return s.fields[field] }

// Fields are all owners' fields.
func (s *RW) Fields() []string {
	var all []string
	for f := range s.fields {
		all = append(all, f)
	}
	return all
}

// Stands is how long the hash stands, and with it the first hold key of a reader.
func (s *RW) Stands(field string) time.Duration {
	if s.fields[field] == 0 {
		return 0
	}
	if writes(field) {
		return s.expires - s.Now
	}
	return max(0, min(s.expires, s.holds[holdKey(field, 1)])-s.Now)
}

func writes(field string) bool { return strings.HasSuffix(field, ":write") }

func holdKey(field string, n int) string { return field + "#" + strconv.Itoa(n) }

// Acquire is rw_acquire.lua. own is a reader's field as a writer.
func (s *RW) Acquire(ttl time.Duration, field, own string, found []string) string {
	reading := !writes(field)
	left := s.expires - s.Now
	mine := s.has(field)
	if s.mode != "" {
		n := mine
		for _, f := range found {
			n += s.has(f)
		}
		alone := n == len(s.fields)
		if !alone && !(reading && s.mode == "read") {
			writer := !reading
			if reading && s.has(own) == 0 {
				for f := range s.fields {
					writer = writer || writes(f) && !slices.Contains(found, f)
				}
			}
			if writer {
				return "held"
			}
		}
		if alone && mine == 0 {
			left = 0
		}
	} else {
		left = 0
	}
	if reading {
		s.raiseHold(field, 1, ttl)
	}
	switch {
	case !reading:
		s.mode = "write"
	case s.mode == "write" && s.has(own) == 1:
	default:
		s.mode = "read"
	}
	s.enter(field)
	s.expires = s.Now + max(left, ttl)
	for _, f := range found {
		s.drop(f)
	}
	return granted(s.fields[field])
}

// Keep is rw_keep.lua.
func (s *RW) Keep(ttl time.Duration, field string, depth int) string {
	old := s.fields[field]
	if old == 0 {
		return "gone"
	}
	s.expires = max(s.expires, s.Now+ttl)
	s.fields[field] = depth
	if !writes(field) {
		for n := 1; n <= depth; n++ {
			s.raiseHold(field, n, ttl)
		}
		for n := depth + 1; n <= old; n++ {
			delete(s.holds, holdKey(field, n))
		}
	}
	return "kept"
}

// Release is rw_release.lua. field is empty for a sweep.
func (s *RW) Release(field string, found []string) string {
	if s.mode == "" {
		return "gone"
	}
	there, dropped, wrote := false, false, false
	for i, f := range append([]string{field}, found...) {
		if f != "" && s.has(f) == 1 {
			there = there || i == 0 || field == ""
			wrote = wrote || writes(f)
			s.drop(f)
			dropped = true
		}
	}
	if !dropped {
		return "gone"
	}
	reply := s.rest(wrote)
	if !there {
		return "gone"
	}
	return reply
}

// rest is rest.lua.
func (s *RW) rest(wrote bool) string {
	most := time.Duration(0)
	for f := range s.fields {
		if writes(f) {
			return "released:others"
		}
		most = max(most, s.longest(f))
	}
	if most == 0 {
		s.del()
		return "released"
	}
	s.expires = s.Now + most
	if !wrote {
		return "released:others"
	}
	s.mode = "read"
	return "released"
}

// Pass is rw_pass.lua.
func (s *RW) Pass(ttl time.Duration, field string, found []string) string {
	mine := s.has(field)
	own, wrote := mine, mine == 1
	for _, f := range found {
		own += s.has(f)
		wrote = wrote || s.has(f) == 1 && writes(f)
	}
	if !wrote || s.mode != "write" {
		return "gone"
	}
	if own < len(s.fields) && mine == 0 {
		for _, f := range found {
			s.drop(f)
		}
		return s.rest(true)
	}
	if mine == 0 {
		s.expires = s.Now + ttl
	} else {
		s.expires = max(s.expires, s.Now+ttl)
	}
	s.enter(field)
	for _, f := range found {
		s.drop(f)
	}
	return "passed"
}

// Renew is rw_renew.lua.
func (s *RW) Renew(ttl time.Duration, field string) string {
	count := s.fields[field]
	if count == 0 {
		return "g"
	}
	if !writes(field) {
		if ttl > 0 {
			for n := 1; n <= count; n++ {
				s.raiseHold(field, n, ttl)
			}
		} else {
			ttl = s.longest(field)
		}
	}
	s.expires = max(s.expires, s.Now+ttl)
	return "k"
}

func (s *RW) has(field string) int {
	if _, ok := s.fields[field]; ok {
		return 1
	}
	return 0
}

// enter makes field at depth 1; one that is there stays as it is.
func (s *RW) enter(field string) {
	if s.has(field) == 0 {
		s.fields[field] = 1
	}
}

func (s *RW) raiseHold(field string, n int, ttl time.Duration) {
	s.holds[holdKey(field, n)] = max(s.holds[holdKey(field, n)], s.Now+ttl)
}

func (s *RW) longest(field string) (most time.Duration) {
	for n := 1; n <= s.fields[field]; n++ {
		most = max(most, s.holds[holdKey(field, n)]-s.Now)
	}
	return most
}

func (s *RW) drop(field string) {
	if !writes(field) {
		for n := 1; n <= s.fields[field]; n++ {
			delete(s.holds, holdKey(field, n))
		}
	}
	delete(s.fields, field)
}

func (s *RW) del() {
	s.mode, s.expires = "", 0
	clear(s.fields)
}
