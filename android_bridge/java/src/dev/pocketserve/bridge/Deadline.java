package dev.pocketserve.bridge;

/** The moment at which a caller stops waiting, on a clock that never jumps. */
final class Deadline {
    private final long endsNs;
    private final long totalMs;

    private Deadline(long endsNs, long totalMs) {
        this.endsNs = endsNs;
        this.totalMs = totalMs;
    }

    static Deadline in(long ms) {
        return new Deadline(System.nanoTime() + ms * 1_000_000, ms);
    }

    /** The earlier of this one and one that ends in so many milliseconds. */
    Deadline within(long ms) {
        return remainingNs() <= ms * 1_000_000 ? this : in(ms);
    }

    long remainingNs() {
        return endsNs - System.nanoTime();
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
        return PocketServeException.passing(PocketServeException.TIMEOUT,
                "no answer within " + totalMs + " ms; raise timeoutMs if the model takes longer", null);
    }
}
