package dev.pocketserve.bridge;

/** The element types of the Open Inference Protocol. */
public enum Datatype {
    /** A byte, 0 or 1. */
    BOOL(1),
    /** Unsigned, 1 byte. */
    UINT8(1),
    /** Unsigned, 2 bytes. */
    UINT16(2),
    /** Unsigned, 4 bytes. */
    UINT32(4),
    /** Unsigned, 8 bytes. */
    UINT64(8),
    /** Signed, 1 byte. */
    INT8(1),
    /** Signed, 2 bytes. */
    INT16(2),
    /** Signed, 4 bytes. */
    INT32(4),
    /** Signed, 8 bytes. */
    INT64(8),
    /** IEEE 754 half precision. */
    FP16(2),
    /** The upper half of an FP32. */
    BF16(2),
    /** IEEE 754 single precision. */
    FP32(4),
    /** IEEE 754 double precision. */
    FP64(8),
    /** Texts or other byte strings, each preceded by its length. */
    BYTES(0);

    private final int bytes;

    Datatype(int bytes) {
        this.bytes = bytes;
    }

    /**
     * The size of one element.
     *
     * @return bytes; 0 for {@link #BYTES}, whose elements differ
     */
    public int elementBytes() {
        return bytes;
    }
}
