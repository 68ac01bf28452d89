package dev.pocketserve.bridge;

import java.util.Collections;
import java.util.List;
import org.json.JSONObject;

/** The calls of {@link PocketServe} that wait for their answer. */
abstract class BlockingCalls {
    private static final String PICTURE = "application/octet-stream";

    final Calls calls;
    private final MainThread mainThread;

    BlockingCalls(Calls calls, MainThread mainThread) {
        this.calls = calls;
        this.mainThread = mainThread;
    }

    private <T> T blocking(Calls.PreparedCall<T> call) throws PocketServeException {
        mainThread.refuse();
        return call.run(Cancellation.current());
    }

    /**
     * Asks a model what is on a picture.
     *
     * @param model its name
     * @param picture an encoded picture, such as the bytes of a JPEG or PNG file
     * @return the answer
     * @throws PocketServeException when there is none
     */
    public Prediction classify(String model, byte[] picture) throws PocketServeException {
        return classify(model, picture, null);
    }

    /**
     * Asks a model what is on a picture.
     *
     * @param model its name
     * @param picture an encoded picture, such as the bytes of a JPEG or PNG file
     * @param options how to answer; null for the server's own ways
     * @return the answer
     * @throws PocketServeException when there is none
     */
    public Prediction classify(String model, byte[] picture, PredictOptions options) throws PocketServeException {
        return predict(model, picture, PICTURE, options);
    }

    /**
     * Asks a model about any raw input: a picture, a sound, a text, JSON.
     *
     * @param model its name
     * @param input the bytes
     * @param contentType what they are, such as {@code text/plain}
     * @return the answer
     * @throws PocketServeException when there is none
     */
    public Prediction predict(String model, byte[] input, String contentType) throws PocketServeException {
        return predict(model, input, contentType, null);
    }

    /**
     * Asks a model about any raw input: a picture, a sound, a text, JSON, a raw camera frame.
     *
     * @param model its name
     * @param input the bytes
     * @param contentType what they are, such as {@code text/plain}
     * @param options how to answer; null for the server's own ways
     * @return the answer
     * @throws PocketServeException when there is none
     */
    public Prediction predict(String model, byte[] input, String contentType, PredictOptions options)
            throws PocketServeException {
        return blocking(calls.predict(model, input, contentType, options));
    }

    /**
     * Asks a language model.
     *
     * @param model its name
     * @param text the message
     * @return the whole answer
     * @throws PocketServeException when there is none, or no complete one
     */
    public ChatAnswer chat(String model, String text) throws PocketServeException {
        return chat(model, Collections.singletonList(ChatMessage.user(text)), null, null);
    }

    /**
     * Asks a language model, and hears the answer while the model writes it.
     *
     * @param model its name
     * @param messages the chat so far
     * @param options how to answer; null for the model's own ways
     * @param listener hears each piece of text; null for nobody
     * @return the whole answer
     * @throws PocketServeException when there is none, or no complete one
     */
    public ChatAnswer chat(String model, List<ChatMessage> messages, ChatOptions options, ChatListener listener)
            throws PocketServeException {
        return blocking(calls.chat(model, messages, options, listener));
    }

    /**
     * Runs a model on tensors.
     *
     * @param model its name
     * @param inputs one tensor for each of the model's inputs
     * @return its outputs
     * @throws PocketServeException when there are none
     */
    public InferResult infer(String model, Tensor... inputs) throws PocketServeException {
        return infer(model, null, inputs);
    }

    /**
     * Runs a model on tensors.
     *
     * @param model its name
     * @param options which version, which outputs and how; null for the server's own ways
     * @param inputs one tensor for each of the model's inputs
     * @return its outputs
     * @throws PocketServeException when there are none
     */
    public InferResult infer(String model, InferOptions options, Tensor... inputs) throws PocketServeException {
        return blocking(calls.infer(model, options, inputs));
    }

