package dev.pocketserve.bridge.wire;

import java.nio.charset.Charset;
import java.util.Arrays;

/**
 * Decodes the frames of one connection. Not thread-safe.
 *
 * <p>Pass small frames to {@link #feed}. A large body can be received without a copy: while {@link #bodyMissing} is
 * above 0, read directly into {@link #body} at {@link #bodyOffset}, then call {@link #bodyReceived}.
 *
 * <p>Lengths are unsigned 32-bit numbers, kept as longs until they are checked against a limit. Memory is allocated
 * after that; beyond a megabyte, it grows with the received bytes.
 */
public final class FrameDecoder {
    private static final int MAX_EXT_BYTES = 4096;
    private static final int MAX_HANDSHAKE_BYTES = 4096;
    private static final int MAX_NOTICE_BYTES = 65_536;
    private static final Charset ASCII = Charset.forName("US-ASCII");
    private static final byte[] EMPTY = new byte[0];
    /** The buffer of a longer body doubles in steps, so it grows with the bytes received. */
    private static final int FIRST_BODY_BYTES = 1 << 20;

    /** The side whose bytes are read. */
    public enum Side {
        /** A client, which reads a server's frames. */
        CLIENT,
        /** A server, which reads a client's frames. */
        SERVER
    }

    private enum State { FIRST, SECOND, OPEN }

    private final Side side;
    private final long maxBody;
    private final byte[] head = new byte[FrameEncoder.HEADER_BYTES];
    private State state = State.FIRST;
    private int headFilled;
    private byte[] middle = EMPTY;
    private int middleFilled;
    private byte[] body;
    private int bodyLength;
    private int bodyFilled;
    private long skipping;
    private long lastRequestId;
    private Frame ready;

    /**
     * Starts at the beginning of a connection.
     *
     * @param side the reading side
     * @param maxBody the limit for the body of a REQUEST, RESPONSE or PART, in bytes; beyond it, FRAME_TOO_LARGE
     */
    public FrameDecoder(Side side, int maxBody) {
        this.side = side;
        this.maxBody = maxBody;
    }

    /** Skips the handshake, for tests of later frames. */
    public void skipHandshake() {
        state = State.OPEN;
    }

    /**
     * Returns whether a frame is incomplete.
     *
     * @return false between frames
     */
    public boolean midFrame() {
        return headFilled > 0;
    }

    /**
     * Reads bytes until a frame is complete or all are used. Get the frame with {@link #take} before the next call.
     *
     * @param bytes a buffer that contains them
     * @param offset where they start
     * @param length how many there are
     * @return the number of used bytes
     * @throws WireException if the peer violated the protocol; do not use the decoder afterwards
     */
    public int feed(byte[] bytes, int offset, int length) throws WireException {
        int at = offset;
        int end = offset + length;
        while (at < end && ready == null) {
            if (headFilled < head.length) {
                at += fillHead(bytes, at, end - at);
            } else if (skipping > 0) {
                int skipped = (int) Math.min(skipping, end - at);
                at += skipped;
                skipping -= skipped;
                finishSkipped();
            } else if (middleFilled < middle.length) {
                int count = Math.min(middle.length - middleFilled, end - at);
                System.arraycopy(bytes, at, middle, middleFilled, count);
                middleFilled += count;
                at += count;
                finishIfWhole();
            } else {
                int count = Math.min(bodyMissing(), end - at);
                System.arraycopy(bytes, at, body, bodyFilled, count);
                at += count;
                bodyReceived(count);
            }
        }
        return at - offset;
    }

    /** Returns the complete frame.
     *
     * @return null if there is none; each frame is returned once
     */
    public Frame take() {
        Frame frame = ready;
        ready = null;
        return frame;
    }

    /**
     * Returns the number of bytes that may be read into {@link #body} now. A large body takes several rounds.
     *
     * @return 0 if the decoder is not within a body
     */
    public int bodyMissing() {
        boolean within = body != null && middleFilled == middle.length;
        return within ? body.length - bodyFilled : 0;
    }

    /** Returns the buffer of the body that is being received.
     *
     * @return valid until the next call of {@link #bodyReceived}
     */
    public byte[] body() {
        return body;
    }

    /**
     * Returns the position of the body's next byte.
     *
     * @return an index of {@link #body}
     */
    public int bodyOffset() {
        return bodyFilled;
    }

