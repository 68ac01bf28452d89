package dev.pocketserve.bridge;

/** A message of a chat. */
public final class ChatMessage {
    private final String role;
    private final String content;

    private ChatMessage(String role, String content) {
        if (content == null) {
            throw new IllegalArgumentException("a message has a text");
        }
        this.role = role;
        this.content = content;
    }

    /**
     * A message of the user.
     *
     * @param text the message
     * @return the message
     */
    public static ChatMessage user(String text) {
        return new ChatMessage("user", text);
    }

    /**
     * An earlier answer of the model.
     *
     * @param text the answer
     * @return the message
     */
    public static ChatMessage assistant(String text) {
        return new ChatMessage("assistant", text);
    }

    /**
     * An instruction that holds for the whole chat. It comes first.
     *
     * @param text the instruction
     * @return the message
     */
    public static ChatMessage system(String text) {
        return new ChatMessage("system", text);
    }

    /**
     * Returns who wrote it.
     *
     * @return {@code user}, {@code assistant} or {@code system}
     */
    public String getRole() {
        return role;
    }

    /**
     * Returns the text.
     *
     * @return the text
     */
    public String getContent() {
        return content;
    }
}
