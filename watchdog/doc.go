// Package watchdog keeps leases: it renews those that are due, in batches, and
// tells when one has reached its deadline.
//
// It knows neither servers nor locks. The caller gives it two functions, Renew
// and Expired, and two times for each [Lease]: when to renew it next, and when
// it is over. Both live in one timing wheel with a tick of a millisecond.
//
// What a caller can rely on:
//
//   - A deadline never fires early, and at most about a tick late, whatever
//     Renew is doing: the tick that fires it does no I/O. After a pause of the
//     process, deadlines are told before anything is renewed.
//   - What is due is never skipped. It waits in a queue for one of a few Renew
//     calls, which fill up when they fall behind. A call that hangs gives its
//     place to another after Config.Attempt.
//   - A lease whose renewal fails, hangs or panics is tried again until its
//     deadline. The leases of other batches do not notice.
//   - A lease has no goroutine and no timer of its own, and takes 64 bytes
//     beside its Hold. One goroutine ticks while anything is kept, and a few
//     more run while something is due. [Watchdog.Close] joins them all.
//   - The watchdog holds no mutex of its own while it calls Renew or Expired.
//     So Keep, Drop and Len may be called under any mutex, and from both.
//
// # Answers that cross
//
// The caller keeps the authoritative state of its holds, and the watchdog an
// image of it. The two functions must look at the former, under the caller's
// mutex, because a call may be on its way when the latter changes:
//
//   - Expired(l) may be called just after another goroutine gave l new times
//     by Keep, or dropped it: check the deadline.
//   - Renew may be called with a lease that was dropped just before: a call
//     counts as under way from the moment its batch is made. Check that the
//     lease is still wanted.
//   - Keep after Drop keeps the lease again. A Renew call that comes back must
//     not Keep what was released meanwhile.
//   - When less than two attempts are left until the deadline, or Renew does
//     not return when its ctx ends, one lease may be in two Renew calls.
package watchdog
