package dev.pocketserve.bridge.wire;

/** A whole frame as it was received. */
public final class Frame {
    private final int type;
    private final long requestId;
    private final long arg;
    private final String target;
    private final Extensions extensions;
    private final int jsonLength;
    private final byte[] body;

    Frame(int type, long requestId, long arg, String target, Extensions extensions, int jsonLength, byte[] body) {
        this.type = type;
        this.requestId = requestId;
        this.arg = arg;
        this.target = target;
        this.extensions = extensions;
        this.jsonLength = jsonLength;
        this.body = body;
    }

    /**
     * Returns the type of the frame.
     *
     * @return a constant of {@link FrameType}
     */
    public int type() {
        return type;
    }

    /**
     * The request that the frame belongs to.
     *
     * @return 0 where it belongs to the connection; an unsigned 32-bit number
     */
    public long requestId() {
        return requestId;
    }

    /**
     * Remaining milliseconds, status, reason, or the number that PONG repeats.
     *
     * @return an unsigned 32-bit number
     */
    public long arg() {
        return arg;
    }

    /**
     * The target of a REQUEST.
     *
     * @return such as {@code POST /v2/models/m/infer}; empty in other frames
     */
    public String target() {
        return target;
    }

    /**
     * The extensions.
     *
     * @return never null
     */
    public Extensions extensions() {
        return extensions;
    }

    /**
     * Bytes of JSON at the body's start.
     *
     * @return at most the body's length
     */
    public int jsonLength() {
        return jsonLength;
    }

    /**
     * The body itself, not a copy.
     *
     * @return never null
     */
    public byte[] body() {
        return body;
    }
}
