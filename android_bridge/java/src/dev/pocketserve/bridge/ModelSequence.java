package dev.pocketserve.bridge;

import java.security.SecureRandom;

/**
 * A sequence of steps for a stateful model, from {@link BlockingCalls#sequence}. Use it from one thread at a time,
 * and close it. A step that fails after the model has started ends the sequence: later steps are rejected.
 */
public final class ModelSequence implements AutoCloseable {
    private static final SecureRandom RANDOM = new SecureRandom();

    private final BlockingCalls calls;
    private final String model;
    private final String version;
    private final long id = 1 + (RANDOM.nextLong() >>> 2);
    private boolean open;

    ModelSequence(BlockingCalls calls, String model, String version) {
        this.calls = calls;
        this.model = model;
        this.version = version;
    }

    /**
     * Sends the tensors of the next step; inputs that hold state may be omitted.
     *
     * @param inputs one tensor for each other input
     * @return the outputs
     * @throws PocketServeException if the call fails
     */
    public InferResult infer(Tensor... inputs) throws PocketServeException {
        return infer(null, inputs);
    }

    /**
     * Sends the tensors of the next step; inputs that hold state may be omitted.
     *
     * @param options outputs and other options; null for the server's defaults
     * @param inputs one tensor for each other input
     * @return the outputs
     * @throws PocketServeException if the call fails
     */
    public InferResult infer(InferOptions options, Tensor... inputs) throws PocketServeException {
        InferResult result = calls.infer(model, step(options, false), inputs);
        open = true;
        return result;
    }

    /**
     * Sends the raw input of the next step.
     *
     * @param input the bytes
     * @param contentType their media type, such as {@code audio/wav}
     * @return the answer
     * @throws PocketServeException if the call fails
     */
    public Prediction predict(byte[] input, String contentType) throws PocketServeException {
        return predict(input, contentType, null);
    }

    /**
     * Sends the raw input of the next step.
     *
     * @param input the bytes
     * @param contentType their media type, such as {@code audio/wav}
     * @param options options of the answer; null for the server's defaults
     * @return the answer
     * @throws PocketServeException if the call fails
     */
    public Prediction predict(byte[] input, String contentType, PredictOptions options) throws PocketServeException {
        PredictOptions step = options == null ? new PredictOptions() : new PredictOptions(options);
        step.parameter("sequence_id", Long.toString(id)).parameter("sequence_start", Boolean.toString(!open));
        Prediction answer = calls.predict(model, input, contentType, version == null ? step : step.version(version));
        open = true;
        return answer;
    }

    /** Ends the sequence. The server expires sequences that are not ended. */
    @Override
    public void close() {
        if (!open) {
            return;
        }
        open = false;
        try {
            calls.infer(model, step(null, true));
        } catch (PocketServeException gone) {
            // The sequence has already ended, possibly with the server.
            return;
        }
    }

    private InferOptions step(InferOptions options, boolean end) {
        InferOptions step = options == null ? new InferOptions() : new InferOptions(options);
        step.sequence(id, !open && !end, end);
        return version == null ? step : step.version(version);
    }
}
