package dev.pocketserve.bridge;

import java.util.ArrayList;
import java.util.List;
import org.json.JSONObject;

/** Reads a transcript, segment by segment. */
final class TranscriptReader extends EventReader {
    private static final int MAX_SEGMENTS = 1 << 18;

    private final TranscriptListener listener;
    private final List<SpeechSegment> segments = new ArrayList<>();
    private String language = "";
    private double duration;

    /**
     * Starts before the first byte.
     *
     * @param listener receives the segments, or null
     */
    TranscriptReader(TranscriptListener listener) {
        this.listener = listener;
    }

    @Override
    void read(JSONObject event) throws PocketServeException {
        String type = event.optString("type");
        if (type.equals("transcript.text.delta")) {
            add(segment(event));
        } else if (type.equals("transcript.text.done")) {
            language = event.optString("language");
            duration = event.optDouble("duration", 0);
        }
    }

    private static SpeechSegment segment(JSONObject event) throws PocketServeException {
        double start = event.optDouble("start");
        double end = event.optDouble("end");
        if (Double.isNaN(start) || Double.isNaN(end) || event.isNull("delta")) {
            throw Answer.bad("a segment has no text or no times", null);
        }
        return new SpeechSegment(event.optString("delta"), start, end);
    }

    private void add(SpeechSegment segment) throws PocketServeException {
        if (segments.size() >= MAX_SEGMENTS) {
            throw Answer.bad("it has more than " + MAX_SEGMENTS + " segments", null);
        }
        append(segment.getText());
        segments.add(segment);
        if (listener == null) {
            return;
        }
        try {
            listener.onSegment(segment);
        } catch (RuntimeException error) {
            throw Cancellation.cancelled(error);
        }
    }

    /** Returns the whole transcript once its last byte was read. */
    Transcript transcript() throws PocketServeException {
        return new Transcript(wholeText(), segments, language, duration);
    }
}
