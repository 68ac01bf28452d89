package dev.pocketserve.bridge;

import java.util.Collections;
import java.util.Map;
import org.json.JSONObject;

/** The output tensors of a model. */
public final class InferResult {
    private final JSONObject json;
    private final Map<String, Tensor> tensors;
    private final String server;

    InferResult(JSONObject json, Map<String, Tensor> tensors, String server) {
        this.server = server;
        this.json = json;
        this.tensors = Collections.unmodifiableMap(tensors);
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
     * @return its name
     */
    public String getModel() {
        return json.optString("model_name", "");
    }

    /**
     * The version that answered.
     *
     * @return such as {@code tflite}
     */
    public String getVersion() {
        return json.optString("model_version", "");
    }

    /**
     * Returns one output.
     *
     * @param name of the output
     * @return never null
     * @throws IllegalArgumentException if the answer has no such output; the message lists the existing ones
     */
    public Tensor get(String name) {
        Tensor tensor = tensors.get(name);
        if (tensor == null) {
            throw new IllegalArgumentException("no output " + name + "; there are " + tensors.keySet());
        }
        return tensor;
    }

    /** Returns all outputs by name, in the server's order.
     *
     * @return read-only
     */
    public Map<String, Tensor> getTensors() {
        return tensors;
    }

    /** Returns the unchanged JSON part of the answer, for members without a method here.
     *
     * @return never null; do not change it
     */
    public JSONObject getJson() {
        return json;
    }

    @Override
    public String toString() {
        return getModel() + ": " + tensors.values();
    }
}
