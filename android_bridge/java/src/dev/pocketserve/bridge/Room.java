package dev.pocketserve.bridge;

import dev.pocketserve.bridge.wire.ConnectionLimits;

/**
 * What one connection has under way, within what its server allows; beyond that, the server would refuse. A request
 * takes its room until its answer comes, also when its caller has given up.
 *
 * <p>Every method is called with the connection's lock held, which {@link #reserve} waits on.
 */
final class Room {
    private final Object lock;
    private final ConnectionLimits limits;
    private final long patienceNs;
    private int requests;
    private long bytes;
    private int looking;
    private boolean over;
    /** Calls that wait for an answer: fewer than there are requests, once some were given up. */
    private int callers;
    /** When a request was last given up or answered. */
    private long movedNs;

    Room(Object lock, ConnectionLimits limits, int patienceMs) {
        this.lock = lock;
        this.limits = limits;
        this.patienceNs = patienceMs * 1_000_000L;
    }

    /**
     * Takes room for one request, and waits for it if need be.
     *
     * @return false when there is no hope: all that takes the room was given up, and for as long as the connection's
     *     patience nothing of it was answered, though that costs the server next to nothing
     */
    boolean reserve(int size, Deadline deadline, Cancellation cancellation) throws PocketServeException {
        if (isFull(size) && !await(size, deadline, cancellation)) {
            return false;
        }
        requests++;
        bytes += size;
        return true;
    }

    private boolean isFull(int size) {
        return !over && requests > 0
                && (requests >= limits.maxInflight() || bytes + size > limits.maxBytesInflight());
    }

    private boolean await(int size, Deadline deadline, Cancellation cancellation) throws PocketServeException {
        looking++;
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
                long ms = hopeMs(deadline);
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
            looking--;
        }
    }

    private long hopeMs(Deadline deadline) {
        long ms = deadline.remainingMs();
        if (callers > 0) {
            return ms;
        }
        long left = patienceNs - (Clock.SYSTEM.nanos() - movedNs);
        return Math.max(0, Math.min(ms, (left + 999_999) / 1_000_000));
    }

    /** Gives the room of one request back. */
    void release(int size) {
        requests--;
        bytes -= size;
        movedNs = Clock.SYSTEM.nanos();
        if (looking > 0) {
            lock.notifyAll();
        }
    }

    /** Nothing more is sent here, so that nobody need wait for room. */
    void end() {
        over = true;
        lock.notifyAll();
    }

    /** A caller begins to wait for its answer; true when nobody else does. */
    boolean enter() {
        callers++;
        return callers == 1;
    }

    /** A caller has its answer, or gives it up. */
    void leave() {
        callers--;
        movedNs = Clock.SYSTEM.nanos();
    }

    /** Whether anybody waits for an answer. */
    boolean isAwaited() {
        return callers > 0;
    }
}
