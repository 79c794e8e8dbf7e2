package relock.peer;

import java.io.PrintStream;
import java.util.Map;

/**
 * Writes answers, in the order in which they come: {@code {"id":7,"thread":31,"value":true}}, or, of a command that
 * threw, {@code {"id":7,"thread":31,"error":"java.lang.Error","message":"..."}}. The thread is the id of the Java
 * thread that the command was for.
 */
final class Answers {
    private final PrintStream out;

    Answers(PrintStream out) {
        this.out = out;
    }

    void value(Command command, long thread, Object value) {
        write(command, thread, "\"value\":" + json(value));
    }

    void error(Command command, long thread, Throwable error) {
        write(command, thread, "\"error\":" + json(error.getClass().getName()) + ",\"message\":" + json(error.getMessage()));
    }

    private synchronized void write(Command command, long thread, String rest) {
        out.println("{\"id\":" + command.id() + ",\"thread\":" + thread + "," + rest + "}");
        out.flush();
    }

    private static String json(Object value) {
        if (value == null || value instanceof Boolean || value instanceof Number) {
            return String.valueOf(value);
        }
        if (value instanceof Map<?, ?> map) {
            StringBuilder all = new StringBuilder();
            map.forEach((key, v) -> all.append(all.isEmpty() ? "" : ",").append(json(key)).append(':').append(json(v)));
            return "{" + all + "}";
        }
        StringBuilder quoted = new StringBuilder("\"");
        for (char c : value.toString().toCharArray()) {
            if (c == '"' || c == '\\') {
                quoted.append('\\').append(c);
            } else if (c < ' ' || c > '~') { // so the encoding of the output does not matter
                quoted.append(String.format("\\u%04x", (int) c));
            } else {
                quoted.append(c);
            }
        }
        return quoted.append('"').toString();
    }
}
