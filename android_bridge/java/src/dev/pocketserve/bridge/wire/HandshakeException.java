package dev.pocketserve.bridge.wire;

/** The handshake failed: nothing but the handshake was sent. */
public final class HandshakeException extends WireException {
    private static final long serialVersionUID = 1L;

    /** See {@link #getRefusal}. */
    private final Refusal refusal;

    /** The party that is to change something. */
    public enum Refusal {
        /** The program that listens there did not prove that it knows the token. */
        NOT_OUR_SERVER,
        /** The server requires a token and this client has none. */
        TOKEN_NEEDED,
        /** The server speaks no version that was offered. */
        VERSION,
        /** The messages of the handshake are wrong. */
        BROKEN
    }

    /**
     * Names a refusal.
     *
     * @param fault the protocol's name for it
     * @param refusal who is to change something
     * @param message one sentence
     */
    public HandshakeException(ConnectionFault fault, Refusal refusal, String message) {
        super(fault, message);
        this.refusal = refusal;
    }

    /**
     * The party that is to change something.
     *
     * @return never null
     */
    public Refusal getRefusal() {
        return refusal;
    }
}
