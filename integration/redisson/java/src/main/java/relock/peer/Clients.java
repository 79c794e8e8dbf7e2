package relock.peer;

import java.util.Arrays;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.redisson.Redisson;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;
import org.redisson.config.ShardedSubscriptionMode;

/** The Redisson clients, by the names that the commands call them. Each has a UUID of its own, like a process. */
final class Clients {
    private final Map<String, RedissonClient> clients = new ConcurrentHashMap<>();

    /** Opens the client, of a single server or of the cluster that the word "sharded" is for, and returns its UUID. */
    String open(Command command) {
        String name = command.text("client");
        Config config = new Config();
        if (command.has("watchdog")) {
            config.setLockWatchdogTimeout(command.number("watchdog", 0));
        }
        if (command.has("patience")) { // with a waiter in a fair lock's queue that says nothing: 5 minutes
            config.setFairLockWaitTimeout(command.number("patience", 0));
        }
        String[] addresses = Arrays.stream(command.text("address").split(",")).map(a -> "redis://" + a).toArray(String[]::new);
        if (command.has("sharded")) {
            config.useClusterServers()
                    .addNodeAddress(addresses)
                    .setShardedSubscriptionMode(ShardedSubscriptionMode.valueOf(command.text("sharded")))
                    .setClientName(name)
                    .setMasterConnectionMinimumIdleSize(2); // of each; not 24: most clients here do little
        } else {
            config.useSingleServer()
                    .setAddress(addresses[0])
                    .setClientName(name)
                    .setConnectionMinimumIdleSize(2);
        }
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
