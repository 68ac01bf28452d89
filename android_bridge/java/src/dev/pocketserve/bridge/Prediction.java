package dev.pocketserve.bridge;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import org.json.JSONArray;
import org.json.JSONObject;

/** A model's answer to one raw input. */
public final class Prediction {
    private final JSONObject json;
    private final List<Label> labels;
    private final byte[] picture;
    private final String server;

    private Prediction(JSONObject json, List<Label> labels, byte[] picture, String server) {
        this.server = server;
        this.json = json;
        this.labels = Collections.unmodifiableList(labels);
        this.picture = picture;
    }

    static Prediction from(Answer answer) throws PocketServeException {
        if (answer.contentType != null && answer.contentType.startsWith("image/")) {
            return new Prediction(new JSONObject(), Collections.<Label>emptyList(), answer.body, answer.server);
        }
        JSONObject json = answer.object();
        JSONArray entries = json.optJSONArray("predictions");
        if (entries == null) {
            throw Answer.bad("it has no predictions", null);
        }
        List<Label> labels = new ArrayList<>(entries.length());
        for (int i = 0; i < entries.length(); i++) {
            JSONObject entry = entries.optJSONObject(i);
            if (entry == null) {
                throw Answer.bad("predictions[" + i + "] is not an object", null);
            }
            labels.add(new Label(entry));
        }
        return new Prediction(json, labels, null, answer.server);
    }

    /**
     * The server that answered, for a client with a {@link PocketServe.Builder#fallback}.
     *
     * @return its host and port, such as {@code 127.0.0.1:8471}; empty for a client of one server
     */
    public String getServer() {
        return server;
    }

    /**
     * The model that answered.
     *
     * @return its name; empty with {@link #getPicture}
     */
    public String getModel() {
        return json.optString("model", "");
    }

    /**
     * The version that answered.
     *
     * @return such as {@code tflite}
     */
    public String getVersion() {
        return json.optString("version", "");
    }

    /**
     * Returns the task of the model.
     *
     * @return such as {@code image-classification}
     */
    public String getTask() {
        return json.optString("task", "");
    }

    /**
     * Returns the entries of the answer, the best first.
     *
     * @return read-only; empty if nothing reached the threshold
     */
    public List<Label> getLabels() {
        return labels;
    }

    /** Returns the best of {@link #getLabels}.
     *
     * @return null if nothing was found
     */
    public Label getBest() {
        return labels.isEmpty() ? null : labels.get(0);
    }

    /**
     * Returns the time that the server took.
     *
     * @return never null
     */
    public Timing getTiming() {
        return new Timing(json.optJSONObject("timing_ms"));
    }

    /**
     * The picture with the answer drawn on it, if requested with {@link PredictOptions#annotate}.
     *
     * @return an encoded picture, or null
     */
    public byte[] getPicture() {
        return picture == null ? null : picture.clone();
    }

    /** Returns the whole JSON answer, for members without a method here.
     *
     * @return never null; do not change it
     */
    public JSONObject getJson() {
        return json;
    }

    /** Returns a readable summary, such as {@code 7 (99.8 %)}.
     *
     * @return the best entry, or a note that nothing was found
     */
    public String summary() {
        if (picture != null) {
            return "a picture of " + picture.length + " bytes";
        }
        return labels.isEmpty() ? "nothing found" : labels.get(0).toString();
    }

    @Override
    public String toString() {
        return getModel() + ": " + summary();
    }
}
