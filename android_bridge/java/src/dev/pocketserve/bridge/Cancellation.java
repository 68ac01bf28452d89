package dev.pocketserve.bridge;

/** Passes a caller's cancellation to the thread that waits for the answer. */
final class Cancellation {
    /** The cancellation of the work that this thread runs as a whole, if any. */
    private static final ThreadLocal<Cancellation> CURRENT = new ThreadLocal<>();

    private boolean cancelled;
    private Runnable action;

    /** Cancels: runs the action that the waiting thread registered. */
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

    /** Registers the action for a cancellation, or removes it if null. Runs it immediately if already cancelled. */
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

    /** Returns the cancellation of this thread's work, or a new one. */
    static Cancellation current() {
        Cancellation current = CURRENT.get();
        return current == null ? new Cancellation() : current;
    }

    /** Runs work; cancelling this object cancels the work's calls. */
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
                PocketServeException.CANCELLED, "the call was cancelled before its answer arrived", cause);
    }
}
