package dev.pocketserve.bridge;

import dev.pocketserve.bridge.wire.Extensions;
import java.nio.ByteBuffer;
import java.nio.charset.Charset;

/** A request for either transport. Its body is in pieces, so that tensors are sent without a copy. */
final class Request {
    static final Charset UTF_8 = Charset.forName("UTF-8");
    private static final String UNRESERVED = "-._~";
    private static final ByteBuffer[] NO_BODY = new ByteBuffer[0];

    final String method;
    final String path;
    /** Method and path, as the socket sends them; ASCII. */
    final String target;
    final String contentType;
    final int jsonLength;
    final int bodyLength;
    private final ByteBuffer[] body;
    private boolean idempotent = true;
    private boolean open;
    private boolean fallsBack;
    private PartReceiver receiver;

    private Request(String method, String path, String contentType, int jsonLength, ByteBuffer... body) {
        Extensions.contentType(contentType); // rejects invalid types on the caller's thread
        this.method = method;
        this.path = path;
        this.target = method + " " + path;
        this.contentType = contentType;
        this.jsonLength = jsonLength;
        this.body = body;
        long length = 0;
        for (ByteBuffer piece : body) {
            length += piece.remaining();
        }
        if (length > Integer.MAX_VALUE) {
            throw new IllegalArgumentException("a request of " + length + " bytes cannot be sent");
        }
        this.bodyLength = (int) length;
    }

    static Request get(String path) {
        return new Request("GET", path, null, 0, NO_BODY);
    }

    static Request postJson(String path, String json) {
        byte[] bytes = json.getBytes(UTF_8);
        return new Request("POST", path, "application/json", bytes.length, ByteBuffer.wrap(bytes));
    }

    static Request postRaw(String path, byte[] bytes, String contentType) {
        return new Request("POST", path, contentType, 0, ByteBuffer.wrap(bytes));
    }

    /** Sets a body in pieces. */
    static Request post(String path, String contentType, ByteBuffer... body) {
        return new Request("POST", path, contentType, 0, body);
    }

    /** Sets a body of JSON, followed by raw tensors. */
    static Request postTensors(String path, int jsonLength, ByteBuffer... body) {
        return new Request("POST", path, "application/octet-stream", jsonLength, body);
    }

    /** Marks a call that must not run twice. */
    Request once() {
        idempotent = false;
        return this;
    }

    /** Marks a call that needs no token. */
    Request withoutToken() {
        open = true;
        return this;
    }

    /** Marks a call that another server with the same models may answer. */
    Request allowFallback() {
        fallsBack = true;
        return this;
    }

    /** Sets the receiver of a successful answer's body while it arrives. */
    Request streamTo(PartReceiver taker) {
        receiver = taker;
        return this;
    }

    /** Returns the receiver of the body while it arrives, or null. */
    PartReceiver receiver() {
        return receiver;
    }

    boolean mayFallBack() {
        return fallsBack;
    }

    boolean isIdempotent() {
        return idempotent;
    }

    boolean needsToken() {
        return !open;
    }

    /** Returns whether raw bytes follow JSON in the body. */
    boolean isMixed() {
        return jsonLength > 0 && jsonLength < bodyLength;
    }

    /** Returns the pieces of the body, each with its own position. */
    ByteBuffer[] body() {
        ByteBuffer[] copies = new ByteBuffer[body.length];
        for (int i = 0; i < body.length; i++) {
            copies[i] = body[i].duplicate();
        }
        return copies;
    }

    /** Percent-encodes a segment of a path, or a value of a query. */
    static String encode(String text) {
        StringBuilder encoded = new StringBuilder(text.length() + 8);
        for (byte each : text.getBytes(UTF_8)) {
            char character = (char) (each & 0xff);
            boolean plain = character < 0x80
                    && (Character.isLetterOrDigit(character) || UNRESERVED.indexOf(character) >= 0);
            if (plain) {
                encoded.append(character);
            } else {
                encoded.append('%').append(Character.toUpperCase(Character.forDigit(character >> 4, 16)))
                        .append(Character.toUpperCase(Character.forDigit(character & 0xf, 16)));
            }
        }
        return encoded.toString();
    }
}
