package pubsub

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

const (
	// connectTimeout is how long the first command of a session may take, with
	// the dial. It is well above go-redis's own timeouts and ends only what they
	// do not.
	connectTimeout = 30 * time.Second

	// Sessions that fail in a row are minPause apart, then twice that, and so
	// on up to maxPause. So are the attempts to find the node of a channel.
	minPause = 10 * time.Millisecond
	maxPause = time.Second
)

var (
	errConnect = errors.New("no connection in time")
	errSilent  = errors.New("no answer to a PING in time")
	errOverdue = errors.New("no answer to a request in time")
)

// news is what the supervisor tells, because nobody else may run user code.
type news struct {
	reconnects int   // calls to make to Config.Reconnected
	refusal    error // to log
}

// startLocked makes sure that a supervisor runs.
func (h *Hub) startLocked() {
	if !h.supervised {
		h.supervised = true
		h.goLocked(h.supervise)
	}
}

// supervise runs one session after the other while anything is subscribed.
func (h *Hub) supervise() {
	for {
		h.pause()
		s := h.begin()
		if s == nil {
			return
		}
		h.watch(s)
		h.report(s)
	}
}

// pause waits until a session may begin, or nobody wants one.
func (h *Hub) pause() {
	for {
		h.mu.Lock()
		wait, idle := time.Until(h.retryAt), h.here == 0
		h.mu.Unlock()
		if idle || wait <= 0 {
			return
		}
		sleep(wait, h.kick)
	}
}

// sleep returns after d, or when somebody kicks.
func sleep(d time.Duration, kick <-chan struct{}) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-kick:
	}
}

// begin starts a session. If nothing is subscribed it returns nil, and the
// supervisor is not one any more.
func (h *Hub) begin() *session {
	h.mu.Lock()
	defer h.mu.Unlock()

	if h.here == 0 {
		h.supervised, h.outage = false, nil
		return nil
	}
	s := &session{hub: h, open: h.open, work: make(chan struct{}, 1), opened: time.Now()}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	h.rechecked = s.opened
	h.session = s
	h.goLocked(s.write)
	return s
}

// watch returns when s has ended.
func (h *Hub) watch(s *session) {
	for {
		next, n, ok := h.look(s)
		if n.refusal != nil {
			h.cfg.Logger.Warn("pubsub: the server refuses a channel", "error", n.refusal)
		}
		for range n.reconnects {
			h.cfg.Reconnected()
		}
		if !ok {
			return
		}
		sleep(time.Until(next), h.kick)
	}
}

// look does what is due and returns when to look again, or that s has ended.
func (h *Hub) look(s *session) (next time.Time, n news, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()

	now := time.Now()
	n, h.news = h.news, n
	if h.session == s && h.here == 0 {
		h.detachLocked(s)
		h.failures = 0
	}
	if h.session != s {
		return next, n, false
	}
	next, err := h.probeLocked(s, now)
	if err != nil {
		h.failLocked(s, err)
		return next, n, false
	}
	next = earlier(next, h.dueLocked(now))
	h.planned = earlier(next, h.recheckLocked(now))
	return h.planned, n, true
}

// recheckLocked has the topics of a Shards' hub located again from time to time.
// It returns when to do so next, zero if never.
func (h *Hub) recheckLocked(now time.Time) (next time.Time) {
	if h.shards == nil {
		return next
	}
	if next = h.rechecked.Add(h.shards.cfg.Recheck); now.Before(next) {
		return next
	}
	h.rechecked = now
	h.shards.recheck(h)
	return now.Add(h.shards.cfg.Recheck)
}

// probeLocked judges whether s is alive. It returns when to judge again.
func (h *Hub) probeLocked(s *session, now time.Time) (time.Time, error) {
	if s.established.IsZero() {
		if end := s.opened.Add(connectTimeout); now.Before(end) {
			return end, nil
		}
		return now, errConnect
	}
	// Other things may arrive while an answer is missing.
	patience := h.cfg.Probe + h.cfg.ProbeTimeout
	if len(s.inflight) > 0 && now.Sub(s.inflight[0].sent) >= patience {
		return now, errOverdue
	}
	if s.probed.IsZero() {
		if quiet := s.heard.Add(h.cfg.Probe); now.Before(quiet) {
			return quiet, nil
		}
		s.ping, s.probed = true, now
		signal(s.work)
	}
	// The time counts from the wish, not from the write: a writer that hangs on
	// an established connection is as good as silence.
	if end := s.probed.Add(h.cfg.ProbeTimeout); now.Before(end) {
		return end, nil
	}
	return now, errSilent
}

// backOffLocked sets when the successor of s, which failed, may begin. Only a
// session that has lasted proves that the trouble is over.
func (h *Hub) backOffLocked(s *session) {
	now := time.Now()
	if !s.established.IsZero() && now.Sub(s.established) >= maxPause {
		h.failures = 0
	}
	h.retryAt = now.Add(backOff(h.failures))
	h.failures++
}

// backOff is how long to wait after n earlier failures. Half of it is random,
// so that clients do not come back in step.
func backOff(n int) time.Duration {
	pause := min(minPause<<min(n, 10), maxPause)
	return pause/2 + rand.N(pause/2)
}

// report logs how s ended: the first loss in a row as a warning.
func (h *Hub) report(s *session) {
	h.mu.Lock()
	err, first := s.err, h.failures == 1
	h.mu.Unlock()
	switch {
	case err == nil:
	case first:
		h.cfg.Logger.Warn("pubsub: connection lost, connecting again", "error", err)
	default:
		h.cfg.Logger.Debug("pubsub: still no lasting connection", "error", err)
	}
}
