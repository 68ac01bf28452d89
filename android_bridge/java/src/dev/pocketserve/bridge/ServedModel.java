package dev.pocketserve.bridge;

import java.util.List;
import org.json.JSONObject;

/**
 * The model behind a class that {@code pocketserve codegen} generated, which adds names and types. Before the first
 * call it compares the model's fingerprint with the one in the class, and throws if they differ.
 *
 * <p>Thread-safe. Calls block, as those of {@link PocketServe} do.
 */
public final class ServedModel {
    private static final String PICTURE = "application/octet-stream";
    private static final String TEXT = "text/plain; charset=utf-8";
    private static final String JSON = "application/json";

    private final PocketServe server;
    private final String name;
    private final String version;
    private final String fingerprint;
    private final String command;
    private volatile boolean checked;

    /**
     * Describes a model. Sends nothing yet.
     *
     * @param server the client to use
     * @param name the model
     * @param version the version's name; null for the default version
     * @param fingerprint the model's fingerprint when the class was generated
     * @param command the command that generates the class again
     */
    public ServedModel(PocketServe server, String name, String version, String fingerprint, String command) {
        if (server == null || name == null || fingerprint == null || command == null) {
            throw new IllegalArgumentException("a served model needs a client, a name, a fingerprint and a command");
        }
        this.server = server;
        this.name = name;
        this.version = version;
        this.fingerprint = fingerprint;
        this.command = command;
    }

    /**
     * Checks whether the server's model still matches the class. The first call does this automatically; use this
     * method to check earlier, or again after the server's models may have changed.
     *
     * @throws PocketServeException {@link PocketServeException#MODEL_CHANGED} if they differ, MODEL_NOT_FOUND if
     *     there is no such model, and the errors of any call
     */
    public void check() throws PocketServeException {
        checked = false;
        JSONObject facts = server.modelMetadata(name, version).optJSONObject("parameters");
        String current = facts == null ? "" : facts.optString("fingerprint", "");
        if (current.isEmpty()) {
            throw changed("the server states no fingerprint for model '" + name + "'; update Pocketserve on the phone");
        }
        if (!fingerprint.equals(current)) {
            throw changed("model '" + name + "' is not the one that this class was made from");
        }
        checked = true;
    }

    private PocketServeException changed(String fault) {
        return PocketServeException.permanent(PocketServeException.MODEL_CHANGED,
                fault + "; generate the class again: " + command, null);
    }

    /**
     * Sends raw input.
     *
     * @param input the bytes
     * @param contentType their media type
     * @param options options of the answer; null for the server's defaults
     * @return the answer
     * @throws PocketServeException if the call fails
     */
    public Prediction predict(byte[] input, String contentType, PredictOptions options) throws PocketServeException {
        if (!checked) {
            check();
        }
        PredictOptions effective = options;
        if (version != null) {
            effective = copy(options).version(version);
        }
        return server.predict(name, input, contentType, effective);
    }

    private static PredictOptions copy(PredictOptions options) {
        return options == null ? new PredictOptions() : new PredictOptions(options);
    }

    /**
     * Sends a picture.
     *
     * @param picture the bytes of a file such as JPEG or PNG
     * @param options options of the answer; null for the server's defaults
     * @return the answer
     * @throws PocketServeException if the call fails
     */
    public Prediction picture(byte[] picture, PredictOptions options) throws PocketServeException {
        return predict(picture, PICTURE, options);
    }

    /**
     * Sends a raw camera frame.
     *
     * @param frame the bytes, without gaps between the rows
     * @param format nv21, yuv420, rgba, rgb or gray
     * @param width pixels
     * @param height pixels
     * @param rotation degrees clockwise that turn the picture upright: 0, 90, 180 or 270
     * @param options options of the answer; null for the server's defaults
     * @return the answer
     * @throws PocketServeException if the call fails
     */
    public Prediction frame(byte[] frame, String format, int width, int height, int rotation, PredictOptions options)
            throws PocketServeException {
        return predict(frame, PICTURE, copy(options).frame(format, width, height, rotation));
    }

