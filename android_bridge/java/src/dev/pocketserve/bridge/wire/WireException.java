package dev.pocketserve.bridge.wire;

/** The peer violated the protocol; the connection can't be used any more. */
public class WireException extends Exception {
    private static final long serialVersionUID = 1L;

    /** See {@link #getFault}. */
    private final ConnectionFault fault;

    /**
     * Names a fault.
     *
     * @param fault the violated rule
     * @param message one sentence with the field and the value
     */
    public WireException(ConnectionFault fault, String message) {
        super(message);
        this.fault = fault;
    }

    /**
     * Returns the violated rule.
     *
     * @return never null
     */
    public ConnectionFault getFault() {
        return fault;
    }
}
