package dev.pocketserve.bridge;

/** A call in progress. */
public interface Call {
    /**
     * Cancels the call. Its callback gets {@link PocketServeException#CANCELLED}, unless the callback already runs. The
     * server drops the request if the model has not started. Never blocks.
     */
    void cancel();

    /**
     * Returns whether the outcome is known.
     *
     * @return true once the callback was passed to its executor
     */
    boolean isDone();
}
