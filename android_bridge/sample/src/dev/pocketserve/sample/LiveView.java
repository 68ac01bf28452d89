package dev.pocketserve.sample;

import android.media.Image;
import dev.pocketserve.bridge.PocketServe;
import dev.pocketserve.bridge.PocketServeException;
import dev.pocketserve.bridge.Prediction;

/** Starts and stops live mode, and shows its answers over the preview. */
final class LiveView implements LiveMode.Listener {
    private final AppSettings settings;
    private final Camera camera;
    private final MainScreen screen;
    private final ProblemPanel panel;
    /** Read on the camera's thread. */
    private volatile LiveMode live;

    LiveView(AppSettings settings, Camera camera, MainScreen screen, ProblemPanel panel) {
        this.settings = settings;
        this.camera = camera;
        this.screen = screen;
        this.panel = panel;
    }

    /**
     * Stops live mode, and restarts it if it is on and possible.
     *
     * @param client null if there is none
     */
    void set(boolean on, PocketServe client) {
        LiveMode before = live;
        live = null;
        if (before != null) {
            before.close();
        }
        String model = settings.model();
        boolean starts = on && model != null && client != null;
        if (starts) {
            live = new LiveMode(client, model, settings, this);
        }
        camera.setLive(starts);
        screen.showLiveStatus(starts);
        if (!starts && before != null) {
            screen.clearOverlay();
        }
    }

    /** Takes a frame of the camera, on its thread. */
    void offer(Image image, int rotation) {
        LiveMode now = live;
        if (now != null) {
            now.offer(image, rotation);
        }
    }

    @Override
    public void onLive(Prediction prediction, int width, int height, double framesPerSecond, long latencyMs) {
        if (live != null) {
            screen.showLive(prediction, width, height, camera.isMirrored(), framesPerSecond, latencyMs);
        }
    }

    @Override
    public void onLiveError(PocketServeException error) {
        if (live != null && !error.isRetryable() && !Problem.isOurs(error)) {
            screen.switchLiveOff();
            panel.show(error);
        }
    }
}
