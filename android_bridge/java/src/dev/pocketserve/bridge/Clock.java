package dev.pocketserve.bridge;

/**
 * Time and waiting, in one place so that tests need neither.
 *
 * <p>The clock never jumps, and it stands still while the phone sleeps deeply. The server sleeps with it, on a clock
 * that stands still too, so a call that was under way goes on when the phone wakes up.
 */
class Clock {
    static final Clock SYSTEM = new Clock();

    long nanos() {
        return System.nanoTime();
    }

    /** Waits on a monitor that the caller holds, as {@link Object#wait(long)} does; may end early. */
    void await(Object monitor, long ms) throws InterruptedException {
        monitor.wait(ms);
    }
}
