package dev.pocketserve.bridge;

import org.json.JSONObject;

/** The time that the server took for one answer, in milliseconds. */
public final class Timing {
    private final JSONObject json;

    Timing(JSONObject json) {
        this.json = json == null ? new JSONObject() : json;
    }

    /** Returns the time in the queue.
     *
     * @return milliseconds
     */
    public double getQueueMs() {
        return json.optDouble("queue", 0);
    }

    /** Returns the time of preparing the input.
     *
     * @return milliseconds
     */
    public double getPreMs() {
        return json.optDouble("pre", 0);
    }

    /** Returns the time of the model.
     *
     * @return milliseconds
     */
    public double getInferMs() {
        return json.optDouble("infer", 0);
    }

    /** Returns the time of reading the outputs.
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
