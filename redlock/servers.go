package redlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// errTwice: two members lead to one server.
var errTwice = errors.New("the same server")

// twice is the error of a node that refuses because its server has granted the lock to
// another member's client: both lead to the same server. There is a look at each refusal
// of a member until it has held the lock at the same time as each other one, so it needs
// no INFO, which is often forbidden.
func (r *RedLock) twice(ctx context.Context, m *member) error {
	if m.server == nil || !r.doubtful(m) {
		return nil
	}
	info, err := m.server.Info(ctx)
	if err != nil {
		return nil // it is a refusal all the same
	}
	for _, h := range info.Holders {
		for _, other := range r.members {
			if other != m && other.server != nil && h.Client == other.server.Client().ID() && h.Client != m.server.Client().ID() {
				return fmt.Errorf("%w as node %d: the client of that one holds it there", errTwice, other.place)
			}
		}
	}
	return nil
}

// doubtful tells whether m may refuse because another member has its server, for all that
// is known. After the first success that is only one that has been a part of a hold, or
// as long as a server is down each refusal of the others would cost a look.
func (r *RedLock) doubtful(m *member) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.doubts || slices.ContainsFunc(r.members, func(other *member) bool {
		i := other.place - 1
		return other != m && other.server != nil && other.apart[i] && !m.apart[i]
	})
}

// apartLocked notes that all these nodes have the lock now. One server would not have let
// in two clients.
func apartLocked(nodes []part) {
	for _, p := range nodes {
		for _, other := range nodes {
			p.apart[other.place-1] = true
		}
	}
}

// doubt has the next attempt wait for all answers: that two members are one server was
// found when this one had its majority already.
func (r *RedLock) doubt() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.doubts = true
}
