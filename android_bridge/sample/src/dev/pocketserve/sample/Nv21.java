package dev.pocketserve.sample;

import java.nio.ByteBuffer;

/** Packs a camera frame of three planes (YUV_420_888) as NV21: all of Y, then V and U in turns. */
final class Nv21 {
    private Nv21() {
    }

    /** Bytes of a frame; both sides are even, as cameras give them. */
    static int size(int width, int height) {
        return width * height + 2 * ((width + 1) / 2) * ((height + 1) / 2);
    }

    /**
     * Packs a frame.
     *
     * @param rowStride bytes from one row of Y to the next
     * @param chromaRowStride bytes from one row of U, or V, to the next
     * @param chromaPixelStride bytes from one value of U, or V, to the next: 1, or 2 where they come in turns
     */
    static byte[] pack(ByteBuffer luma, int rowStride, ByteBuffer u, ByteBuffer v, int chromaRowStride,
            int chromaPixelStride, int width, int height) {
        byte[] packed = new byte[size(width, height)];
        ByteBuffer rows = luma.duplicate();
        int start = luma.position();
        for (int row = 0; row < height; row++) {
            rows.position(start + row * rowStride);
            rows.get(packed, row * width, width);
        }
        int at = width * height;
        int chromaWidth = (width + 1) / 2;
        for (int row = 0; row < (height + 1) / 2; row++) {
            int source = row * chromaRowStride;
            for (int column = 0; column < chromaWidth; column++) {
                packed[at++] = v.get(v.position() + source);
                packed[at++] = u.get(u.position() + source);
                source += chromaPixelStride;
            }
        }
        return packed;
    }
}
