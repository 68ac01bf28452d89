package dev.pocketserve.bridge;

import java.util.LinkedHashMap;
import java.util.Map;

/** Options of a transcript. Each method changes this object and returns it; share it once it is complete. */
public final class TranscribeOptions {
    /** Longer than for other models, because recordings can be long. */
    private static final int TIMEOUT_MS = 600_000;

    private final Map<String, String> fields = new LinkedHashMap<>();
    private boolean translates;
    private int timeoutMs = TIMEOUT_MS;

    /** The model's defaults: it detects the language and transcribes. */
    public TranscribeOptions() {
    }

    /**
     * Copies other options.
     *
     * @param from is not changed
     */
    public TranscribeOptions(TranscribeOptions from) {
        fields.putAll(from.fields);
        translates = from.translates;
        timeoutMs = from.timeoutMs;
    }

    /**
     * Sets the language of the speech.
     *
     * @param language a code or a name, such as {@code de}
     * @return this
     */
    public TranscribeOptions language(String language) {
        return field("language", language);
    }

    /**
     * Guides the spelling.
     *
     * @param prompt names and words of the recording
     * @return this
     */
    public TranscribeOptions prompt(String prompt) {
        return field("prompt", prompt);
    }

    /**
     * Sets how varied the words are.
     *
     * @param value from 0, always the most likely words, to 1
     * @return this
     */
    public TranscribeOptions temperature(double value) {
        if (!(value >= 0 && value <= 1)) {
            throw new IllegalArgumentException("the temperature must be 0 to 1, not " + value);
        }
        return field("temperature", Double.toString(value));
    }

    /**
     * Translates the speech into English.
     *
     * @param value whether to translate
     * @return this
     */
    public TranscribeOptions translate(boolean value) {
        translates = value;
        return this;
    }

    /**
     * Limits how long the whole answer may take, including its wait on the server. The model then stops.
     *
     * @param ms from 1; ten minutes by default
     * @return this
     */
    public TranscribeOptions timeoutMs(int ms) {
        if (ms < 1) {
            throw new IllegalArgumentException("timeoutMs must be above 0, not " + ms);
        }
        timeoutMs = ms;
        return this;
    }

    private TranscribeOptions field(String name, String value) {
        if (value == null || value.isEmpty()) {
            throw new IllegalArgumentException(name + " has no value");
        }
        fields.put(name, value);
        return this;
    }

    Map<String, String> fields() {
        return fields;
    }

    String path() {
        return translates ? "/v1/audio/translations" : "/v1/audio/transcriptions";
    }

    int timeoutMs() {
        return timeoutMs;
    }
}
