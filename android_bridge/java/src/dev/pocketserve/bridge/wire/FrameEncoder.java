package dev.pocketserve.bridge.wire;

import java.nio.charset.Charset;

/** Encodes frames. */
public final class FrameEncoder {
    /** The size of a frame's header in bytes. */
    public static final int HEADER_BYTES = 24;
    /** The longest target of a REQUEST in bytes. */
    public static final int MAX_TARGET_BYTES = 1024;

    private static final Charset ASCII = Charset.forName("US-ASCII");
    private static final byte[] EMPTY = new byte[0];

    private FrameEncoder() {
    }

    /**
     * Encodes header, target and extensions of a REQUEST; the body follows them.
     *
     * @param requestId from 1 to 2^32 - 1
     * @param deadlineMs remaining milliseconds; 0 for the server's default
     * @param target ASCII, such as {@code POST /predictions/digits?top_k=3}
     * @param contentType the body's, or null
     * @param jsonLength bytes of JSON at the body's start
     * @param bodyLength bytes of the body
     * @param spare free bytes at the end, for a body that is sent in the same write
     * @return an array of the head's length plus {@code spare}
     */
    public static byte[] requestHead(
            long requestId, long deadlineMs, String target, String contentType, int jsonLength, int bodyLength,
            int spare) {
        byte[] path = target.getBytes(ASCII);
        if (path.length == 0 || path.length > MAX_TARGET_BYTES) {
            throw new IllegalArgumentException(
                    "the target has " + path.length + " bytes; the limit is " + MAX_TARGET_BYTES);
        }
        byte[] ext = Extensions.contentType(contentType);
        byte[] head = new byte[HEADER_BYTES + path.length + ext.length + spare];
        putHeader(head, FrameType.REQUEST, requestId, deadlineMs, path.length, ext.length, jsonLength, bodyLength);
        System.arraycopy(path, 0, head, HEADER_BYTES, path.length);
        System.arraycopy(ext, 0, head, HEADER_BYTES + path.length, ext.length);
        return head;
    }

    /** Encodes a frame whose body is one JSON document.
     *
     * @param type a constant of {@link FrameType}
     * @param requestId the request, or 0
     * @param arg a reason, or 0
     * @param json the body
     * @return the frame's bytes
     */
    public static byte[] jsonFrame(int type, long requestId, long arg, byte[] json) {
        byte[] frame = new byte[HEADER_BYTES + json.length];
        putHeader(frame, type, requestId, arg, 0, 0, json.length, json.length);
        System.arraycopy(json, 0, frame, HEADER_BYTES, json.length);
        return frame;
    }

    /** Encodes a frame without a body: CANCEL, PING or PONG.
     *
     * @param type a constant of {@link FrameType}
     * @param requestId the request of a CANCEL, else 0
     * @param arg the number that PONG repeats, else 0
     * @return the frame's bytes
     */
    public static byte[] emptyFrame(int type, long requestId, long arg) {
        return jsonFrame(type, requestId, arg, EMPTY);
    }

    /**
     * Writes a header.
     *
     * @param to at least 24 bytes; the header goes to its start
     * @param type the frame's type
     * @param requestId unsigned 32 bits
     * @param arg unsigned 32 bits
     * @param targetLength bytes of the target
     * @param extLength bytes of the extensions
     * @param jsonLength bytes of JSON at the body's start
     * @param bodyLength bytes of the body
     */
    public static void putHeader(
            byte[] to, int type, long requestId, long arg, int targetLength, int extLength, int jsonLength,
            int bodyLength) {
        to[0] = 0x4f;
        to[1] = 0x49;
        to[2] = (byte) type;
        to[3] = 0;
        putU32(to, 4, requestId);
        putU32(to, 8, arg);
        to[12] = (byte) targetLength;
        to[13] = (byte) (targetLength >>> 8);
        to[14] = (byte) extLength;
        to[15] = (byte) (extLength >>> 8);
        putU32(to, 16, jsonLength);
        putU32(to, 20, bodyLength);
    }

    private static void putU32(byte[] to, int at, long value) {
        to[at] = (byte) value;
        to[at + 1] = (byte) (value >>> 8);
        to[at + 2] = (byte) (value >>> 16);
        to[at + 3] = (byte) (value >>> 24);
    }
}
