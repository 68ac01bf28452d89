package dev.pocketserve.bridge;

import java.util.ArrayList;
import java.util.List;
import org.json.JSONArray;
import org.json.JSONObject;

/**
 * Every call once, as the blocking, the callback and the stream interface all make it: put together and checked where
 * the caller is, then sent from any thread.
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

    /** A call that is ready to be sent. Holds its input until it is let go. */
    abstract class Prepared<T> {
        private final Request request;
        private final int ms;

        Prepared(Request request) {
            this(request, timeoutMs);
        }

        Prepared(Request request, int ms) {
            this.request = request;
            this.ms = ms;
        }

        /** Sends it and reads what comes back; its time runs from here. */
        T run(Cancellation cancellation) throws PocketServeException {
            try {
                return read(link.exchange(request, Deadline.in(ms), cancellation));
            } catch (OutOfMemoryError error) {
                // Of one large array: the process as a whole goes on.
                throw Answer.tooMuch(error);
            }
        }

        /** What the answer means. */
        abstract T read(Answer answer) throws PocketServeException;
    }

    Prepared<Prediction> predict(String model, byte[] input, String contentType, PredictOptions options) {
        if (input == null) {
            throw new IllegalArgumentException("there is no input");
        }
        PredictOptions chosen = options == null ? PLAIN : options;
        String path = "/predictions/" + encoded(model) + chosen.query();
        return new Prepared<Prediction>(Request.postRaw(path, input, contentType), chosen.timeoutOr(timeoutMs)) {
            @Override
            Prediction read(Answer answer) throws PocketServeException {
                return Prediction.from(answer.orThrow());
            }
        };
    }

    Prepared<InferResult> infer(String model, InferOptions options, Tensor... inputs) {
        for (Tensor input : inputs) {
            if (input == null) {
                throw new IllegalArgumentException("an input is null");
            }
        }
        InferOptions chosen = options == null ? PLAIN_TENSORS : options;
        Request request = InferCodec.encode(model(model, chosen.getVersion()) + "/infer", chosen, inputs);
        if (chosen.isSequenceStep()) {
            request.once();
        }
        return new Prepared<InferResult>(request, chosen.timeoutOr(timeoutMs)) {
            @Override
            InferResult read(Answer answer) throws PocketServeException {
                return InferCodec.decode(answer.orThrow());
            }
        };
    }

    /** A model's name as a part of a path. */
    static String encoded(String model) {
        if (model == null || model.isEmpty()) {
            throw new IllegalArgumentException("a model has a name");
        }
        return Request.encode(model);
    }

    private static String model(String model, String version) {
        String path = "/v2/models/" + encoded(model);
        return version == null || version.isEmpty() ? path : path + "/versions/" + Request.encode(version);
    }

    Prepared<Boolean> health(String what) {
        return new Prepared<Boolean>(Request.get("/v2/health/" + what).withoutToken()) {
            @Override
            Boolean run(Cancellation cancellation) throws PocketServeException {
                try {
                    return super.run(cancellation);
                } catch (PocketServeException error) {
                    // A server that is not there is neither live nor ready; any other fault is worth its message.
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

    Prepared<Boolean> isModelReady(String model, String version) {
        return new Prepared<Boolean>(Request.get(model(model, version) + "/ready")) {
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

    private Prepared<JSONObject> object(String path) {
        return new Prepared<JSONObject>(Request.get(path)) {
            @Override
            JSONObject read(Answer answer) throws PocketServeException {
                return answer.orThrow().object();
            }
        };
    }

    Prepared<JSONObject> serverMetadata() {
        return object("/v2");
    }

    Prepared<JSONObject> modelMetadata(String model, String version) {
        return object(model(model, version));
    }

    Prepared<List<String>> models() {
        return new Prepared<List<String>>(Request.get("/v2/models")) {
            @Override
            List<String> read(Answer answer) throws PocketServeException {
                JSONArray names = answer.orThrow().object().optJSONArray("models");
                if (names == null) {
                    throw Answer.bad("it has no models", null);
                }
                List<String> found = new ArrayList<>(names.length());
                for (int i = 0; i < names.length(); i++) {
                    found.add(names.optString(i));
                }
                return found;
            }
        };
    }

    Prepared<List<ModelState>> index() {
        return new Prepared<List<ModelState>>(Request.postJson("/v2/repository/index", "{}")) {
            @Override
            List<ModelState> read(Answer answer) throws PocketServeException {
                JSONArray states = answer.orThrow().array();
                List<ModelState> found = new ArrayList<>(states.length());
                for (int i = 0; i < states.length(); i++) {
                    JSONObject state = states.optJSONObject(i);
                    if (state == null) {
                        throw Answer.bad("entry " + i + " of the index is no object", null);
                    }
                    found.add(new ModelState(state));
                }
                return found;
            }
        };
    }

    Prepared<Void> load(String model, boolean release) {
        return change(model, "/load", release ? "{\"parameters\":{\"release\":true}}" : "{}");
    }

    Prepared<Void> unload(String model) {
        return change(model, "/unload", "{}");
    }

    private Prepared<Void> change(String model, String what, String json) {
        return new Prepared<Void>(Request.postJson("/v2/repository/models/" + encoded(model) + what, json).once()) {
            @Override
            Void read(Answer answer) throws PocketServeException {
                answer.orThrow();
                return null;
            }
        };
    }
}
