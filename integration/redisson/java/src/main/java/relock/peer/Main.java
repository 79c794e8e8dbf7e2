package relock.peer;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;

/**
 * Redisson for tests written in another language: takes commands on standard input, one a line, and answers each with
 * a line of JSON. See {@link Command} and {@link Answers} for the format, {@link Operations} for what can be asked.
 */
final class Main {
    private Main() {
    }

    public static void main(String[] args) throws IOException {
        Answers answers = new Answers(System.out);
        System.setOut(System.err); // a stray print would not be JSON
        Clients clients = new Clients();
        Map<String, Worker> workers = new HashMap<>();

        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            Command command = Command.parse(line);
            Worker worker = workers.computeIfAbsent(command.text("thread"), name -> new Worker(name, clients, answers));
            switch (command.op()) {
                // These are about a worker that is busy, so it cannot answer them itself.
                case "interrupt" -> {
                    worker.interrupt();
                    answers.value(command, worker.getId(), true);
                }
                case "asleep" -> answers.value(command, worker.getId(), worker.isAsleep());
                default -> worker.add(command);
            }
        }
        // The test is done, or gone. Nothing is released: a test that wants that says so.
        Runtime.getRuntime().halt(0);
    }
}
