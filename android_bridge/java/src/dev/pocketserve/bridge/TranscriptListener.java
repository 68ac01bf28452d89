package dev.pocketserve.bridge;

/** Receives the segments of a transcript as soon as each is known. */
public interface TranscriptListener {
    /**
     * The model finished a segment. A blocking call runs this on its own thread, a call with a callback on the
     * client's executor, in order and before the callback. The model waits while a blocking call runs it. If it
     * throws there, the call ends with {@link PocketServeException#CANCELLED}.
     *
     * @param segment the next segment
     */
    void onSegment(SpeechSegment segment);
}
