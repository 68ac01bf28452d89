package dev.pocketserve.bridge;

import java.util.List;
import java.util.concurrent.Executor;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import org.json.JSONObject;

/**
 * The calls of {@link PocketServe} with callbacks. No method blocks; each returns a {@link Call} that can be cancelled.
 * Callbacks run on the executor that the client was built with.
 */
public final class AsyncCalls {
    static final Executor DIRECT = new Executor() {
        @Override
        public void execute(Runnable work) {
            work.run();
        }
    };
    /** Calls that wait for their answer together; further ones wait for a thread. */
    private static final int THREADS = 8;

    private final Calls calls;
    private final Executor executor;
    private final ThreadPoolExecutor threads;

    AsyncCalls(Calls calls, Executor executor) {
        this.calls = calls;
        this.executor = executor;
        this.threads = new ThreadPoolExecutor(
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
    }

    Executor executor() {
        return executor;
    }

    void close() {
        threads.shutdown();
    }

    /** What a call does, on a thread of this library. */
    private interface Work<T> {
        T run(Cancellation cancellation) throws PocketServeException;
    }

    /** One call: its outcome is told once, whoever comes first. */
    private static final class Running<T> implements Call, Runnable {
        private final Work<T> work;
        private final Callback<T> callback;
        private final Executor executor;
        private final Cancellation cancellation = new Cancellation();
        private final AtomicBoolean done = new AtomicBoolean();

        Running(Work<T> work, Callback<T> callback, Executor executor) {
            this.work = work;
            this.callback = callback;
            this.executor = executor;
        }

        @Override
        public void run() {
            if (cancellation.isCancelled()) {
                return;
            }
            T result;
            try {
                result = work.run(cancellation);
            } catch (PocketServeException error) {
                tell(null, error);
                return;
            }
            tell(result, null);
        }

        @Override
        public void cancel() {
            if (!done.get()) {
                tell(null, Cancellation.cancelled(null));
                cancellation.cancel();
            }
        }

        @Override
        public boolean isDone() {
            return done.get();
        }

        void tell(final T result, final PocketServeException error) {
            if (!done.compareAndSet(false, true)) {
                return;
            }
            execute(executor, new Runnable() {
                @Override
                public void run() {
                    if (error == null) {
                        callback.onResult(result);
                    } else {
                        callback.onError(error);
                    }
                }
            });
        }
    }

    /** Hands a callback over; an executor that was shut down has nobody left who listens. */
    static void execute(Executor executor, Runnable callback) {
        try {
            executor.execute(callback);
        } catch (RejectedExecutionException nobodyListens) {
            return;
        }
    }

    private <T> Call start(Callback<T> callback, Work<T> work) {
        Running<T> running = new Running<>(work, callback, executor);
        try {
            threads.execute(running);
        } catch (RejectedExecutionException closed) {
            running.tell(null, Faults.closed());
        }
        return running;
    }

    /**
     * See {@link PocketServe#classify(String, byte[], PredictOptions)}.
     *
     * @param model its name
     * @param picture an encoded picture; not to be changed before the callback
     * @param options how to answer; null for the server's own ways
     * @param callback hears the outcome
     * @return the call
     */
    public Call classify(String model, byte[] picture, PredictOptions options, Callback<Prediction> callback) {
        return predict(model, picture, "application/octet-stream", options, callback);
    }

    /**
     * See {@link PocketServe#predict(String, byte[], String, PredictOptions)}.
     *
     * @param model its name
     * @param input the bytes; not to be changed before the callback
     * @param contentType what they are
     * @param options how to answer; null for the server's own ways
     * @param callback hears the outcome
     * @return the call
     */
    public Call predict(final String model, final byte[] input, final String contentType, PredictOptions options,
            Callback<Prediction> callback) {
        final PredictOptions chosen = options == null ? null : new PredictOptions(options);
        return start(callback, new Work<Prediction>() {
            @Override
            public Prediction run(Cancellation cancellation) throws PocketServeException {
                return calls.predict(model, input, contentType, chosen, cancellation);
            }
        });
    }

    /**
     * See {@link PocketServe#infer(String, InferOptions, Tensor...)}.
     *
     * @param model its name
     * @param options which version, which outputs and how; null for the server's own ways; not to be changed before
     *     the callback
     * @param callback hears the outcome
     * @param inputs one tensor for each of the model's inputs
     * @return the call
     */
    public Call infer(final String model, final InferOptions options, Callback<InferResult> callback,
            final Tensor... inputs) {
        return start(callback, new Work<InferResult>() {
            @Override
            public InferResult run(Cancellation cancellation) throws PocketServeException {
                return calls.infer(model, options, cancellation, inputs);
            }
        });
    }

    /**
     * See {@link PocketServe#isLive}.
     *
     * @param callback hears the outcome
     * @return the call
     */
    public Call isLive(Callback<Boolean> callback) {
        return health("live", callback);
    }

    /**
     * See {@link PocketServe#isReady}.
     *
     * @param callback hears the outcome
     * @return the call
     */
    public Call isReady(Callback<Boolean> callback) {
        return health("ready", callback);
    }

    private Call health(final String what, Callback<Boolean> callback) {
        return start(callback, new Work<Boolean>() {
            @Override
            public Boolean run(Cancellation cancellation) throws PocketServeException {
                return calls.health(what, cancellation);
            }
        });
    }

    /**
     * See {@link PocketServe#isModelReady(String, String)}.
     *
     * @param model its name
     * @param version its version; null for the one that answers by default
     * @param callback hears the outcome
     * @return the call
     */
    public Call isModelReady(final String model, final String version, Callback<Boolean> callback) {
        return start(callback, new Work<Boolean>() {
            @Override
            public Boolean run(Cancellation cancellation) throws PocketServeException {
                return calls.isModelReady(model, version, cancellation);
            }
        });
    }

    /**
     * See {@link PocketServe#serverMetadata}.
     *
     * @param callback hears the outcome
     * @return the call
     */
    public Call serverMetadata(Callback<JSONObject> callback) {
        return start(callback, new Work<JSONObject>() {
            @Override
            public JSONObject run(Cancellation cancellation) throws PocketServeException {
                return calls.serverMetadata(cancellation);
            }
        });
    }

    /**
     * See {@link PocketServe#modelMetadata(String, String)}.
     *
     * @param model its name
     * @param version its version; null for the one that answers by default
     * @param callback hears the outcome
     * @return the call
     */
    public Call modelMetadata(final String model, final String version, Callback<JSONObject> callback) {
        return start(callback, new Work<JSONObject>() {
            @Override
            public JSONObject run(Cancellation cancellation) throws PocketServeException {
                return calls.modelMetadata(model, version, cancellation);
            }
        });
    }

    /**
     * See {@link PocketServe#models}.
     *
     * @param callback hears the outcome
     * @return the call
     */
    public Call models(Callback<List<String>> callback) {
        return start(callback, new Work<List<String>>() {
            @Override
            public List<String> run(Cancellation cancellation) throws PocketServeException {
                return calls.models(cancellation);
            }
        });
    }

    /**
     * See {@link PocketServe#index}.
     *
     * @param callback hears the outcome
     * @return the call
     */
    public Call index(Callback<List<ModelState>> callback) {
        return start(callback, new Work<List<ModelState>>() {
            @Override
            public List<ModelState> run(Cancellation cancellation) throws PocketServeException {
                return calls.index(cancellation);
            }
        });
    }

    /**
     * See {@link PocketServe#load(String, boolean)}.
     *
     * @param model its name
     * @param release forget that it is in quarantine
     * @param callback hears the outcome; its result is null
     * @return the call
     */
    public Call load(final String model, final boolean release, Callback<Void> callback) {
        return start(callback, new Work<Void>() {
            @Override
            public Void run(Cancellation cancellation) throws PocketServeException {
                return calls.load(model, release, cancellation);
            }
        });
    }

    /**
     * See {@link PocketServe#unload}.
     *
     * @param model its name
     * @param callback hears the outcome; its result is null
     * @return the call
     */
    public Call unload(final String model, Callback<Void> callback) {
        return start(callback, new Work<Void>() {
            @Override
            public Void run(Cancellation cancellation) throws PocketServeException {
                return calls.unload(model, cancellation);
            }
        });
    }
}
