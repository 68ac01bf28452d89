package dev.pocketserve.bridge;

import org.json.JSONObject;

/** A version in the server's folder of models. */
public final class ModelState {
    private final JSONObject json;

    ModelState(JSONObject json) {
        this.json = json;
    }

    /**
     * The model.
     *
     * @return its name
     */
    public String getName() {
        return json.optString("name", "");
    }

    /**
     * The version.
     *
     * @return empty when the model has none
     */
    public String getVersion() {
        return json.optString("version", "");
    }

    /**
     * Returns whether it can be asked.
     *
     * @return READY, UNAVAILABLE, LOADING or UNLOADING
     */
    public String getState() {
        return json.optString("state", "");
    }

    /**
     * Returns the reason of that state.
     *
     * @return empty when there is nothing to say
     */
    public String getReason() {
        return json.optString("reason", "");
    }

    /**
     * Returns whether requests that name no version are answered by this one.
     *
     * @return false also where the server is older and does not say
     */
    public boolean isDefault() {
        return json.optBoolean("default");
    }

    /**
     * Returns the task of the model.
     *
     * @return such as {@code image-classification}; empty as long as it is not known
     */
    public String getTask() {
        return json.isNull("task") ? "" : json.optString("task");
    }

    @Override
    public String toString() {
        return json.toString();
    }
}
