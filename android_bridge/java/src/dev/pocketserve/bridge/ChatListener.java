package dev.pocketserve.bridge;

/** Hears the text of a chat's answer while the model writes it. */
public interface ChatListener {
    /**
     * The model wrote some text. A blocking call runs this on its own thread, a call with a callback on the client's
     * executor, in order and before the callback. The model waits while a blocking call runs
     * it. What it throws there ends the call with {@link PocketServeException#CANCELLED}.
     *
     * @param piece never empty
     */
    void onText(String piece);
}
