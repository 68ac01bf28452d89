package dev.pocketserve.bridge.wire;

/** The handshake failed; no request was sent. */
public final class HandshakeException extends WireException {
    private static final long serialVersionUID = 1L;

    /** See {@link #getRefusal}. */
    private final Refusal refusal;

    /** The reason of a failed handshake. */
    public enum Refusal {
        /** The program on the port did not prove that it knows the token. */
        NOT_OUR_SERVER,
        /** The server requires a token and this client has none. */
        TOKEN_NEEDED,
        /** The server supports none of the offered versions. */
        VERSION,
        /** The messages of the handshake are invalid. */
        BROKEN
    }

    /**
     * Names a refusal.
     *
     * @param fault its name in the protocol
     * @param refusal the reason
     * @param message one sentence
     */
    public HandshakeException(ConnectionFault fault, Refusal refusal, String message) {
        super(fault, message);
        this.refusal = refusal;
    }

    /**
     * Returns the reason of the failed handshake.
     *
     * @return never null
     */
    public Refusal getRefusal() {
        return refusal;
    }
}
