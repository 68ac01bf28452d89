package dev.pocketserve.bridge;

/**
 * Receives the outcome of an asynchronous call. Exactly one of the two methods is called, once, on the executor that
 * the client was built with.
 *
 * @param <T> the type of the result
 */
public interface Callback<T> {
    /**
     * The call succeeded.
     *
     * @param result the result
     */
    void onResult(T result);

    /**
     * The call failed or was cancelled.
     *
     * @param error the reason
     */
    void onError(PocketServeException error);
}
