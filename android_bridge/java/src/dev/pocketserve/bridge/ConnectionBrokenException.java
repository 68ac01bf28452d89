package dev.pocketserve.bridge;

/** A connection ended before an answer came; carries what the caller is told if the call is not made again. */
final class ConnectionBrokenException extends Exception {
    private static final long serialVersionUID = 1L;

    private final PocketServeException fault;
    private final boolean notStarted;

    /** Wraps a fault; {@code notStarted} tells that the server has certainly not acted on the request. */
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
