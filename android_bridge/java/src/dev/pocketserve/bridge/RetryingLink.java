package dev.pocketserve.bridge;

import java.util.Random;

/**
 * Retries calls to a server that was there and is gone: it may be starting again. Only for calls that may be made
 * twice, and only for a while. Where a proxy says that it has lost the server, only inference is repeated: what else
 * gets such an answer may have come to a stranger. Inference is also repeated where a server says that it ends. The
 * links below repeat at once, for connections that had merely grown old.
 */
final class RetryingLink implements Link {
    private static final String SHUTTING_DOWN = "SHUTTING_DOWN";
    private final Link link;
    private final int reconnectMs;
    private final Clock clock;
    private final Random random = new Random();
    private volatile boolean answered;
    private volatile boolean closed;
    /** Calls that pause here; while there are none, answers cost no lock. */
    private volatile int waiters;
    /** Guards the two counters, and wakes those that pause. */
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

    /** A server that has never answered is not waited for: most likely nobody has started it. */
    private boolean shouldRetry(Request request, PocketServeException error) {
        boolean unreachable = PocketServeException.CONNECTION_LOST.equals(error.getCode())
                || PocketServeException.SERVER_UNREACHABLE.equals(error.getCode());
        return (unreachable && answered || isLostBehindProxy(error) || isShuttingDown(error))
                && !closed && request.isIdempotent() && request.needsToken();
    }

    /** Returns whether the server is about to end: in a graceful reload another process takes its place. */
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

    /** Waits; ends early when another call was answered, when this one is cancelled, and when the client is closed. */
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
                long ms = end.remainingMs(); // asked once for each wait: a wait of 0 has no end
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
