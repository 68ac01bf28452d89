package dev.pocketserve.bridge;

import java.util.ArrayList;
import java.util.List;

/** A clock that advances on each wait and records its length. */
class FakeClock extends Clock {
    final List<Long> waits = new ArrayList<>();
    private long nanos = 1_000_000_000_000L;

    @Override
    synchronized long nanos() {
        return nanos;
    }

    @Override
    void await(Object monitor, long ms) throws InterruptedException {
        synchronized (this) {
            waits.add(ms);
        }
        pass(ms);
    }

    synchronized void pass(long ms) {
        nanos += ms * 1_000_000;
    }

    /** The sum of all waits. */
    synchronized long totalWaitMs() {
        long all = 0;
        for (long each : waits) {
            all += each;
        }
        return all;
    }
}
