package dev.pocketserve.bridge;

/** A transport to the server. Thread-safe. */
interface Link {
    /**
     * Sends a request and waits for its answer, whatever its status.
     *
     * @throws PocketServeException when no answer came
     */
    Answer exchange(Request request, Deadline deadline, Cancellation cancellation) throws PocketServeException;

    /** Ends all calls in progress with CLOSED and rejects new ones. */
    void close();
}
