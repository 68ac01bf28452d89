package android.graphics;

import java.nio.Buffer;
import java.nio.ByteBuffer;

/** A stub of Android's class of this name, with the methods that the library calls. */
public final class Bitmap {
    /** How pixels lie in memory. */
    public enum Config { ALPHA_8, RGB_565, ARGB_8888, HARDWARE }

    private final int[] argb;
    private final int width;
    private final Config config;
    private boolean recycled;

    public Bitmap(int[] argb, int width, Config config) {
        this.argb = argb;
        this.width = width;
        this.config = config;
    }

    public int getWidth() {
        return width;
    }

    public int getHeight() {
        return argb.length / width;
    }

    public Config getConfig() {
        return config;
    }

    public int getRowBytes() {
        return 4 * width;
    }

    public boolean isRecycled() {
        return recycled;
    }

    public void recycle() {
        recycled = true;
    }

    public Bitmap copy(Config wanted, boolean mutable) {
        return new Bitmap(argb, width, wanted);
    }

    public void copyPixelsToBuffer(Buffer target) {
        if (config == Config.HARDWARE) {
            throw new IllegalStateException("unable to copyPixelsToBuffer, pixel access is not supported");
        }
        for (int pixel : argb) {
            ByteBuffer bytes = (ByteBuffer) target;
            bytes.put((byte) (pixel >> 16)).put((byte) (pixel >> 8)).put((byte) pixel).put((byte) (pixel >>> 24));
        }
    }
}
