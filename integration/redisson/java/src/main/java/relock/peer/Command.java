package relock.peer;

import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;

/**
 * One line of input, written like the query of a URL: {@code id=7&op=lock&thread=t1&client=main&kind=lock&name=a}.
 * Every command has an id, an op and a thread; times are in milliseconds. JSON would need a library that Redisson no
 * longer brings along.
 */
record Command(long id, String op, Map<String, String> words) {
    static Command parse(String line) {
        Map<String, String> words = new HashMap<>();
        for (String pair : line.split("&")) {
            int eq = pair.indexOf('=');
            words.put(decode(pair.substring(0, eq)), decode(pair.substring(eq + 1)));
        }
        return new Command(Long.parseLong(words.get("id")), words.get("op"), words);
    }

    private static String decode(String word) {
        return URLDecoder.decode(word, StandardCharsets.UTF_8);
    }

    boolean has(String key) {
        return words.containsKey(key);
    }

    String text(String key) {
        String value = words.get(key);
        if (value == null) {
            throw new IllegalArgumentException(op + " needs " + key);
        }
        return value;
    }

    long number(String key, long otherwise) {
        return has(key) ? Long.parseLong(text(key)) : otherwise;
    }
}
