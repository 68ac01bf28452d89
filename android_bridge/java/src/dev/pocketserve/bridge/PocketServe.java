package dev.pocketserve.bridge;

import java.io.Closeable;
import java.io.File;
import java.util.List;
import java.util.concurrent.Executor;
import org.json.JSONObject;

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
public final class PocketServe implements Closeable {
    /** This library's version. */
    public static final String VERSION = "0.1.0";
    /** The port of the socket protocol unless the server was told another. */
    public static final int SOCKET_PORT = 8471;
    /** The port of HTTP unless the server was told another. */
    public static final int HTTP_PORT = 8470;

    private static final String PICTURE = "application/octet-stream";

    private final Link link;
    private final Calls calls;
    private final AsyncCalls async;
    private final MainThread mainThread;

    private PocketServe(Builder from, String token) {
        Settings settings = new Settings(from, token);
        link = new PatientLink(way(from.transport, settings), settings.reconnectMs);
        calls = new Calls(link, settings.timeoutMs);
        mainThread = from.mainThreadCheck ? MainThread.find() : MainThread.unchecked();
        async = new AsyncCalls(calls, from.callbackExecutor);
    }

    private static Link way(Transport transport, Settings settings) {
        switch (transport) {
            case SOCKET:
                return new SocketLink(settings);
            case HTTP:
                return new HttpLink(settings);
            default:
                return new AutoLink(new SocketLink(settings), new HttpLink(settings));
        }
    }

    /**
     * Starts to describe a client.
     *
     * @return a builder with every setting at its default
     */
    public static Builder builder() {
        return new Builder();
    }

    private Calls blocking() throws PocketServeException {
        mainThread.refuse();
        return calls;
    }

    /**
     * Asks a model what is on a picture.
     *
     * @param model its name
     * @param picture an encoded picture, such as the bytes of a JPEG or PNG file
     * @return the answer
     * @throws PocketServeException when there is none
     */
    public Prediction classify(String model, byte[] picture) throws PocketServeException {
        return classify(model, picture, null);
    }

    /**
     * Asks a model what is on a picture.
     *
     * @param model its name
     * @param picture an encoded picture, such as the bytes of a JPEG or PNG file
     * @param options how to answer; null for the server's own ways
     * @return the answer
     * @throws PocketServeException when there is none
     */
    public Prediction classify(String model, byte[] picture, PredictOptions options) throws PocketServeException {
        return predict(model, picture, PICTURE, options);
    }

    /**
     * Asks a model about any raw input: a picture, a sound, a text, JSON.
     *
     * @param model its name
     * @param input the bytes
     * @param contentType what they are, such as {@code text/plain}
     * @return the answer
     * @throws PocketServeException when there is none
     */
    public Prediction predict(String model, byte[] input, String contentType) throws PocketServeException {
        return predict(model, input, contentType, null);
    }

    /**
     * Asks a model about any raw input: a picture, a sound, a text, JSON, a raw camera frame.
     *
     * @param model its name
     * @param input the bytes
     * @param contentType what they are, such as {@code text/plain}
     * @param options how to answer; null for the server's own ways
     * @return the answer
     * @throws PocketServeException when there is none
     */
    public Prediction predict(String model, byte[] input, String contentType, PredictOptions options)
            throws PocketServeException {
        return blocking().predict(model, input, contentType, options, new Cancellation());
    }

    /**
     * Runs a model on tensors.
     *
     * @param model its name
     * @param inputs one tensor for each of the model's inputs
     * @return its outputs
     * @throws PocketServeException when there are none
     */
    public InferResult infer(String model, Tensor... inputs) throws PocketServeException {
        return infer(model, null, inputs);
    }

    /**
     * Runs a model on tensors.
     *
     * @param model its name
     * @param options which version, which outputs and how; null for the server's own ways
     * @param inputs one tensor for each of the model's inputs
     * @return its outputs
     * @throws PocketServeException when there are none
     */
    public InferResult infer(String model, InferOptions options, Tensor... inputs) throws PocketServeException {
        return blocking().infer(model, options, new Cancellation(), inputs);
    }

    /**
     * Whether the server runs.
     *
     * @return false when nothing answers
     * @throws PocketServeException when something else answers, or Android forbids the connection
     */
    public boolean isLive() throws PocketServeException {
        return blocking().health("live", new Cancellation());
    }

    /**
     * Whether the server takes requests.
     *
     * @return false when nothing answers, or the server is about to end
     * @throws PocketServeException when something else answers, or Android forbids the connection
     */
    public boolean isReady() throws PocketServeException {
        return blocking().health("ready", new Cancellation());
    }