    /** Records that bytes were read into the body.
     *
     * @param count their number
     * @throws WireException if the complete frame violates the protocol
     */
    public void bodyReceived(int count) throws WireException {
        bodyFilled += count;
        if (bodyFilled == body.length && bodyFilled < bodyLength) {
            body = grow(body, (int) Math.min(bodyLength, 2L * body.length));
        }
        finishIfWhole();
    }

    private int fillHead(byte[] bytes, int at, int length) throws WireException {
        int count = Math.min(head.length - headFilled, length);
        System.arraycopy(bytes, at, head, headFilled, count);
        headFilled += count;
        // Detects other protocols early.
        if (head[0] != 0x4f || headFilled > 1 && head[1] != 0x49) {
            throw new WireException(ConnectionFault.BAD_MARK, "a frame must start with the bytes 4f 49");
        }
        if (headFilled == head.length) {
            begin();
        }
        return count;
    }

    private void begin() throws WireException {
        int type = head[2] & 0xff;
        checkHeader(type);
        checkExpected(type);
        long extLength = u16(head, 14);
        if (type >= FrameType.FIRST_SKIPPED) {
            skipping = extLength + u32(head, 20);
            finishSkipped();
            return;
        }
        checkSize(type);
        middle = new byte[u16(head, 12) + (int) extLength];
        middleFilled = 0;
        bodyLength = (int) u32(head, 20);
        body = bodyLength == 0 ? EMPTY : grow(EMPTY, Math.min(bodyLength, FIRST_BODY_BYTES));
        bodyFilled = 0;
        finishIfWhole();
    }

    private static byte[] grow(byte[] body, int length) throws WireException {
        try {
            return Arrays.copyOf(body, length);
        } catch (OutOfMemoryError error) {
            throw new WireException(ConnectionFault.FRAME_TOO_LARGE, "no memory for a body of " + length + " bytes");
        }
    }

    private void checkHeader(int type) throws WireException {
        if (type < FrameType.FIRST_SKIPPED && !FrameType.isKnown(type)) {
            throw new WireException(ConnectionFault.UNKNOWN_FRAME, "unknown frame " + FrameType.name(type));
        }
        if (head[3] != 0) {
            throw bad("flags must be 0 in version 1");
        }
        if (type < FrameType.FIRST_SKIPPED) {
            checkId(type);
            checkArg(type, u32(head, 8));
        }
        checkTarget(type);
        boolean mayExtend = type >= FrameType.FIRST_SKIPPED || FrameType.hasExtensions(type);
        if (u16(head, 14) > (mayExtend ? MAX_EXT_BYTES : 0)) {
            throw bad("ext_len " + u16(head, 14) + " is too much for " + FrameType.name(type));
        }
        checkLengths(type, u32(head, 16), u32(head, 20));
    }

    private static void checkArg(int type, long arg) throws WireException {
        if (arg != 0 && !FrameType.hasArg(type)) {
            throw bad("arg must be 0 in " + FrameType.name(type));
        }
        if (type == FrameType.RESPONSE && (arg < 200 || arg > 599)) {
            throw bad("arg of RESPONSE is an HTTP status, not " + arg);
        }
    }

    private void checkId(int type) throws WireException {
        long id = u32(head, 4);
        if (FrameType.hasId(type) && id == 0) {
            throw badId(FrameType.name(type) + " needs a request_id above 0");
        }
        if (!FrameType.hasId(type) && type != FrameType.GOAWAY && id != 0) {
            throw badId("request_id must be 0 in " + FrameType.name(type));
        }
    }

    private void checkTarget(int type) throws WireException {
        int length = u16(head, 12);
        if (type == FrameType.REQUEST) {
            if (length == 0 || length > FrameEncoder.MAX_TARGET_BYTES) {
                throw bad("target_len must be between 1 and 1024, not " + length);
            }
        } else if (length != 0) {
            throw bad("target_len must be 0 in frames other than REQUEST");
        }
    }

