package redlock

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/relock-go/relock/rlock"
)

// toOthersLocked is what a settled attempt comes to for an owner that came while it was
// under way, gives each node limit, and may have waited for that long already.
//
// What is the asking owner's own stays that owner's: its grants, its name, a NodeTimeout
// that is shorter. The servers' part is the same for all who ask, and is told to all: if
// each had to wait for its own silence, and they ask one after another, the last one would
// wait for NodeTimeout as often as there are owners. Errors that come fast may be about the
// asking owner in a way that nobody here knows, so they count only for who has waited.
func (a *attempt) toOthersLocked(limit time.Duration, waited bool) *attempt {
	if a.panicked() != nil {
		return &attempt{again: true}
	}
	spare := len(a.r.members) - a.r.quorum
	refused, failed := 0, &round{r: a.r}
	for _, x := range a.answers {
		switch {
		case x.yes || personal(x.err):
			continue
		case x.err == nil:
			refused++
			continue
		case silent(x.err):
			if a.limit < limit {
				continue
			}
		case !waited && !errors.Is(x.err, rlock.ErrRestarted):
			continue
		}
		if e, ok := x.err.(*rlock.Error); ok {
			x.err = e.Err // which does not name the owner
		}
		failed.answers = append(failed.answers, x)
	}
	switch n := len(failed.answers); {
	case n > spare:
		b := &attempt{}
		b.err, b.young = failed.failed(spare)
		return b
	case n+refused > spare:
		return &attempt{}
	}
	return &attempt{again: true}
}

// silent: the node has not answered, whoever was there first to notice.
func silent(err error) bool {
	return errors.Is(err, rlock.ErrUnsettled) || errors.Is(err, context.DeadlineExceeded)
}

// personal: the error is about the owner that asked, or its lease.
func personal(err error) bool {
	return slices.ContainsFunc([]error{
		rlock.ErrInvalidOwner, rlock.ErrInvalidLease, rlock.ErrLost, rlock.ErrNotHeld,
		rlock.ErrReentry, rlock.ErrUpgrade, rlock.ErrMaxHold,
	}, func(own error) bool { return errors.Is(err, own) })
}
