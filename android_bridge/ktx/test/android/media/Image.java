package android.media;

import java.nio.ByteBuffer;

/** A stub of Android's class of this name, with the methods that the library calls. */
public abstract class Image implements AutoCloseable {
    public abstract int getWidth();

    public abstract int getHeight();

    public abstract Plane[] getPlanes();

    @Override
    public abstract void close();

    /** One of the planes. */
    public abstract static class Plane {
        public abstract int getRowStride();

        public abstract int getPixelStride();

        public abstract ByteBuffer getBuffer();
    }
}
