package script

import (
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/redistest"
)

// crowd has n fields stand in the queue, "U:0" and so on, each of which is waited for for
// 30 s more than the one before it. It returns until when the first is.
func (b fairBench) crowd(n int) float64 {
	b.t.Helper()
	ctx, pipe := b.t.Context(), b.rdb.Pipeline()
	score := float64(time.Now().Add(time.Hour).UnixMilli())
	for i := range n {
		pipe.RPush(ctx, QueueKey(b.key), inCrowd(i))
		pipe.ZAdd(ctx, ScoresKey(b.key), redis.Z{Score: score + 30000*float64(i), Member: inCrowd(i)})
	}
	_, err := pipe.Exec(ctx)
	require.NoError(b.t, err)
	b.set(lease, "V:1")
	return score
}

func inCrowd(i int) string { return "U:" + strconv.Itoa(i) }

// standing is the queue, and the score of each who has one.
func (b fairBench) standing() ([]string, map[string]float64) {
	b.t.Helper()
	ctx, scores := b.t.Context(), map[string]float64{}
	all, err := b.rdb.ZRangeWithScores(ctx, ScoresKey(b.key), 0, -1).Result()
	require.NoError(b.t, err)
	for _, z := range all {
		scores[z.Member.(string)] = z.Score
	}
	return b.rdb.LRange(ctx, QueueKey(b.key), 0, -1).Val(), scores
}

// A queue may be longer than what Lua unpacks at once, for those who leave and for those
// who stay.
func TestLeavingALongQueue(t *testing.T) {
	t.Parallel()
	b := fairBench{newBench(t, redistest.StartServer(t).Client(t))}
	ctx, score := t.Context(), b.crowd(9000)
	b.says("left", b.give(30000, "U:0", "U:8999"))
	require.InDelta(t, score, b.rdb.ZScore(ctx, ScoresKey(b.key), "U:1").Val(), 0, "those behind move up")
	require.EqualValues(t, 8998, b.rdb.LLen(ctx, QueueKey(b.key)).Val())
	require.EqualValues(t, 8998, b.rdb.ZCard(ctx, ScoresKey(b.key)).Val())

	var many, stay []string
	for i := 1; i < 8999; i++ {
		if i%300 == 0 {
			many = append(many, inCrowd(i))
		} else {
			stay = append(stay, inCrowd(i))
		}
	}
	b.says("left", b.give(30000, many...))
	line, scores := b.standing()
	require.Equal(t, stay, line)
	require.Len(t, scores, len(stay))
	for i, field := range stay {
		require.InDelta(t, score+30000*float64(i), scores[field], 0, field)
	}
}

// However many leave at once, the queue is read once and each of the others is moved up
// once: Redis serves nobody else meanwhile.
func TestManyLeaveInOneWalk(t *testing.T) {
	t.Parallel()
	b := fairBench{newBench(t, redistest.StartServer(t).Client(t))}
	const all, leave = 1000, 200
	b.crowd(all)
	var some []string
	for i := range leave {
		some = append(some, inCrowd(2*i))
	}
	count := redistest.CountCommands(t, b.rdb)
	b.says("left", b.give(30000, some...))
	ran := count()
	require.Equal(t, 1, ran["lrange"])
	require.Equal(t, all-leave, ran["zincrby"])
	require.LessOrEqual(t, ran["lrem"]+ran["rpush"]+ran["ltrim"], 10)
	total := 0
	for _, n := range ran {
		total += n
	}
	require.LessOrEqual(t, total, 2*all+3*leave+30, "%v", ran)
}

// Together they leave behind what they leave one by one, whoever they are and whether
// they have a score.
func TestManyLeaveAsOneByOne(t *testing.T) {
	t.Parallel()
	onEachFair(t, func(b fairBench) {
		ctx := b.t.Context()
		const all = 40
		for name, leaves := range map[string]func(i int) bool{
			"nobody":        func(int) bool { return false },
			"the head":      func(i int) bool { return i == 0 },
			"a few":         func(i int) bool { return i%9 == 4 },
			"every other":   func(i int) bool { return i%2 == 1 },
			"the first":     func(i int) bool { return i < 15 },
			"the last":      func(i int) bool { return i >= 20 },
			"all but one":   func(i int) bool { return i != 17 },
			"all":           func(int) bool { return true },
			"some unscored": func(i int) bool { return i%5 < 2 },
		} {
			var some []string
			score := 0.0
			stage := func() {
				b.clear()
				score = b.crowd(all)
				some = []string{"U:stranger"}
				for i := range all {
					if leaves(i) {
						some = append(some, inCrowd(i))
					}
				}
				if name == "some unscored" {
					for _, i := range []int{0, 5, 7, 12} { // of those who leave, and who stay
						require.NoError(b.t, b.rdb.ZRem(ctx, ScoresKey(b.key), inCrowd(i)).Err())
					}
				}
			}
			from := func(scores map[string]float64) map[string]float64 {
				for field := range scores {
					scores[field] -= score
				}
				return scores
			}
			stage()
			for _, field := range some {
				require.NoError(b.t, b.give(30000, field).Err)
			}
			line, scores := b.standing()
			scores = from(scores)
			stage()
			want := "left"
			if len(some) == 1 {
				want = "gone"
			}
			b.says(want, b.give(30000, some...))
			together, left := b.standing()
			require.Equal(b.t, line, together, name)
			require.Equal(b.t, scores, from(left), name)
			require.Equal(b.t, len(together) > 0, b.rdb.Exists(ctx, QueueKey(b.key)).Val() == 1, name)
		}
	})
}

// Many can leave when memory is full, also if none of them has a score.
func TestACQ9_ManyLeaveAtMaxMemory(t *testing.T) {
	t.Parallel()
	b := fairBench{newBench(t, redistest.StartServer(t).Client(t))}
	ctx := t.Context()
	for _, scored := range []bool{true, false} {
		b.clear()
		b.crowd(30)
		if !scored {
			require.NoError(t, b.rdb.Del(ctx, ScoresKey(b.key)).Err())
		}
		require.NoError(t, b.rdb.ConfigSet(ctx, "maxmemory", "1").Err())
		var some, rest []string
		for i := range 30 {
			if i < 20 {
				some = append(some, inCrowd(i))
			} else {
				rest = append(rest, inCrowd(i))
			}
		}
		b.says("left", b.give(30000, some...))
		require.NoError(t, b.rdb.ConfigSet(ctx, "maxmemory", "0").Err())
		line, _ := b.standing()
		require.Equal(t, rest, line)
	}
}
