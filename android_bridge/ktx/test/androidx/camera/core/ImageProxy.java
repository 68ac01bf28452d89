package androidx.camera.core;

import java.nio.ByteBuffer;

/** Has the shape of CameraX's interface of this name. */
public interface ImageProxy extends AutoCloseable {
    @Override
    void close();

    int getWidth();

    int getHeight();

    PlaneProxy[] getPlanes();

    ImageInfo getImageInfo();

    /** One of the planes. */
    interface PlaneProxy {
        int getRowStride();

        int getPixelStride();

        ByteBuffer getBuffer();
    }
}
