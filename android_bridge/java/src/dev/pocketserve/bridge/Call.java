package dev.pocketserve.bridge;

/** A call that is under way. */
public interface Call {
    /**
     * Gives the call up. Its callback gets {@link PocketServeException#CANCELLED}, unless the outcome was on its way
     * already; the server is told and does not start what it has not started. Never blocks.
     */
    void cancel();

    /**
     * Returns whether the outcome is known.
     *
     * @return true once the callback was handed to its executor
     */
    boolean isDone();
}
