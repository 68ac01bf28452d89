package dev.pocketserve.bridge;

import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.HashSet;
import java.util.Locale;
import java.util.Set;
import org.json.JSONArray;
import org.json.JSONException;
import org.json.JSONObject;
import org.json.JSONTokener;

/** An answer of either transport. */
final class Answer {
    private static final Set<String> RETRYABLE = new HashSet<>(Arrays.asList(
            "QUEUE_FULL", "MODEL_NOT_READY", "MEMORY_BUDGET", "LOW_POWER", "SHUTTING_DOWN", "DEADLINE_EXCEEDED"));
    private static final int MAX_ERROR_BYTES = 1 << 20; // the server's error bodies are short
    /** Statuses with which a proxy reports a lost server, without one of our codes; Ray Serve uses 500. */
    private static final Set<Integer> GATEWAY = new HashSet<>(Arrays.asList(500, 502, 503, 504));
    private static final int MAX_MESSAGE = 2000;

    final int status;
    final String contentType;
    final byte[] body;
    final int jsonLength;
    /** Host and port of the server that answered, if there are two; else empty. */
    final String server;
    private final long retryAfterMs;

    /** Wraps a received answer.
     *
     * @param jsonLength bytes of JSON at the body's start
     * @param retryAfterMs -1 if the answer does not state it
     */
    Answer(int status, String contentType, int jsonLength, byte[] body, long retryAfterMs) {
        this(status, contentType, jsonLength, body, retryAfterMs, "");
    }

    private Answer(int status, String contentType, int jsonLength, byte[] body, long retryAfterMs, String server) {
        this.server = server;
        this.status = status;
        this.contentType = contentType;
        this.jsonLength = jsonLength;
        this.body = body;
        this.retryAfterMs = retryAfterMs;
    }

    /** Returns this answer with the name of the server that sent it. */
    Answer from(String name) {
        return new Answer(status, contentType, jsonLength, body, retryAfterMs, name);
    }

    /** Returns this answer with another body, which doesn't begin with JSON. */
    Answer withBody(byte[] bytes) {
        return new Answer(status, contentType, 0, bytes, retryAfterMs, server);
    }

    /** Returns the server's error if the call may be retried later, else null. */
    PocketServeException temporaryRefusal() {
        try {
            orThrow();
            return null;
        } catch (PocketServeException error) {
            return error.isRetryable() ? error : null;
        }
    }

    /** Returns this answer if its status is 200; throws otherwise. */
    Answer orThrow() throws PocketServeException {
        if (status == 200) {
            return this;
        }
        JSONObject error;
        try {
            error = body.length > MAX_ERROR_BYTES ? new JSONObject() : new JSONObject(text(body.length));
        } catch (JSONException | StackOverflowError notOurs) {
            error = new JSONObject();
        }
        JSONObject openAi = error.optJSONObject("error");
        String code = openAi != null ? openAiCode(openAi) : error.optString("code", null);
        String message = openAi != null ? openAi.optString("message", null) : error.optString("error", null);
        if (status == 401) {
            throw new PocketServeException(PocketServeException.TOKEN_UNKNOWN, status, false, -1,
                    "the server does not know this token; use the one that `pocketserve token` prints", null);
        }
        if (code == null || message == null) {
            boolean lost = error.length() == 0 && GATEWAY.contains(status);
            throw new PocketServeException(PocketServeException.BAD_ANSWER, status, lost, -1,
                    "the server answered with status " + status + " without an error that this library can read; "
                    + (lost ? "has a proxy lost the server?" : "is another program listening on that port?"), null);
        }
        boolean retryable = RETRYABLE.contains(code) || status == 429;
        throw new PocketServeException(code, status, retryable, retryAfterMs, shorten(message), null);
    }

    /** Returns our code for an error in OpenAI's form, which names some of them differently. */
    static String openAiCode(JSONObject error) {
        String word = error.optString("code", "").toUpperCase(Locale.ROOT);
        return word.equals("CONTEXT_LENGTH_EXCEEDED") ? "CONTEXT_EXCEEDED" : word;
    }

    JSONObject object() throws PocketServeException {
        Object value = json();
        if (value instanceof JSONObject) {
            return (JSONObject) value;
        }
        throw bad("a JSON object was expected", null);
    }

    JSONArray array() throws PocketServeException {
        Object value = json();
        if (value instanceof JSONArray) {
            return (JSONArray) value;
        }
        throw bad("a JSON array was expected", null);
    }

    private Object json() throws PocketServeException {
        try {
            return new JSONTokener(text(jsonLength)).nextValue();
        } catch (JSONException error) {
            throw bad("it is not JSON", error);
        } catch (StackOverflowError error) {
            // The platform's parser has no depth limit, and over HTTP any program may have answered.
            throw bad("it is nested too deeply", null);
        }
    }

    private String text(int length) {
        return new String(body, 0, length, Request.UTF_8);
    }

    /** Returns the bytes after the JSON. */
    ByteBuffer raw() {
        return ByteBuffer.wrap(body, jsonLength, body.length - jsonLength).slice();
    }

    static String shorten(String message) {
        return message.length() <= MAX_MESSAGE ? message : message.substring(0, MAX_MESSAGE) + "...";
    }

    /** Reports an answer within the limit for which this process has too little memory now. */
    static PocketServeException tooMuch(OutOfMemoryError error) {
        return bad("this process has no memory left for it; request less, or lower "
                + "maxAnswerBytes, which the server gets", error);
    }

    static PocketServeException bad(String reason, Throwable cause) {
        return PocketServeException.permanent(
                PocketServeException.BAD_ANSWER, "the server's answer cannot be read: " + reason, cause);
    }
}
