package dev.pocketserve.bridge;

import java.security.SecureRandom;

/**
 * The steps of one sequence to a model with a memory, made by {@link BlockingCalls#sequence}. To be used by one thread
 * at a time, and closed. A step that fails once the model has begun ends the sequence: later ones are refused.
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
     * Sends the tensors of the next step; inputs that hold state may be left out.
     *
     * @param inputs one tensor for each other input
     * @return the outputs
     * @throws PocketServeException when there are none
     */
    public InferResult infer(Tensor... inputs) throws PocketServeException {
        return infer(null, inputs);
    }

    /**
     * Sends the tensors of the next step; inputs that hold state may be left out.
     *
     * @param options which outputs and how; null for the server's own ways
     * @param inputs one tensor for each other input
     * @return the outputs
     * @throws PocketServeException when there are none
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
     * @param contentType what they are, such as {@code audio/wav}
     * @return the answer
     * @throws PocketServeException when there is none
     */
    public Prediction predict(byte[] input, String contentType) throws PocketServeException {
        return predict(input, contentType, null);
    }

    /**
     * Sends the raw input of the next step.
     *
     * @param input the bytes
     * @param contentType what they are, such as {@code audio/wav}
     * @param options how to answer; null for the server's own ways
     * @return the answer
     * @throws PocketServeException when there is none
     */
    public Prediction predict(byte[] input, String contentType, PredictOptions options) throws PocketServeException {
        PredictOptions step = options == null ? new PredictOptions() : new PredictOptions(options);
        step.parameter("sequence_id", Long.toString(id)).parameter("sequence_start", Boolean.toString(!open));
        Prediction answer = calls.predict(model, input, contentType, version == null ? step : step.version(version));
        open = true;
        return answer;
    }

    /** Ends the sequence. The server forgets one that nobody ends some time after its last step. */
    @Override
    public void close() {
        if (!open) {
            return;
        }
        open = false;
        try {
            calls.infer(model, step(null, true));
        } catch (PocketServeException gone) {
            // It was given up already, or with the server.
            return;
        }
    }

    private InferOptions step(InferOptions options, boolean end) {
        InferOptions step = options == null ? new InferOptions() : new InferOptions(options);
        step.sequence(id, !open && !end, end);
        return version == null ? step : step.version(version);
    }
}
