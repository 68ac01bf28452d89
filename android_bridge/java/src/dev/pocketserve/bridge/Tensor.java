package dev.pocketserve.bridge;

import java.io.ByteArrayOutputStream;
import java.math.BigInteger;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;

/**
 * A named array of numbers or texts with a datatype and a shape, in row-major order.
 *
 * <p>Factories copy their array once into the bytes that are sent; {@link #raw} copies nothing. Accessors copy out.
 */
public final class Tensor {
    private final String name;
    private final Datatype datatype;
    private final long[] shape;
    private final ByteBuffer data;

    private Tensor(String name, Datatype datatype, ByteBuffer data, long[] shape) {
        if (name == null || name.isEmpty()) {
            throw new IllegalArgumentException("a tensor needs a name");
        }
        this.name = name;
        this.datatype = datatype;
        this.shape = shape.clone();
        this.data = data;
    }

    /**
     * A tensor of bytes as they are sent, for FP16, BF16 and for buffers that exist already. Nothing is copied, so the
     * buffer must not be changed while the tensor is in use.
     *
     * @param name the input's name
     * @param datatype what the bytes are
     * @param data little-endian elements from the buffer's position to its limit; BYTES elements each with their
     *     length in front as 4 bytes
     * @param shape the size of each dimension; none for a single value
     * @return the tensor
     */
    public static Tensor raw(String name, Datatype datatype, ByteBuffer data, long... shape) {
        ByteBuffer bytes = data.slice().order(ByteOrder.LITTLE_ENDIAN);
        long count = elements(name, shape);
        boolean fits = datatype == Datatype.BYTES
                ? 4 * count <= bytes.remaining() : count * datatype.elementBytes() == bytes.remaining();
        if (!fits) {
            throw new IllegalArgumentException("tensor " + name + ": " + bytes.remaining() + " bytes do not fill shape "
                    + Arrays.toString(shape) + " of " + datatype);
        }
        return new Tensor(name, datatype, bytes, shape);
    }

    /**
     * FP32.
     *
     * @param name the input's name
     * @param values the elements
     * @param shape the size of each dimension
     * @return the tensor
     */
    public static Tensor of(String name, float[] values, long... shape) {
        ByteBuffer data = allocate(name, values.length, Datatype.FP32, shape);
        data.asFloatBuffer().put(values);
        return new Tensor(name, Datatype.FP32, data, shape);
    }

    /**
     * FP64.
     *
     * @param name the input's name
     * @param values the elements
     * @param shape the size of each dimension
     * @return the tensor
     */
    public static Tensor of(String name, double[] values, long... shape) {
        ByteBuffer data = allocate(name, values.length, Datatype.FP64, shape);
        data.asDoubleBuffer().put(values);
        return new Tensor(name, Datatype.FP64, data, shape);
    }

    /**
     * INT32.
     *
     * @param name the input's name
     * @param values the elements
     * @param shape the size of each dimension
     * @return the tensor
     */
    public static Tensor of(String name, int[] values, long... shape) {
        ByteBuffer data = allocate(name, values.length, Datatype.INT32, shape);
        data.asIntBuffer().put(values);
        return new Tensor(name, Datatype.INT32, data, shape);
    }

    /**
     * INT64.
     *
     * @param name the input's name
     * @param values the elements
     * @param shape the size of each dimension
     * @return the tensor
     */
    public static Tensor of(String name, long[] values, long... shape) {
        ByteBuffer data = allocate(name, values.length, Datatype.INT64, shape);
        data.asLongBuffer().put(values);
        return new Tensor(name, Datatype.INT64, data, shape);
    }

    /**
     * INT16.
     *
     * @param name the input's name
     * @param values the elements
     * @param shape the size of each dimension
     * @return the tensor
     */
    public static Tensor of(String name, short[] values, long... shape) {
        ByteBuffer data = allocate(name, values.length, Datatype.INT16, shape);
        data.asShortBuffer().put(values);
        return new Tensor(name, Datatype.INT16, data, shape);
    }

