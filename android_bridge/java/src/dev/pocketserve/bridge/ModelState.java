package dev.pocketserve.bridge;

import org.json.JSONObject;

/** A version in the server's models folder. */
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
     * @return empty if the model has none
     */
    public String getVersion() {
        return json.optString("version", "");
    }

    /**
     * Returns the state of the version.
     *
     * @return READY, UNAVAILABLE, LOADING or UNLOADING
     */
    public String getState() {
        return json.optString("state", "");
    }

    /**
     * Returns the reason of that state.
     *
     * @return empty if there is none
     */
    public String getReason() {
        return json.optString("reason", "");
    }

    /**
     * Returns whether this is the default version.
     *
     * @return also false if an older server does not state it
     */
    public boolean isDefault() {
        return json.optBoolean("default");
    }

    /**
     * Returns the task of the model.
     *
     * @return such as {@code image-classification}; empty if it is not known yet
     */
    public String getTask() {
        return json.isNull("task") ? "" : json.optString("task");
    }

    @Override
    public String toString() {
        return json.toString();
    }
}
