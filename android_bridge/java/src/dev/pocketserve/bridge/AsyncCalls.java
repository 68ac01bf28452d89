package dev.pocketserve.bridge;

import java.util.List;
import java.util.concurrent.Executor;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import org.json.JSONObject;

/**
 * The calls of {@link PocketServe} with callbacks, for any thread. No method blocks; each returns a {@link Call} that
 * can be cancelled. Callbacks run on the executor that the client was built with; pieces of
 * an answer and its callback run one after the other, even if the executor has several threads.
 *
 * <p>Each callback runs exactly once, even if the call is cancelled or the client is closed, and is released then. If
 * a callback throws, its thread's {@link Thread.UncaughtExceptionHandler} gets the exception, which ends an Android
 * app. Invalid arguments throw {@link IllegalArgumentException} at once. Up to eight calls run at a time and further
 * ones wait; the timeout of each, see {@link PocketServe.Builder#timeoutMs}, begins when it starts to run.
 */
public final class AsyncCalls {
    static final Executor DIRECT = new Executor() {
        @Override
        public void execute(Runnable work) {
            work.run();
        }
    };
    /** The maximum number of concurrent calls; further ones wait for a thread. */
    private static final int THREADS = 8;

    private final Calls calls;
    private final Executor executor;
    private final ThreadPoolExecutor threads;

    AsyncCalls(Calls calls, Executor executor) {
        this(calls, executor, pool());
    }

    private AsyncCalls(Calls calls, Executor executor, ThreadPoolExecutor threads) {
        this.calls = calls;
        this.executor = executor;
        this.threads = threads;
    }

    private static ThreadPoolExecutor pool() {
        ThreadPoolExecutor threads = new ThreadPoolExecutor(
                THREADS, THREADS, 10, TimeUnit.SECONDS, new LinkedBlockingQueue<Runnable>(), new ThreadFactory() {
                    @Override
                    public Thread newThread(Runnable work) {
                        Thread thread = new Thread(work, "pocketserve-call");
                        thread.setDaemon(true);
                        return thread;
                    }
                });
        // An idle client keeps no threads.
        threads.allowCoreThreadTimeOut(true);
        return threads;
    }

    /**
     * Returns the same calls with callbacks on another executor.
     *
     * @param other runs callbacks instead of the client's executor; if it runs them directly, they must be short,
     *     because they block a thread of this library
     * @return an object that shares connection and threads with this one
     */
    public AsyncCalls on(Executor other) {
        if (other == null) {
            throw new IllegalArgumentException("there is no executor");
        }
        return new AsyncCalls(calls, other, threads);
    }

    Executor executor() {
        return executor;
    }

    void close() {
        threads.shutdown();
    }

    /**
     * Passes a callback to the executor. Ignores an executor that was shut down. If the callback throws in this
     * thread, the exception goes to the handler of uncaught ones, so it ends neither the thread nor a loop.
     */
    static void execute(Executor executor, Runnable callback) {
        try {
            executor.execute(callback);
        } catch (RejectedExecutionException nobodyListens) {
            return;
        } catch (RuntimeException | Error appsOwn) {
            Thread thread = Thread.currentThread();
            thread.getUncaughtExceptionHandler().uncaughtException(thread, appsOwn);
        }
    }

    private <T> Call start(Callback<T> callback, Calls.Work<T> work) {
        return start(callback, work, executor);
    }

    private <T> Call start(Callback<T> callback, Calls.Work<T> work, Executor executor) {
        if (callback == null) {
            throw new IllegalArgumentException("a call needs a callback");
        }
        RunningCall<T> running = new RunningCall<>(work, callback, executor, threads);
        try {
            threads.execute(running);
        } catch (RejectedExecutionException closed) {
            running.tell(null, Faults.closed());
        }
        return running;
    }

    /**
     * Runs blocking calls, such as those of a generated class, on a thread of this client.
     *
     * @param work uses this client; an exception other than PocketServeException is handled like one of a callback,
     *     and the callback isn't called
     * @param callback receives the outcome
     * @param <T> the type of the work's result
     * @return the call; cancelling it cancels the request that the work waits for and all later ones
     */
    public <T> Call call(final BlockingCall<T> work, Callback<T> callback) {
        if (work == null) {
            throw new IllegalArgumentException("there is no work");
        }
        return start(callback, new Calls.Work<T>() {
            @Override
            public T run(Cancellation cancellation) throws PocketServeException {
                return cancellation.run(work);
            }
        });
    }

    /**
     * See {@link PocketServe#classify(String, byte[], PredictOptions)}.
     *
     * @param model the model's name
     * @param picture an encoded picture; must not change until the callback runs
     * @param options options of the answer; null for the server's defaults
     * @param callback receives the outcome
     * @return the call
     */
    public Call classify(String model, byte[] picture, PredictOptions options, Callback<Prediction> callback) {
        return predict(model, picture, "application/octet-stream", options, callback);
    }

    /**
     * See {@link PocketServe#predict(String, byte[], String, PredictOptions)}.
     *
     * @param model the model's name
     * @param input the bytes; must not change until the callback runs
     * @param contentType their media type
     * @param options options of the answer; null for the server's defaults
     * @param callback receives the outcome
     * @return the call
     */
    public Call predict(String model, byte[] input, String contentType, PredictOptions options,
            Callback<Prediction> callback) {
        return start(callback, calls.predict(model, input, contentType, options));
    }

