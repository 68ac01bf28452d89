package dev.pocketserve.bridge;

/**
 * Time and waiting, which tests replace.
 *
 * <p>The clock never jumps, and it pauses while the phone sleeps deeply. The server's clock pauses, too, so a call in
 * progress continues when the phone wakes up.
 */
class Clock {
    static final Clock SYSTEM = new Clock();

    long nanos() {
        return System.nanoTime();
    }

    /** Waits on a monitor that the caller has locked, as {@link Object#wait(long)} does; may end early. */
    void await(Object monitor, long ms) throws InterruptedException {
        monitor.wait(ms);
    }
}
