package dev.pocketserve.bridge;

import java.util.List;
import org.json.JSONObject;

/**
 * A model as a generated class asks it: the class that {@code pocketserve codegen} wrote holds one of these and adds
 * names and types. Before the first call it asks the server for the model's fingerprint, once, and refuses a model that
 * is not the one the class was made from.
 *
 * <p>May be used from any number of threads. Calls block as those of {@link PocketServe} do.
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
     * Describes a model. Asks nothing yet.
     *
     * @param server the client to ask with
     * @param name the model
     * @param version its version; null for the one that answers by default
     * @param fingerprint what the server said of the model when the class was made
     * @param command what makes the class again
     */
    public ServedModel(PocketServe server, String name, String version, String fingerprint, String command) {
        if (server == null || name == null || fingerprint == null || command == null) {
            throw new IllegalArgumentException("a served model has a client, a name, a fingerprint and a command");
        }
        this.server = server;
        this.name = name;
        this.version = version;
        this.fingerprint = fingerprint;
        this.command = command;
    }

    /**
     * Asks the server whether the model is still the one that the class was made from. The first call does it by
     * itself; call it to find out early, or again after the server's models may have changed.
     *
     * @throws PocketServeException {@link PocketServeException#MODEL_CHANGED} when it is another one, MODEL_NOT_FOUND
     *     when there is none, and what any call throws
     */
    public void check() throws PocketServeException {
        checked = false;
        JSONObject facts = server.modelMetadata(name, version).optJSONObject("parameters");
        String current = facts == null ? "" : facts.optString("fingerprint", "");
        if (current.isEmpty()) {
            throw changed("the server tells no fingerprint of model '" + name + "'; update Pocketserve on the phone");
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
     * Asks about raw input.
     *
     * @param input the bytes
     * @param contentType what they are
     * @param options how to answer; null for the server's own ways
     * @return the answer
     * @throws PocketServeException when there is none
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
     * Asks about a picture.
     *
     * @param picture the bytes of a file such as JPEG or PNG
     * @param options how to answer; null for the server's own ways
     * @return the answer
     * @throws PocketServeException when there is none
     */
    public Prediction picture(byte[] picture, PredictOptions options) throws PocketServeException {
        return predict(picture, PICTURE, options);
    }

    /**
     * Asks about a frame without a header.
     *
     * @param frame the bytes, without gaps between the rows
     * @param format nv21, yuv420, rgba, rgb or gray
     * @param width pixels
     * @param height pixels
     * @param rotation degrees clockwise that turn the picture upright: 0, 90, 180 or 270
     * @param options how to answer; null for the server's own ways
     * @return the answer
     * @throws PocketServeException when there is none
     */
    public Prediction frame(byte[] frame, String format, int width, int height, int rotation, PredictOptions options)
            throws PocketServeException {
        return predict(frame, PICTURE, copy(options).frame(format, width, height, rotation));
    }

    /**
     * Asks about a sound.
     *
     * @param samples those of all channels in turns, as a microphone gives them
     * @param rate samples a second of one channel
     * @param channels 1 or more
     * @param options how to answer; null for the server's own ways
     * @return the answer
     * @throws PocketServeException when there is none
     */
    public Prediction sound(short[] samples, int rate, int channels, PredictOptions options)
            throws PocketServeException {
        PredictOptions raw = copy(options).parameter("format", "pcm16").parameter("rate", Integer.toString(rate))
                .parameter("channels", Integer.toString(channels));
        return predict(RawInputs.samples(samples), PICTURE, raw);
    }

    /**
     * Asks about a text.
     *
     * @param text of any script
     * @param options how to answer; null for the server's own ways
     * @return the answer
     * @throws PocketServeException when there is none
     */
    public Prediction text(String text, PredictOptions options) throws PocketServeException {
        return predict(text.getBytes(Request.UTF_8), TEXT, options);
    }

    /**
     * Asks about several texts at once.
     *
     * @param texts from one on
     * @param options how to answer; null for the server's own ways
     * @return the answer
     * @throws PocketServeException when there is none
     */
    public Prediction texts(List<String> texts, PredictOptions options) throws PocketServeException {
        return predict(RawInputs.texts(texts), JSON, options);
    }

    /**
     * Asks a question about a text.
     *
     * @param question what is asked
     * @param context the text that holds the answer
     * @param options how to answer; null for the server's own ways
     * @return the answer
     * @throws PocketServeException when there is none
     */
    public Prediction question(String question, String context, PredictOptions options) throws PocketServeException {
        return predict(RawInputs.question(question, context), JSON, options);
    }

    /**
     * Asks how near texts are to a query.
     *
     * @param query what they are compared with
     * @param texts from one on
     * @param options how to answer; null for the server's own ways
     * @return the answer
     * @throws PocketServeException when there is none
     */
    public Prediction comparison(String query, List<String> texts, PredictOptions options)
            throws PocketServeException {
        return predict(RawInputs.comparison(query, texts), JSON, options);
    }

    /**
     * Asks about the rows of a table.
     *
     * @param rows the values of each in the model's order: numbers and texts
     * @param options how to answer; null for the server's own ways
     * @return the answer
     * @throws PocketServeException when there is none
     */
    public Prediction rows(List<Object[]> rows, PredictOptions options) throws PocketServeException {
        return predict(RawInputs.rows(rows), JSON, options);
    }

    /**
     * Asks what goes with items.
     *
     * @param items their numbers
     * @param user the user's number; null where the model knows no users
     * @param options how to answer; null for the server's own ways
     * @return the answer
     * @throws PocketServeException when there is none
     */
    public Prediction items(int[] items, Integer user, PredictOptions options) throws PocketServeException {
        return predict(RawInputs.items(items, user), JSON, options);
    }

    /**
     * Runs the model on tensors.
     *
     * @param inputs one for each of the model's inputs
     * @return its outputs
     * @throws PocketServeException when there are none
     */
    public InferResult infer(Tensor... inputs) throws PocketServeException {
        if (!checked) {
            check();
        }
        return server.infer(name, version == null ? null : new InferOptions().version(version), inputs);
    }

    /**
     * Returns an output as the class knows it.
     *
     * @param result what the model answered
     * @param name of the output
     * @param datatype of its elements; null where the model's file does not tell it
     * @param shape that it has
     * @return the output
     * @throws PocketServeException {@link PocketServeException#MODEL_CHANGED} when it is not there, or another one
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
