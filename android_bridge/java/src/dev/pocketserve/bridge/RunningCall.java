package dev.pocketserve.bridge;

import java.util.concurrent.Executor;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.atomic.AtomicReference;

/**
 * A call in progress; the first outcome counts. It then drops its references to callback and input, so that a kept
 * {@link Call} doesn't leak a destroyed screen.
 */
final class RunningCall<T> implements Call, Runnable {
    private final AtomicReference<Calls.Work<T>> work;
    private final AtomicReference<Callback<T>> callback;
    private final Executor executor;
    private final ThreadPoolExecutor threads;
    private final Cancellation cancellation = new Cancellation();

    RunningCall(Calls.Work<T> work, Callback<T> callback, Executor executor, ThreadPoolExecutor threads) {
        this.work = new AtomicReference<>(work);
        this.callback = new AtomicReference<>(callback);
        this.executor = executor;
        this.threads = threads;
    }

    @Override
    public void run() {
        Calls.Work<T> own = work.getAndSet(null);
        if (own == null) {
            return;
        }
        T result;
        try {
            result = own.run(cancellation);
        } catch (PocketServeException error) {
            tell(null, error);
            return;
        }
        tell(result, null);
    }

    @Override
    public void cancel() {
        if (!isDone()) {
            tell(null, Cancellation.cancelled(null));
            cancellation.cancel();
        }
        if (work.getAndSet(null) != null) {
            threads.remove(this); // it had no thread yet
        }
    }

    @Override
    public boolean isDone() {
        return callback.get() == null;
    }

    void tell(final T result, final PocketServeException error) {
        final Callback<T> receiver = callback.getAndSet(null);
        if (receiver == null) {
            return;
        }
        AsyncCalls.execute(executor, new Runnable() {
            @Override
            public void run() {
                if (error == null) {
                    receiver.onResult(result);
                } else {
                    receiver.onError(error);
                }
            }
        });
    }
}
