package dev.pocketserve.bridge;

/** The whole answer of a language model. */
public final class ChatAnswer {
    private final String text;
    private final String finishReason;
    private final int promptTokens;
    private final int completionTokens;

    ChatAnswer(String text, String finishReason, int promptTokens, int completionTokens) {
        this.text = text;
        this.finishReason = finishReason;
        this.promptTokens = promptTokens;
        this.completionTokens = completionTokens;
    }

    /**
     * Returns the text.
     *
     * @return all pieces together
     */
    public String getText() {
        return text;
    }

    /**
     * Returns why the model ended.
     *
     * @return {@code stop}, {@code length} or {@code tool_calls}; empty if the server didn't say
     */
    public String getFinishReason() {
        return finishReason;
    }

    /**
     * Returns the length of the chat.
     *
     * @return tokens of all messages
     */
    public int getPromptTokens() {
        return promptTokens;
    }

    /**
     * Returns the length of the answer.
     *
     * @return tokens of the answer
     */
    public int getCompletionTokens() {
        return completionTokens;
    }
}
