package dev.pocketserve.bridge;

import java.util.Collections;
import java.util.Map;
import org.json.JSONObject;

/** The tensors that a model answered. */
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
     * @throws IllegalArgumentException when the answer has no such output; the message lists those it has
     */
    public Tensor get(String name) {
        Tensor tensor = tensors.get(name);
        if (tensor == null) {
            throw new IllegalArgumentException("no output " + name + "; there are " + tensors.keySet());
        }
        return tensor;
    }

    /**
     * All outputs by name, in the order they came.
     *
     * @return read-only
     */
    public Map<String, Tensor> getTensors() {
        return tensors;
    }

    /**
     * The answer's JSON part as it came, for members that have no method here.
     *
     * @return never null; not to be changed
     */
    public JSONObject getJson() {
        return json;
    }

    @Override
    public String toString() {
        return getModel() + ": " + tensors.values();
    }
}