    /**
     * UINT8, which is what pixels are: the byte -1 stands for 255.
     *
     * @param name the input's name
     * @param values the elements
     * @param shape the size of each dimension
     * @return the tensor
     */
    public static Tensor of(String name, byte[] values, long... shape) {
        ByteBuffer data = allocate(name, values.length, Datatype.UINT8, shape);
        data.duplicate().put(values);
        return new Tensor(name, Datatype.UINT8, data, shape);
    }

    /**
     * BOOL.
     *
     * @param name the input's name
     * @param values the elements
     * @param shape the size of each dimension
     * @return the tensor
     */
    public static Tensor of(String name, boolean[] values, long... shape) {
        ByteBuffer data = allocate(name, values.length, Datatype.BOOL, shape);
        for (int i = 0; i < values.length; i++) {
            data.put(i, (byte) (values[i] ? 1 : 0));
        }
        return new Tensor(name, Datatype.BOOL, data, shape);
    }

    /**
     * BYTES of texts, sent as UTF-8.
     *
     * @param name the input's name
     * @param values the elements
     * @param shape the size of each dimension
     * @return the tensor
     */
    public static Tensor of(String name, String[] values, long... shape) {
        byte[][] encoded = new byte[values.length][];
        for (int i = 0; i < values.length; i++) {
            encoded[i] = values[i].getBytes(Request.UTF_8);
        }
        return of(name, encoded, shape);
    }

    /**
     * BYTES of anything.
     *
     * @param name the input's name
     * @param values the elements
     * @param shape the size of each dimension
     * @return the tensor
     */
    public static Tensor of(String name, byte[][] values, long... shape) {
        checkCount(name, values.length, shape);
        ByteArrayOutputStream all = new ByteArrayOutputStream();
        for (byte[] value : values) {
            for (int shift = 0; shift < 32; shift += 8) {
                all.write(value.length >>> shift);
            }
            all.write(value, 0, value.length);
        }
        return new Tensor(name, Datatype.BYTES, ordered(ByteBuffer.wrap(all.toByteArray())), shape);
    }

    private static ByteBuffer allocate(String name, int count, Datatype datatype, long[] shape) {
        checkCount(name, count, shape);
        long bytes = (long) count * datatype.elementBytes();
        if (bytes > Integer.MAX_VALUE) {
            throw new IllegalArgumentException("tensor " + name + ": " + bytes + " bytes cannot be sent");
        }
        return ordered(ByteBuffer.allocate((int) bytes));
    }

    private static ByteBuffer ordered(ByteBuffer buffer) {
        return buffer.order(ByteOrder.LITTLE_ENDIAN);
    }

    private static void checkCount(String name, int count, long[] shape) {
        if (elements(name, shape) != count) {
            throw new IllegalArgumentException("tensor " + name + ": shape " + Arrays.toString(shape) + " has not "
                    + count + " elements");
        }
    }

    /** The product of the dimensions, which is 1 for none; bounded so that it cannot overflow. */
    static long elements(String name, long[] shape) {
        long count = 1;
        for (long size : shape) {
            if (size < 0 || size > Integer.MAX_VALUE || (size > 0 && count > Integer.MAX_VALUE / size)) {
                throw new IllegalArgumentException(
                        "tensor " + name + ": shape " + Arrays.toString(shape) + " is negative or too large");
            }
            count *= size;
        }
        return count;
    }

    /**
     * The input's or output's name.
     *
     * @return never empty
     */
    public String getName() {
        return name;
    }

    /**
     * What the elements are.
     *
     * @return never null
     */
    public Datatype getDatatype() {
        return datatype;
    }

    /**
     * The size of each dimension.
     *
     * @return a copy; empty for a single value
     */
    public long[] getShape() {
        return shape.clone();
    }

    /**
     * How many elements there are.
     *
     * @return the product of the shape
     */
    public int size() {
        return (int) elements(name, shape);
    }

    /**
     * The elements' own bytes, little-endian.
     *
     * @return a read-only view at position 0
     */
    public ByteBuffer buffer() {
        return ordered(data.asReadOnlyBuffer());
    }

    /** The bytes to send, which may show their array. */
    ByteBuffer bytes() {
        return ordered(data.duplicate());
    }