    /**
     * Whether a model can be asked. One that was not loaded yet can: the first request loads it.
     *
     * @param model its name
     * @return false for a model that is unknown, was unloaded or failed
     * @throws PocketServeException when the server cannot be asked
     */
    public boolean isModelReady(String model) throws PocketServeException {
        return isModelReady(model, null);
    }

    /**
     * Whether a version of a model can be asked.
     *
     * @param model its name
     * @param version its version; null for the one that answers by default
     * @return false for one that is unknown, was unloaded or failed
     * @throws PocketServeException when the server cannot be asked
     */
    public boolean isModelReady(String model, String version) throws PocketServeException {
        return blocking().isModelReady(model, version, new Cancellation());
    }

    /**
     * What the server says about itself.
     *
     * @return name, version and extensions
     * @throws PocketServeException when the server cannot be asked
     */
    public JSONObject serverMetadata() throws PocketServeException {
        return blocking().serverMetadata(new Cancellation());
    }

    /**
     * What the server says about a model: its versions, inputs, outputs and task.
     *
     * @param model its name
     * @return the metadata of the Open Inference Protocol
     * @throws PocketServeException when there is no such model
     */
    public JSONObject modelMetadata(String model) throws PocketServeException {
        return modelMetadata(model, null);
    }

    /**
     * What the server says about a version of a model.
     *
     * @param model its name
     * @param version its version; null for the one that answers by default
     * @return the metadata of the Open Inference Protocol
     * @throws PocketServeException when there is no such model or version
     */
    public JSONObject modelMetadata(String model, String version) throws PocketServeException {
        return blocking().modelMetadata(model, version, new Cancellation());
    }

    /**
     * The names of all models.
     *
     * @return in the server's order
     * @throws PocketServeException when the server cannot be asked
     */
    public List<String> models() throws PocketServeException {
        return blocking().models(new Cancellation());
    }

    /**
     * All versions of all models with their state; the server looks into its folder again for this.
     *
     * @return in the server's order
     * @throws PocketServeException when the server cannot be asked
     */
    public List<ModelState> index() throws PocketServeException {
        return blocking().index(new Cancellation());
    }

    /**
     * Loads a model, or loads it anew.
     *
     * @param model its name
     * @throws PocketServeException when it cannot be loaded
     */
    public void load(String model) throws PocketServeException {
        load(model, false);
    }

    /**
     * Loads a model, or loads it anew.
     *
     * @param model its name
     * @param release forget that it is in quarantine because it did harm, and try it again
     * @throws PocketServeException when it cannot be loaded
     */
    public void load(String model, boolean release) throws PocketServeException {
        blocking().load(model, release, new Cancellation());
    }

    /**
     * Stops serving a model until it is loaded again.
     *
     * @param model its name
     * @throws PocketServeException when the server cannot be asked
     */
    public void unload(String model) throws PocketServeException {
        blocking().unload(model, new Cancellation());
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
     */
    public FrameStream stream(String model, int inFlight, StreamListener listener) {
        return new FrameStream(calls, model, inFlight, listener, async.executor());
    }

    /** Ends all calls under way with {@link PocketServeException#CLOSED} and refuses new ones. */
    @Override
    public void close() {
        link.close();
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
        private String token;
        private File tokenFile;

        private Builder() {
        }

        /**
         * Where the server is.
         *
         * @param address an address rather than a name: {@code localhost} may mean ::1, where nobody listens.
         *     127.0.0.1 by default
         * @return this
         */
        public Builder host(String address) {
            this.host = address;
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

        private static int port(int port) {
            if (port < 1 || port > 65_535) {
                throw new IllegalArgumentException("a port lies between 1 and 65535, not " + port);
            }
            return port;
        }

        /**
         * How to reach the server.
         *
         * @param way {@link Transport#SOCKET} by default
         * @return this
         */
        public Builder transport(Transport way) {
            this.transport = way;
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
         * How long connecting may take.
         *
         * @param ms 2000 by default
         * @return this
         */
        public Builder connectTimeoutMs(int ms) {
            this.connectTimeoutMs = positive("connectTimeoutMs", ms);
            return this;
        }

        /**
         * How long a call may take in all, with connecting and repeating.
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
         * How often a call that changes nothing is repeated when the connection breaks under it.
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
         * Where callbacks run.
         *
         * @param executor such as one that posts to Android's main thread; by default they run where they arise, on a
         *     thread of this library or in {@link FrameStream#offer}, and must be short
         * @return this
         */
        public Builder callbackExecutor(Executor executor) {
            this.callbackExecutor = executor;
            return this;
        }

        /**
         * Whether blocking calls are refused on Android's main thread.
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
         */
        public PocketServe build() throws PocketServeException {
            return new PocketServe(this, tokenFile != null ? TokenFile.read(tokenFile) : TokenFile.check(token));
        }
    }
}
