package relock.peer;

import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.redisson.api.RBucket;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;

/**
 * Takes a lock again and again and increments a counter inside that nothing else protects: it is read and written
 * back, so two at once lose an increment. It runs as one command, so that the pipe to the test does not set the pace.
 */
final class Contention {
    private final RLock lock;
    private final RBucket<String> counter;
    private final long count;
    private final long nanos;
    private final long work;
    private final long pause;
    private final long limit;

    Contention(RedissonClient client, RLock lock, Command c) {
        this.lock = lock;
        this.counter = client.getBucket(c.text("counter"), StringCodec.INSTANCE);
        this.count = c.number("count", Long.MAX_VALUE); // at most so many times,
        this.nanos = TimeUnit.MILLISECONDS.toNanos(c.number("millis", 600_000)); // and for so long
        this.work = c.number("work", 0); // a longer stay inside
        this.pause = c.number("pause", 0); // between two times
        this.limit = TimeUnit.MILLISECONDS.toNanos(c.number("limit", 600_000)); // a longer wait is counted
    }

    Map<String, Object> run() throws InterruptedException {
        long began = System.nanoTime();
        long entries = 0;
        long waited = 0;
        long longest = 0;
        long late = 0;
        while (entries < count && System.nanoTime() - began < nanos) {
            long asked = System.nanoTime();
            lock.lock();
            long wait = System.nanoTime() - asked;
            try {
                increment();
                Thread.sleep(work);
            } finally {
                lock.unlock();
            }
            entries++;
            waited += wait;
            longest = Math.max(longest, wait);
            late += wait > limit ? 1 : 0;
            Thread.sleep(pause);
        }
        Map<String, Object> tally = new LinkedHashMap<>();
        tally.put("entries", entries);
        tally.put("waited", waited); // in nanoseconds, all together
        tally.put("longest", longest);
        tally.put("late", late);
        return tally;
    }

    private void increment() {
        String before = counter.get();
        long n = before == null ? 0 : Long.parseLong(before);
        counter.set(Long.toString(n + 1));
    }
}
