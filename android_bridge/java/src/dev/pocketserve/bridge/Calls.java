package dev.pocketserve.bridge;

import java.util.ArrayList;
import java.util.List;
import org.json.JSONArray;
import org.json.JSONException;
import org.json.JSONObject;

/**
 * Builds and checks every call of the blocking, callback and stream interfaces, on the caller's thread. The call may
 * then be sent from any thread.
 */
final class Calls {
    private static final PredictOptions PLAIN = new PredictOptions();
    private static final InferOptions PLAIN_TENSORS = new InferOptions();

    private final Link link;
    private final int timeoutMs;

    Calls(Link link, int timeoutMs) {
        this.link = link;
        this.timeoutMs = timeoutMs;
    }

    /** Work that can be cancelled while it waits. */
    interface Work<T> {
        T run(Cancellation cancellation) throws PocketServeException;
    }

    /** A call that is ready to be sent. Keeps its input until it is released. */
    abstract class PreparedCall<T> implements Work<T> {
        private final Request request;
        private final int ms;

        PreparedCall(Request request) {
            this(request, timeoutMs);
        }

        PreparedCall(Request request, int ms) {
            this.request = request;
            this.ms = ms;
        }

        /** Sends the call and reads the answer. The timeout starts here. */
        @Override
        public T run(Cancellation cancellation) throws PocketServeException {
            try {
                return read(link.exchange(request, Deadline.in(ms), cancellation));
            } catch (OutOfMemoryError error) {
                // One large array could not be allocated; the process can continue.
                throw Answer.tooMuch(error);
            }
        }

        /** Reads the answer. */
        abstract T read(Answer answer) throws PocketServeException;
    }

    PreparedCall<Prediction> predict(String model, byte[] input, String contentType, PredictOptions options) {
        if (input == null) {
            throw new IllegalArgumentException("there is no input");
        }
        PredictOptions effective = options == null ? PLAIN : options;
        Request request = Request.postRaw("/predictions/" + encoded(model) + effective.query(), input, contentType)
                .allowFallback();
        if (effective.isSequenceStep()) {
            request.once();
        }
        return new PreparedCall<Prediction>(request, effective.timeoutOr(timeoutMs)) {
            @Override
            Prediction read(Answer answer) throws PocketServeException {
                return Prediction.from(answer.orThrow());
            }
        };
    }

    PreparedCall<InferResult> infer(String model, InferOptions options, Tensor... inputs) {
        for (Tensor input : inputs) {
            if (input == null) {
                throw new IllegalArgumentException("an input must not be null");
            }
        }
        InferOptions effective = options == null ? PLAIN_TENSORS : options;
        Request request = InferCodec.encode(model(model, effective.getVersion()) + "/infer", effective, inputs)
                .allowFallback();
        if (effective.isSequenceStep()) {
            request.once();
        }
        return new PreparedCall<InferResult>(request, effective.timeoutOr(timeoutMs)) {
            @Override
            InferResult read(Answer answer) throws PocketServeException {
                return InferCodec.decode(answer.orThrow());
            }
        };
    }

    /** Builds a chat, whose answer is read while it arrives. */
    PreparedCall<ChatAnswer> chat(
            String model, List<ChatMessage> messages, ChatOptions options, ChatListener listener) {
        ChatOptions effective = options == null ? new ChatOptions() : options;
        final ChatReader reader = new ChatReader(listener);
        String body = chatBody(model, messages, effective).toString();
        Request request = Request.postJson("/v1/chat/completions", body).once().streamTo(reader);
        return new PreparedCall<ChatAnswer>(request, effective.timeoutMs()) {
            @Override
            ChatAnswer read(Answer answer) throws PocketServeException {
                answer.orThrow();
                return reader.answer();
            }
        };
    }

    /** Builds a transcription, whose segments are read while they arrive. */
    PreparedCall<Transcript> transcribe(
            String model, byte[] sound, TranscribeOptions options, TranscriptListener listener) {
        encoded(model); // rejects invalid names
        if (sound == null || sound.length == 0) {
            throw new IllegalArgumentException("there is no sound");
        }
        TranscribeOptions effective = options == null ? new TranscribeOptions() : options;
        final TranscriptReader reader = new TranscriptReader(listener);
        Request request = SoundForm.request(model, sound, effective).once().streamTo(reader);
        return new PreparedCall<Transcript>(request, effective.timeoutMs()) {
            @Override
            Transcript read(Answer answer) throws PocketServeException {
                answer.orThrow();
                return reader.transcript();
            }
        };
    }

