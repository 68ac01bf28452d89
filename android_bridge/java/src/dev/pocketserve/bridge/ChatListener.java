package dev.pocketserve.bridge;

/** Receives the text of a chat's answer while the model writes it. */
public interface ChatListener {
    /**
     * The model wrote some text. A blocking call runs this on its own thread, a call with a callback on the client's
     * executor, in order and before the callback. The model waits while a blocking call runs
     * it. If it throws there, the call ends with {@link PocketServeException#CANCELLED}.
     *
     * @param piece never empty
     */
    void onText(String piece);
}
