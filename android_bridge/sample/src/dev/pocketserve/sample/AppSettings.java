package dev.pocketserve.sample;

import android.content.Context;
import android.content.SharedPreferences;
import dev.pocketserve.bridge.PocketServe;
import dev.pocketserve.bridge.PredictOptions;
import dev.pocketserve.bridge.Transport;
import dev.pocketserve.sample.pure.TokenText;

/** The user's settings, in the app's private storage, which other apps and backups can't read. */
final class AppSettings {
    static final String DEFAULT_PROGRAM = "$PREFIX/bin/pocketserve";
    private static final String FILE = "settings";

    private final SharedPreferences stored;

    AppSettings(Context context) {
        stored = context.getApplicationContext().getSharedPreferences(FILE, Context.MODE_PRIVATE);
    }

    int httpPort() {
        return stored.getInt("http_port", PocketServe.HTTP_PORT);
    }

    int socketPort() {
        return stored.getInt("socket_port", PocketServe.SOCKET_PORT);
    }

    Transport transport() {
        try {
            return Transport.valueOf(stored.getString("transport", Transport.SOCKET.name()));
        } catch (IllegalArgumentException fromAnotherVersion) {
            return Transport.SOCKET;
        }
    }

    boolean rawFrames() {
        return stored.getBoolean("raw_frames", true);
    }

    /** The token, or null. */
    String token() {
        return stored.getString("token", null);
    }

    String program() {
        return stored.getString("program", DEFAULT_PROGRAM);
    }

    String modelsFolder() {
        return stored.getString("models_folder", "");
    }

    /** The last chosen model, or null. */
    String model() {
        return stored.getString("model", null);
    }

    /** The chosen version, or null for the server's default. */
    String version() {
        return stored.getString("version", null);
    }

    void setModel(String name, String version) {
        stored.edit().putString("model", name).putString("version", version).apply();
    }

    /** Options of every picture: the chosen version, and a mask if the model has one. */
    PredictOptions questions() {
        PredictOptions options = new PredictOptions().parameter("mask", "png");
        String version = version();
        return version == null ? options : options.version(version);
    }

    /** Whether the app has requested the camera permission before. */
    boolean cameraAsked() {
        return stored.getBoolean("camera_asked", false);
    }

    void setCameraAsked() {
        stored.edit().putBoolean("camera_asked", true).apply();
    }

    /** Stores a token, and the ports if the text has them; null deletes the token. */
    void setToken(TokenText text) {
        SharedPreferences.Editor edit = stored.edit();
        edit.putString("token", text == null ? null : text.token);
        if (text != null && text.httpPort > 0) {
            edit.putInt("http_port", text.httpPort);
        }
        if (text != null && text.socketPort > 0) {
            edit.putInt("socket_port", text.socketPort);
        }
        edit.apply();
    }

    void setConnection(int httpPort, int socketPort, Transport transport, boolean rawFrames) {
        stored.edit().putInt("http_port", httpPort).putInt("socket_port", socketPort)
                .putString("transport", transport.name()).putBoolean("raw_frames", rawFrames).apply();
    }

    void setTermux(String program, String modelsFolder) {
        stored.edit().putString("program", program.isEmpty() ? DEFAULT_PROGRAM : program)
                .putString("models_folder", modelsFolder).apply();
    }

    /** Builds a client of the server, without an executor for callbacks. */
    PocketServe.Builder server() {
        PocketServe.Builder builder = PocketServe.builder().httpPort(httpPort()).socketPort(socketPort())
                .transport(transport());
        String token = token();
        return token == null ? builder : builder.token(token);
    }
}
