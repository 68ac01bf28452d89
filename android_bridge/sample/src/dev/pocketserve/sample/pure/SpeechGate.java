package dev.pocketserve.sample.pure;

/** Lets through what a screen reader shall say: nothing twice in a row, and no more than one text in an interval. */
public final class SpeechGate {
    private final long intervalMs;
    private String last = "";
    private long lastAt;
    private boolean spoken;

    /** Begins silent; the first text passes at once. */
    public SpeechGate(long intervalMs) {
        this.intervalMs = intervalMs;
    }

    /**
     * Returns whether to say a text now. One that has to wait is forgotten: the next answer is more recent.
     *
     * @param nowMs on a clock that never goes back
     */
    public boolean admits(String text, long nowMs) {
        if (text.equals(last) || spoken && nowMs - lastAt < intervalMs) {
            return false;
        }
        last = text;
        lastAt = nowMs;
        spoken = true;
        return true;
    }

    /** Forgets what was said last; the interval stays. */
    public void reset() {
        last = "";
    }
}
