package dev.pocketserve.bridge;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.fail;

import java.nio.ByteBuffer;
import java.util.Random;
import org.junit.Test;

/** Packs camera frames with any strides, in any kind of buffer. */
public class Nv21Test {
    @Test
    public void valuesMayHaveGapsOrBeInterleaved() {
        byte[] packed = {1, 2, 3, 4, 5, 6, 7, 8, 30, 20, 31, 21};
        ByteBuffer wideRows = ByteBuffer.wrap(new byte[] {1, 2, 3, 4, 0, 5, 6, 7, 8});
        ByteBuffer u = ByteBuffer.wrap(new byte[] {20, 21});
        ByteBuffer v = ByteBuffer.wrap(new byte[] {30, 31});
        assertArrayEquals(packed, Nv21.pack(wideRows, 5, u, v, 2, 1, 4, 2));
        byte[] inTurns = {30, 20, 31, 21};
        ByteBuffer uInTurns = ByteBuffer.wrap(inTurns, 1, 3);
        ByteBuffer vInTurns = ByteBuffer.wrap(inTurns, 0, 3).slice();
        assertArrayEquals(packed, Nv21.pack(wideRows, 5, uInTurns, vInTurns, 4, 2, 4, 2));
        assertEquals(1, uInTurns.position());
        assertEquals(0, wideRows.position());
    }

    @Test
    public void sizes() {
        assertEquals(12, Nv21.size(4, 2));
        assertEquals(3 * 3 + 2 * 2 * 2, Nv21.size(3, 3));
        assertEquals(3, Nv21.size(1, 1));
        for (int[] wrong : new int[][] {{0, 4}, {4, -1}, {65_536, 65_536}, {Integer.MAX_VALUE, 1}}) {
            assertRejected(() -> Nv21.size(wrong[0], wrong[1]));
        }
    }

    private static void assertRejected(Runnable work) {
        try {
            work.run();
        } catch (IllegalArgumentException expected) {
            assertFalse(expected.getMessage().isEmpty());
            return;
        }
        fail("taken");
    }

    /** Inside a larger buffer, with the last row ending after its last value, as from cameras. */
    private static ByteBuffer plane(Random random, int bytes) {
        int before = random.nextInt(4);
        byte[] all = new byte[before + bytes + random.nextInt(3)];
        random.nextBytes(all);
        ByteBuffer buffer = random.nextBoolean() ? ByteBuffer.allocateDirect(all.length) : ByteBuffer.allocate(all.length);
        buffer.put(all);
        buffer.position(before).limit(before + bytes);
        return random.nextBoolean() ? buffer.asReadOnlyBuffer() : buffer;
    }

    @Test
    public void everyFrameIsPackedAsItLooks() {
        Random random = new Random(5);
        for (int i = 0; i < 300; i++) {
            int width = 1 + random.nextInt(20);
            int height = 1 + random.nextInt(20);
            int columns = (width + 1) / 2;
            int rows = (height + 1) / 2;
            int step = 1 + random.nextInt(3);
            int used = (columns - 1) * step + 1;
            int rowStride = width + random.nextInt(3);
            int uvStride = used + random.nextInt(3);
            ByteBuffer y = plane(random, (height - 1) * rowStride + width);
            ByteBuffer u = plane(random, (rows - 1) * uvStride + used);
            ByteBuffer v = plane(random, (rows - 1) * uvStride + used);
            byte[] packed = Nv21.pack(y, rowStride, u, v, uvStride, step, width, height);
            for (int row = 0; row < height; row++) {
                for (int column = 0; column < width; column++) {
                    assertEquals(y.get(y.position() + row * rowStride + column), packed[row * width + column]);
                    int colour = width * height + 2 * (row / 2 * columns + column / 2);
                    int from = row / 2 * uvStride + column / 2 * step;
                    assertEquals(v.get(v.position() + from), packed[colour]);
                    assertEquals(u.get(u.position() + from), packed[colour + 1]);
                }
            }
            u.limit(u.limit() - 1);
            assertRejected(() -> Nv21.pack(y, rowStride, u, v, uvStride, step, width, height));
        }
    }

    @Test
    public void mismatchedArraysAreRejected() {
        ByteBuffer y = ByteBuffer.allocate(8);
        ByteBuffer colour = ByteBuffer.allocate(2);
        Nv21.pack(y, 4, colour, colour, 2, 1, 4, 2, new byte[12]);
        assertRejected(() -> Nv21.pack(y, 4, colour, colour, 2, 1, 4, 2, new byte[13]));
        assertRejected(() -> Nv21.pack(y, 3, colour, colour, 2, 1, 4, 2));
        assertRejected(() -> Nv21.pack(y, -4, colour, colour, 2, 1, 4, 2));
        assertRejected(() -> Nv21.pack(y, 4, colour, colour, 2, 0, 4, 2));
        assertRejected(() -> Nv21.pack(y, Integer.MAX_VALUE, colour, colour, 2, 1, 4, 2));
        assertRejected(() -> Nv21.pack(y, 4, colour, colour, 2, Integer.MAX_VALUE, 4, 2));
        assertRejected(() -> Nv21.pack(ByteBuffer.allocate(12), 6, colour, colour, 2, Integer.MAX_VALUE, 6, 2));
    }
}
