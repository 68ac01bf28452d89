package dev.pocketserve.bridge;

import java.util.ArrayList;
import java.util.List;
import org.json.JSONArray;
import org.json.JSONObject;

/** Every call once, as the blocking, the callback and the stream interface all make it. */
final class Calls {
    private static final PredictOptions PLAIN = new PredictOptions();

    private final Link link;
    private final int timeoutMs;

    Calls(Link link, int timeoutMs) {
        this.link = link;
        this.timeoutMs = timeoutMs;
    }

    private Answer ask(Request request, int ms, Cancellation cancellation) throws PocketServeException {
        return link.exchange(request, Deadline.in(ms), cancellation).orThrow();
    }

    private Answer ask(Request request, Cancellation cancellation) throws PocketServeException {
        return ask(request, timeoutMs, cancellation);
    }

    Prediction predict(
            String model, byte[] input, String contentType, PredictOptions options, Cancellation cancellation)
            throws PocketServeException {
        PredictOptions chosen = options == null ? PLAIN : options;
        String path = "/predictions/" + Request.encode(model) + chosen.query();
        Request request = Request.postRaw(path, input, contentType);
        return Prediction.from(ask(request, chosen.timeoutOr(timeoutMs), cancellation));
    }

    InferResult infer(String model, InferOptions options, Cancellation cancellation, Tensor... inputs)
            throws PocketServeException {
        InferOptions chosen = options == null ? new InferOptions() : options;
        String path = model(model, chosen.getVersion()) + "/infer";
        Request request = InferCodec.encode(path, chosen, inputs);
        if (chosen.isSequenceStep()) {
            request.once();
        }
        return InferCodec.decode(ask(request, chosen.timeoutOr(timeoutMs), cancellation));
    }

    private static String model(String model, String version) {
        String path = "/v2/models/" + Request.encode(model);
        return version == null || version.isEmpty() ? path : path + "/versions/" + Request.encode(version);
    }

    boolean health(String what, Cancellation cancellation) throws PocketServeException {
        try {
            ask(Request.get("/v2/health/" + what).withoutToken(), cancellation);
            return true;
        } catch (PocketServeException error) {
            // A server that is not there is neither live nor ready; any other fault is worth its message.
            if (error.getStatus() >= 500 || PocketServeException.SERVER_UNREACHABLE.equals(error.getCode())) {
                return false;
            }
            throw error;
        }
    }

    boolean isModelReady(String model, String version, Cancellation cancellation) throws PocketServeException {
        Answer answer = link.exchange(
                Request.get(model(model, version) + "/ready"), Deadline.in(timeoutMs), cancellation);
        if (answer.status == 400 || answer.status == 404 || answer.status == 503) {
            return false;
        }
        answer.orThrow();
        return true;
    }

    JSONObject serverMetadata(Cancellation cancellation) throws PocketServeException {
        return ask(Request.get("/v2"), cancellation).object();
    }

    JSONObject modelMetadata(String model, String version, Cancellation cancellation) throws PocketServeException {
        return ask(Request.get(model(model, version)), cancellation).object();
    }

    List<String> models(Cancellation cancellation) throws PocketServeException {
        JSONArray names = ask(Request.get("/v2/models"), cancellation).object().optJSONArray("models");
        if (names == null) {
            throw Answer.bad("it has no models", null);
        }
        List<String> found = new ArrayList<>(names.length());
        for (int i = 0; i < names.length(); i++) {
            found.add(names.optString(i));
        }
        return found;
    }

    List<ModelState> index(Cancellation cancellation) throws PocketServeException {
        JSONArray states = ask(Request.postJson("/v2/repository/index", "{}"), cancellation).array();
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

    Void load(String model, boolean release, Cancellation cancellation) throws PocketServeException {
        String parameters = release ? "{\"parameters\":{\"release\":true}}" : "{}";
        ask(Request.postJson(repository(model) + "/load", parameters).once(), cancellation);
        return null;
    }

    Void unload(String model, Cancellation cancellation) throws PocketServeException {
        ask(Request.postJson(repository(model) + "/unload", "{}").once(), cancellation);
        return null;
    }

    private static String repository(String model) {
        return "/v2/repository/models/" + Request.encode(model);
    }
}
