package dev.pocketserve.bridge;

/**
 * Receives the outcome of each frame of a {@link FrameStream}. For every frame exactly one method runs, on the
 * client's callback executor; then you may reuse the frame's array. If a method throws, its thread's
 * {@link Thread.UncaughtExceptionHandler} gets the exception, which ends an Android app; elsewhere the stream
 * continues.
 */
public interface StreamListener {
    /**
     * The model answered.
     *
     * @param frame the number that {@link FrameStream#offer} returned
     * @param prediction the answer
     */
    void onResult(long frame, Prediction prediction);

    /**
     * A newer frame replaced this one before the model ran.
     *
     * @param frame the number that {@link FrameStream#offer} returned
     */
    void onDropped(long frame);

    /**
     * The frame failed. The stream continues with the next one.
     *
     * @param frame the number that {@link FrameStream#offer} returned
     * @param error why
     */
    void onError(long frame, PocketServeException error);
}
