package dev.pocketserve.sample;

import android.graphics.ImageFormat;
import android.graphics.Rect;
import android.graphics.YuvImage;
import android.media.Image;
import android.os.SystemClock;
import dev.pocketserve.bridge.FrameStream;
import dev.pocketserve.bridge.Nv21;
import dev.pocketserve.bridge.PocketServe;
import dev.pocketserve.bridge.PocketServeException;
import dev.pocketserve.bridge.PredictOptions;
import dev.pocketserve.bridge.Prediction;
import dev.pocketserve.bridge.StreamListener;
import dev.pocketserve.sample.pure.ExifOrientation;
import java.io.ByteArrayOutputStream;
import java.util.HashMap;
import java.util.Map;

/** Sends the newest camera frames, and measures the rate of answers. */
final class LiveMode implements StreamListener {
    private static final int JPEG_QUALITY = 80;
    /** The weight of the newest answer in the frame rate. */
    private static final double NEWEST = 0.2;

    private final FrameStream stream;
    private final AppSettings settings;
    private final boolean raw;
    private final Listener listener;
    private final Map<Long, Sent> sent = new HashMap<>();
    private long lastAnswer;
    private double framesPerSecond;

    /** Receives answers, on the client's callback executor. */
    interface Listener {
        /**
         * A frame was answered.
         *
         * @param width pixels of the upright frame
         * @param latencyMs from the frame's arrival to its answer
         */
        void onLive(Prediction prediction, int width, int height, double framesPerSecond, long latencyMs);

        /** A frame failed. */
        void onLiveError(PocketServeException error);
    }

    /** A frame without an answer yet. */
    private static final class Sent {
        private final long at;
        private final int width;
        private final int height;

        Sent(long at, int width, int height) {
            this.at = at;
            this.width = width;
            this.height = height;
        }
    }

    LiveMode(PocketServe server, String model, AppSettings settings, Listener listener) {
        this.settings = settings;
        this.raw = settings.rawFrames();
        this.listener = listener;
        this.stream = server.stream(model, this);
    }

    /** Takes a frame; called on the camera's thread. */
    void offer(Image image, int rotation) {
        long now = SystemClock.elapsedRealtime();
        int width = image.getWidth();
        int height = image.getHeight();
        Image.Plane[] planes = image.getPlanes();
        byte[] packed = Nv21.pack(planes[0].getBuffer(), planes[0].getRowStride(), planes[1].getBuffer(),
                planes[2].getBuffer(), planes[1].getRowStride(), planes[1].getPixelStride(), width, height);
        boolean sideways = rotation % 180 != 0;
        byte[] body = raw ? packed : ExifOrientation.mark(jpeg(packed, width, height), rotation);
        PredictOptions options = settings.questions();
        if (raw) {
            options.frame("nv21", width, height, rotation);
        }
        synchronized (sent) {
            try {
                long number = stream.offer(body, raw ? "application/octet-stream" : "image/jpeg", options);
                sent.put(number, new Sent(now, sideways ? height : width, sideways ? width : height));
            } catch (IllegalStateException closed) {
                sent.clear(); // The camera delivered one more frame.
            }
        }
    }

    private static byte[] jpeg(byte[] nv21, int width, int height) {
        ByteArrayOutputStream encoded = new ByteArrayOutputStream(nv21.length / 8);
        new YuvImage(nv21, ImageFormat.NV21, width, height, null)
                .compressToJpeg(new Rect(0, 0, width, height), JPEG_QUALITY, encoded);
        return encoded.toByteArray();
    }

    void close() {
        stream.close();
    }

    private Sent take(long frame) {
        synchronized (sent) {
            return sent.remove(frame);
        }
    }

    @Override
    public void onResult(long frame, Prediction prediction) {
        Sent about = take(frame);
        if (about == null) {
            return;
        }
        long now = SystemClock.elapsedRealtime();
        if (lastAnswer > 0 && now > lastAnswer) {
            double rate = 1000.0 / (now - lastAnswer);
            framesPerSecond = framesPerSecond == 0 ? rate : framesPerSecond + NEWEST * (rate - framesPerSecond);
        }
        lastAnswer = now;
        listener.onLive(prediction, about.width, about.height, framesPerSecond, now - about.at);
    }

    @Override
    public void onDropped(long frame) {
        take(frame);
    }

    @Override
    public void onError(long frame, PocketServeException error) {
        take(frame);
        listener.onLiveError(error);
    }
}
