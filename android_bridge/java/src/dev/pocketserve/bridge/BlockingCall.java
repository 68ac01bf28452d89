package dev.pocketserve.bridge;

/**
 * Work that calls a {@link PocketServe}, directly or through a generated class, and waits for answers; see
 * {@link AsyncCalls#call}.
 *
 * @param <T> the type of the result
 */
public interface BlockingCall<T> {
    /**
     * Makes the calls and waits for their answers.
     *
     * @return the result
     * @throws PocketServeException if a call fails
     */
    T call() throws PocketServeException;
}
