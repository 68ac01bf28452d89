package dev.pocketserve.sample;

import android.content.Context;
import android.graphics.Matrix;
import android.graphics.RectF;
import android.hardware.camera2.CameraAccessException;
import android.hardware.camera2.CameraCaptureSession;
import android.hardware.camera2.CameraCharacteristics;
import android.hardware.camera2.CameraDevice;
import android.hardware.camera2.CameraManager;
import android.hardware.camera2.CaptureRequest;
import android.hardware.camera2.params.StreamConfigurationMap;
import android.media.Image;
import android.media.ImageReader;
import android.os.Handler;
import android.os.HandlerThread;
import android.util.Size;
import android.view.TextureView;
import dev.pocketserve.sample.pure.Geometry;
import java.nio.ByteBuffer;

/**
 * The camera: a preview, single pictures as JPEG, and frames for the live mode. Every camera2 device, even a legacy
 * one, supports preview, frames and JPEG together.
 *
 * <p>{@link #open}, {@link #close}, {@link #takePicture} and {@link #setLive} belong to the main thread. The listener
 * is called on the camera's thread, or on the main thread if opening fails.
 */
final class Camera {
    private final CameraManager manager;
    private final TextureView view;
    private final Listener listener;
    private final MainExecutor mainThread = new MainExecutor();
    private HandlerThread thread;
    private Handler handler;
    private CameraDevice device;
    private CameraCaptureSession session;
    private CameraOutputs outputs;
    private int sensorOrientation;
    private boolean front;
    private volatile int display;
    private boolean live;
    /** Counts openings, to recognise late events of a camera that has been closed since. */
    private int opening;

    /** Receives the camera's events, on its thread. */
    interface Listener {
        /** A picture was taken; its EXIF data have the orientation. */
        void onPicture(byte[] jpeg);

        /**
         * A frame in live mode. The listener copies the data and doesn't close the frame.
         *
         * @param rotation degrees clockwise that turn the picture upright
         */
        void onFrame(Image image, int rotation);

        /** The camera can't be used any more; a text for the user. */
        void onCameraError(int reason);
    }

    Camera(Context context, TextureView view, Listener listener) {
        this.manager = (CameraManager) context.getSystemService(Context.CAMERA_SERVICE);
        this.view = view;
        this.listener = listener;
    }

    boolean isOpen() {
        return thread != null;
    }

    /** Returns whether the system mirrors the preview, as it does for front cameras. */
    boolean isMirrored() {
        return front;
    }

    /** Opens the back camera, or the only one. Requires the view's surface and the permission. */
    void open() {
        thread = new HandlerThread("camera");
        thread.start();
        handler = new Handler(thread.getLooper());
        try {
            String[] ids = manager.getCameraIdList();
            if (ids.length == 0) {
                refuse(R.string.camera_none);
                return;
            }
            String selected = ids[0];
            for (String id : ids) {
                Integer facing = manager.getCameraCharacteristics(id).get(CameraCharacteristics.LENS_FACING);
                if (facing != null && facing == CameraCharacteristics.LENS_FACING_BACK) {
                    selected = id;
                    break;
                }
            }
            prepare(manager.getCameraCharacteristics(selected));
            manager.openCamera(selected, new DeviceListener(++opening), handler);
        } catch (CameraAccessException error) {
            refuse(reasonOf(error));
        } catch (SecurityException | IllegalArgumentException error) {
            refuse(R.string.camera_broken);
        }
    }

    private void refuse(int reason) {
        close();
        listener.onCameraError(reason);
    }

    private static int reasonOf(CameraAccessException error) {
        switch (error.getReason()) {
            case CameraAccessException.CAMERA_IN_USE:
            case CameraAccessException.MAX_CAMERAS_IN_USE:
                return R.string.camera_busy;
            case CameraAccessException.CAMERA_DISABLED:
                return R.string.camera_forbidden;
            default:
                return R.string.camera_broken;
        }
    }

    private void prepare(CameraCharacteristics facts) {
        Integer orientation = facts.get(CameraCharacteristics.SENSOR_ORIENTATION);
        Integer facing = facts.get(CameraCharacteristics.LENS_FACING);
        StreamConfigurationMap sizes = facts.get(CameraCharacteristics.SCALER_STREAM_CONFIGURATION_MAP);
        if (orientation == null || sizes == null) {
            throw new IllegalArgumentException("it does not list its capabilities");
        }
        sensorOrientation = orientation;
        front = facing != null && facing == CameraCharacteristics.LENS_FACING_FRONT;
        outputs = new CameraOutputs(sizes, view.getSurfaceTexture());
        outputs.pictures.setOnImageAvailableListener(new PictureListener(), handler);
        outputs.frames.setOnImageAvailableListener(new FrameListener(), handler);
        setRotation(display);
    }

    /** Turns and crops the preview after the screen's rotation or the view's size has changed. */
    void setRotation(int degrees) {
        display = degrees;
        if (outputs == null || view.getWidth() == 0) {
            return;
        }
        Size previewSize = outputs.previewSize;
        // Undoes the view's stretching of the buffer, fills the view and rotates.
        boolean sideways = Geometry.upright(sensorOrientation, 0, front) % 180 != 0;
        float width = sideways ? previewSize.getHeight() : previewSize.getWidth();
        float height = sideways ? previewSize.getWidth() : previewSize.getHeight();
        boolean across = degrees % 180 != 0;
        Geometry fill = Geometry.filling(Math.round(across ? height : width), Math.round(across ? width : height),
                view.getWidth(), view.getHeight());
        RectF viewArea = new RectF(0, 0, view.getWidth(), view.getHeight());
        RectF pictureArea = new RectF(0, 0, width * fill.scale, height * fill.scale);
        pictureArea.offset(viewArea.centerX() - pictureArea.centerX(), viewArea.centerY() - pictureArea.centerY());
        Matrix matrix = new Matrix();
        matrix.setRectToRect(viewArea, pictureArea, Matrix.ScaleToFit.FILL);
        matrix.postRotate(-degrees, viewArea.centerX(), viewArea.centerY());
        view.setTransform(matrix);
    }

