package dev.pocketserve.sample.pure;

/** Limits a screen reader's announcements: no text twice in a row, and one per interval at most. */
public final class SpeechGate {
    private final long intervalMs;
    private String last = "";
    private long lastAt;
    private boolean spoken;

    /** Starts without a text; the first one passes immediately. */
    public SpeechGate(long intervalMs) {
        this.intervalMs = intervalMs;
    }

    /**
     * Returns whether to announce a text now. A rejected text is dropped, because the next answer is more recent.
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
