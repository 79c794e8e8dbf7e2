package relock.peer;

import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;

/** What the commands of one worker do, on its thread. */
final class Operations {
    private final Clients clients;
    // A Redisson lock object remembers the last lease that was asked of it, by whatever thread. One object for each
    // worker keeps what one test does out of another.
    private final Map<String, RLock> locks = new HashMap<>();

    Operations(Clients clients) {
        this.clients = clients;
    }

    Object run(Command c) throws InterruptedException {
        switch (c.op()) {
            case "open":
                return clients.open(c);
            case "close":
                clients.close(c);
                return null;
            case "ping":
                return c.op();
            case "sleep":
                Thread.sleep(c.number("millis", 0));
                return null;
            default:
                return run(c, lock(c));
        }
    }

    private Object run(Command c, RLock lock) throws InterruptedException {
        long wait = c.number("wait", -1);
        long lease = c.number("lease", -1); // which Redisson takes for "none"
        switch (c.op()) {
            case "lock":
                lock.lock(lease, TimeUnit.MILLISECONDS);
                return null;
            case "lockInterruptibly":
                lock.lockInterruptibly(lease, TimeUnit.MILLISECONDS);
                return null;
            case "tryLock":
                return c.has("wait") ? lock.tryLock(wait, lease, TimeUnit.MILLISECONDS) : lock.tryLock();
            case "unlock":
                lock.unlock();
                return null;
            case "forceUnlock":
                return lock.forceUnlock();
            case "holdCount":
                return lock.getHoldCount();
            case "isLocked":
                return lock.isLocked();
            case "isHeldByCurrentThread":
                return lock.isHeldByCurrentThread();
            case "ttl":
                return lock.remainTimeToLive();
            case "token":
                return ((RFencedLock) lock).getToken();
            case "contend":
                return new Contention(clients.get(c), lock, c).run();
            default:
                throw new IllegalArgumentException("no such command: " + c.op());
        }
    }

    private RLock lock(Command c) {
        RedissonClient client = clients.get(c);
        String kind = c.text("kind");
        String name = c.text("name");
        return locks.computeIfAbsent(client.getId() + " " + kind + " " + name, key -> switch (kind) {
            case "lock" -> client.getLock(name);
            case "fair" -> client.getFairLock(name);
            case "read" -> client.getReadWriteLock(name).readLock();
            case "write" -> client.getReadWriteLock(name).writeLock();
            case "fenced" -> client.getFencedLock(name);
            case "spin" -> client.getSpinLock(name);
            case "multilock" -> // of plain locks, whose names stand in one word
                client.getMultiLock(Arrays.stream(name.split(",")).map(client::getLock).toArray(RLock[]::new));
            default -> throw new IllegalArgumentException("no such kind: " + kind);
        });
    }
}
