package dev.pocketserve.bridge.wire;

/** The reasons of an ERROR frame, with their numbers in the protocol. */
public enum ConnectionFault {
    /** A frame does not start with the bytes 4f 49. */
    BAD_MARK(1),
    /** Lengths, flags, reserved fields or extensions of a frame are wrong. */
    BAD_FRAME(2),
    /** A frame type that is not allowed in this state or from this side. */
    UNEXPECTED_FRAME(3),
    /** A body beyond the limit. */
    FRAME_TOO_LARGE(4),
    /** A request id that is zero, repeated or unknown. */
    BAD_REQUEST_ID(5),
    /** A proof is wrong or missing. */
    UNAUTHORIZED(6),
    /** No common version of the protocol. */
    UNSUPPORTED_VERSION(7),
    /** The handshake or a frame was not finished in time. */
    TIMEOUT(8),
    /** The JSON of the handshake is invalid. */
    BAD_HANDSHAKE(9),
    /** The server has reached its limit of connections. */
    TOO_MANY_CONNECTIONS(10),
    /** An unknown frame type that must not be skipped. */
    UNKNOWN_FRAME(11),
    /** The peer does not read its answers. */
    SLOW_READER(12),
    /** The peer failed. */
    INTERNAL(13);

    private final int number;

    ConnectionFault(int number) {
        this.number = number;
    }

    /** Returns the number in the arg of an ERROR frame.
     *
     * @return from 1
     */
    public int number() {
        return number;
    }

    /** Returns the fault with a number.
     *
     * @param number the arg of an ERROR frame
     * @return the fault, or null for an unknown number
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
