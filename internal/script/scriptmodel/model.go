// Package scriptmodel does in plain Go what the scripts do inside Redis, on one
// key with a clock that only its user moves. It is for tests: the record's
// model test runs on it, and script's tests show that it equals the Lua.
package scriptmodel

import (
	"maps"
	"strconv"
	"time"
)

// Server is a Redis with one key, a hash.
type Server struct {
	Now time.Duration

	// Guarded is the moment until which the restart guard of every acquire refuses.
	Guarded time.Duration

	fields  map[string]int
	expires time.Duration // moment of expiry; 0: never
}

// Advance lets d pass.
func (s *Server) Advance(d time.Duration) {
	s.Now += d
	if s.fields != nil && s.expires != 0 && s.expires <= s.Now {
		s.del()
	}
}

// Fields is a copy of the hash.
func (s *Server) Fields() map[string]int { return maps.Clone(s.fields) }

// Depth is the value of field, 0 if there is none.
func (s *Server) Depth(field string) int { return s.fields[field] }

// Expires is the moment at which the key expires, if it exists and does.
func (s *Server) Expires() (time.Duration, bool) {
	return s.expires, len(s.fields) > 0 && s.expires != 0
}

// Remove is an administrator's DEL.
func (s *Server) Remove() { s.del() }

// Acquire is acquire.lua.
func (s *Server) Acquire(ttl time.Duration, field string, found []string) string {
	mine := s.hexists(field)
	switch own := mine + s.count(found); {
	case own < len(s.fields):
		return "held:" + strconv.FormatInt(s.pttl().Milliseconds(), 10)
	case s.Now < s.Guarded:
		return "restarted:" + strconv.FormatInt((s.Guarded-s.Now).Milliseconds(), 10)
	case len(s.fields) == 0:
		s.hset(field, 1)
		s.pexpire(ttl)
		return "granted"
	}
	s.replace(mine == 0, ttl, field, found)
	return granted(s.Depth(field))
}

// granted is the reply with which a field stands at that depth.
func granted(depth int) string {
	if depth != 1 {
		return "granted:deep"
	}
	return "granted"
}

// Keep is keep.lua.
func (s *Server) Keep(ttl time.Duration, field string, depth int) string {
	if s.hexists(field) == 0 {
		return "gone"
	}
	s.raise(ttl)
	s.hset(field, depth)
	return "kept"
}

// Release is release.lua.
func (s *Server) Release(found []string) string {
	if s.count(found) == 0 {
		return "gone"
	}
	s.del()
	return "released"
}

// Pass is pass.lua.
func (s *Server) Pass(ttl time.Duration, field string, found []string) string {
	mine := s.hexists(field)
	if mine+s.count(found) == 0 {
		return "gone"
	}
	s.replace(mine == 0, ttl, field, found)
	return "passed"
}

// Renew is renew.lua for one key.
func (s *Server) Renew(ttl time.Duration, field string) string {
	if s.hexists(field) == 0 {
		return "g"
	}
	if ttl > 0 {
		s.raise(ttl)
	}
	return "k"
}

// replace puts field in place of found, in the order of the scripts: a hash
// that loses its last field is gone, and its expiry with it.
func (s *Server) replace(anew bool, ttl time.Duration, field string, found []string) {
	if anew {
		s.pexpire(ttl)
	} else {
		s.raise(ttl)
	}
	if s.hexists(field) == 0 {
		s.hset(field, 1)
	}
	for _, f := range found {
		s.hdel(f)
	}
}

func (s *Server) raise(ttl time.Duration) {
	if s.pttl() < ttl {
		s.pexpire(ttl)
	}
}

func (s *Server) count(fields []string) (n int) {
	for _, f := range fields {
		n += s.hexists(f)
	}
	return n
}

func (s *Server) hexists(field string) int {
	if _, ok := s.fields[field]; ok {
		return 1
	}
	return 0
}

func (s *Server) hset(field string, depth int) {
	if s.fields == nil {
		s.fields = make(map[string]int)
	}
	s.fields[field] = depth
}

func (s *Server) hdel(field string) {
	if delete(s.fields, field); len(s.fields) == 0 {
		s.del()
	}
}

func (s *Server) del() { s.fields, s.expires = nil, 0 }

func (s *Server) pexpire(ttl time.Duration) {
	if len(s.fields) > 0 {
		s.expires = s.Now + ttl
	}
}

func (s *Server) pttl() time.Duration {
	if s.expires == 0 {
		return -time.Millisecond // as PTTL's -1: shorter than any
	}
	return s.expires - s.Now
}