    private static void checkLengths(int type, long json, long body) throws WireException {
        if (json > body) {
            throw bad("json_len exceeds body_len");
        }
        if (type >= FrameType.FIRST_SKIPPED) {
            if (body > MAX_NOTICE_BYTES) {
                throw tooLarge("a frame of unknown type may have 65536 bytes at most");
            }
            return;
        }
        if (FrameType.isEmpty(type) && body != 0) {
            throw bad(FrameType.name(type) + " has no body");
        }
        if (FrameType.isOnlyJson(type)) {
            if (json != body) {
                throw bad("json_len must equal body_len in " + FrameType.name(type));
            }
            int maximum = type <= FrameType.READY ? MAX_HANDSHAKE_BYTES - FrameEncoder.HEADER_BYTES : MAX_NOTICE_BYTES;
            if (body > maximum) {
                throw tooLarge("the body of " + FrameType.name(type) + " may have " + maximum + " bytes at most");
            }
        }
    }

    private void checkExpected(int type) throws WireException {
        boolean expected;
        if (state == State.OPEN) {
            expected = type >= FrameType.FIRST_SKIPPED || (side == Side.CLIENT ? fromServer(type) : fromClient(type));
        } else if (side == Side.CLIENT) {
            expected = type == FrameType.ERROR
                    || type == (state == State.FIRST ? FrameType.CHALLENGE : FrameType.READY);
        } else {
            expected = type == FrameType.ERROR || type == (state == State.FIRST ? FrameType.HELLO : FrameType.AUTH);
        }
        if (!expected) {
            throw new WireException(
                    ConnectionFault.UNEXPECTED_FRAME, FrameType.name(type) + " is not allowed here");
        }
        if (type == FrameType.REQUEST) {
            long id = u32(head, 4);
            if (id <= lastRequestId) {
                throw badId("request_id " + id + " follows " + lastRequestId + "; ids must increase");
            }
            lastRequestId = id;
        }
    }

    private static boolean fromServer(int type) {
        return type == FrameType.RESPONSE || type == FrameType.PART || type == FrameType.PING || type == FrameType.PONG
                || type == FrameType.GOAWAY || type == FrameType.ERROR;
    }

    private static boolean fromClient(int type) {
        return type == FrameType.REQUEST || type == FrameType.CANCEL || type == FrameType.PING
                || type == FrameType.PONG || type == FrameType.ERROR;
    }

    private void checkSize(int type) throws WireException {
        long length = u32(head, 20);
        if (state != State.OPEN && u16(head, 14) != 0) {
            throw bad("extensions are not allowed before READY");
        }
        // Before READY the peer is unauthenticated, so its frames may take one page of memory at most.
        long maximum = state != State.OPEN ? MAX_HANDSHAKE_BYTES - FrameEncoder.HEADER_BYTES
                : FrameType.isOnlyJson(type) ? MAX_NOTICE_BYTES : maxBody;
        if (length > maximum) {
            throw tooLarge("body_len " + length + " exceeds " + maximum);
        }
    }

    private void finishSkipped() {
        if (skipping == 0) {
            headFilled = 0;
        }
    }

    private void finishIfWhole() throws WireException {
        if (middleFilled < middle.length || bodyFilled < bodyLength) {
            return;
        }
        int type = head[2] & 0xff;
        int targetLength = u16(head, 12);
        Extensions extensions = Extensions.parse(middle, targetLength, middle.length - targetLength);
        String target = targetLength == 0 ? "" : new String(middle, 0, targetLength, ASCII);
        ready = new Frame(type, u32(head, 4), u32(head, 8), target, extensions, (int) u32(head, 16), body);
        body = null;
        middle = EMPTY;
        middleFilled = 0;
        headFilled = 0;
        if (state != State.OPEN && type != FrameType.ERROR) {
            state = state == State.FIRST ? State.SECOND : State.OPEN;
        }
    }

    static int u16(byte[] from, int at) {
        return (from[at] & 0xff) | (from[at + 1] & 0xff) << 8;
    }

    static long u32(byte[] from, int at) {
        return (u16(from, at) | (long) u16(from, at + 2) << 16) & 0xffffffffL;
    }

    private static WireException bad(String message) {
        return new WireException(ConnectionFault.BAD_FRAME, message);
    }

    private static WireException badId(String message) {
        return new WireException(ConnectionFault.BAD_REQUEST_ID, message);
    }

    private static WireException tooLarge(String message) {
        return new WireException(ConnectionFault.FRAME_TOO_LARGE, message);
    }
}
