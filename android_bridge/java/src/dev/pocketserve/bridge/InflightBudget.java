package dev.pocketserve.bridge;

import dev.pocketserve.bridge.wire.ConnectionLimits;

/**
 * Counts the requests in progress on one connection, so that they stay within the server's limit. A cancelled request
 * counts until its answer arrives.
 *
 * <p>Call every method under the connection's lock, on which {@link #acquire} waits.
 */
final class InflightBudget {
    private final Object lock;
    private final ConnectionLimits limits;
    private final long stallNs;
    private int requests;
    private long bytes;
    private int waiters;
    private boolean closed;
    /** The number of calls that wait for an answer. Cancelled calls don't wait, but their requests still count. */
    private int callers;
    /** The time at which a request was last cancelled or answered. */
    private long lastProgressNs;

    InflightBudget(Object lock, ConnectionLimits limits, int stallMs) {
        this.lock = lock;
        this.limits = limits;
        this.stallNs = stallMs * 1_000_000L;
    }

    /**
     * Acquires the budget of one request, waiting if necessary.
     *
     * @return false if the connection is stalled: all its requests were cancelled, and none of them was answered
     *     within the stall limit
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

    /** Ends all waits for budget, because nothing more is sent on this connection. */
    void close() {
        closed = true;
        lock.notifyAll();
    }

    /** Counts a caller that begins to wait. Returns true if it is the only one. */
    boolean addCaller() {
        callers++;
        return callers == 1;
    }

    /** Counts a caller that stops waiting. */
    void removeCaller() {
        callers--;
        lastProgressNs = Clock.SYSTEM.nanos();
    }

    /** Returns whether a caller waits for an answer. */
    boolean hasCallers() {
        return callers > 0;
    }
}
