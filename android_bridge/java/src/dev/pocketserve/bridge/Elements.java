package dev.pocketserve.bridge;

import java.math.BigInteger;
import java.nio.ByteBuffer;

/** Converts the elements of one tensor to arrays, once; {@link Tensor} lists the datatypes of each method. */
final class Elements {
    private final String name;
    private final Datatype datatype;
    private final int size;
    /** Little-endian, with its own position. */
    private final ByteBuffer data;

    Elements(Tensor tensor) {
        this.name = tensor.getName();
        this.datatype = tensor.getDatatype();
        this.size = tensor.size();
        this.data = tensor.bytes();
    }

    float[] floats() {
        float[] values = new float[size];
        switch (datatype) {
            case FP32:
                data.asFloatBuffer().get(values);
                return values;
            case FP16:
            case BF16:
                for (int i = 0; i < values.length; i++) {
                    short bits = data.getShort(2 * i);
                    values[i] = datatype == Datatype.BF16 ? Float.intBitsToFloat(bits << 16) : half(bits);
                }
                return values;
            default:
                throw not("floats");
        }
    }

    private static float half(short bits) {
        int exponent = (bits >> 10) & 0x1f;
        int fraction = bits & 0x3ff;
        float size;
        if (exponent == 0) {
            size = fraction * 0x1p-24f;
        } else if (exponent == 31) {
            size = fraction == 0 ? Float.POSITIVE_INFINITY : Float.NaN;
        } else {
            size = Float.intBitsToFloat((exponent + 112) << 23 | fraction << 13);
        }
        return bits < 0 ? -size : size;
    }

    double[] doubles() {
        if (datatype != Datatype.FP64) {
            throw not("doubles");
        }
        double[] values = new double[size];
        data.asDoubleBuffer().get(values);
        return values;
    }

    int[] ints() {
        int[] values = new int[size];
        if (datatype == Datatype.INT32) {
            data.asIntBuffer().get(values);
            return values;
        }
        for (int i = 0; i < values.length; i++) {
            values[i] = small(i);
        }
        if (values.length == 0 && datatype.elementBytes() > 2) {
            throw not("ints");
        }
        return values;
    }

    private int small(int index) {
        switch (datatype) {
            case INT8: return data.get(index);
            case UINT8: return data.get(index) & 0xff;
            case INT16: return data.getShort(2 * index);
            case UINT16: return data.getShort(2 * index) & 0xffff;
            default: throw not("ints");
        }
    }

    long[] longs() {
        long[] values = new long[size];
        switch (datatype) {
            case INT64:
            case UINT64:
                data.asLongBuffer().get(values);
                return values;
            case INT32:
            case UINT32:
                long mask = datatype == Datatype.UINT32 ? 0xffffffffL : -1L;
                for (int i = 0; i < values.length; i++) {
                    values[i] = data.getInt(4 * i) & mask;
                }
                return values;
            default:
                throw not("longs");
        }
    }

    BigInteger bigInteger(int index) {
        if (datatype != Datatype.UINT64 && datatype != Datatype.INT64) {
            throw not("big integers");
        }
        BigInteger value = BigInteger.valueOf(data.getLong(8 * index));
        boolean wrapped = datatype == Datatype.UINT64 && value.signum() < 0;
        return wrapped ? value.add(BigInteger.ONE.shiftLeft(64)) : value;
    }

    byte[] bytesOf() {
        if (datatype != Datatype.UINT8 && datatype != Datatype.INT8) {
            throw not("bytes");
        }
        byte[] values = new byte[size];
        data.get(values);
        return values;
    }

    boolean[] booleans() {
        if (datatype != Datatype.BOOL) {
            throw not("booleans");
        }
        boolean[] values = new boolean[size];
        for (int i = 0; i < values.length; i++) {
            values[i] = data.get(i) != 0;
        }
        return values;
    }

    byte[][] elements() {
        if (datatype != Datatype.BYTES) {
            throw not("elements");
        }
        byte[][] values = new byte[size][];
        for (int i = 0; i < values.length; i++) {
            long length = data.remaining() < 4 ? -1 : data.getInt() & 0xffffffffL;
            if (length < 0 || length > data.remaining()) {
                throw new IllegalStateException("tensor " + name + ": element " + i + " exceeds the tensor's bytes");
            }
            values[i] = new byte[(int) length];
            data.get(values[i]);
        }
        if (data.hasRemaining()) {
            throw new IllegalStateException("tensor " + name + ": bytes follow its last element");
        }
        return values;
    }

    String[] strings() {
        byte[][] raw = elements();
        String[] values = new String[raw.length];
        for (int i = 0; i < raw.length; i++) {
            values[i] = new String(raw[i], Request.UTF_8);
        }
        return values;
    }

    private IllegalStateException not(String kind) {
        return new IllegalStateException("tensor " + name + " is " + datatype + ", which has no " + kind);
    }
}
