package dev.pocketserve.bridge;

import java.io.Closeable;
import java.io.File;
import java.util.concurrent.Executor;

/**
 * A client of a Pocketserve server on the same device.
 *
 * <pre>{@code
 * try (PocketServe server = PocketServe.builder().token(token).build()) {
 *     Prediction answer = server.classify("digits", pngBytes);
 *     System.out.println(answer.summary());
 * }
 * }</pre>
 *
 * <p>The client is thread-safe; keep one for the whole application. It connects on the first call and reconnects on the
 * next call after the connection broke. If the connection breaks during a call that changes nothing on the server, it
 * retries the call.
 *
 * <p>These methods block until the answer arrives, and throw on Android's main thread; {@link #async} has the same
 * calls with callbacks. All of them throw {@link PocketServeException} and, for invalid arguments,
 * {@link IllegalArgumentException}.
 */
public final class PocketServe extends BlockingCalls implements Closeable {
    /** This library's version. */
    public static final String VERSION = "0.1.0";
    /** The default port of the socket protocol. */
    public static final int SOCKET_PORT = 8471;
    /** The default port of HTTP. */
    public static final int HTTP_PORT = 8470;

    private final Link link;
    private final AsyncCalls async;
    private final Streams streams = new Streams();

    private PocketServe(Builder from, Settings settings, Link link) {
        super(new Calls(link, settings.timeoutMs), from.mainThreadCheck ? MainThread.find() : MainThread.unchecked());
        this.link = link;
        this.async = new AsyncCalls(calls, from.callbackExecutor);
    }

    private static Link createLink(Builder from, Settings settings) {
        switch (from.transport) {
            case SOCKET:
                return new SocketLink(settings);
            case HTTP:
                return new HttpLink(settings);
            default:
                boolean maySend = settings.token == null || from.httpFallback;
                return new AutoLink(new SocketLink(settings), maySend ? new HttpLink(settings) : null);
        }
    }

    private static String name(Settings settings, Transport transport) {
        return settings.host + ":" + (transport == Transport.HTTP ? settings.httpPort : settings.socketPort);
    }

    /**
     * Returns a new builder.
     *
     * @return a builder with every setting at its default
     */
    public static Builder builder() {
        return new Builder();
    }

    /**
     * Returns the same calls with callbacks, for any thread.
     *
     * @return always the same object
     */
    public AsyncCalls async() {
        return async;
    }

    /**
     * Opens a stream that sends the newest camera frame to a model, one at a time.
     *
     * @param model the model's name
     * @param listener receives the outcome of every frame, on the client's callback executor
     * @return the stream, which takes the frames
     * @throws IllegalStateException if this client was closed
     */
    public FrameStream stream(String model, StreamListener listener) {
        return stream(model, 1, listener);
    }

    /**
     * Opens a stream that sends the newest camera frames to a model.
     *
     * @param model the model's name
     * @param inFlight how many frames may be in progress at a time, at least 1; with more than 1, frames are sent while
     *     the model runs
     * @param listener receives the outcome of every frame, on the client's callback executor
     * @return the stream, which takes the frames
     * @throws IllegalStateException if this client was closed
     */
    public FrameStream stream(String model, int inFlight, StreamListener listener) {
        return new FrameStream(calls, model, inFlight, listener, async.executor(), streams);
    }

    /**
     * Ends all calls and streams with {@link PocketServeException#CLOSED}, rejects new ones, and ends all threads.
     * Never blocks, so you may call it from {@code onDestroy}.
     */
    @Override
    public void close() {
        link.close();
        streams.close();
        async.close();
    }

    /** Describes a client. Each method changes the builder and returns it. */
    public static final class Builder {
        String host = "127.0.0.1";
        int socketPort = SOCKET_PORT;
        int httpPort = HTTP_PORT;
        Transport transport = Transport.SOCKET;
        int connectTimeoutMs = 2000;
        int timeoutMs = 30_000;
        int pingIntervalMs = 5000;
        int retries = 2;
        int reconnectMs = 5000;
        int maxAnswerBytes = (int) Math.min(64L << 20, Runtime.getRuntime().maxMemory() / 4);
        Executor callbackExecutor = AsyncCalls.DIRECT;
        boolean mainThreadCheck = true;
        boolean httpFallback;
        private String token;
        private File tokenFile;
        private Builder fallback;

        private Builder() {
        }

        /**
         * Sets the address of the server.
         *
         * @param address an address, not a name, because {@code localhost} may mean ::1, where no server listens.
         *     127.0.0.1 by default
         * @return this
         */
        public Builder host(String address) {
            this.host = notNull("host", address);
            return this;
        }

        /**
         * The port of the socket protocol.
         *
         * @param port 8471 by default
         * @return this
         */
        public Builder socketPort(int port) {
            this.socketPort = port(port);
            return this;
        }

        /**
         * The port of HTTP.
         *
         * @param port 8470 by default
         * @return this
         */
        public Builder httpPort(int port) {
            this.httpPort = port(port);
            return this;
        }

        private static <T> T notNull(String name, T value) {
            if (value == null) {
                throw new IllegalArgumentException(name + " must not be null");
            }
            return value;
        }

        private static int port(int port) {
            if (port < 1 || port > 65_535) {
                throw new IllegalArgumentException("a port must be between 1 and 65535, not " + port);
            }
            return port;
        }

        /**
         * Sets the transport.
         *
         * @param way {@link Transport#SOCKET} by default
         * @return this
         */
        public Builder transport(Transport way) {
            this.transport = notNull("transport", way);
            return this;
        }

