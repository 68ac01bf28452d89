package dev.pocketserve.sample;

import android.content.Context;
import android.graphics.ImageFormat;
import android.graphics.Matrix;
import android.graphics.RectF;
import android.graphics.SurfaceTexture;
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
import android.view.Surface;
import android.view.TextureView;
import java.nio.ByteBuffer;
import java.util.Arrays;

/**
 * The camera: a preview, single pictures as JPEG, and frames for the live mode. Preview, frames and JPEG together are
 * promised by every camera2 device, legacy ones included.
 *
 * <p>{@link #open}, {@link #close}, {@link #takePicture} and {@link #setLive} belong to the main thread; the listener
 * is called on the camera's own thread.
 */
final class Camera {
    private static final int PREVIEW_LONG_SIDE = 1280;
    private static final int FRAME_LONG_SIDE = 640;
    private static final int PICTURE_LONG_SIDE = 2048;

    private final CameraManager manager;
    private final TextureView view;
    private final Listener listener;
    private HandlerThread thread;
    private Handler handler;
    private CameraDevice device;
    private CameraCaptureSession session;
    private ImageReader pictures;
    private ImageReader frames;
    private Surface preview;
    private Size previewSize;
    private int sensorOrientation;
    private boolean front;
    private volatile int display;
    private boolean live;

    /** Hears from the camera, on its thread. */
    interface Listener {
        /** A picture was taken; its EXIF data say how to turn it. */
        void onPicture(byte[] jpeg);

        /**
         * A frame in live mode; the listener copies what it needs and does not close it.
         *
         * @param rotation degrees clockwise to stand upright
         */
        void onFrame(Image image, int rotation);

        /** The camera cannot be used any more. */
        void onCameraError(String reason);
    }

    Camera(Context context, TextureView view, Listener listener) {
        this.manager = (CameraManager) context.getSystemService(Context.CAMERA_SERVICE);
        this.view = view;
        this.listener = listener;
    }

    boolean isOpen() {
        return thread != null;
    }

