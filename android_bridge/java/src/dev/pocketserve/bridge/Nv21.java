package dev.pocketserve.bridge;

import java.nio.ByteBuffer;

/**
 * Packs camera frames of three planes, such as Android's {@code YUV_420_888}, as NV21: all of Y, then V and U
 * interleaved, without gaps. {@link PredictOptions#frame} describes the result to the server as {@code nv21}.
 *
 * <pre>{@code
 * Image.Plane[] planes = image.getPlanes();
 * byte[] packed = Nv21.pack(planes[0].getBuffer(), planes[0].getRowStride(),
 *         planes[1].getBuffer(), planes[2].getBuffer(), planes[1].getRowStride(), planes[1].getPixelStride(),
 *         image.getWidth(), image.getHeight());
 * }</pre>
 */
public final class Nv21 {
    private Nv21() {
    }

    /**
     * Returns the size of a packed frame in bytes.
     *
     * @param width pixels, from 1
     * @param height pixels, from 1
     * @return 1.5 for each pixel; half of an odd side is rounded up
     */
    public static int size(int width, int height) {
        long pixels = (long) width * height;
        if (width < 1 || height < 1 || pixels > Integer.MAX_VALUE / 2) {
            throw new IllegalArgumentException("a frame of " + width + " x " + height + " pixels cannot be packed");
        }
        return (int) (pixels + 2L * half(width) * half(height));
    }

    private static int half(int side) {
        return side / 2 + side % 2;
    }

    /** Packs a frame into a new array.
     *
     * @param y brightness, from the buffer's position; the buffer is not changed
     * @param yRowStride bytes from one row of Y to the next
     * @param u the first colour, from the buffer's position
     * @param v the second colour, from the buffer's position
     * @param uvRowStride bytes from one row of U, or V, to the next
     * @param uvPixelStride bytes from one value of U, or V, to the next: 1, or 2 where they lie in turns
     * @param width pixels
     * @param height pixels
     * @return {@link #size} bytes
     * @throws IllegalArgumentException when a plane has fewer bytes than its strides say
     */
    public static byte[] pack(ByteBuffer y, int yRowStride, ByteBuffer u, ByteBuffer v, int uvRowStride,
            int uvPixelStride, int width, int height) {
        byte[] packed = new byte[size(width, height)];
        pack(y, yRowStride, u, v, uvRowStride, uvPixelStride, width, height, packed);
        return packed;
    }

    /**
     * Packs a frame into an existing array, such as one that a {@link StreamListener} has released.
     *
     * @param y brightness, from the buffer's position; the buffer is not changed
     * @param yRowStride bytes from one row of Y to the next
     * @param u the first colour, from the buffer's position
     * @param v the second colour, from the buffer's position
     * @param uvRowStride bytes from one row of U, or V, to the next
     * @param uvPixelStride bytes from one value of U, or V, to the next: 1, or 2 where they lie in turns
     * @param width pixels
     * @param height pixels
     * @param into exactly {@link #size} bytes
     * @throws IllegalArgumentException when a plane has fewer bytes than its strides say, or {@code into} has another
     *     size
     */
    public static void pack(ByteBuffer y, int yRowStride, ByteBuffer u, ByteBuffer v, int uvRowStride,
            int uvPixelStride, int width, int height, byte[] into) {
        if (into.length != size(width, height)) {
            throw new IllegalArgumentException("a frame of " + width + " x " + height + " pixels has "
                    + size(width, height) + " bytes, not " + into.length);
        }
        if (uvPixelStride < 1) {
            throw new IllegalArgumentException("uvPixelStride must be 1 or more, not " + uvPixelStride);
        }
        int columns = half(width);
        int rows = half(height);
        long row = (columns - 1L) * uvPixelStride + 1; // the last one may end there
        check("Y", y, yRowStride, width, height);
        check("U", u, uvRowStride, row, rows);
        check("V", v, uvRowStride, row, rows);
        int used = (int) row;
        copyRows(y.duplicate(), yRowStride, width, height, into);
        byte[] uRow = new byte[used];
        byte[] vRow = new byte[used];
        ByteBuffer uPlane = u.duplicate();
        ByteBuffer vPlane = v.duplicate();
        int at = width * height;
        for (int number = 0; number < rows; number++) {
            // Copies whole rows, because single values of a camera's buffer are many times slower.
            uPlane.position(u.position() + number * uvRowStride);
            uPlane.get(uRow, 0, used);
            vPlane.position(v.position() + number * uvRowStride);
            vPlane.get(vRow, 0, used);
            for (int from = 0; from < used; from += uvPixelStride) {
                into[at++] = vRow[from];
                into[at++] = uRow[from];
            }
        }
    }

    private static void check(String name, ByteBuffer plane, int rowStride, long used, int rows) {
        long required = (long) (rows - 1) * rowStride + used;
        if (rowStride < used || plane.remaining() < required) {
            throw new IllegalArgumentException("plane " + name + " has " + plane.remaining() + " bytes; " + rows
                    + " rows of " + used + " bytes with a stride of " + rowStride + " need " + required);
        }
    }

    private static void copyRows(ByteBuffer plane, int rowStride, int width, int height, byte[] into) {
        int start = plane.position();
        if (rowStride == width) {
            plane.get(into, 0, width * height);
            return;
        }
        for (int row = 0; row < height; row++) {
            plane.position(start + row * rowStride);
            plane.get(into, row * width, width);
        }
    }
}
