package dev.pocketserve.bridge.wire;

/** The limits of a server for one connection, as its READY frame says. */
public final class ConnectionLimits {
    private final long maxFrame;
    private final long maxInflight;
    private final long maxBytesInflight;
    private final long idleMs;
    private final String server;

    ConnectionLimits(long maxFrame, long maxInflight, long maxBytesInflight, long idleMs, String server) {
        this.maxFrame = maxFrame;
        this.maxInflight = maxInflight;
        this.maxBytesInflight = maxBytesInflight;
        this.idleMs = idleMs;
        this.server = server;
    }

    /**
     * Bytes of the largest body that the server takes.
     *
     * @return from 1
     */
    public long maxFrame() {
        return maxFrame;
    }

    /**
     * Returns how many requests may be in progress at a time.
     *
     * @return from 1
     */
    public long maxInflight() {
        return maxInflight;
    }

    /**
     * Returns how many bytes the bodies of all requests in progress may have.
     *
     * @return from 1
     */
    public long maxBytesInflight() {
        return maxBytesInflight;
    }

    /**
     * Milliseconds without a frame after which the server closes an idle connection.
     *
     * @return from 1
     */
    public long idleMs() {
        return idleMs;
    }

    /**
     * The server's name and version.
     *
     * @return empty when it does not say
     */
    public String server() {
        return server;
    }
}