    /**
     * See {@link PocketServe#chat(String, List, ChatOptions, ChatListener)}. Cancelling the call stops the model; the
     * listener gets no further piece.
     *
     * @param model the model's name
     * @param messages the chat so far
     * @param options options of the answer; null for the model's defaults
     * @param listener receives each piece of text, on the executor of the callback
     * @param callback receives the whole answer
     * @return the call
     */
    public Call chat(String model, List<ChatMessage> messages, ChatOptions options, final ChatListener listener,
            Callback<ChatAnswer> callback) {
        final Pieces pieces = new Pieces(executor);
        ChatListener onExecutor = listener == null ? null : new ChatListener() {
            @Override
            public void onText(final String piece) {
                pieces.execute(new Runnable() {
                    @Override
                    public void run() {
                        listener.onText(piece);
                    }
                });
            }
        };
        return pieces.startedAs(start(callback, calls.chat(model, messages, options, onExecutor), pieces.inOrder));
    }

    /**
     * See {@link PocketServe#transcribe(String, byte[], TranscribeOptions, TranscriptListener)}. Cancelling the call
     * stops the model; the listener gets no further segment.
     *
     * @param model the model's name
     * @param sound the bytes of a recording; must not change until the callback runs
     * @param options options of the transcript; null for the model's defaults
     * @param listener receives each segment, on the executor of the callback, or null
     * @param callback receives the whole transcript
     * @return the call
     */
    public Call transcribe(String model, byte[] sound, TranscribeOptions options, final TranscriptListener listener,
            Callback<Transcript> callback) {
        final Pieces pieces = new Pieces(executor);
        TranscriptListener onExecutor = listener == null ? null : new TranscriptListener() {
            @Override
            public void onSegment(final SpeechSegment segment) {
                pieces.execute(new Runnable() {
                    @Override
                    public void run() {
                        listener.onSegment(segment);
                    }
                });
            }
        };
        return pieces.startedAs(start(callback, calls.transcribe(model, sound, options, onExecutor), pieces.inOrder));
    }

    /**
     * See {@link PocketServe#infer(String, InferOptions, Tensor...)}.
     *
     * @param model the model's name
     * @param options version, outputs and other options; null for the server's defaults
     * @param callback receives the outcome
     * @param inputs one tensor for each of the model's inputs
     * @return the call
     */
    public Call infer(String model, InferOptions options, Callback<InferResult> callback, Tensor... inputs) {
        return start(callback, calls.infer(model, options, inputs));
    }

    /**
     * See {@link PocketServe#isLive}.
     *
     * @param callback receives the outcome
     * @return the call
     */
    public Call isLive(Callback<Boolean> callback) {
        return health("live", callback);
    }

    /**
     * See {@link PocketServe#isReady}.
     *
     * @param callback receives the outcome
     * @return the call
     */
    public Call isReady(Callback<Boolean> callback) {
        return health("ready", callback);
    }

    private Call health(String endpoint, Callback<Boolean> callback) {
        return start(callback, calls.health(endpoint));
    }

    /**
     * See {@link PocketServe#isModelReady(String, String)}.
     *
     * @param model the model's name
     * @param version the version's name; null for the default version
     * @param callback receives the outcome
     * @return the call
     */
    public Call isModelReady(String model, String version, Callback<Boolean> callback) {
        return start(callback, calls.isModelReady(model, version));
    }

    /**
     * See {@link PocketServe#serverMetadata}.
     *
     * @param callback receives the outcome
     * @return the call
     */
    public Call serverMetadata(Callback<JSONObject> callback) {
        return start(callback, calls.serverMetadata());
    }

    /**
     * See {@link PocketServe#modelMetadata(String, String)}.
     *
     * @param model the model's name
     * @param version the version's name; null for the default version
     * @param callback receives the outcome
     * @return the call
     */
    public Call modelMetadata(String model, String version, Callback<JSONObject> callback) {
        return start(callback, calls.modelMetadata(model, version));
    }

    /**
     * See {@link PocketServe#models}.
     *
     * @param callback receives the outcome
     * @return the call
     */
    public Call models(Callback<List<String>> callback) {
        return start(callback, calls.models());
    }

    /**
     * See {@link PocketServe#index}.
     *
     * @param callback receives the outcome
     * @return the call
     */
    public Call index(Callback<List<ModelState>> callback) {
        return start(callback, calls.index());
    }

    /**
     * See {@link PocketServe#load(String, boolean)}.
     *
     * @param model the model's name
     * @param release whether to release the model from quarantine
     * @param callback receives the outcome; the result is null
     * @return the call
     */
    public Call load(String model, boolean release, Callback<Void> callback) {
        return start(callback, calls.load(model, release));
    }

    /**
     * See {@link PocketServe#unload}.
     *
     * @param model the model's name
     * @param callback receives the outcome; the result is null
     * @return the call
     */
    public Call unload(String model, Callback<Void> callback) {
        return start(callback, calls.unload(model));
    }
}