    private static JSONObject chatBody(String model, List<ChatMessage> messages, ChatOptions options) {
        encoded(model); // rejects invalid names
        if (messages == null || messages.isEmpty()) {
            throw new IllegalArgumentException("a chat needs at least one message");
        }
        try {
            JSONArray list = new JSONArray();
            for (ChatMessage message : messages) {
                list.put(new JSONObject().put("role", message.getRole()).put("content", message.getContent()));
            }
            return options.toJson().put("model", model).put("messages", list).put("stream", true)
                    .put("stream_options", new JSONObject().put("include_usage", true));
        } catch (JSONException error) {
            throw new IllegalArgumentException("an option is not valid JSON: " + error.getMessage(), error);
        }
    }

    /** Returns a model's name as a path segment. */
    static String encoded(String model) {
        if (model == null || model.isEmpty()) {
            throw new IllegalArgumentException("a model needs a name");
        }
        return Request.encode(model);
    }

    private static String model(String model, String version) {
        String path = "/v2/models/" + encoded(model);
        return version == null || version.isEmpty() ? path : path + "/versions/" + Request.encode(version);
    }

    PreparedCall<Boolean> health(String endpoint) {
        return new PreparedCall<Boolean>(Request.get("/v2/health/" + endpoint).withoutToken()) {
            @Override
            public Boolean run(Cancellation cancellation) throws PocketServeException {
                try {
                    return super.run(cancellation);
                } catch (PocketServeException error) {
                    // An unreachable server is neither live nor ready; other faults are reported.
                    if (error.getStatus() >= 500 || PocketServeException.SERVER_UNREACHABLE.equals(error.getCode())) {
                        return false;
                    }
                    throw error;
                }
            }

            @Override
            Boolean read(Answer answer) throws PocketServeException {
                answer.orThrow();
                return true;
            }
        };
    }

    PreparedCall<Boolean> isModelReady(String model, String version) {
        return new PreparedCall<Boolean>(Request.get(model(model, version) + "/ready")) {
            @Override
            Boolean read(Answer answer) throws PocketServeException {
                if (answer.status == 400 || answer.status == 404 || answer.status == 503) {
                    return false;
                }
                answer.orThrow();
                return true;
            }
        };
    }

    private PreparedCall<JSONObject> object(Request request) {
        return new PreparedCall<JSONObject>(request) {
            @Override
            JSONObject read(Answer answer) throws PocketServeException {
                return answer.orThrow().object();
            }
        };
    }

    PreparedCall<JSONObject> serverMetadata() {
        return object(Request.get("/v2"));
    }

    PreparedCall<JSONObject> modelMetadata(String model, String version) {
        return object(Request.get(model(model, version)).allowFallback());
    }

    PreparedCall<List<String>> models() {
        return new PreparedCall<List<String>>(Request.get("/v2/models")) {
            @Override
            List<String> read(Answer answer) throws PocketServeException {
                JSONArray names = answer.orThrow().object().optJSONArray("models");
                if (names == null) {
                    throw Answer.bad("it has no models", null);
                }
                List<String> result = new ArrayList<>(names.length());
                for (int i = 0; i < names.length(); i++) {
                    result.add(names.optString(i));
                }
                return result;
            }
        };
    }

    PreparedCall<List<ModelState>> index() {
        return new PreparedCall<List<ModelState>>(Request.postJson("/v2/repository/index", "{}")) {
            @Override
            List<ModelState> read(Answer answer) throws PocketServeException {
                JSONArray states = answer.orThrow().array();
                List<ModelState> result = new ArrayList<>(states.length());
                for (int i = 0; i < states.length(); i++) {
                    JSONObject state = states.optJSONObject(i);
                    if (state == null) {
                        throw Answer.bad("entry " + i + " of the index is not an object", null);
                    }
                    result.add(new ModelState(state));
                }
                return result;
            }
        };
    }

    PreparedCall<Void> load(String model, boolean release) {
        return change(model, "/load", release ? "{\"parameters\":{\"release\":true}}" : "{}");
    }

    PreparedCall<Void> unload(String model) {
        return change(model, "/unload", "{}");
    }

    private PreparedCall<Void> change(String model, String endpoint, String json) {
        String path = "/v2/repository/models/" + encoded(model) + endpoint;
        return new PreparedCall<Void>(Request.postJson(path, json).once()) {
            @Override
            Void read(Answer answer) throws PocketServeException {
                answer.orThrow();
                return null;
            }
        };
    }
}
