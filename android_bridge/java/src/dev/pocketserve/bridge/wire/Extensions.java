package dev.pocketserve.bridge.wire;

import java.nio.charset.Charset;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.Map;

/** The extensions of one frame: values by tag. Immutable. */
public final class Extensions {
    /** u32: milliseconds to wait before a retry. */
    public static final int RETRY_AFTER_MS = 1;
    /** ASCII: the body's content type. */
    public static final int CONTENT_TYPE = 2;
    /** No extensions. */
    public static final Extensions NONE = new Extensions(Collections.<Integer, byte[]>emptyMap());

    static final int CRITICAL = 0x80;
    private static final int MAX_CONTENT_TYPE = 128;
    private static final Charset ASCII = Charset.forName("US-ASCII");

    private final Map<Integer, byte[]> values;

    private Extensions(Map<Integer, byte[]> values) {
        this.values = values;
    }

    /**
     * Reads extensions.
     *
     * @param data a buffer that contains them
     * @param offset where they start
     * @param length their number of bytes
     * @return the values by tag
     * @throws WireException BAD_FRAME for inconsistent lengths, a repeated tag, or an invalid value of a known tag
     */
    public static Extensions parse(byte[] data, int offset, int length) throws WireException {
        if (length == 0) {
            return NONE;
        }
        Map<Integer, byte[]> parsed = new LinkedHashMap<>();
        int end = offset + length;
        int at = offset;
        while (at < end) {
            if (end - at < 3) {
                throw bad("the extensions end within a tag or length");
            }
            int tag = data[at] & 0xff;
            int size = (data[at + 1] & 0xff) | (data[at + 2] & 0xff) << 8;
            at += 3;
            if (size > end - at) {
                throw bad("extension " + tag + " exceeds ext_len");
            }
            byte[] value = new byte[size];
            System.arraycopy(data, at, value, 0, size);
            if (parsed.put(tag, value) != null) {
                throw bad("extension " + tag + " is repeated");
            }
            at += size;
        }
        Extensions read = new Extensions(parsed);
        read.check();
        return read;
    }

    private void check() throws WireException {
        byte[] retry = values.get(RETRY_AFTER_MS);
        if (retry != null && retry.length != 4) {
            throw bad("extension 1 (retry_after_ms) must have 4 bytes");
        }
        byte[] type = values.get(CONTENT_TYPE);
        if (type == null) {
            return;
        }
        boolean good = type.length > 0 && type.length <= MAX_CONTENT_TYPE;
        for (byte each : type) {
            good &= each >= 0x20 && each <= 0x7e;
        }
        if (!good) {
            throw bad("extension 2 (content_type) must be printable ASCII of 1 to " + MAX_CONTENT_TYPE + " bytes");
        }
    }

    private static WireException bad(String message) {
        return new WireException(ConnectionFault.BAD_FRAME, message);
    }

    /** Returns all values by tag, in the received order.
     *
     * @return read-only
     */
    public Map<Integer, byte[]> values() {
        return Collections.unmodifiableMap(values);
    }

    /**
     * Milliseconds after which trying again makes sense.
     *
     * @return -1 if the frame does not state it
     */
    public long retryAfterMs() {
        byte[] value = values.get(RETRY_AFTER_MS);
        return value == null ? -1 : FrameDecoder.u32(value, 0);
    }

    /**
     * The body's content type.
     *
     * @return null if the frame does not state it
     */
    public String contentType() {
        byte[] value = values.get(CONTENT_TYPE);
        return value == null ? null : new String(value, ASCII);
    }

    /** Returns an unknown critical tag.
     *
     * @return the tag, or -1 if there is none
     */
    public int unknownCritical() {
        for (int tag : values.keySet()) {
            if ((tag & CRITICAL) != 0) {
                return tag;
            }
        }
        return -1;
    }

    /** Encodes the extension content_type.
     *
     * @param type ASCII; null gives no bytes
     * @return tag, length and value
     * @throws IllegalArgumentException if it is too long or not ASCII
     */
    public static byte[] contentType(String type) {
        if (type == null || type.isEmpty()) {
            return new byte[0];
        }
        byte[] value = type.getBytes(ASCII);
        boolean good = value.length <= MAX_CONTENT_TYPE;
        for (int i = 0; i < type.length(); i++) {
            good &= type.charAt(i) >= ' ' && type.charAt(i) <= '~';
        }
        if (!good) {
            throw new IllegalArgumentException(
                    "a content type is printable ASCII of at most " + MAX_CONTENT_TYPE + " characters");
        }
        byte[] ext = new byte[3 + value.length];
        ext[0] = CONTENT_TYPE;
        ext[1] = (byte) value.length;
        System.arraycopy(value, 0, ext, 3, value.length);
        return ext;
    }
}
