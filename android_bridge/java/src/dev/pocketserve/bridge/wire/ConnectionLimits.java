package dev.pocketserve.bridge.wire;

/** The limits of one connection, from the server's READY frame. */
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

    /** Returns the size of the largest body that the server accepts.
     *
     * @return from 1
     */
    public long maxFrame() {
        return maxFrame;
    }

    /**
     * Returns the maximum number of requests in progress.
     *
     * @return from 1
     */
    public long maxInflight() {
        return maxInflight;
    }

    /**
     * Returns the maximum size of all bodies in progress together, in bytes.
     *
     * @return from 1
     */
    public long maxBytesInflight() {
        return maxBytesInflight;
    }

    /** Returns the milliseconds after which the server closes an idle connection.
     *
     * @return from 1
     */
    public long idleMs() {
        return idleMs;
    }

    /**
     * The server's name and version.
     *
     * @return empty if it does not state them
     */
    public String server() {
        return server;
    }
}
