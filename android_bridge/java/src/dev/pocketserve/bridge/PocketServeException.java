package dev.pocketserve.bridge;

import java.io.IOException;

/**
 * The failure of a call. Calls throw no other exception, apart from {@link IllegalArgumentException} for invalid
 * arguments.
 *
 * <p>It is an {@link IOException}, so the Java compiler requires callers to handle it, and code for network errors
 * already does.
 *
 * <p>{@link #getCode} is stable and meant for programs; the message is one sentence for people and may change. The
 * server's codes are listed in its HTTP documentation; this library's codes are constants here.
 */
public final class PocketServeException extends IOException {
    /** Nothing answers on the server's port: it is not running, or Android has frozen it. */
    public static final String SERVER_UNREACHABLE = "SERVER_UNREACHABLE";
    /** Another program, or a server with another token, has the port. No request was sent to it. */
    public static final String NOT_OUR_SERVER = "NOT_OUR_SERVER";
    /** The server does not know this client's token, or requires one and this client has none. */
    public static final String TOKEN_UNKNOWN = "TOKEN_UNKNOWN";
    /** The token file cannot be read, or contains no token. */
    public static final String TOKEN_UNREADABLE = "TOKEN_UNREADABLE";
    /** Android forbids the connection: a permission is missing. */
    public static final String LOOPBACK_FORBIDDEN = "LOOPBACK_FORBIDDEN";
    /** Android forbids plain HTTP to this address: a network security configuration is missing. */
    public static final String CLEARTEXT_FORBIDDEN = "CLEARTEXT_FORBIDDEN";
    /** A blocking call on Android's main thread. */
    public static final String ON_MAIN_THREAD = "ON_MAIN_THREAD";
    /** The answer did not arrive before the timeout. */
    public static final String TIMEOUT = "TIMEOUT";
    /** The connection broke before the answer arrived; the call may have run. */
    public static final String CONNECTION_LOST = "CONNECTION_LOST";
    /** The answer does not follow the protocol. */
    public static final String BAD_ANSWER = "BAD_ANSWER";
    /** Server and library speak different versions of the socket protocol. */
    public static final String UNSUPPORTED_VERSION = "UNSUPPORTED_VERSION";
    /**
     * The model no longer matches a generated class; the message has the command that generates the class again.
     */
    public static final String MODEL_CHANGED = "MODEL_CHANGED";
    /** The caller cancelled the call, or the calling thread was interrupted. */
    public static final String CANCELLED = "CANCELLED";
    /** The client was closed. */
    public static final String CLOSED = "CLOSED";

    private static final long serialVersionUID = 1L;

    /** See {@link #getCode}. */
    private final String code;
    /** See {@link #getStatus}. */
    private final int status;
    /** See {@link #isRetryable}. */
    private final boolean retryable;
    /** See {@link #getRetryAfterMs}. */
    private final long retryAfterMs;

    PocketServeException(
            String code, int status, boolean retryable, long retryAfterMs, String message, Throwable cause) {
        super(message, cause);
        this.code = code;
        this.status = status;
        this.retryable = retryable;
        this.retryAfterMs = retryAfterMs;
    }

    static PocketServeException permanent(String code, String message, Throwable cause) {
        return new PocketServeException(code, 0, false, -1, message, cause);
    }

    static PocketServeException temporary(String code, String message, Throwable cause) {
        return new PocketServeException(code, 0, true, -1, message, cause);
    }

    /** Returns a copy for another waiting call, so that each caller gets its own stack trace. */
    PocketServeException copy() {
        return new PocketServeException(code, status, retryable, retryAfterMs, getMessage(), this);
    }

    /**
     * The stable code, such as {@code QUEUE_FULL} or {@link #SERVER_UNREACHABLE}.
     *
     * @return never null
     */
    public String getCode() {
        return code;
    }

    /**
     * The HTTP status of the server's answer, which the socket uses too.
     *
     * @return 0 if there was no answer
     */
    public int getStatus() {
        return status;
    }

    /**
     * Returns whether you may retry the same call later.
     *
     * @return false if you must change something first
     */
    public boolean isRetryable() {
        return retryable;
    }

    /**
     * Returns the milliseconds to wait before a retry.
     *
     * @return -1 if the server did not state it
     */
    public long getRetryAfterMs() {
        return retryAfterMs;
    }

    @Override
    public String toString() {
        return code + ": " + getMessage();
    }
}