    /** Opens the back camera, or the only one. The view's surface must be there and the permission given. */
    void open() {
        thread = new HandlerThread("camera");
        thread.start();
        handler = new Handler(thread.getLooper());
        try {
            String[] ids = manager.getCameraIdList();
            if (ids.length == 0) {
                throw new IllegalArgumentException("there is none");
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
            manager.openCamera(selected, new DeviceListener(), handler);
        } catch (CameraAccessException | SecurityException | IllegalArgumentException error) {
            close();
            listener.onCameraError(String.valueOf(error.getMessage()));
        }
    }

    private void prepare(CameraCharacteristics facts) {
        Integer orientation = facts.get(CameraCharacteristics.SENSOR_ORIENTATION);
        Integer facing = facts.get(CameraCharacteristics.LENS_FACING);
        StreamConfigurationMap sizes = facts.get(CameraCharacteristics.SCALER_STREAM_CONFIGURATION_MAP);
        if (orientation == null || sizes == null) {
            throw new IllegalArgumentException("it does not say what it can do");
        }
        sensorOrientation = orientation;
        front = facing != null && facing == CameraCharacteristics.LENS_FACING_FRONT;
        Size picture = largest(sizes.getOutputSizes(ImageFormat.JPEG), PICTURE_LONG_SIDE, null);
        Size frame = largest(sizes.getOutputSizes(ImageFormat.YUV_420_888), FRAME_LONG_SIDE, null);
        // Of the frame's shape, so that its boxes fit on the preview.
        previewSize = largest(sizes.getOutputSizes(SurfaceTexture.class), PREVIEW_LONG_SIDE, frame);
        pictures = ImageReader.newInstance(picture.getWidth(), picture.getHeight(), ImageFormat.JPEG, 2);
        frames = ImageReader.newInstance(frame.getWidth(), frame.getHeight(), ImageFormat.YUV_420_888, 2);
        pictures.setOnImageAvailableListener(new PictureListener(), handler);
        frames.setOnImageAvailableListener(new FrameListener(), handler);
        SurfaceTexture texture = view.getSurfaceTexture();
        texture.setDefaultBufferSize(previewSize.getWidth(), previewSize.getHeight());
        preview = new Surface(texture);
        setRotation(display);
    }

    /**
     * The largest size within a limit; the smallest of all where every one is larger.
     *
     * @param like of this shape where there is one; null for any
     */
    private static Size largest(Size[] sizes, int longSide, Size like) {
        if (sizes == null || sizes.length == 0) {
            throw new IllegalArgumentException("it gives no pictures");
        }
        Size best = null;
        Size smallest = sizes[0];
        for (Size size : sizes) {
            long area = (long) size.getWidth() * size.getHeight();
            if (area < (long) smallest.getWidth() * smallest.getHeight()) {
                smallest = size;
            }
            boolean within = Math.max(size.getWidth(), size.getHeight()) <= longSide;
            boolean alike = like == null
                    || size.getWidth() * like.getHeight() == size.getHeight() * like.getWidth();
            if (within && alike && (best == null || area > (long) best.getWidth() * best.getHeight())) {
                best = size;
            }
        }
        if (best == null && like != null) {
            return largest(sizes, longSide, null);
        }
        return best == null ? smallest : best;
    }

    /** The screen's content was turned, or the view has another size: the preview is turned and cut to fit. */
    void setRotation(int degrees) {
        display = degrees;
        if (previewSize == null || view.getWidth() == 0) {
            return;
        }
        // The view has stretched the buffer to its own size; this undoes that, fills the view and turns.
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

    /** Takes one picture; nothing happens while the camera is not ready. */
    void takePicture() {
        if (session == null) {
            return;
        }
        try {
            CaptureRequest.Builder request = device.createCaptureRequest(CameraDevice.TEMPLATE_STILL_CAPTURE);
            request.addTarget(pictures.getSurface());
            request.set(CaptureRequest.JPEG_ORIENTATION, Geometry.upright(sensorOrientation, display, front));
            request.set(CaptureRequest.CONTROL_AF_MODE, CaptureRequest.CONTROL_AF_MODE_CONTINUOUS_PICTURE);
            session.capture(request.build(), null, handler);
        } catch (CameraAccessException | IllegalStateException error) {
            listener.onCameraError(String.valueOf(error.getMessage()));
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
            request.addTarget(preview);
            if (live) {
                request.addTarget(frames.getSurface());
            }
            request.set(CaptureRequest.CONTROL_AF_MODE, CaptureRequest.CONTROL_AF_MODE_CONTINUOUS_PICTURE);
            session.setRepeatingRequest(request.build(), null, handler);
        } catch (CameraAccessException | IllegalStateException error) {
            listener.onCameraError(String.valueOf(error.getMessage()));
        }
    }

    /** Gives the camera back. */
    void close() {
        session = null;
        if (device != null) {
            device.close();
            device = null;
        }
        if (pictures != null) {
            // On the camera's own thread, which may be reading from one of them now; it ends after that.
            handler.post(new Closing(pictures, frames, preview));
            pictures = null;
            frames = null;
            preview = null;
        }
        if (thread != null) {
            thread.quitSafely();
            thread = null;
        }
    }

    /** Gives back what the camera wrote to. */
    private static final class Closing implements Runnable {
        private final ImageReader pictures;
        private final ImageReader frames;
        private final Surface preview;

        Closing(ImageReader pictures, ImageReader frames, Surface preview) {
            this.pictures = pictures;
            this.frames = frames;
            this.preview = preview;
        }

        @Override
        public void run() {
            pictures.close();
            frames.close();
            preview.release();
        }
    }

    private void failed(final CameraDevice camera, final String reason) {
        camera.close();
        view.post(new Runnable() {
            @Override
            public void run() {
                close();
            }
        });
        listener.onCameraError(reason);
    }

    /** The camera was opened, or lost. Its fields belong to the main thread, so everything is handed there. */
    private final class DeviceListener extends CameraDevice.StateCallback {
        @Override
        public void onOpened(final CameraDevice opened) {
            view.post(new Runnable() {
                @Override
                public void run() {
                    begin(opened);
                }
            });
        }

        @Override
        public void onDisconnected(CameraDevice camera) {
            failed(camera, "another app has taken it");
        }

        @Override
        public void onError(CameraDevice camera, int error) {
            failed(camera, "error " + error);
        }
    }

    private void begin(CameraDevice opened) {
        if (preview == null) { // closed in the meantime
            opened.close();
            return;
        }
        device = opened;
        try {
            opened.createCaptureSession(Arrays.asList(preview, pictures.getSurface(), frames.getSurface()),
                    new SessionListener(), handler);
        } catch (CameraAccessException | IllegalStateException error) {
            listener.onCameraError(String.valueOf(error.getMessage()));
        }
    }

    /** The camera is ready to give pictures. */
    private final class SessionListener extends CameraCaptureSession.StateCallback {
        @Override
        public void onConfigured(final CameraCaptureSession configured) {
            view.post(new Runnable() {
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
            listener.onCameraError("it cannot give preview, frames and pictures at once");
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
                listener.onCameraError("it was closed while it took the picture");
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
                return; // the reader was closed while this was on its way
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
