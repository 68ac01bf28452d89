package dev.pocketserve.bridge;

/** A piece of a transcript with its times. The texts of all segments, joined, are the whole text. */
public final class SpeechSegment {
    private final String text;
    private final double start;
    private final double end;

    SpeechSegment(String text, double start, double end) {
        this.text = text;
        this.start = start;
        this.end = end;
    }

    /**
     * Returns the words.
     *
     * @return the text; begins with a space except in the first segment
     */
    public String getText() {
        return text;
    }

    /**
     * Returns when the segment starts.
     *
     * @return seconds from the start of the sound
     */
    public double getStart() {
        return start;
    }

    /**
     * Returns when the segment ends.
     *
     * @return seconds from the start of the sound
     */
    public double getEnd() {
        return end;
    }

    @Override
    public String toString() {
        return start + " to " + end + " s: " + text;
    }
}