    /** Takes one picture; has no effect while the camera is not ready. */
    void takePicture() {
        if (session == null) {
            return;
        }
        try {
            CaptureRequest.Builder request = device.createCaptureRequest(CameraDevice.TEMPLATE_STILL_CAPTURE);
            request.addTarget(outputs.pictures.getSurface());
            request.set(CaptureRequest.JPEG_ORIENTATION, Geometry.upright(sensorOrientation, display, front));
            request.set(CaptureRequest.CONTROL_AF_MODE, CaptureRequest.CONTROL_AF_MODE_CONTINUOUS_PICTURE);
            session.capture(request.build(), null, handler);
        } catch (CameraAccessException error) {
            listener.onCameraError(reasonOf(error));
        } catch (IllegalStateException error) {
            listener.onCameraError(R.string.camera_broken);
        }
    }

    /** Returns whether frames are delivered. */
    void setLive(boolean on) {
        live = on;
        repeat();
    }

    private void repeat() {
        if (session == null) {
            return;
        }
        try {
            CaptureRequest.Builder request = device.createCaptureRequest(CameraDevice.TEMPLATE_PREVIEW);
            request.addTarget(outputs.preview);
            if (live) {
                request.addTarget(outputs.frames.getSurface());
            }
            request.set(CaptureRequest.CONTROL_AF_MODE, CaptureRequest.CONTROL_AF_MODE_CONTINUOUS_PICTURE);
            session.setRepeatingRequest(request.build(), null, handler);
        } catch (CameraAccessException error) {
            listener.onCameraError(reasonOf(error));
        } catch (IllegalStateException error) {
            listener.onCameraError(R.string.camera_broken);
        }
    }

    /** Releases the camera. */
    void close() {
        session = null;
        opening++;
        if (device != null) {
            device.close();
            device = null;
        }
        if (outputs != null) {
            handler.post(outputs); // The outputs may still be read there; the thread ends after that.
            outputs = null;
        }
        if (thread != null) {
            thread.quitSafely();
            thread = null;
        }
    }

    private void failed(final CameraDevice camera, final int number, final int reason) {
        camera.close();
        mainThread.execute(new Runnable() {
            @Override
            public void run() {
                if (number == opening) {
                    refuse(reason);
                }
            }
        });
    }

    /** Receives the camera's state. Its fields belong to the main thread, so events are posted there. */
    private final class DeviceListener extends CameraDevice.StateCallback {
        private final int number;

        DeviceListener(int number) {
            this.number = number;
        }

        @Override
        public void onOpened(final CameraDevice opened) {
            mainThread.execute(new Runnable() {
                @Override
                public void run() {
                    begin(opened, number);
                }
            });
        }

        @Override
        public void onDisconnected(CameraDevice camera) {
            failed(camera, number, R.string.camera_busy);
        }

        @Override
        public void onError(CameraDevice camera, int error) {
            boolean busy = error == ERROR_CAMERA_IN_USE || error == ERROR_MAX_CAMERAS_IN_USE;
            failed(camera, number, busy ? R.string.camera_busy
                    : error == ERROR_CAMERA_DISABLED ? R.string.camera_forbidden : R.string.camera_broken);
        }
    }

    private void begin(CameraDevice opened, int number) {
        if (number != opening) { // The camera was closed, and perhaps opened again.
            opened.close();
            return;
        }
        device = opened;
        try {
            opened.createCaptureSession(outputs.surfaces(), new SessionListener(), handler);
        } catch (CameraAccessException error) {
            refuse(reasonOf(error));
        } catch (IllegalStateException error) {
            refuse(R.string.camera_broken);
        }
    }

    /** The camera is ready. */
    private final class SessionListener extends CameraCaptureSession.StateCallback {
        @Override
        public void onConfigured(final CameraCaptureSession configured) {
            mainThread.execute(new Runnable() {
                @Override
                public void run() {
                    if (device == configured.getDevice()) {
                        session = configured;
                        repeat();
                    }
                }
            });
        }

        @Override
        public void onConfigureFailed(CameraCaptureSession rejected) {
            listener.onCameraError(R.string.camera_limits);
        }
    }

    private final class PictureListener implements ImageReader.OnImageAvailableListener {
        @Override
        public void onImageAvailable(ImageReader reader) {
            try (Image image = reader.acquireNextImage()) {
                if (image != null) {
                    ByteBuffer buffer = image.getPlanes()[0].getBuffer();
                    byte[] jpeg = new byte[buffer.remaining()];
                    buffer.get(jpeg);
                    listener.onPicture(jpeg);
                }
            } catch (IllegalStateException closed) {
                listener.onCameraError(R.string.camera_broken);
            }
        }
    }

    private final class FrameListener implements ImageReader.OnImageAvailableListener {
        @Override
        public void onImageAvailable(ImageReader reader) {
            Image newest;
            try {
                newest = reader.acquireLatestImage();
            } catch (IllegalStateException closed) {
                return; // The reader was closed.
            }
            if (newest == null) {
                return;
            }
            try {
                listener.onFrame(newest, Geometry.upright(sensorOrientation, display, front));
            } finally {
                newest.close();
            }
        }
    }
}
