package dev.pocketserve.bridge;

import java.util.LinkedHashMap;
import java.util.Map;

/** Options of an answer to raw input. Each method changes this object and returns it; share it once it is complete. */
public final class PredictOptions {
    private final Map<String, String> query = new LinkedHashMap<>();
    private int timeoutMs;

    /** The server's defaults. */
    public PredictOptions() {
    }

    /** Copies other options.
     *
     * @param from is not changed
     */
    public PredictOptions(PredictOptions from) {
        query.putAll(from.query);
        timeoutMs = from.timeoutMs;
    }

    /** Limits the number of classes in the answer.
     *
     * @param count from 1
     * @return this
     */
    public PredictOptions topK(int count) {
        return parameter("top_k", Integer.toString(count));
    }

    /**
     * Sets the lowest score of an answer.
     *
     * @param score on the model's own scale, usually 0 to 1
     * @return this
     */
    public PredictOptions threshold(double score) {
        return parameter("threshold", Double.toString(score));
    }

    /** Sets the version of the model.
     *
     * @param name such as {@code tflite-int8}
     * @return this
     */
    public PredictOptions version(String name) {
        return parameter("version", name);
    }

    /**
     * Requests the picture with the answer drawn on it instead of labels.
     *
     * @param format {@code png}, or {@code jpeg}, which is much faster for a photo
     * @return this
     */
    public PredictOptions annotate(String format) {
        return parameter("annotate", format);
    }

    /**
     * Sets the stream of this frame. A newer frame of the stream replaces the waiting one, which gets the error
     * SUPERSEDED.
     *
     * @param name unique to this source of frames
     * @return this
     */
    public PredictOptions stream(String name) {
        return parameter("stream", name);
    }

    /**
     * Sets the priority of the request.
     *
     * @param level 1 is the highest, 0 the default
     * @return this
     */
    public PredictOptions priority(int level) {
        return parameter("priority", Integer.toString(level));
    }

    /**
     * Limits how long the request may wait for its turn on the server.
     *
     * @param ms from 1
     * @return this
     */
    public PredictOptions deadlineMs(int ms) {
        return parameter("timeout_ms", Integer.toString(ms));
    }

    /**
     * Describes a raw camera frame, which has no header of its own. Set strides that differ from the width with {@link
     * #parameter}: {@code row_stride}, {@code uv_row_stride}, {@code pixel_stride}.
     *
     * @param format nv21, yuv420, rgba, rgb or gray
     * @param width pixels
     * @param height pixels
     * @param rotation degrees clockwise that turn the picture upright: 0, 90, 180 or 270
     * @return this
     */
    public PredictOptions frame(String format, int width, int height, int rotation) {
        parameter("format", format);
        parameter("width", Integer.toString(width));
        parameter("height", Integer.toString(height));
        return parameter("rotation", Integer.toString(rotation));
    }

    /** Sets any other query parameter, such as width, height, rotation and format of a raw camera frame.
     *
     * @param name its name
     * @param value its value, without percent-encoding
     * @return this
     */
    public PredictOptions parameter(String name, String value) {
        if (name.isEmpty() || value == null) {
            throw new IllegalArgumentException("a parameter needs a name and a value");
        }
        query.put(name, value);
        return this;
    }

    /** Sets the timeout of this call, instead of the client's.
     *
     * @param ms from 1
     * @return this
     */
    public PredictOptions timeoutMs(int ms) {
        if (ms < 1) {
            throw new IllegalArgumentException("timeoutMs must be above 0, not " + ms);
        }
        timeoutMs = ms;
        return this;
    }

    int timeoutOr(int standard) {
        return timeoutMs > 0 ? timeoutMs : standard;
    }

    boolean isSequenceStep() {
        return query.containsKey("sequence_id");
    }

    /** Returns the query with its question mark, or an empty text. */
    String query() {
        StringBuilder text = new StringBuilder();
        for (Map.Entry<String, String> each : query.entrySet()) {
            text.append(text.length() == 0 ? '?' : '&').append(Request.encode(each.getKey())).append('=')
                    .append(Request.encode(each.getValue()));
        }
        return text.toString();
    }
}
