package watchdog

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Config says how a Watchdog works. Period, Attempt and Renew must be set.
type Config[H any] struct {
	// Period is the time from one renewal of a lease to the next. Renewal
	// times are rounded down to a 64th of it, so that leases fall due
	// together. It must be positive.
	Period time.Duration

	// Attempt bounds one Renew call, and is the pause before the next attempt
	// for a lease that got no answer. It must be positive. Half of Period fits
	// four attempts, each of them hanging, between the first due time and a
	// deadline three Periods after the last renewal.
	Attempt time.Duration

	// Batch is the largest number of leases in a Renew call. 0 means 100.
	Batch int

	// Calls is the largest number of Renew calls under way that are younger
	// than Attempt. 0 means 4. An older call gives up its place, because a
	// server that hangs must not keep others from being renewed. So with every
	// call hanging, Calls*Batch leases are tried per Attempt.
	Calls int

	// Renew renews the leases of a batch, which is its own to keep. It reports
	// each answer, as it comes, by Keep with new times or by Drop. A lease for
	// which it does neither is due again after Attempt, or sooner near its
	// deadline: at half of what is left.
	//
	// ctx ends after Attempt, or with Close. Renew runs on goroutines of the
	// watchdog, never on the one that ticks, and should return when ctx ends.
	// A panic is recovered and logged, and is a failed attempt for the leases
	// of this batch.
	Renew func(ctx context.Context, batch []*Lease[H])

	// Expired tells that the deadline of l has come. l is not kept any more
	// then, unless another goroutine just did so: check the deadline that
	// counts. Nil means that nobody is told.
	//
	// It is called from the tick, so it must not block and do no I/O. It may
	// call Keep and Drop. A panic is recovered and logged.
	Expired func(l *Lease[H])

	// Logger is told of panics. Nil discards them.
	Logger *slog.Logger
}

// Watchdog keeps leases. Use New to make one, and Close to end it. Its methods
// may be called from any goroutine.
//
// mu guards all that follows it, and the unexported fields of every kept
// lease. It is never held across Renew, Expired, logging or a wait. Callers
// may hold their own mutexes when they call: theirs first, then mu.
type Watchdog[H any] struct {
	cfg    Config[H]
	start  time.Time
	grid   time.Duration
	ctx    context.Context // ends with Close; parent of every Renew call's
	cancel context.CancelFunc
	wake   chan struct{} // tells the ticker that something comes before wakeAt
	ended  chan struct{} // closed when Close was called and no goroutine is left

	mu      sync.Mutex
	closed  bool
	running int // goroutines of this watchdog
	kept    int // leases

	wheel   wheel[H] // renewals that are not due yet, and deadlines
	lapsed  ring[H]  // leases that are past their deadline, and not told yet
	queue   ring[H]  // leases that wait for a Renew call
	waiting int      // leases in queue

	ticking bool
	telling bool          // the ticker is calling Expired; no batch is made meanwhile
	wakeAt  time.Duration // when the ticker looks again; 0 while it is looking
	young   []*worker     // have a place: one of Config.Calls
}

// New returns a Watchdog that keeps nothing yet and has no goroutine. It panics
// if cfg is not usable.
func New[H any](cfg Config[H]) *Watchdog[H] {
	switch {
	case cfg.Period <= 0:
		panic("watchdog: Config.Period must be positive")
	case cfg.Attempt <= 0:
		panic("watchdog: Config.Attempt must be positive")
	case cfg.Batch < 0 || cfg.Calls < 0:
		panic("watchdog: Config.Batch and Config.Calls must not be negative")
	case cfg.Renew == nil:
		panic("watchdog: Config.Renew must be set")
	}
	if cfg.Batch == 0 {
		cfg.Batch = 100
	}
	if cfg.Calls == 0 {
		cfg.Calls = 4
	}
	if cfg.Expired == nil {
		cfg.Expired = func(*Lease[H]) {}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	w := &Watchdog[H]{
		cfg:   cfg,
		start: time.Now(),
		grid:  max(cfg.Period/gridsPerPeriod, 1),
		wake:  make(chan struct{}, 1),
		ended: make(chan struct{}),
	}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	return w
}

// Keep keeps l: it is handed to Renew at renewAt, and to Expired at deadline.
// If l is kept already, it gets these times instead of its old ones.
//
// With a zero renewAt, or one that is not before deadline, l is never renewed.
// With a zero deadline it never expires. With neither there is nothing to keep,
// and Keep is Drop. A time that has passed is due at once. After Close, Keep
// does nothing. It does not allocate.
func (w *Watchdog[H]) Keep(l *Lease[H], renewAt, deadline time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return
	}
	w.dropLocked(l)
	if renewAt.IsZero() && deadline.IsZero() {
		return
	}
	now := w.now()
	l.deadline = w.since(deadline)
	l.renewAt = w.coarse(w.since(renewAt), now)
	w.kept++
	w.scheduleLocked(l)
}

