package relock.peer;

import java.util.Arrays;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.Semaphore;

/**
 * A thread that runs the commands given to its name, one after the other. A lock belongs to a thread, so what one
 * command locks the next can unlock; and a command that waits keeps only its own thread waiting.
 */
final class Worker extends Thread {
    private final BlockingQueue<Command> commands = new LinkedBlockingQueue<>();
    private final Answers answers;
    private final Operations operations;

    Worker(String name, Clients clients, Answers answers) {
        super(name);
        this.answers = answers;
        this.operations = new Operations(clients);
        setDaemon(true);
        start();
    }

    void add(Command command) {
        commands.add(command);
    }

    /**
     * Whether its command waits until a message comes or, at a lock that is polled, until it is time. Redisson waits at
     * a semaphore for messages; for answers and subscriptions, which may take long too, it waits elsewhere.
     */
    boolean isAsleep() {
        StackTraceElement[] stack = getStackTrace();
        return getState() == State.TIMED_WAITING && Arrays.stream(stack).anyMatch(frame ->
                frame.getClassName().equals(Semaphore.class.getName())
                        || frame.getClassName().equals(Thread.class.getName()) && frame.getMethodName().equals("sleep"));
    }

    @Override
    public void run() {
        while (true) {
            try {
                // An interrupt ends the command that it came for, not the next one.
                interrupted();
                answer(commands.take());
            } catch (InterruptedException e) {
                // It came for a command that had ended already.
            }
        }
    }

    private void answer(Command command) {
        try {
            answers.value(command, getId(), operations.run(command));
        } catch (Exception | Error e) {
            answers.error(command, getId(), e);
        }
    }
}
