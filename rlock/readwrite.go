package rlock

// ReadWriteLock is a lock with two halves: any number of readers are inside, or one
// writer. It is Redisson's getReadWriteLock. Make it with Client.NewReadWriteLock.
//
// Both halves are reentrant. A writer may take the read lock too, and goes on as a
// reader when it unlocks the write lock: other readers come in then. The other way round
// a reader would wait for itself: its Lock of the write half is ErrUpgrade.
//
// Within a process waiters come in first come, first served, a run of readers together;
// so readers that come after a waiting writer wait behind it. Between processes
// readers come in whenever readers are inside: a writer may starve if readers of other
// processes never pause, see LIMITATIONS.
//
// A name belongs to a read-write lock or to one of the other kinds: while one of them
// stands in Redis, the other is ErrWrongType.
type ReadWriteLock struct {
	read  ReadLock
	write WriteLock
}

// ReadLock is the half of a ReadWriteLock that excludes writers. See ReadWriteLock.
type ReadLock struct{ lock }

// WriteLock is the half of a ReadWriteLock that excludes everybody. See ReadWriteLock.
type WriteLock struct{ lock }

// NewReadWriteLock returns the read-write lock of that name; opts are for both halves.
// See NewLock.
func (c *Client) NewReadWriteLock(name string, opts ...LockOption) *ReadWriteLock {
	return &ReadWriteLock{
		read:  ReadLock{c.newLock(reading, name, opts)},
		write: WriteLock{c.newLock(writing, name, opts)},
	}
}

// ReadLock is the half for readers.
func (l *ReadWriteLock) ReadLock() *ReadLock { return &l.read }

// WriteLock is the half for a writer.
func (l *ReadWriteLock) WriteLock() *WriteLock { return &l.write }
