package dev.pocketserve.bridge;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;

/** The text of the speech in a sound. */
public final class Transcript {
    private final String text;
    private final List<SpeechSegment> segments;
    private final String language;
    private final double duration;

    Transcript(String text, List<SpeechSegment> segments, String language, double duration) {
        this.text = text;
        this.segments = Collections.unmodifiableList(new ArrayList<>(segments));
        this.language = language;
        this.duration = duration;
    }

    /**
     * Returns the whole text.
     *
     * @return the text; empty if there is no speech
     */
    public String getText() {
        return text;
    }

    /**
     * Returns the segments.
     *
     * @return segments in the order of their times
     */
    public List<SpeechSegment> getSegments() {
        return segments;
    }

    /**
     * Returns the language of the speech.
     *
     * @return a code such as {@code en}; empty if the server didn't say
     */
    public String getLanguage() {
        return language;
    }

    /**
     * Returns the length of the sound.
     *
     * @return seconds
     */
    public double getDuration() {
        return duration;
    }

    @Override
    public String toString() {
        return text;
    }
}