    /**
     * The elements of FP32, or of FP16 and BF16 made wider, which loses nothing.
     *
     * @return in row-major order
     * @throws IllegalStateException for other datatypes
     */
    public float[] floats() {
        float[] values = new float[size()];
        switch (datatype) {
            case FP32:
                bytes().asFloatBuffer().get(values);
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

    /**
     * The elements of FP64.
     *
     * @return in row-major order
     * @throws IllegalStateException for other datatypes
     */
    public double[] doubles() {
        if (datatype != Datatype.FP64) {
            throw not("doubles");
        }
        double[] values = new double[size()];
        bytes().asDoubleBuffer().get(values);
        return values;
    }

    /**
     * The elements of INT8, UINT8, INT16, UINT16 or INT32 by their value: unsigned ones are never negative.
     *
     * @return in row-major order
     * @throws IllegalStateException for other datatypes
     */
    public int[] ints() {
        int[] values = new int[size()];
        if (datatype == Datatype.INT32) {
            bytes().asIntBuffer().get(values);
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

    /**
     * The elements of INT64, INT32 or UINT32 by their value, and those of UINT64 as their 64 bits: one from 2^63 on
     * shows as negative, see {@link #bigInteger}.
     *
     * @return in row-major order
     * @throws IllegalStateException for other datatypes
     */
    public long[] longs() {
        long[] values = new long[size()];
        switch (datatype) {
            case INT64:
            case UINT64:
                bytes().asLongBuffer().get(values);
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

    /**
     * One element of UINT64 or INT64 by its value.
     *
     * @param index in row-major order
     * @return never negative for UINT64
     * @throws IllegalStateException for other datatypes
     */
    public BigInteger bigInteger(int index) {
        BigInteger value = BigInteger.valueOf(longs()[index]);
        boolean wrapped = datatype == Datatype.UINT64 && value.signum() < 0;
        return wrapped ? value.add(BigInteger.ONE.shiftLeft(64)) : value;
    }

    /**
     * The elements of UINT8 or INT8 as they are: the byte -1 of UINT8 stands for 255.
     *
     * @return in row-major order
     * @throws IllegalStateException for other datatypes
     */
    public byte[] bytesOf() {
        if (datatype != Datatype.UINT8 && datatype != Datatype.INT8) {
            throw not("bytes");
        }
        byte[] values = new byte[size()];
        bytes().get(values);
        return values;
    }

    /**
     * The elements of BOOL.
     *
     * @return in row-major order
     * @throws IllegalStateException for other datatypes
     */
    public boolean[] booleans() {
        if (datatype != Datatype.BOOL) {
            throw not("booleans");
        }
        boolean[] values = new boolean[size()];
        for (int i = 0; i < values.length; i++) {
            values[i] = data.get(i) != 0;
        }
        return values;
    }

    /**
     * The elements of BYTES.
     *
     * @return in row-major order
     * @throws IllegalStateException for other datatypes, or when the lengths do not add up
     */
    public byte[][] elements() {
        if (datatype != Datatype.BYTES) {
            throw not("elements");
        }
        byte[][] values = new byte[size()][];
        ByteBuffer rest = bytes();
        for (int i = 0; i < values.length; i++) {
            long length = rest.remaining() < 4 ? -1 : rest.getInt() & 0xffffffffL;
            if (length < 0 || length > rest.remaining()) {
                throw new IllegalStateException("tensor " + name + ": element " + i + " is longer than what is there");
            }
            values[i] = new byte[(int) length];
            rest.get(values[i]);
        }
        if (rest.hasRemaining()) {
            throw new IllegalStateException("tensor " + name + ": bytes are left behind its last element");
        }
        return values;
    }

    /**
     * The elements of BYTES as UTF-8 texts.
     *
     * @return in row-major order
     * @throws IllegalStateException for other datatypes, or when the lengths do not add up
     */
    public String[] strings() {
        byte[][] raw = elements();
        String[] values = new String[raw.length];
        for (int i = 0; i < raw.length; i++) {
            values[i] = new String(raw[i], Request.UTF_8);
        }
        return values;
    }

    private IllegalStateException not(String wanted) {
        return new IllegalStateException("tensor " + name + " is " + datatype + ", which has no " + wanted);
    }

    @Override
    public String toString() {
        return name + " " + datatype + Arrays.toString(shape);
    }
}
