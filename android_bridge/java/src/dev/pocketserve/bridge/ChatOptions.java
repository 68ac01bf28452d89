package dev.pocketserve.bridge;

import java.util.Arrays;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;
import org.json.JSONArray;
import org.json.JSONObject;

/** Options of a chat's answer. Each method changes this object and returns it; share it once it is complete. */
public final class ChatOptions {
    /** Longer than for other models, because language models are slow. */
    private static final int TIMEOUT_MS = 600_000;
    private static final Set<String> OWN =
            new HashSet<>(Arrays.asList("model", "messages", "stream", "stream_options"));

    private final Map<String, Object> fields = new LinkedHashMap<>();
    private int timeoutMs = TIMEOUT_MS;

    /** The model's defaults. */
    public ChatOptions() {
    }

    /**
     * Copies options.
     *
     * @param from is not changed
     */
    public ChatOptions(ChatOptions from) {
        fields.putAll(from.fields);
        timeoutMs = from.timeoutMs;
    }

    /**
     * Limits the length of the answer.
     *
     * @param tokens from 1
     * @return this
     */
    public ChatOptions maxTokens(int tokens) {
        return field("max_tokens", tokens);
    }

    /**
     * Sets how varied answers are.
     *
     * @param value from 0, always the most likely token, to 2
     * @return this
     */
    public ChatOptions temperature(double value) {
        return field("temperature", value);
    }

    /**
     * Makes answers repeatable.
     *
     * @param value the same number leads to the same answer
     * @return this
     */
    public ChatOptions seed(long value) {
        return field("seed", value);
    }

    /**
     * Ends the answer before one of these texts.
     *
     * @param texts such as {@code "\n"}
     * @return this
     */
    public ChatOptions stop(String... texts) {
        return field("stop", new JSONArray(Arrays.asList(texts)));
    }

    /**
     * Sets another field of OpenAI's interface, such as {@code top_p}. The server checks it.
     *
     * @param name the field
     * @param value a text, number, boolean, JSONObject or JSONArray
     * @return this
     */
    public ChatOptions field(String name, Object value) {
        if (OWN.contains(name)) {
            throw new IllegalArgumentException(name + " is set by the call");
        }
        if (value == null) {
            throw new IllegalArgumentException(name + " has no value");
        }
        if (value instanceof Number && Double.isNaN(0 * ((Number) value).doubleValue())) {
            throw new IllegalArgumentException(name + " must be a finite number");
        }
        fields.put(name, value);
        return this;
    }

    /**
     * Limits how long the whole answer may take, including its wait on the server. The model then stops.
     *
     * @param ms from 1; ten minutes by default
     * @return this
     */
    public ChatOptions timeoutMs(int ms) {
        if (ms < 1) {
            throw new IllegalArgumentException("timeoutMs must be above 0, not " + ms);
        }
        timeoutMs = ms;
        return this;
    }

    int timeoutMs() {
        return timeoutMs;
    }

    /** Returns the fields of a request. */
    JSONObject toJson() {
        return new JSONObject(fields);
    }
}
