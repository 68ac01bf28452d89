package dev.pocketserve.bridge;

/** A connection ended before the answer arrived. Wraps the exception to throw if the call is not retried. */
final class ConnectionBrokenException extends Exception {
    private static final long serialVersionUID = 1L;

    private final PocketServeException fault;
    private final boolean notStarted;

    /** Wraps an exception; {@code notStarted} means that the server can't have acted on the request. */
    ConnectionBrokenException(PocketServeException fault, boolean notStarted) {
        super(fault);
        this.fault = fault;
        this.notStarted = notStarted;
    }

    PocketServeException fault() {
        return fault;
    }

    boolean isNotStarted() {
        return notStarted;
    }
}
