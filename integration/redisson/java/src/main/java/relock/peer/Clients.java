package relock.peer;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.redisson.Redisson;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/** The Redisson clients, by the names that the commands call them. Each has a UUID of its own, like a process. */
final class Clients {
    private final Map<String, RedissonClient> clients = new ConcurrentHashMap<>();

    /** Opens the client and returns its UUID. */
    String open(Command command) {
        String name = command.text("client");
        Config config = new Config();
        if (command.has("watchdog")) {
            config.setLockWatchdogTimeout(command.number("watchdog", 0));
        }
        config.useSingleServer()
                .setAddress("redis://" + command.text("address"))
                .setClientName(name)
                .setConnectionMinimumIdleSize(2); // not 24: most clients here do little
        RedissonClient client = Redisson.create(config);
        clients.put(name, client);
        return client.getId();
    }

    RedissonClient get(Command command) {
        RedissonClient client = clients.get(command.text("client"));
        if (client == null) {
            throw new IllegalArgumentException("no client " + command.text("client") + ": open it first");
        }
        return client;
    }

    /** Shuts the client down. What it holds stays until its TTL, and nobody renews it. */
    void close(Command command) {
        get(command).shutdown();
        clients.remove(command.text("client"));
    }
}