    /**
     * Sends raw sound samples.
     *
     * @param samples interleaved samples of all channels, as from a microphone
     * @param rate samples a second of one channel
     * @param channels 1 or more
     * @param options options of the answer; null for the server's defaults
     * @return the answer
     * @throws PocketServeException if the call fails
     */
    public Prediction sound(short[] samples, int rate, int channels, PredictOptions options)
            throws PocketServeException {
        PredictOptions raw = copy(options).parameter("format", "pcm16").parameter("rate", Integer.toString(rate))
                .parameter("channels", Integer.toString(channels));
        return predict(RawInputs.samples(samples), PICTURE, raw);
    }

    /**
     * Sends a text.
     *
     * @param text of any script
     * @param options options of the answer; null for the server's defaults
     * @return the answer
     * @throws PocketServeException if the call fails
     */
    public Prediction text(String text, PredictOptions options) throws PocketServeException {
        return predict(text.getBytes(Request.UTF_8), TEXT, options);
    }

    /**
     * Sends several texts.
     *
     * @param texts at least one
     * @param options options of the answer; null for the server's defaults
     * @return the answer
     * @throws PocketServeException if the call fails
     */
    public Prediction texts(List<String> texts, PredictOptions options) throws PocketServeException {
        return predict(RawInputs.texts(texts), JSON, options);
    }

    /**
     * Asks a question about a text.
     *
     * @param question the question
     * @param context the text that contains the answer
     * @param options options of the answer; null for the server's defaults
     * @return the answer
     * @throws PocketServeException if the call fails
     */
    public Prediction question(String question, String context, PredictOptions options) throws PocketServeException {
        return predict(RawInputs.question(question, context), JSON, options);
    }

    /**
     * Compares texts with a query.
     *
     * @param query the text to compare with
     * @param texts at least one
     * @param options options of the answer; null for the server's defaults
     * @return the answer
     * @throws PocketServeException if the call fails
     */
    public Prediction comparison(String query, List<String> texts, PredictOptions options)
            throws PocketServeException {
        return predict(RawInputs.comparison(query, texts), JSON, options);
    }

    /**
     * Sends rows of a table.
     *
     * @param rows values in the order of the model's features, numbers or texts
     * @param options options of the answer; null for the server's defaults
     * @return the answer
     * @throws PocketServeException if the call fails
     */
    public Prediction rows(List<Object[]> rows, PredictOptions options) throws PocketServeException {
        return predict(RawInputs.rows(rows), JSON, options);
    }

    /**
     * Returns recommendations for items.
     *
     * @param items their numbers
     * @param user the user's number; null if the model has no users
     * @param options options of the answer; null for the server's defaults
     * @return the answer
     * @throws PocketServeException if the call fails
     */
    public Prediction items(int[] items, Integer user, PredictOptions options) throws PocketServeException {
        return predict(RawInputs.items(items, user), JSON, options);
    }

    /**
     * Runs the model on tensors.
     *
     * @param inputs one for each of the model's inputs
     * @return its outputs
     * @throws PocketServeException if the call fails
     */
    public InferResult infer(Tensor... inputs) throws PocketServeException {
        if (!checked) {
            check();
        }
        return server.infer(name, version == null ? null : new InferOptions().version(version), inputs);
    }

    /**
     * Returns an output after checking its datatype and shape.
     *
     * @param result the model's answer
     * @param name of the output
     * @param datatype of its elements; null if the model's file does not state it
     * @param shape its shape
     * @return the output
     * @throws PocketServeException {@link PocketServeException#MODEL_CHANGED} if it is missing or differs
     */
    public Tensor output(InferResult result, String name, Datatype datatype, TensorShape shape)
            throws PocketServeException {
        Tensor tensor = result.getTensors().get(name);
        if (tensor == null || (datatype != null && (tensor.getDatatype() != datatype || !shape.accepts(tensor)))) {
            checked = false;
            throw changed("model '" + this.name + "' answered " + (tensor == null ? "no output " + name : tensor)
                    + " instead of " + name + " " + datatype + shape);
        }
        return tensor;
    }
}
