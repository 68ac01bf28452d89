package dev.pocketserve.bridge.wire;

/** Numbers of the frame types, as ints, because a peer may send any of 256. */
public final class FrameType {
    /** Client: versions, nonce, limits. */
    public static final int HELLO = 0x01;
    /** Server: version, nonce, authentication method. */
    public static final int CHALLENGE = 0x02;
    /** Client: its proof. */
    public static final int AUTH = 0x03;
    /** Server: its proof and limits. */
    public static final int READY = 0x04;
    /** Client: one call. */
    public static final int REQUEST = 0x10;
    /** Server: the answer to one call. */
    public static final int RESPONSE = 0x11;
    /** Server: a part of the answer's body, before its RESPONSE. */
    public static final int PART = 0x12;
    /** Client: cancel a call. */
    public static final int CANCEL = 0x20;
    /** Both: request a PONG. */
    public static final int PING = 0x30;
    /** Both: answer a PING. */
    public static final int PONG = 0x31;
    /** Server: no new requests on this connection. */
    public static final int GOAWAY = 0x40;
    /** Both: the connection ends because of a fault. */
    public static final int ERROR = 0x41;
    /** The first type that receivers skip if they do not know it. */
    public static final int FIRST_SKIPPED = 0x80;

    private FrameType() {
    }

    static boolean isKnown(int type) {
        switch (type) {
            case HELLO: case CHALLENGE: case AUTH: case READY: case REQUEST: case RESPONSE:
            case PART: case CANCEL: case PING: case PONG: case GOAWAY: case ERROR:
                return true;
            default:
                return false;
        }
    }

    /** Types whose body is one JSON document and nothing else. */
    static boolean isOnlyJson(int type) {
        return type <= READY || type == GOAWAY || type == ERROR;
    }

    /** Types without a body. */
    static boolean isEmpty(int type) {
        return type == CANCEL || type == PING || type == PONG;
    }

    static boolean hasExtensions(int type) {
        return type == REQUEST || type == RESPONSE || type == GOAWAY || type == ERROR;
    }

    static boolean hasId(int type) {
        return type == REQUEST || type == RESPONSE || type == PART || type == CANCEL;
    }

    static boolean hasArg(int type) {
        return type == REQUEST || type == RESPONSE || type == PING || type == PONG || type == GOAWAY || type == ERROR;
    }

    /** Returns the name of a type for messages.
     *
     * @param type 0 to 255
     * @return such as {@code PING}, or {@code type 0x7f}
     */
    public static String name(int type) {
        switch (type) {
            case HELLO: return "HELLO";
            case CHALLENGE: return "CHALLENGE";
            case AUTH: return "AUTH";
            case READY: return "READY";
            case REQUEST: return "REQUEST";
            case RESPONSE: return "RESPONSE";
            case PART: return "PART";
            case CANCEL: return "CANCEL";
            case PING: return "PING";
            case PONG: return "PONG";
            case GOAWAY: return "GOAWAY";
            case ERROR: return "ERROR";
            default: return "type 0x" + Integer.toHexString(type);
        }
    }
}
