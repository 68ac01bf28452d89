package dev.pocketserve.bridge.wire;

/** The peer broke the protocol; the connection cannot be used any more. */
public class WireException extends Exception {
    private static final long serialVersionUID = 1L;

    /** See {@link #getFault}. */
    private final ConnectionFault fault;

    /**
     * Names a fault.
     *
     * @param fault which rule was broken
     * @param message one sentence with the field and the value
     */
    public WireException(ConnectionFault fault, String message) {
        super(message);
        this.fault = fault;
    }

    /**
     * Returns the rule that was broken.
     *
     * @return never null
     */
    public ConnectionFault getFault() {
        return fault;
    }
}
