package dev.pocketserve.bridge;

import org.json.JSONArray;
import org.json.JSONObject;

/** Reads a chat's answer. */
final class ChatReader extends EventReader {
    private final ChatListener listener;
    private String finishReason = "";
    private int promptTokens;
    private int completionTokens;

    /**
     * Starts before the first byte.
     *
     * @param listener receives the pieces, or null
     */
    ChatReader(ChatListener listener) {
        this.listener = listener;
    }

    @Override
    void read(JSONObject event) throws PocketServeException {
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
        append(piece);
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
        return new ChatAnswer(wholeText(), finishReason, promptTokens, completionTokens);
    }
}
