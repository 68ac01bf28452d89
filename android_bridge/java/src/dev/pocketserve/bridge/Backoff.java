package dev.pocketserve.bridge;

import java.util.Random;

/**
 * Pauses before further attempts: the first pause is short, each is longer than the one before by the
 * same factor, and all are a little shorter than that by chance, so that clients of one server do not come together.
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
     * For a server that is away: pauses grow by an eighth up to a quarter of a second, so whoever waits learns of its
     * return late by a small part of its absence. That asks some thirty times in five seconds, which costs next to
     * nothing: nobody listens, and the system says so at once.
     */
    static Backoff whileUnreachable(Random random) {
        return new Backoff(1.125, 250, random);
    }

    /** For a server that is there and turned a request away. */
    static Backoff whileBusy(Random random) {
        return new Backoff(2, 1000, random);
    }

    /** The next one, from three quarters of its length to all of it. */
    long nextMs() {
        double length = Math.min(longestMs, next);
        next *= growth;
        return Math.round(length * (1 - CHANCE * random.nextDouble()));
    }
}
