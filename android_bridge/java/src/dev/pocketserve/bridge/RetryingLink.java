package dev.pocketserve.bridge;

import java.util.Random;

/**
 * Retries calls to an unreachable server that may be restarting. Only calls that may run twice are retried, for a
 * limited time. If a proxy reports a lost server, or the server is shutting down, only inference is retried, because
 * another process may answer. The wrapped links retry immediately if a connection was stale.
 */
final class RetryingLink implements Link {
    private static final String SHUTTING_DOWN = "SHUTTING_DOWN";
    private final Link link;
    private final int reconnectMs;
    private final Clock clock;
    private final Random random = new Random();
    private volatile boolean answered;
    private volatile boolean closed;
    /** The number of paused calls; while it is 0, answers need no lock. */
    private volatile int waiters;
    /** Guards the two counters and wakes paused calls. */
    private final Object gate = new Object();
    private int wakeups;

    RetryingLink(Link link, int reconnectMs) {
        this(link, reconnectMs, Clock.SYSTEM);
    }

    RetryingLink(Link link, int reconnectMs, Clock clock) {
        this.link = link;
        this.reconnectMs = reconnectMs;
        this.clock = clock;
    }

    @Override
    public Answer exchange(Request request, Deadline deadline, Cancellation cancellation)
            throws PocketServeException {
        try {
            return attempt(request, deadline, cancellation);
        } catch (PocketServeException error) {
            if (!shouldRetry(request, error)) {
                throw error;
            }
            return retry(request, deadline, cancellation, error);
        }
    }

    private Answer attempt(Request request, Deadline deadline, Cancellation cancellation) throws PocketServeException {
        Answer answer = link.exchange(request, deadline, cancellation);
        PocketServeException refusal = request.mayFallBack() ? answer.temporaryRefusal() : null;
        if (refusal != null && (isLostBehindProxy(refusal) || isShuttingDown(refusal))) {
            throw refusal;
        }
        return recordSuccess(answer);
    }

    private Answer retry(
            Request request, Deadline deadline, Cancellation cancellation, PocketServeException first)
            throws PocketServeException {
        PocketServeException lastError = first;
        Deadline window = deadline.within(reconnectMs);
        Backoff backoff = Backoff.whileUnreachable(random);
        while (!window.isOver()) {
            pause(window.within(backoff.nextMs()), cancellation);
            if (closed) {
                throw Faults.closed();
            }
            if (cancellation.isCancelled()) {
                throw Cancellation.cancelled(lastError);
            }
            try {
                return attempt(request, deadline, cancellation);
            } catch (PocketServeException error) {
                if (!shouldRetry(request, error)) {
                    throw error;
                }
                lastError = error;
            }
        }
        throw lastError;
    }

    /** Returns whether to wait: not for a server that has never answered, because it was probably never started. */
    private boolean shouldRetry(Request request, PocketServeException error) {
        boolean unreachable = PocketServeException.CONNECTION_LOST.equals(error.getCode())
                || PocketServeException.SERVER_UNREACHABLE.equals(error.getCode());
        return (unreachable && answered || isLostBehindProxy(error) || isShuttingDown(error))
                && !closed && request.isIdempotent() && request.needsToken();
    }

    /** Returns whether the server is shutting down; after a graceful reload, another process replaces it. */
    private static boolean isShuttingDown(PocketServeException error) {
        return SHUTTING_DOWN.equals(error.getCode());
    }

    private static boolean isLostBehindProxy(PocketServeException error) {
        return PocketServeException.BAD_ANSWER.equals(error.getCode()) && error.isRetryable();
    }

    private Answer recordSuccess(Answer answer) {
        answered = true;
        if (waiters > 0) {
            wake();
        }
        return answer;
    }

    /** Waits. Ends early if another call is answered, this one is cancelled, or the client is closed. */
    private void pause(Deadline end, Cancellation cancellation) throws PocketServeException {
        cancellation.onCancel(new Runnable() {
            @Override
            public void run() {
                wake();
            }
        });
        synchronized (gate) {
            int before = wakeups;
            waiters++;
            try {
                long ms = end.remainingMs(); // read once per wait, because a wait of 0 never ends
                while (wakeups == before && !closed && !cancellation.isCancelled() && ms > 0) {
                    clock.await(gate, ms);
                    ms = end.remainingMs();
                }
            } catch (InterruptedException error) {
                throw Faults.interrupted(error);
            } finally {
                waiters--;
                cancellation.onCancel(null);
            }
        }
    }

    private void wake() {
        synchronized (gate) {
            wakeups++;
            gate.notifyAll();
        }
    }

    @Override
    public void close() {
        closed = true;
        wake();
        link.close();
    }
}
