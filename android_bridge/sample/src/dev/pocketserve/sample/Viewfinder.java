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
 * The camera of a screen. It is open while the screen is visible, the permission is granted and the preview has a
 * surface. Main thread only.
 */
final class Viewfinder implements TextureView.SurfaceTextureListener, DisplayManager.DisplayListener {
    /** The request code for the permission; screens use other codes. */
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
        /** The camera delivers frames and pictures. */
        void onCameraOpened();

        /** The user denied it. */
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

    /** Doesn't request the permission before the user wants the camera. */
    void waitToAsk() {
        asks = false;
    }

    /** The screen became visible. */
    void start() {
        started = true;
        displays().registerDisplayListener(this, null);
        open(false);
    }

    /** The screen is no longer visible. */
    void stop() {
        started = false;
        displays().unregisterDisplayListener(this);
        camera.close();
    }

    private DisplayManager displays() {
        return (DisplayManager) activity.getSystemService(Context.DISPLAY_SERVICE);
    }

    /**
     * Opens the camera if possible.
     *
     * @param ask whether to request a missing permission
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

    /** Receives Android's answer to ASK_CAMERA; an empty one means that the dialog was interrupted. */
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

    /** Adapts to the screen's rotation. */
    void turn() {
        camera.setRotation(degrees());
    }

    private int degrees() {
        return activity.getWindowManager().getDefaultDisplay().getRotation() * 90;
    }

    @Override
    public void onSurfaceTextureAvailable(SurfaceTexture texture, int width, int height) {
        open(asks && !settings.cameraAsked()); // once automatically, then when the user wants it
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
        // The camera draws the preview.
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
        turn(); // a half turn is not a new configuration
    }
}
