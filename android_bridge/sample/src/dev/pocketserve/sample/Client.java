package dev.pocketserve.sample;

import dev.pocketserve.bridge.PocketServe;
import dev.pocketserve.bridge.PocketServeException;
import java.util.concurrent.Executor;

/** The app's only client. It exists while the screen is visible; in the background the app has no connection. */
final class Client {
    private final AppSettings settings;
    private final Executor callbacks;
    private PocketServe client;

    Client(AppSettings settings, Executor callbacks) {
        this.settings = settings;
        this.callbacks = callbacks;
    }

    /** Creates a client for the current settings, without connecting. */
    void open() {
        close();
        client = build();
    }

    /** The client, or null while it is closed. */
    PocketServe get() {
        return client;
    }

    private PocketServe build() {
        try {
            return settings.server().callbackExecutor(callbacks).build();
        } catch (PocketServeException unreadable) {
            // Only a token file can be unreadable, and this app has none.
            throw new IllegalStateException(unreadable);
        }
    }

    /** Ends all calls in progress. */
    void close() {
        if (client != null) {
            client.close();
            client = null;
        }
    }
}
