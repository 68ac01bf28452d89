package dev.pocketserve.bridge;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Options of an answer to tensors. Each method changes this object and returns it; share it once it is complete. */
public final class InferOptions {
    private final Map<String, Object> parameters = new LinkedHashMap<>();
    private final List<String> outputs = new ArrayList<>();
    private String version;
    private String id = "";
    private int timeoutMs;

    /** Creates options with the server's defaults. */
    public InferOptions() {
    }

    /**
     * Copies other options.
     *
     * @param from is not changed
     */
    public InferOptions(InferOptions from) {
        parameters.putAll(from.parameters);
        outputs.addAll(from.outputs);
        version = from.version;
        id = from.id;
        timeoutMs = from.timeoutMs;
    }

    /** Sets the version of the model.
     *
     * @param name such as {@code tflite-int8}
     * @return this
     */
    public InferOptions version(String name) {
        version = name;
        return this;
    }

    /** Selects the outputs to return; the default is all.
     *
     * @param names of outputs
     * @return this
     */
    public InferOptions outputs(String... names) {
        outputs.clear();
        outputs.addAll(Arrays.asList(names));
        return this;
    }

    /**
     * Sets a name for this request, which the answer repeats.
     *
     * @param text at most 256 characters
     * @return this
     */
    public InferOptions id(String text) {
        id = text;
        return this;
    }

    /**
     * Limits how long the request may wait for its turn on the server.
     *
     * @param ms from 1
     * @return this
     */
    public InferOptions deadlineMs(int ms) {
        return parameter("timeout", 1000L * ms);
    }

    /**
     * Sets the priority of the request.
     *
     * @param level 1 is the highest, 0 the default
     * @return this
     */
    public InferOptions priority(int level) {
        return parameter("priority", (long) level);
    }

    /**
     * Frames of the same stream replace each other: a newer one replaces one that still waits, which gets the error
     * SUPERSEDED.
     *
     * @param name unique to this source of frames
     * @return this
     */
    public InferOptions stream(String name) {
        return parameter("stream", name);
    }

    /**
     * Marks one step of a stateful model. This library never retries steps.
     *
     * @param sequenceId the sequence; not 0
     * @param start whether this is the first step
     * @param end whether this is the last step
     * @return this
     */
    public InferOptions sequence(long sequenceId, boolean start, boolean end) {
        parameter("sequence_id", sequenceId);
        parameter("sequence_start", start);
        return parameter("sequence_end", end);
    }

    /**
     * Marks one step of a stateful model. This library never retries steps.
     *
     * @param sequenceId the sequence; not empty
     * @param start whether this is the first step
     * @param end whether this is the last step
     * @return this
     */
    public InferOptions sequence(String sequenceId, boolean start, boolean end) {
        parameter("sequence_id", sequenceId);
        parameter("sequence_start", start);
        return parameter("sequence_end", end);
    }

    /** Sets any other parameter of the request.
     *
     * @param name its name
     * @param value a String, Boolean, Integer, Long or finite Double
     * @return this
     */
    public InferOptions parameter(String name, Object value) {
        boolean number = value instanceof Long || value instanceof Integer
                || value instanceof Double && !((Double) value).isNaN() && !((Double) value).isInfinite();
        if (!number && !(value instanceof String) && !(value instanceof Boolean)) {
            throw new IllegalArgumentException("parameter " + name + " must be a text, a boolean or a finite number");
        }
        parameters.put(name, value);
        return this;
    }

    /** Sets the timeout of this call, instead of the client's.
     *
     * @param ms from 1
     * @return this
     */
    public InferOptions timeoutMs(int ms) {
        if (ms < 1) {
            throw new IllegalArgumentException("timeoutMs must be above 0, not " + ms);
        }
        timeoutMs = ms;
        return this;
    }

    int timeoutOr(int standard) {
        return timeoutMs > 0 ? timeoutMs : standard;
    }

    String getVersion() {
        return version;
    }

    String getId() {
        return id;
    }

    List<String> getOutputs() {
        return outputs;
    }

    Map<String, Object> getParameters() {
        return parameters;
    }

    boolean isSequenceStep() {
        return parameters.containsKey("sequence_id");
    }
}
