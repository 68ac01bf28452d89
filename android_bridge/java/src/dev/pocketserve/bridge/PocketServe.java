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
 * <p>All methods may be called from any number of threads; keep one client for the whole application. Nothing is
 * connected before the first call, and a connection that broke is opened anew by the next one. Calls that change
 * nothing on the server are repeated by themselves when the connection breaks under them.
 *
 * <p>These methods block until the answer is there and refuse to do so on Android's main thread; {@link #async} has
 * the same calls with callbacks. All of them throw {@link PocketServeException} and, for arguments that are wrong
 * whatever the server says, {@link IllegalArgumentException}.
 */
public final class PocketServe extends BlockingCalls implements Closeable {
    /** This library's version. */
    public static final String VERSION = "0.1.0";
    /** The port of the socket protocol unless the server was told another. */
    public static final int SOCKET_PORT = 8471;
    /** The port of HTTP unless the server was told another. */
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
     * Starts to describe a client.
     *
     * @return a builder with every setting at its default
     */
    public static Builder builder() {
        return new Builder();
    }

    /**
     * The same calls with callbacks, for any thread.
     *
     * @return always the same object
     */
    public AsyncCalls async() {
        return async;
    }

    /**
     * Starts to send camera frames to a model, always the newest, one at a time.
     *
     * @param model its name
     * @param listener hears the outcome of every frame, on the client's callback executor
     * @return takes the frames
     * @throws IllegalStateException when this client was closed
     */
    public FrameStream stream(String model, StreamListener listener) {
        return stream(model, 1, listener);
    }

    /**
     * Starts to send camera frames to a model, always the newest.
     *
     * @param model its name
     * @param inFlight how many frames may be under way together, from 1; more than 1 hides the way to the server
     *     behind the model's work
     * @param listener hears the outcome of every frame, on the client's callback executor
     * @return takes the frames
     * @throws IllegalStateException when this client was closed
     */
    public FrameStream stream(String model, int inFlight, StreamListener listener) {
        return new FrameStream(calls, model, inFlight, listener, async.executor(), streams);
    }

    /**
     * Ends all calls and streams under way with {@link PocketServeException#CLOSED}, refuses new ones, and leaves no
     * thread behind. Never blocks, so it may be called from {@code onDestroy}.
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
         * @param address an address rather than a name: {@code localhost} may mean ::1, where nobody listens.
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
                throw new IllegalArgumentException("a port lies between 1 and 65535, not " + port);
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
         * Sets whether {@link Transport#AUTO} may send the token over HTTP, to whoever has that port, where nothing
         * listens on the socket's. Nothing proves there that it is the server.
         *
         * @param on false by default
         * @return this
         */
        public Builder httpFallback(boolean on) {
            this.httpFallback = on;
            return this;
        }

        /**
         * The server's token, as {@code pocketserve token} prints it. A client without one only talks to a server
         * that was started with {@code --no-auth}.
         *
         * @param text printable ASCII; spaces around it are taken away
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
         * Sets another server with the same models, such as a desktop's, for what the first one cannot take now.
         * Inference and a model's metadata are asked there when the first server is away, silent for half of the
         * call's time, or refuses for now, such as by QUEUE_FULL or LOW_POWER. Nothing else is, and no step of a
         * sequence. The call's time limits both together; a lost server is not looked for.
         *
         * @param other describes that server: its address, transport and own token, which is never the first one's
         * @return this
         * @throws IllegalArgumentException it is this server, or has a fallback itself
         */
        public Builder fallback(Builder other) {
            this.fallback = checkFallback(notNull("fallback", other));
            return this;
        }

        /**
         * Limits how long connecting may take.
         *
         * @param ms 2000 by default
         * @return this
         */
        public Builder connectTimeoutMs(int ms) {
            this.connectTimeoutMs = positive("connectTimeoutMs", ms);
            return this;
        }

        /**
         * Limits how long a call may take in all, with connecting and repeating.
         *
         * @param ms 30000 by default; the first call of a large model loads it
         * @return this
         */
        public Builder timeoutMs(int ms) {
            this.timeoutMs = positive("timeoutMs", ms);
            return this;
        }

        /**
         * After how long a silent server is asked whether it is there, while calls are under way; after as long again
         * without a word it counts as dead. Socket only.
         *
         * @param ms 5000 by default
         * @return this
         */
        public Builder pingIntervalMs(int ms) {
            this.pingIntervalMs = positive("pingIntervalMs", ms);
            return this;
        }

        /**
         * Sets how often a call that changes nothing is repeated when the connection breaks under it.
         *
         * @param count 2 by default; 0 for never
         * @return this
         */
        public Builder retries(int count) {
            if (count < 0 || count > 100) {
                throw new IllegalArgumentException("retries lies between 0 and 100, not " + count);
            }
            this.retries = count;
            return this;
        }

        /**
         * For how long a call that changes nothing looks for a server that was there and is gone: Android may have
         * ended it, and it is starting again. Health checks do not wait.
         *
         * @param ms 5000 by default; 0 for not at all
         * @return this
         */
        public Builder reconnectMs(int ms) {
            if (ms < 0) {
                throw new IllegalArgumentException("reconnectMs is 0 or more, not " + ms);
            }
            this.reconnectMs = ms;
            return this;
        }

        /**
         * The largest answer that this client takes, which the server is told.
         *
         * @param bytes from 4096; 64 MiB by default, or a quarter of the memory that this process may use if that is
         *     less
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
         * @param executor such as one that posts to Android's main thread; by default they run where they arise, on a
         *     thread of this library or in {@link FrameStream#offer}, and must be short
         * @return this
         */
        public Builder callbackExecutor(Executor executor) {
            this.callbackExecutor = notNull("callbackExecutor", executor);
            return this;
        }

        /**
         * Sets whether blocking calls are refused on Android's main thread.
         *
         * @param on true by default; has no effect where there is no Android
         * @return this
         */
        public Builder mainThreadCheck(boolean on) {
            this.mainThreadCheck = on;
            return this;
        }

        /**
         * Makes the client. Connects to nothing.
         *
         * @return a client to be closed when it is needed no more
         * @throws PocketServeException TOKEN_UNREADABLE
         * @throws IllegalArgumentException the fallback was given a fallback after it was set
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
                throw new IllegalArgumentException("a fallback is another server, and has no fallback itself");
            }
            return other;
        }

        private Settings settings() throws PocketServeException {
            return new Settings(this, tokenFile != null ? TokenFile.read(tokenFile) : TokenFile.check(token));
        }
    }
}
