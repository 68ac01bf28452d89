package dev.pocketserve.sample;

import dev.pocketserve.bridge.PocketServe;
import dev.pocketserve.bridge.PocketServeException;
import java.util.concurrent.Executor;

/** The app's one client of the server, built anew when the settings have changed. */
final class Client {
    private final AppSettings settings;
    private final Executor callbacks;
    private PocketServe client;
    private String builtFor;

    Client(AppSettings settings, Executor callbacks) {
        this.settings = settings;
        this.callbacks = callbacks;
    }

    /** Follows the settings as they are now; connects to nothing. */
    void renew() {
        String fingerprint = settings.fingerprint();
        if (client == null || !fingerprint.equals(builtFor)) {
            close();
            builtFor = fingerprint;
            client = build();
        }
    }

    /** The client, or null before the first {@link #renew}. */
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

    /** Ends all calls under way. */
    void close() {
        if (client != null) {
            client.close();
        }
    }
}
