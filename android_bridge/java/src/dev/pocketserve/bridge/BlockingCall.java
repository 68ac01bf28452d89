package dev.pocketserve.bridge;

/**
 * Work that calls a {@link PocketServe}, directly or by a generated class, and waits for its answers; see
 * {@link AsyncCalls#call}.
 *
 * @param <T> what it gives
 */
public interface BlockingCall<T> {
    /**
     * Asks and waits.
     *
     * @return what came of it
     * @throws PocketServeException when there is no answer
     */
    T call() throws PocketServeException;
}
