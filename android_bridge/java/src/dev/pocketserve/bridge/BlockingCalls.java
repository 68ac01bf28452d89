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
     * Sends a picture to a model and returns the labelled answer.
     *
     * @param model the model's name
     * @param picture an encoded picture, such as the bytes of a JPEG or PNG file
     * @return the answer
     * @throws PocketServeException if the call fails
     */
    public Prediction classify(String model, byte[] picture) throws PocketServeException {
        return classify(model, picture, null);
    }

    /**
     * Sends a picture to a model and returns the labelled answer.
     *
     * @param model the model's name
     * @param picture an encoded picture, such as the bytes of a JPEG or PNG file
     * @param options options of the answer; null for the server's defaults
     * @return the answer
     * @throws PocketServeException if the call fails
     */
    public Prediction classify(String model, byte[] picture, PredictOptions options) throws PocketServeException {
        return predict(model, picture, PICTURE, options);
    }

    /**
     * Sends raw input to a model: a picture, a sound, a text or JSON.
     *
     * @param model the model's name
     * @param input the bytes
     * @param contentType their media type, such as {@code text/plain}
     * @return the answer
     * @throws PocketServeException if the call fails
     */
    public Prediction predict(String model, byte[] input, String contentType) throws PocketServeException {
        return predict(model, input, contentType, null);
    }

    /**
     * Sends raw input to a model: a picture, a sound, a text, JSON or a raw camera frame.
     *
     * @param model the model's name
     * @param input the bytes
     * @param contentType their media type, such as {@code text/plain}
     * @param options options of the answer; null for the server's defaults
     * @return the answer
     * @throws PocketServeException if the call fails
     */
    public Prediction predict(String model, byte[] input, String contentType, PredictOptions options)
            throws PocketServeException {
        return blocking(calls.predict(model, input, contentType, options));
    }

    /**
     * Sends a message to a language model.
     *
     * @param model the model's name
     * @param text the message
     * @return the whole answer
     * @throws PocketServeException if the call fails, or no complete one
     */
    public ChatAnswer chat(String model, String text) throws PocketServeException {
        return chat(model, Collections.singletonList(ChatMessage.user(text)), null, null);
    }

    /**
     * Sends a chat to a language model and streams the answer.
     *
     * @param model the model's name
     * @param messages the chat so far
     * @param options options of the answer; null for the model's defaults
     * @param listener receives each piece of text, or null
     * @return the whole answer
     * @throws PocketServeException if the call fails, or no complete one
     */
    public ChatAnswer chat(String model, List<ChatMessage> messages, ChatOptions options, ChatListener listener)
            throws PocketServeException {
        return blocking(calls.chat(model, messages, options, listener));
    }

    /** Transcribes the speech in a sound.
     *
     * @param model the model's name
     * @param sound the bytes of a WAV file, or of a recording that the server's ffmpeg reads
     * @return the transcript
     * @throws PocketServeException if the call fails
     */
    public Transcript transcribe(String model, byte[] sound) throws PocketServeException {
        return transcribe(model, sound, null, null);
    }

    /** Transcribes the speech in a sound and streams the segments.
     *
     * @param model the model's name
     * @param sound the bytes of a WAV file, or of a recording that the server's ffmpeg reads
     * @param options options of the transcript; null for the model's defaults
     * @param listener receives each segment, or null
     * @return the whole transcript
     * @throws PocketServeException if the call fails, or the transcript is incomplete
     */
    public Transcript transcribe(String model, byte[] sound, TranscribeOptions options, TranscriptListener listener)
            throws PocketServeException {
        return blocking(calls.transcribe(model, sound, options, listener));
    }

    /**
     * Runs a model on tensors.
     *
     * @param model the model's name
     * @param inputs one tensor for each of the model's inputs
     * @return its outputs
     * @throws PocketServeException if the call fails
     */
    public InferResult infer(String model, Tensor... inputs) throws PocketServeException {
        return infer(model, null, inputs);
    }

    /**
     * Runs a model on tensors.
     *
     * @param model the model's name
     * @param options version, outputs and other options; null for the server's defaults
     * @param inputs one tensor for each of the model's inputs
     * @return its outputs
     * @throws PocketServeException if the call fails
     */
    public InferResult infer(String model, InferOptions options, Tensor... inputs) throws PocketServeException {
        return blocking(calls.infer(model, options, inputs));
    }

    /**
     * Opens a sequence of requests to a stateful model. Close it when done.
     *
     * @param model the model's name
     * @return the sequence; nothing is sent before its first step
     */
    public ModelSequence sequence(String model) {
        return sequence(model, null);
    }

    /**
     * Opens a sequence of requests to a version of a stateful model. Close it when done.
     *
     * @param model the model's name
     * @param version the version's name; null for the default version
     * @return the sequence; nothing is sent before its first step
     */
    public ModelSequence sequence(String model, String version) {
        return new ModelSequence(this, model, version);
    }

    /**
     * Returns whether the server is running.
     *
     * @return false if nothing answers
     * @throws PocketServeException when something else answers, or Android forbids the connection
     */
    public boolean isLive() throws PocketServeException {
        return blocking(calls.health("live"));
    }

    /**
     * Returns whether the server accepts requests.
     *
     * @return false if nothing answers or the server is shutting down
     * @throws PocketServeException when something else answers, or Android forbids the connection
     */
    public boolean isReady() throws PocketServeException {
        return blocking(calls.health("ready"));
    }

    /**
     * Returns whether a model accepts requests, which may load it first.
     *
     * @param model the model's name
     * @return false if the model is unknown, was unloaded or failed
     * @throws PocketServeException if the server does not answer
     */
    public boolean isModelReady(String model) throws PocketServeException {
        return isModelReady(model, null);
    }

    /**
     * Returns whether a version of a model accepts requests.
     *
     * @param model the model's name
     * @param version the version's name; null for the default version
     * @return false if the version is unknown, was unloaded or failed
     * @throws PocketServeException if the server does not answer
     */
    public boolean isModelReady(String model, String version) throws PocketServeException {
        return blocking(calls.isModelReady(model, version));
    }

    /**
     * Returns the server's metadata.
     *
     * @return name, version and extensions
     * @throws PocketServeException if the server does not answer
     */
    public JSONObject serverMetadata() throws PocketServeException {
        return blocking(calls.serverMetadata());
    }

    /**
     * Returns a model's metadata: versions, inputs, outputs and task.
     *
     * @param model the model's name
     * @return the metadata of the Open Inference Protocol
     * @throws PocketServeException when there is no such model
     */
    public JSONObject modelMetadata(String model) throws PocketServeException {
        return modelMetadata(model, null);
    }

    /**
     * Returns the metadata of a version of a model.
     *
     * @param model the model's name
     * @param version the version's name; null for the default version
     * @return the metadata of the Open Inference Protocol
     * @throws PocketServeException when there is no such model or version
     */
    public JSONObject modelMetadata(String model, String version) throws PocketServeException {
        return blocking(calls.modelMetadata(model, version));
    }

    /**
     * Returns the names of all models.
     *
     * @return in the server's order
     * @throws PocketServeException if the server does not answer
     */
    public List<String> models() throws PocketServeException {
        return blocking(calls.models());
    }

    /**
     * Returns all versions of all models with their state. The server rescans its folder first.
     *
     * @return in the server's order
     * @throws PocketServeException if the server does not answer
     */
    public List<ModelState> index() throws PocketServeException {
        return blocking(calls.index());
    }

    /**
     * Loads or reloads a model.
     *
     * @param model the model's name
     * @throws PocketServeException when it cannot be loaded
     */
    public void load(String model) throws PocketServeException {
        load(model, false);
    }

    /**
     * Loads or reloads a model.
     *
     * @param model the model's name
     * @param release whether to release the model from quarantine and try it again
     * @throws PocketServeException when it cannot be loaded
     */
    public void load(String model, boolean release) throws PocketServeException {
        blocking(calls.load(model, release));
    }

    /**
     * Stops serving a model until it is loaded again.
     *
     * @param model the model's name
     * @throws PocketServeException if the server does not answer
     */
    public void unload(String model) throws PocketServeException {
        blocking(calls.unload(model));
    }
}
