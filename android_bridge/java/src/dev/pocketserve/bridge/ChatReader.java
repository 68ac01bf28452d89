package dev.pocketserve.bridge;

import java.io.ByteArrayOutputStream;
import org.json.JSONArray;
import org.json.JSONException;
import org.json.JSONObject;

/** Reads a chat's answer: server-sent events in OpenAI's form, however they are split. */
final class ChatReader implements PartReceiver {
    private static final int MAX_LINE_BYTES = 1 << 20;
    private static final int MAX_TEXT = 1 << 24;
    private static final String PREFIX = "data:";
    private static final String DONE = "[DONE]";

    private final ChatListener listener;
    private final ByteArrayOutputStream line = new ByteArrayOutputStream();
    private final StringBuilder text = new StringBuilder();
    private String finishReason = "";
    private int promptTokens;
    private int completionTokens;
    private boolean done;

    /**
     * Starts before the first byte.
     *
     * @param listener receives the pieces, or null
     */
    ChatReader(ChatListener listener) {
        this.listener = listener;
    }

    @Override
    public void part(byte[] bytes, int length) throws PocketServeException {
        for (int i = 0; i < length; i++) {
            if (bytes[i] == '\n') {
                String whole = new String(line.toByteArray(), Request.UTF_8);
                line.reset();
                readLine(whole);
            } else {
                if (line.size() >= MAX_LINE_BYTES) {
                    throw Answer.bad("an event has more than " + MAX_LINE_BYTES + " bytes", null);
                }
                line.write(bytes[i]);
            }
        }
    }

    private void readLine(String whole) throws PocketServeException {
        if (done || !whole.startsWith(PREFIX)) {
            return;
        }
        String data = whole.substring(PREFIX.length()).trim();
        if (data.equals(DONE)) {
            done = true;
            return;
        }
        try {
            readEvent(new JSONObject(data));
        } catch (JSONException error) {
            throw Answer.bad("an event is no JSON object", error);
        } catch (StackOverflowError error) {
            throw Answer.bad("an event nests too deeply", null);
        }
    }

    private void readEvent(JSONObject event) throws PocketServeException {
        JSONObject fault = event.optJSONObject("error");
        if (fault != null) {
            throw new PocketServeException(Answer.openAiCode(fault), 500, false, -1,
                    Answer.shorten(fault.optString("message", "the answer ended with an error")), null);
        }
        JSONObject usage = event.optJSONObject("usage");
        if (usage != null) {
            promptTokens = usage.optInt("prompt_tokens");
            completionTokens = usage.optInt("completion_tokens");
        }
        JSONArray choices = event.optJSONArray("choices");
        JSONObject choice = choices == null ? null : choices.optJSONObject(0);
        if (choice == null) {
            return;
        }
        if (!choice.isNull("finish_reason")) {
            finishReason = choice.optString("finish_reason");
        }
        JSONObject delta = choice.optJSONObject("delta");
        if (delta != null && !delta.isNull("content")) {
            add(delta.optString("content"));
        }
    }

    private void add(String piece) throws PocketServeException {
        if (piece.isEmpty()) {
            return;
        }
        if (text.length() + piece.length() > MAX_TEXT) {
            throw Answer.bad("its text has more than " + MAX_TEXT + " characters", null);
        }
        text.append(piece);
        if (listener == null) {
            return;
        }
        try {
            listener.onText(piece);
        } catch (RuntimeException error) {
            throw Cancellation.cancelled(error); // on both transports
        }
    }

    /** Returns the whole answer once its last byte was read. */
    ChatAnswer answer() throws PocketServeException {
        if (!done) {
            throw Faults.connectionLost("the server ended in the middle of an answer", null);
        }
        return new ChatAnswer(text.toString(), finishReason, promptTokens, completionTokens);
    }
}
