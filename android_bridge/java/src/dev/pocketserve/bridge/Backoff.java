package dev.pocketserve.bridge;

import java.util.Random;

/**
 * Pauses before retries. The first pause is short and each one is longer by the same factor. A random part is
 * subtracted, so that clients of one server do not retry at the same time.
 */
final class Backoff {
    private static final int FIRST_MS = 50;
    private static final double CHANCE = 0.25;

    private final double growth;
    private final int longestMs;
    private final Random random;
    private double next = FIRST_MS;

    private Backoff(double growth, int longestMs, Random random) {
        this.growth = growth;
        this.longestMs = longestMs;
        this.random = random;
    }

    /**
     * For a lost server: pauses grow by an eighth up to a quarter of a second, so a call notices the server's return
     * soon. That makes about thirty attempts in five seconds. They cost little, because the system rejects each at
     * once.
     */
    static Backoff whileUnreachable(Random random) {
        return new Backoff(1.125, 250, random);
    }

    /** For a running server that rejected a request. */
    static Backoff whileBusy(Random random) {
        return new Backoff(2, 1000, random);
    }

    /** Returns the next pause: between three quarters of its length and all of it. */
    long nextMs() {
        double length = Math.min(longestMs, next);
        next *= growth;
        return Math.round(length * (1 - CHANCE * random.nextDouble()));
    }
}
