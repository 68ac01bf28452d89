package dev.pocketserve.bridge;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;
import static org.junit.Assert.fail;

import java.math.BigInteger;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;
import org.junit.Test;

/** Tensors: the wire format of every datatype, in both directions. */
public class TensorTest {
    private static String hex(Tensor tensor) {
        byte[] bytes = new byte[tensor.buffer().remaining()];
        tensor.buffer().get(bytes);
        return FakePeer.hex(bytes);
    }

    private static Tensor raw(Datatype datatype, String hex, long... shape) {
        return Tensor.raw("t", datatype, ByteBuffer.wrap(FakePeer.unhex(hex)), shape);
    }

    @Test
    public void numbersAreLittleEndian() {
        assertEquals("0000803f00000040", hex(Tensor.of("t", new float[] {1, 2}, 2)));
        assertEquals("000000000000f03f", hex(Tensor.of("t", new double[] {1}, 1)));
        assertEquals("01000000ffffffff", hex(Tensor.of("t", new int[] {1, -1}, 2, 1)));
        assertEquals("feffffffffffffff", hex(Tensor.of("t", new long[] {-2})));
        assertEquals("0201", hex(Tensor.of("t", new short[] {0x102}, 1)));
        assertEquals("01ff", hex(Tensor.of("t", new byte[] {1, -1}, 2)));
        assertEquals("0100", hex(Tensor.of("t", new boolean[] {true, false}, 2)));
        assertEquals("01000000" + "61" + "00000000" + "02000000" + "c3bc",
                hex(Tensor.of("t", new String[] {"a", "", "ü"}, 3)));
    }

    @Test
    public void valuesSurviveTheRoundTrip() {
        float[] odd = {Float.NaN, Float.NEGATIVE_INFINITY, -0f, Float.MIN_VALUE};
        assertArrayEquals(odd, Tensor.of("t", odd, 4).floats(), 0);
        assertArrayEquals(new int[] {5, -6}, Tensor.of("t", new int[] {5, -6}, 2).ints());
        assertArrayEquals(new long[] {5, -6}, Tensor.of("t", new int[] {5, -6}, 2).longs());
        assertArrayEquals(new double[] {0.1}, Tensor.of("t", new double[] {0.1}, 1).doubles(), 0);
        assertArrayEquals(new String[] {"ü", ""}, Tensor.of("t", new String[] {"ü", ""}, 2).strings());
        assertTrue(Arrays.equals(new boolean[] {true}, Tensor.of("t", new boolean[] {true}, 1).booleans()));
        assertArrayEquals(new byte[] {-1}, Tensor.of("t", new byte[] {-1}, 1).bytesOf());
        assertArrayEquals(new byte[][] {{0, 1}, {}}, Tensor.of("t", new byte[][] {{0, 1}, {}}, 2).elements());
        assertEquals("t FP32[2, 1]", Tensor.of("t", new float[2], 2, 1).toString());
    }

    @Test
    public void unsignedNumbersAreNeverNegative() {
        assertArrayEquals(new int[] {255}, raw(Datatype.UINT8, "ff", 1).ints());
        assertArrayEquals(new int[] {-1}, raw(Datatype.INT8, "ff", 1).ints());
        assertArrayEquals(new int[] {65_535}, raw(Datatype.UINT16, "ffff", 1).ints());
        assertArrayEquals(new int[] {-1}, raw(Datatype.INT16, "ffff", 1).ints());
        assertArrayEquals(new long[] {4_294_967_295L}, raw(Datatype.UINT32, "ffffffff", 1).longs());
        assertEquals(new BigInteger("18446744073709551615"), raw(Datatype.UINT64, "ffffffffffffffff", 1).bigInteger(0));
        assertEquals(BigInteger.ONE.negate(), raw(Datatype.INT64, "ffffffffffffffff", 1).bigInteger(0));
    }

    @Test
    public void halfFloatsAreConverted() {
        float[] halves = {1, -2, 65_504, 0x1p-24f, Float.POSITIVE_INFINITY, -0f, 1.5f};
        assertArrayEquals(halves, raw(Datatype.FP16, "003c00c0ff7b0100007c0080003e", 7).floats(), 0);
        assertTrue(Float.isNaN(raw(Datatype.FP16, "017e", 1).floats()[0]));
        assertArrayEquals(new float[] {1, -2, 1.5f}, raw(Datatype.BF16, "803f00c0c03f", 3).floats(), 0);
    }

    @Test
    public void aBufferIsNotCopied() {
        ByteBuffer direct = ByteBuffer.allocateDirect(12).order(ByteOrder.BIG_ENDIAN);
        direct.position(4);
        Tensor tensor = Tensor.raw("t", Datatype.FP32, direct, 2);
        direct.put(6, (byte) 0x80).put(7, (byte) 0x3f);
        assertArrayEquals(new float[] {1, 0}, tensor.floats(), 0);
        assertEquals(4, direct.position());
        assertTrue(tensor.buffer().isReadOnly());
    }

    @Test
    public void wrongShapesAreRejected() {
        long[][] shapes = {{3}, {-1, -2}, {}, {2, 2}, {1L << 40, 1L << 40}, {Long.MAX_VALUE}, {0}};
        for (long[] shape : shapes) {
            try {
                Tensor.of("t", new float[2], shape);
                fail(Arrays.toString(shape));
            } catch (IllegalArgumentException expected) {
                assertTrue(expected.getMessage().contains("tensor t"));
            }
        }
        assertEquals(0, Tensor.of("t", new float[0], 0, 1L << 20).size());
        assertEquals(1, Tensor.of("t", new float[1]).size());
    }

    @Test
    public void wrongBytesAreRejected() {
        for (Datatype datatype : Datatype.values()) {
            try {
                raw(datatype, "00000000000000000000", 1 << 20);
                fail(datatype.toString());
            } catch (IllegalArgumentException expected) {
                assertTrue(expected.getMessage(), expected.getMessage().contains("do not fill"));
            }
        }
    }

    @Test
    public void damagedTextsAreReported() {
        String[] bad = {"02000000" + "61", "ffffffff", "01000000" + "61" + "00"};
        for (String hex : bad) {
            try {
                raw(Datatype.BYTES, hex, 1).elements();
                fail(hex);
            } catch (IllegalStateException expected) {
                assertTrue(expected.getMessage().contains("tensor t"));
            }
        }
    }

    @Test
    public void anotherDatatypeIsReported() {
        Tensor tensor = Tensor.of("t", new String[] {"a"}, 1);
        Runnable[] wrong = {
            tensor::floats, tensor::doubles, tensor::ints, tensor::longs, tensor::booleans, tensor::bytesOf,
            Tensor.of("t", new float[1], 1)::strings, () -> Tensor.of("t", new float[0], 0).ints(),
        };
        for (Runnable misuse : wrong) {
            try {
                misuse.run();
                fail("taken");
            } catch (IllegalStateException expected) {
                assertTrue(expected.getMessage().contains("which has no"));
            }
        }
    }
}
