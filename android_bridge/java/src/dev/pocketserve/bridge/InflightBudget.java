package dev.pocketserve.bridge;

import dev.pocketserve.bridge.wire.ConnectionLimits;

/**
 * The requests that one connection has under way, within what its server allows; beyond that, the server would refuse.
 * A request counts until its answer comes, also when its caller has given up.
 *
 * <p>Every method is called with the connection's lock held, which {@link #acquire} waits on.
 */
final class InflightBudget {
    private final Object lock;
    private final ConnectionLimits limits;
    private final long stallNs;
    private int requests;
    private long bytes;
    private int waiters;
    private boolean closed;
    /** Calls that wait for an answer: fewer than there are requests, once some were given up. */
    private int callers;
    /** The time at which a request was last given up or answered. */
    private long lastProgressNs;

    InflightBudget(Object lock, ConnectionLimits limits, int stallMs) {
        this.lock = lock;
        this.limits = limits;
        this.stallNs = stallMs * 1_000_000L;
    }

    /**
     * Acquires the budget of one request, and waits for it if need be.
     *
     * @return false when there is no hope: all requests under way were given up, and none was answered for as long as
     *     a stall may last, though such an answer costs the server next to nothing
     */
    boolean acquire(int size, Deadline deadline, Cancellation cancellation) throws PocketServeException {
        if (isFull(size) && !await(size, deadline, cancellation)) {
            return false;
        }
        requests++;
        bytes += size;
        return true;
    }

    private boolean isFull(int size) {
        return !closed && requests > 0
                && (requests >= limits.maxInflight() || bytes + size > limits.maxBytesInflight());
    }

    private boolean await(int size, Deadline deadline, Cancellation cancellation) throws PocketServeException {
        waiters++;
        cancellation.onCancel(new Runnable() {
            @Override
            public void run() {
                synchronized (lock) {
                    lock.notifyAll();
                }
            }
        });
        try {
            while (isFull(size)) {
                long ms = waitMs(deadline);
                if (cancellation.isCancelled()) {
                    throw Cancellation.cancelled(null);
                }
                if (deadline.isOver()) {
                    throw deadline.exceeded();
                }
                if (ms == 0) {
                    return false;
                }
                lock.wait(ms);
            }
            return true;
        } catch (InterruptedException error) {
            throw Faults.interrupted(error);
        } finally {
            cancellation.onCancel(null);
            waiters--;
        }
    }

    private long waitMs(Deadline deadline) {
        long ms = deadline.remainingMs();
        if (callers > 0) {
            return ms;
        }
        long left = stallNs - (Clock.SYSTEM.nanos() - lastProgressNs);
        return Math.max(0, Math.min(ms, (left + 999_999) / 1_000_000));
    }

    /** Releases the budget of one request. */
    void release(int size) {
        requests--;
        bytes -= size;
        lastProgressNs = Clock.SYSTEM.nanos();
        if (waiters > 0) {
            lock.notifyAll();
        }
    }

    /** Nothing more is sent here, so that nobody need wait for budget. */
    void close() {
        closed = true;
        lock.notifyAll();
    }

    /** A caller begins to wait for its answer; true when nobody else does. */
    boolean addCaller() {
        callers++;
        return callers == 1;
    }

    /** A caller has its answer, or gives it up. */
    void removeCaller() {
        callers--;
        lastProgressNs = Clock.SYSTEM.nanos();
    }

    /** Returns whether anybody waits for an answer. */
    boolean hasCallers() {
        return callers > 0;
    }
}
