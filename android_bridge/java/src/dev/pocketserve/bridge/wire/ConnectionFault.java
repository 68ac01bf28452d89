package dev.pocketserve.bridge.wire;

/** The reasons of an ERROR frame, with the numbers that the protocol gives them. */
public enum ConnectionFault {
    /** A frame does not start with the bytes 4f 49. */
    BAD_MARK(1),
    /** Lengths, flags, reserved fields or extensions of a frame are wrong. */
    BAD_FRAME(2),
    /** A frame type that may not come in this state, or not from this side. */
    UNEXPECTED_FRAME(3),
    /** A body beyond the limit. */
    FRAME_TOO_LARGE(4),
    /** A request id that is zero, repeated or unknown. */
    BAD_REQUEST_ID(5),
    /** A proof is wrong or missing. */
    UNAUTHORIZED(6),
    /** No version that both sides speak. */
    UNSUPPORTED_VERSION(7),
    /** The handshake, or a frame that was begun, was not finished in time. */
    TIMEOUT(8),
    /** The JSON of the handshake is wrong. */
    BAD_HANDSHAKE(9),
    /** The server has as many connections as it allows. */
    TOO_MANY_CONNECTIONS(10),
    /** A frame type that this version does not know and may not skip. */
    UNKNOWN_FRAME(11),
    /** The peer does not read its answers. */
    SLOW_READER(12),
    /** The peer failed. */
    INTERNAL(13);

    private final int number;

    ConnectionFault(int number) {
        this.number = number;
    }

    /**
     * The number that an ERROR frame carries in its arg.
     *
     * @return from 1
     */
    public int number() {
        return number;
    }

    /**
     * The fault of that number.
     *
     * @param number the arg of an ERROR frame
     * @return the fault, or null for a number that this version does not know
     */
    public static ConnectionFault numbered(long number) {
        for (ConnectionFault fault : values()) {
            if (fault.number == number) {
                return fault;
            }
        }
        return null;
    }
}