// Drop stops keeping l. It is harmless if l is not kept, or never was.
//
// No Renew call that begins after Drop has returned includes l. One that is
// under way may, from the moment its batch was made. It does not allocate.
func (w *Watchdog[H]) Drop(l *Lease[H]) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dropLocked(l)
}

// Len returns how many leases are kept.
func (w *Watchdog[H]) Len() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.kept
}

// Close drops all leases, ends the ctx of the Renew calls under way and waits
// for them until ctx ends; it returns ctx's error then. A call that does not
// return by then is left to itself.
//
// A second Close is harmless, and waits for the rest. Close must not be called
// from Renew or Expired, as it would wait for its caller.
func (w *Watchdog[H]) Close(ctx context.Context) error {
	w.closeNow()
	select {
	case <-w.ended:
		return nil
	default:
	}
	select {
	case <-w.ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (w *Watchdog[H]) closeNow() {
	w.cancel()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return
	}
	w.closed = true
	// A lease that lives on in the caller's hands must not keep all the others.
	for w.lapsed.head != nil {
		w.dropLocked(w.lapsed.head)
	}
	for w.queue.head != nil {
		w.dropLocked(w.queue.head)
	}
	for {
		l := w.wheel.pop(endOfTime)
		if l == nil {
			break
		}
		w.kept--
	}
	if w.running == 0 {
		close(w.ended)
	}
}

// goLocked starts a goroutine that Close waits for.
func (w *Watchdog[H]) goLocked(f func()) {
	w.running++
	go func() {
		defer func() { // also when Renew or Expired ended the goroutine
			w.mu.Lock()
			defer w.mu.Unlock()
			w.running--
			if w.closed && w.running == 0 {
				close(w.ended)
			}
		}()
		f()
	}()
}

// dropLocked takes l out of wherever it stands.
func (w *Watchdog[H]) dropLocked(l *Lease[H]) {
	if !l.kept() {
		return
	}
	w.wheel.remove(l)
	w.leaveLineLocked(l)
	w.kept--
}

// scheduleLocked puts l, which must not be in the wheel, there for what comes
// next of it, and sees to it that the ticker looks in time.
func (w *Watchdog[H]) scheduleLocked(l *Lease[H]) {
	at := l.deadline
	if l.renewAt != 0 && (at == 0 || l.renewAt < at) {
		at = l.renewAt
	}
	if at == 0 {
		return
	}
	w.wheel.add(l, tickOf(at))
	switch {
	case !w.ticking:
		w.ticking = true
		w.wakeAt = 0
		w.goLocked(w.ticker)
	case at < w.wakeAt:
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}

func (w *Watchdog[H]) joinLineLocked(l *Lease[H], to line) {
	l.line = to
	switch to {
	case lapsed:
		w.lapsed.push(l, inLine)
	case queued:
		w.queue.push(l, inLine)
		w.waiting++
	}
}

func (w *Watchdog[H]) leaveLineLocked(l *Lease[H]) {
	switch l.line {
	case lapsed:
		w.lapsed.remove(l, inLine)
	case queued:
		w.queue.remove(l, inLine)
		w.waiting--
	}
	l.line = noLine
}
