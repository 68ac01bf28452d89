package dev.pocketserve.bridge;

/**
 * Hears what became of the frames of a {@link FrameStream}. For every frame exactly one method is called, on the
 * client's callback executor; from then on its array may be used again. What a method throws goes to its thread's
 * {@link Thread.UncaughtExceptionHandler}, which ends an Android app; elsewhere the stream goes on.
 */
public interface StreamListener {
    /**
     * The model answered.
     *
     * @param frame the number that {@link FrameStream#offer} gave
     * @param prediction the answer
     */
    void onResult(long frame, Prediction prediction);

    /**
     * A newer frame took this one's place before the model had seen it.
     *
     * @param frame the number that {@link FrameStream#offer} gave
     */
    void onDropped(long frame);

    /**
     * The frame failed. The stream goes on with the next one.
     *
     * @param frame the number that {@link FrameStream#offer} gave
     * @param error why
     */
    void onError(long frame, PocketServeException error);
}