    /**
     * Begins a sequence of requests to a model with a memory, to be closed.
     *
     * @param model its name
     * @return the sequence; its first step reaches the server
     */
    public ModelSequence sequence(String model) {
        return sequence(model, null);
    }

    /**
     * Begins a sequence of requests to a version of a model with a memory, to be closed.
     *
     * @param model its name
     * @param version its version; null for the one that answers by default
     * @return the sequence; its first step reaches the server
     */
    public ModelSequence sequence(String model, String version) {
        return new ModelSequence(this, model, version);
    }

    /**
     * Returns whether the server runs.
     *
     * @return false when nothing answers
     * @throws PocketServeException when something else answers, or Android forbids the connection
     */
    public boolean isLive() throws PocketServeException {
        return blocking(calls.health("live"));
    }

    /**
     * Returns whether the server takes requests.
     *
     * @return false when nothing answers, or the server is about to end
     * @throws PocketServeException when something else answers, or Android forbids the connection
     */
    public boolean isReady() throws PocketServeException {
        return blocking(calls.health("ready"));
    }

    /**
     * Returns whether a model can be asked. One that was not loaded yet can: the first request loads it.
     *
     * @param model its name
     * @return false for a model that is unknown, was unloaded or failed
     * @throws PocketServeException when the server cannot be asked
     */
    public boolean isModelReady(String model) throws PocketServeException {
        return isModelReady(model, null);
    }

    /**
     * Returns whether a version of a model can be asked.
     *
     * @param model its name
     * @param version its version; null for the one that answers by default
     * @return false for one that is unknown, was unloaded or failed
     * @throws PocketServeException when the server cannot be asked
     */
    public boolean isModelReady(String model, String version) throws PocketServeException {
        return blocking(calls.isModelReady(model, version));
    }

    /**
     * Returns what the server says about itself.
     *
     * @return name, version and extensions
     * @throws PocketServeException when the server cannot be asked
     */
    public JSONObject serverMetadata() throws PocketServeException {
        return blocking(calls.serverMetadata());
    }

    /**
     * Returns what the server says about a model: its versions, inputs, outputs and task.
     *
     * @param model its name
     * @return the metadata of the Open Inference Protocol
     * @throws PocketServeException when there is no such model
     */
    public JSONObject modelMetadata(String model) throws PocketServeException {
        return modelMetadata(model, null);
    }

    /**
     * Returns what the server says about a version of a model.
     *
     * @param model its name
     * @param version its version; null for the one that answers by default
     * @return the metadata of the Open Inference Protocol
     * @throws PocketServeException when there is no such model or version
     */
    public JSONObject modelMetadata(String model, String version) throws PocketServeException {
        return blocking(calls.modelMetadata(model, version));
    }

    /**
     * The names of all models.
     *
     * @return in the server's order
     * @throws PocketServeException when the server cannot be asked
     */
    public List<String> models() throws PocketServeException {
        return blocking(calls.models());
    }

    /**
     * All versions of all models with their state; the server looks into its folder again for this.
     *
     * @return in the server's order
     * @throws PocketServeException when the server cannot be asked
     */
    public List<ModelState> index() throws PocketServeException {
        return blocking(calls.index());
    }

    /**
     * Loads a model, or loads it anew.
     *
     * @param model its name
     * @throws PocketServeException when it cannot be loaded
     */
    public void load(String model) throws PocketServeException {
        load(model, false);
    }

    /**
     * Loads a model, or loads it anew.
     *
     * @param model its name
     * @param release forget that it is in quarantine because it did harm, and try it again
     * @throws PocketServeException when it cannot be loaded
     */
    public void load(String model, boolean release) throws PocketServeException {
        blocking(calls.load(model, release));
    }

    /**
     * Stops serving a model until it is loaded again.
     *
     * @param model its name
     * @throws PocketServeException when the server cannot be asked
     */
    public void unload(String model) throws PocketServeException {
        blocking(calls.unload(model));
    }
}
