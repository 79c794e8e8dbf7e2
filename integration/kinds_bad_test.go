package integration

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/script"
	"github.com/relock-go/relock/rlock"
)

// TestKinds_Misuse: what cannot be gets an error that says so, and changes nothing: promise 8.
func TestKinds_Misuse(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, kind topology) {
		ctx, cancel := context.WithTimeout(context.Background(), faultLimit)
		defer cancel()
		r := kind.open(t, silence, false)
		c := lockClient(t, r.direct)
		a, b := rlock.WithOwner(ctx, alice), rlock.WithOwner(ctx, bob)

		t.Run("upgrade", func(t *testing.T) {
			f := familyOf(c, name(t))
			require.NoError(t, f.read.Lock(a))
			require.ErrorIs(t, f.write.Lock(a), rlock.ErrUpgrade)
			require.ErrorIs(t, second(f.write.TryLock(a, 0, 0)), rlock.ErrUpgrade)
			require.ErrorIs(t, second(f.write.TryLock(a, time.Minute, 0)), rlock.ErrUpgrade)
			require.NoError(t, f.read.Unlock(a))
			require.NoError(t, f.write.Lock(a), "and then it may")
			require.NoError(t, f.write.Unlock(a))
			free(t, r.direct, f.read.Key())
		})
		t.Run("the other half", func(t *testing.T) {
			f := familyOf(c, name(t))
			for half, other := range map[locker]locker{f.read: f.write, f.write: f.read} {
				require.NoError(t, half.Lock(a))
				require.ErrorIs(t, other.Unlock(a), rlock.ErrNotHeld)
				require.ErrorIs(t, other.Extend(a, time.Minute), rlock.ErrNotHeld)
				require.Zero(t, other.Validity(a))
				require.ErrorIs(t, half.Unlock(b), rlock.ErrNotHeld, "a stranger")
				n, err := half.HoldCount(a)
				require.NoError(t, err)
				require.Equal(t, 1, n, "nothing was changed")
				require.NoError(t, half.Unlock(a))
			}
			free(t, r.direct, f.read.Key())
		})
		t.Run("token without a hold", func(t *testing.T) {
			f := familyOf(c, name(t))
			_, err := f.fenced.Token(a)
			require.ErrorIs(t, err, rlock.ErrNotHeld)
			require.NoError(t, f.fenced.Lock(a))
			_, err = f.fenced.Token(b)
			require.ErrorIs(t, err, rlock.ErrNotHeld, "of another owner's")
			_, ok := rlock.TokenFrom(a)
			require.False(t, ok, "ctx is of no Do")
			require.NoError(t, f.fenced.Unlock(a))
			_, err = f.fenced.Token(a)
			require.ErrorIs(t, err, rlock.ErrNotHeld, "it is over")
			require.NoError(t, f.plain.Lock(a))
			_, err = f.fenced.Token(a)
			require.ErrorIs(t, err, rlock.ErrNotHeld, "a plain lock has none")
			require.NoError(t, f.plain.Unlock(a))
		})
		t.Run("a counter that counts nothing", func(t *testing.T) {
			for what, put := range map[string]func(key string) error{
				"text": func(key string) error { return r.direct.Set(ctx, key, "seven", time.Minute).Err() },
				"list": func(key string) error { return r.direct.RPush(ctx, key, "7").Err() },
			} {
				f := familyOf(c, name(t))
				require.NoError(t, put(script.TokenKey(f.fenced.Key())))
				require.ErrorIs(t, f.fenced.Lock(a), rlock.ErrWrongType, what)
				require.Zero(t, r.direct.Exists(ctx, f.fenced.Key()).Val(), "nothing is held")
				require.NoError(t, f.plain.Lock(a), "who needs no token may")
				require.Error(t, f.fenced.Lock(a), "%s: nor inside", what)
				n, err := f.plain.HoldCount(a)
				require.NoError(t, err)
				require.Equal(t, 1, n)
				require.NoError(t, f.plain.Unlock(a))
				require.NoError(t, r.direct.Del(ctx, script.TokenKey(f.fenced.Key())).Err())
			}
		})
		t.Run("a queue of another type", func(t *testing.T) {
			for what, keyOf := range map[string]func(string) string{"queue": script.QueueKey, "scores": script.ScoresKey} {
				f := familyOf(c, name(t))
				key := keyOf(f.fair.Key())
				require.NoError(t, r.direct.Set(ctx, key, "mine", time.Minute).Err())
				require.ErrorIs(t, f.fair.Lock(a), rlock.ErrWrongType, what)
				require.ErrorIs(t, second(f.fair.TryLock(a, 0, 0)), rlock.ErrWrongType, what)
				require.Zero(t, r.direct.Exists(ctx, f.fair.Key()).Val(), "nothing is held")
				require.Equal(t, "mine", r.direct.Get(ctx, key).Val(), "it is not ours")
				require.NoError(t, r.direct.Del(ctx, key).Err())

				// It comes to be while the lock is held: it can be given back.
				require.NoError(t, f.fair.Lock(a))
				require.NoError(t, r.direct.Set(ctx, key, "mine", time.Minute).Err())
				require.NoError(t, f.fair.Unlock(a), what)
				require.Zero(t, r.direct.Exists(ctx, f.fair.Key()).Val())
				require.Equal(t, "mine", r.direct.Get(ctx, key).Val())
				require.NoError(t, r.direct.Del(ctx, key).Err())
			}
		})
		// Each kind on a name at which another client holds one of the other family.
		others := lockClient(t, r.client(t))
		for _, pair := range [][2][]string{
			{{"lock", "fair", "fenced", "spin"}, {"read", "write"}}, {{"read", "write"}, {"lock", "fair", "fenced", "spin"}},
		} {
			for _, stands := range pair[0] {
				for _, asks := range pair[1] {
					t.Run(asks+" where a "+stands+" stands", func(t *testing.T) {
						n := name(t)
						there := members[stands](familyOf(others, n))
						require.NoError(t, there.Lock(b))
						before := r.direct.HGetAll(ctx, n).Val()
						for whose, c := range map[string]*rlock.Client{"another": c, "the same": others} {
							l := members[asks](familyOf(c, n))
							require.ErrorIs(t, second(l.TryLock(a, 0, 0)), rlock.ErrWrongType, "%s client: TryLock", whose)
							// It would wait for ever.
							short, cancel := context.WithTimeout(a, soon)
							require.ErrorIs(t, l.Lock(short), rlock.ErrWrongType, "%s client: Lock", whose)
							cancel()
							require.ErrorIs(t, l.Unlock(a), rlock.ErrNotHeld)
							require.ErrorIs(t, second(l.ForceUnlock(a)), rlock.ErrWrongType, "%s client: ForceUnlock", whose)
						}
						require.Equal(t, before, r.direct.HGetAll(ctx, n).Val(), "nothing was changed")
						require.NoError(t, there.Unlock(b))
						l := members[asks](familyOf(c, n))
						require.NoError(t, l.Lock(a), "now it may")
						require.NoError(t, l.Unlock(a))
						free(t, r.direct, n)
					})
				}
			}
		}
	})
}
