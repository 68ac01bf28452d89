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
     * Returns a tensor of raw bytes, for FP16, BF16 and existing buffers. Nothing is copied, so don't change the buffer
     * while the tensor is in use.
     *
     * @param name the input's name
     * @param datatype the datatype of the elements
     * @param data little-endian elements from the buffer's position to its limit; each BYTES element is preceded by its
     *     length in 4 bytes
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
        Tensor tensor = zeros(name, Datatype.FP32, values.length, shape);
        tensor.data.asFloatBuffer().put(values);
        return tensor;
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
        Tensor tensor = zeros(name, Datatype.FP64, values.length, shape);
        tensor.data.asDoubleBuffer().put(values);
        return tensor;
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
        Tensor tensor = zeros(name, Datatype.INT32, values.length, shape);
        tensor.data.asIntBuffer().put(values);
        return tensor;
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
        Tensor tensor = zeros(name, Datatype.INT64, values.length, shape);
        tensor.data.asLongBuffer().put(values);
        return tensor;
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
        Tensor tensor = zeros(name, Datatype.INT16, values.length, shape);
        tensor.data.asShortBuffer().put(values);
        return tensor;
    }

    /**
     * UINT8, the datatype of pixels: the byte -1 means 255.
     *
     * @param name the input's name
     * @param values the elements
     * @param shape the size of each dimension
     * @return the tensor
     */
    public static Tensor of(String name, byte[] values, long... shape) {
        Tensor tensor = zeros(name, Datatype.UINT8, values.length, shape);
        tensor.data.duplicate().put(values);
        return tensor;
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
        Tensor tensor = zeros(name, Datatype.BOOL, values.length, shape);
        for (int i = 0; i < values.length; i++) {
            tensor.data.put(i, (byte) (values[i] ? 1 : 0));
        }
        return tensor;
    }

    /** BYTES with texts, sent as UTF-8.
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

    /** BYTES with any contents.
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

    /** Allocates space for the elements. */
    private static Tensor zeros(String name, Datatype datatype, int count, long[] shape) {
        checkCount(name, count, shape);
        long bytes = (long) count * datatype.elementBytes();
        if (bytes > Integer.MAX_VALUE) {
            throw new IllegalArgumentException("tensor " + name + ": " + bytes + " bytes cannot be sent");
        }
        return new Tensor(name, datatype, ordered(ByteBuffer.allocate((int) bytes)), shape);
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

    /** Returns the product of the dimensions (1 for none); bounded so that it cannot overflow. */
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
     * Returns the datatype of the elements.
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
     * Returns the number of elements.
     *
     * @return the product of the shape
     */
    public int size() {
        return (int) elements(name, shape);
    }

    /** Returns the elements' bytes, little-endian.
     *
     * @return a read-only view at position 0
     */
    public ByteBuffer buffer() {
        return ordered(data.asReadOnlyBuffer());
    }

    /** Returns the bytes to send. */
    ByteBuffer bytes() {
        return ordered(data.duplicate());
    }

    /** Returns the elements of FP32, or those of FP16 and BF16 converted without loss.
     *
     * @return in row-major order
     * @throws IllegalStateException for other datatypes
     */
    public float[] floats() {
        return new Elements(this).floats();
    }

    /**
     * The elements of FP64.
     *
     * @return in row-major order
     * @throws IllegalStateException for other datatypes
     */
    public double[] doubles() {
        return new Elements(this).doubles();
    }

    /**
     * Returns the values of INT8, UINT8, INT16, UINT16 or INT32; unsigned ones are never negative.
     *
     * @return in row-major order
     * @throws IllegalStateException for other datatypes
     */
    public int[] ints() {
        return new Elements(this).ints();
    }

    /**
     * Returns the values of INT64, INT32 or UINT32, and the 64 bits of UINT64: values from 2^63 on are negative, see
     * {@link #bigInteger}.
     *
     * @return in row-major order
     * @throws IllegalStateException for other datatypes
     */
    public long[] longs() {
        return new Elements(this).longs();
    }

    /** Returns the value of one UINT64 or INT64 element.
     *
     * @param index in row-major order
     * @return never negative for UINT64
     * @throws IllegalStateException for other datatypes
     */
    public BigInteger bigInteger(int index) {
        return new Elements(this).bigInteger(index);
    }

    /** Returns the bytes of UINT8 or INT8; -1 means 255 for UINT8.
     *
     * @return in row-major order
     * @throws IllegalStateException for other datatypes
     */
    public byte[] bytesOf() {
        return new Elements(this).bytesOf();
    }

    /**
     * The elements of BOOL.
     *
     * @return in row-major order
     * @throws IllegalStateException for other datatypes
     */
    public boolean[] booleans() {
        return new Elements(this).booleans();
    }

    /**
     * The elements of BYTES.
     *
     * @return in row-major order
     * @throws IllegalStateException for other datatypes, or when the lengths do not add up
     */
    public byte[][] elements() {
        return new Elements(this).elements();
    }

    /**
     * The elements of BYTES as UTF-8 texts.
     *
     * @return in row-major order
     * @throws IllegalStateException for other datatypes, or when the lengths do not add up
     */
    public String[] strings() {
        return new Elements(this).strings();
    }

    @Override
    public String toString() {
        return name + " " + datatype + Arrays.toString(shape);
    }
}
