package dev.pocketserve.bridge;

/** A message of a chat. */
public final class ChatMessage {
    private final String role;
    private final String content;

    private ChatMessage(String role, String content) {
        if (content == null) {
            throw new IllegalArgumentException("a message needs a text");
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
     * An instruction for the whole chat. It must be the first message.
     *
     * @param text the instruction
     * @return the message
     */
    public static ChatMessage system(String text) {
        return new ChatMessage("system", text);
    }

    /**
     * Returns the author's role.
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
