package dev.pocketserve.bridge;

/** The time at which a caller stops waiting, on a monotonic clock. */
final class Deadline {
    private final Clock clock;
    private final long endsNs;
    private final long totalMs;

    private Deadline(Clock clock, long ms) {
        this.clock = clock;
        this.endsNs = clock.nanos() + ms * 1_000_000;
        this.totalMs = ms;
    }

    static Deadline in(long ms) {
        return in(ms, Clock.SYSTEM);
    }

    static Deadline in(long ms, Clock clock) {
        return new Deadline(clock, ms);
    }

    /** Returns the earlier of this deadline and one after the given milliseconds. */
    Deadline within(long ms) {
        return remainingNs() <= ms * 1_000_000 ? this : in(ms, clock);
    }

    long remainingNs() {
        return endsNs - clock.nanos();
    }

    /** Rounded up, so that a wait of this length does not end early; at least 0. */
    long remainingMs() {
        return Math.max(0, (remainingNs() + 999_999) / 1_000_000);
    }

    boolean isOver() {
        return remainingNs() <= 0;
    }

    /** For socket timeouts, where 0 would mean forever. */
    int socketTimeoutMs() {
        return (int) Math.max(1, Math.min(Integer.MAX_VALUE, remainingMs()));
    }

    PocketServeException exceeded() {
        return PocketServeException.temporary(PocketServeException.TIMEOUT,
                "no answer within " + totalMs + " ms; raise timeoutMs if the model takes longer", null);
    }
}
