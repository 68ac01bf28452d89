package dev.pocketserve.bridge;

/** Carries a caller's wish to give up to the thread that waits for the answer. */
final class Cancellation {
    /** Of the work that this thread does, where that is given up as a whole. */
    private static final ThreadLocal<Cancellation> CURRENT = new ThreadLocal<>();

    private boolean cancelled;
    private Runnable action;

    /** Gives up: runs what the waiting thread left here. */
    void cancel() {
        Runnable run;
        synchronized (this) {
            if (cancelled) {
                return;
            }
            cancelled = true;
            run = action;
        }
        if (run != null) {
            run.run();
        }
    }

    synchronized boolean isCancelled() {
        return cancelled;
    }

    /** Leaves what is to be done on a cancel; null takes it away. Runs it at once if that happened already. */
    void onCancel(Runnable run) {
        boolean now;
        synchronized (this) {
            action = run;
            now = cancelled && run != null;
        }
        if (now) {
            run.run();
        }
    }

    /** Returns what gives up the calls of this thread: that of the work they are part of, or one of their own. */
    static Cancellation current() {
        Cancellation current = CURRENT.get();
        return current == null ? new Cancellation() : current;
    }

    /** Does work whose calls are given up by this. */
    <T> T run(BlockingCall<T> work) throws PocketServeException {
        CURRENT.set(this);
        try {
            return work.call();
        } finally {
            CURRENT.remove();
        }
    }

    static PocketServeException cancelled(Throwable cause) {
        return PocketServeException.permanent(
                PocketServeException.CANCELLED, "the call was cancelled before its answer came", cause);
    }
}
