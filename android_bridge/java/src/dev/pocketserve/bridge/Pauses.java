package dev.pocketserve.bridge;

import java.util.Random;

/**
 * How long to wait before each further attempt: the first pause is short, each is longer than the one before by the
 * same factor, and all are a little shorter than that by chance, so that clients of one server do not come together.
 */
final class Pauses {
    private static final int FIRST_MS = 50;
    private static final int LONGEST_MS = 1000;
    private static final double CHANCE = 0.25;

    private final double growth;
    private final Random random;
    private double next = FIRST_MS;

    private Pauses(double growth, Random random) {
        this.growth = growth;
        this.random = random;
    }

    /**
     * For a server that is away: pauses grow by an eighth, and so add up to how long it has been away. Whoever waits
     * learns of its return at most about an eighth of that time late, and asks some twenty times in five seconds,
     * which costs next to nothing: nobody listens, and the system says so at once.
     */
    static Pauses whileAway(Random random) {
        return new Pauses(1.125, random);
    }

    /** For a server that is there and turned a request away. */
    static Pauses whileBusy(Random random) {
        return new Pauses(2, random);
    }

    /** The next one, from three quarters of its length to all of it. */
    long nextMs() {
        double length = Math.min(LONGEST_MS, next);
        next *= growth;
        return Math.round(length * (1 - CHANCE * random.nextDouble()));
    }
}