        /**
         * Sets whether {@link Transport#AUTO} may send the token over HTTP if nothing listens on the socket's port.
         * Over HTTP, the app that has the port does not prove that it is the server.
         *
         * @param on false by default
         * @return this
         */
        public Builder httpFallback(boolean on) {
            this.httpFallback = on;
            return this;
        }

        /**
         * The server's token, as {@code pocketserve token} prints it. A client without a token needs a server that
         * was started with {@code --no-auth}.
         *
         * @param text printable ASCII; surrounding spaces are removed
         * @return this
         */
        public Builder token(String text) {
            this.token = text;
            this.tokenFile = null;
            return this;
        }

        /**
         * A file with the server's token, read by {@link #build}.
         *
         * @param file its first and only line is the token
         * @return this
         */
        public Builder tokenFile(File file) {
            this.tokenFile = file;
            this.token = null;
            return this;
        }

        /**
         * Sets a second server with the same models, such as a desktop's. Inference and calls for a model's metadata
         * use it if the first server is unreachable, silent for half of the timeout, or busy (QUEUE_FULL, LOW_POWER).
         * Other calls and steps of a sequence never do. The timeout covers both servers. The client does not wait for
         * an unreachable server to return.
         *
         * @param other describes that server: its address, transport and own token, which is never the first one's
         * @return this
         * @throws IllegalArgumentException if it is this server, or has a fallback itself
         */
        public Builder fallback(Builder other) {
            this.fallback = checkFallback(notNull("fallback", other));
            return this;
        }

        /** Sets the timeout of connecting.
         *
         * @param ms 2000 by default
         * @return this
         */
        public Builder connectTimeoutMs(int ms) {
            this.connectTimeoutMs = positive("connectTimeoutMs", ms);
            return this;
        }

        /**
         * Limits the total time of a call, including connecting and retries.
         *
         * @param ms 30000 by default; the first call of a large model loads it
         * @return this
         */
        public Builder timeoutMs(int ms) {
            this.timeoutMs = positive("timeoutMs", ms);
            return this;
        }

        /**
         * Sets the silence after which the client pings the server while calls are in progress. After the same time
         * without an answer, the server counts as dead. Socket only.
         *
         * @param ms 5000 by default
         * @return this
         */
        public Builder pingIntervalMs(int ms) {
            this.pingIntervalMs = positive("pingIntervalMs", ms);
            return this;
        }

        /**
         * Sets the number of retries after a broken connection, for calls that change nothing.
         *
         * @param count 2 by default; 0 for never
         * @return this
         */
        public Builder retries(int count) {
            if (count < 0 || count > 100) {
                throw new IllegalArgumentException("retries must be between 0 and 100, not " + count);
            }
            this.retries = count;
            return this;
        }

        /**
         * Sets the time to wait for a server that Android has ended and that may be restarting, for calls that change
         * nothing. Health checks do not wait.
         *
         * @param ms 5000 by default; 0 to fail immediately
         * @return this
         */
        public Builder reconnectMs(int ms) {
            if (ms < 0) {
                throw new IllegalArgumentException("reconnectMs must be 0 or more, not " + ms);
            }
            this.reconnectMs = ms;
            return this;
        }

        /**
         * Sets the largest answer that this client accepts. The server gets this limit, too.
         *
         * @param bytes from 4096; by default 64 MiB, or a quarter of this process's memory limit if that is less
         * @return this
         */
        public Builder maxAnswerBytes(int bytes) {
            if (bytes < 4096) {
                throw new IllegalArgumentException("maxAnswerBytes must be at least 4096, so that errors fit");
            }
            this.maxAnswerBytes = bytes;
            return this;
        }

        private static int positive(String name, int value) {
            if (value < 1) {
                throw new IllegalArgumentException(name + " must be above 0, not " + value);
            }
            return value;
        }

        /**
         * Sets the executor that runs callbacks.
         *
         * @param executor such as one that posts to Android's main thread; by default, callbacks run on a thread of
         *     this library or in {@link FrameStream#offer}, and must be short
         * @return this
         */
        public Builder callbackExecutor(Executor executor) {
            this.callbackExecutor = notNull("callbackExecutor", executor);
            return this;
        }

        /**
         * Sets whether blocking calls throw on Android's main thread.
         *
         * @param on true by default; has no effect outside Android
         * @return this
         */
        public Builder mainThreadCheck(boolean on) {
            this.mainThreadCheck = on;
            return this;
        }

        /**
         * Builds the client. Does not connect yet.
         *
         * @return a client; close it when you no longer need it
         * @throws PocketServeException TOKEN_UNREADABLE
         * @throws IllegalArgumentException if the fallback has a fallback
         */
        public PocketServe build() throws PocketServeException {
            Settings settings = settings();
            Link direct = createLink(this, settings);
            Link link = new RetryingLink(direct, settings.reconnectMs);
            if (fallback != null) {
                Settings other = checkFallback(fallback).settings();
                link = new FallbackLink(direct, link, name(settings, transport),
                        createLink(fallback, other), name(other, fallback.transport));
            }
            return new PocketServe(this, settings, link);
        }

        private Builder checkFallback(Builder other) {
            if (other == this || other.fallback != null) {
                throw new IllegalArgumentException("a fallback must not have a fallback of its own");
            }
            return other;
        }

        private Settings settings() throws PocketServeException {
            return new Settings(this, tokenFile != null ? TokenFile.read(tokenFile) : TokenFile.check(token));
        }
    }
}
