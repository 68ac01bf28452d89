package dev.pocketserve.sample.pure;

/** Limits a screen reader's announcements: no text twice in a row, and at most one per interval. */
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

    /** Forgets the last text; the interval stays. */
    public void reset() {
        last = "";
    }
}
