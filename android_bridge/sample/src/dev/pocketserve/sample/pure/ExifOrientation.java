package dev.pocketserve.sample.pure;

import java.nio.ByteBuffer;
import java.nio.charset.Charset;

/** Writes a JPEG's orientation as an EXIF block with one entry. */
public final class ExifOrientation {
    private static final int BLOCK = 36;

    private ExifOrientation() {
    }

    /**
     * Inserts the block after a JPEG's first marker.
     *
     * @param jpeg without an EXIF block, as from YuvImage
     * @param rotation degrees clockwise that turn the picture upright: 0, 90, 180 or 270
     */
    public static byte[] mark(byte[] jpeg, int rotation) {
        int orientation = rotation == 90 ? 6 : rotation == 180 ? 3 : rotation == 270 ? 8 : 1;
        ByteBuffer marked = ByteBuffer.allocate(jpeg.length + BLOCK); // big-endian, as "MM" states
        marked.put(jpeg, 0, 2);
        marked.putShort((short) 0xffe1).putShort((short) (BLOCK - 2));
        marked.put("Exif\0\0MM".getBytes(Charset.forName("US-ASCII"))).putShort((short) 42).putInt(8);
        marked.putShort((short) 1);
        marked.putShort((short) 0x0112).putShort((short) 3).putInt(1).putShort((short) orientation).putShort((short) 0);
        marked.putInt(0);
        marked.put(jpeg, 2, jpeg.length - 2);
        return marked.array();
    }
}
