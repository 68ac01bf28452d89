package dev.pocketserve.bridge;

import org.json.JSONObject;

/** The time that the server took for one answer, in milliseconds. */
public final class Timing {
    private final JSONObject json;

    Timing(JSONObject json) {
        this.json = json == null ? new JSONObject() : json;
    }

    /**
     * Waiting for the model to be free.
     *
     * @return milliseconds
     */
    public double getQueueMs() {
        return json.optDouble("queue", 0);
    }

    /**
     * Making tensors of the input.
     *
     * @return milliseconds
     */
    public double getPreMs() {
        return json.optDouble("pre", 0);
    }

    /**
     * The model itself.
     *
     * @return milliseconds
     */
    public double getInferMs() {
        return json.optDouble("infer", 0);
    }

    /**
     * Making an answer of tensors.
     *
     * @return milliseconds
     */
    public double getPostMs() {
        return json.optDouble("post", 0);
    }

    @Override
    public String toString() {
        return json.toString();
    }
}
