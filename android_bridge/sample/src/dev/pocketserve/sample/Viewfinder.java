package dev.pocketserve.sample;

import android.Manifest;
import android.app.Activity;
import android.content.Context;
import android.content.pm.PackageManager;
import android.graphics.SurfaceTexture;
import android.hardware.display.DisplayManager;
import android.view.TextureView;
import dev.pocketserve.sample.pure.CameraAccess;

/**
 * The camera's life on a screen: open while the screen is seen, the permission is given and the preview has a place.
 * Of the main thread.
 */
final class Viewfinder implements TextureView.SurfaceTextureListener, DisplayManager.DisplayListener {
    /** The number of the question to Android; screens take others for theirs. */
    static final int ASK_CAMERA = 100;

    private final Activity activity;
    private final TextureView view;
    private final AppSettings settings;
    private final Camera camera;
    private final Listener listener;
    private boolean started;
    private boolean asks = true;
    private boolean explainedBefore;

    /** Receives the camera's state. */
    interface Listener {
        /** Frames and pictures can be had. */
        void onCameraOpened();

        /** The person did not allow it. */
        void onCameraRefused(CameraAccess access);
    }

    Viewfinder(Activity activity, TextureView view, AppSettings settings, Camera camera, Listener listener) {
        this.activity = activity;
        this.view = view;
        this.settings = settings;
        this.camera = camera;
        this.listener = listener;
        view.setSurfaceTextureListener(this);
    }

    /** The permission is not asked for before the person wants the camera: another picture is what they want. */
    void waitToAsk() {
        asks = false;
    }

    /** The screen is seen. */
    void start() {
        started = true;
        displays().registerDisplayListener(this, null);
        open(false);
    }

    /** The screen is not seen any more. */
    void stop() {
        started = false;
        displays().unregisterDisplayListener(this);
        camera.close();
    }

    private DisplayManager displays() {
        return (DisplayManager) activity.getSystemService(Context.DISPLAY_SERVICE);
    }

    /**
     * Opens the camera if nothing is in the way.
     *
     * @param ask whether to ask for the permission where it is missing
     */
    void open(boolean ask) {
        if (camera.isOpen() || !view.isAvailable() || !started) {
            return;
        }
        if (activity.checkSelfPermission(Manifest.permission.CAMERA) == PackageManager.PERMISSION_GRANTED) {
            camera.setRotation(degrees());
            camera.open();
            if (camera.isOpen()) {
                listener.onCameraOpened();
            }
        } else if (ask) {
            explainedBefore = activity.shouldShowRequestPermissionRationale(Manifest.permission.CAMERA);
            activity.requestPermissions(new String[] {Manifest.permission.CAMERA}, ASK_CAMERA);
        } else {
            listener.onCameraRefused(CameraAccess.CAN_ASK);
        }
    }

    /** Android's answer to ASK_CAMERA; an empty one means that the question was interrupted. */
    void onAnswer(int[] granted) {
        if (granted.length == 0) {
            return;
        }
        boolean explainNow = activity.shouldShowRequestPermissionRationale(Manifest.permission.CAMERA);
        CameraAccess access = CameraAccess.after(granted[0] == PackageManager.PERMISSION_GRANTED, explainedBefore,
                explainNow, settings.cameraAsked());
        settings.setCameraAsked();
        if (access == CameraAccess.ALLOWED) {
            open(false);
        } else {
            listener.onCameraRefused(access);
        }
    }

    /** Follows the screen when it was turned. */
    void turn() {
        camera.setRotation(degrees());
    }

    private int degrees() {
        return activity.getWindowManager().getDefaultDisplay().getRotation() * 90;
    }

    @Override
    public void onSurfaceTextureAvailable(SurfaceTexture texture, int width, int height) {
        open(asks && !settings.cameraAsked()); // once by itself, then when the person wants it
    }

    @Override
    public void onSurfaceTextureSizeChanged(SurfaceTexture texture, int width, int height) {
        turn();
    }

    @Override
    public boolean onSurfaceTextureDestroyed(SurfaceTexture texture) {
        camera.close();
        return true;
    }

    @Override
    public void onSurfaceTextureUpdated(SurfaceTexture texture) {
        // Nothing is drawn by us.
    }

    @Override
    public void onDisplayAdded(int display) {
        // Only this screen's turning counts.
    }

    @Override
    public void onDisplayRemoved(int display) {
        // Only this screen's turning counts.
    }

    @Override
    public void onDisplayChanged(int display) {
        turn(); // by half a turn at once, which is no new configuration
    }
}
