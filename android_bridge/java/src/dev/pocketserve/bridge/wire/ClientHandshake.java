package dev.pocketserve.bridge.wire;

import java.nio.charset.Charset;
import java.security.GeneralSecurityException;
import java.security.MessageDigest;
import java.util.Map;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

/**
 * The client's half of the handshake. Each side proves that it knows the token, and neither sends it.
 *
 * <p>Send {@link #hello}; answer the CHALLENGE with {@link #answerChallenge}; check the READY with {@link
 * #acceptReady}. A client with a token sends only these frames to a peer that fails to prove that it knows the token.
 */
public final class ClientHandshake {
    /** The version of the protocol that this client speaks. */
    public static final int VERSION = 1;

    private static final Charset ASCII = Charset.forName("US-ASCII");
    private static final long MAX_U32 = 0xffffffffL;
    private static final String UNPROVEN =
            "the program on the port could not prove that it knows the token: it is another app, or a server "
            + "with another token; no request was sent to it";

    private final byte[] key;
    private final byte[] hello;
    private byte[] transcriptHash = new byte[0];

    /**
     * Prepares one handshake.
     *
     * @param token the token's text; null for a client that has none
     * @param nonce 16 random bytes, never used before
     * @param maxFrame bytes of the largest body that this client takes
     * @param name the client's name and version for the server's log: letters, digits and {@code / . -}; empty for none
     */
    public ClientHandshake(String token, byte[] nonce, long maxFrame, String name) {
        this(token, nonce, maxFrame, name, false);
    }

    /**
     * Prepares one handshake.
     *
     * @param token the token's text; null for a client that has none
     * @param nonce 16 random bytes, never used before
     * @param maxFrame bytes of the largest body that this client takes
     * @param name as in the other constructor
     * @param takesParts whether answers may come in PART frames
     */
    public ClientHandshake(String token, byte[] nonce, long maxFrame, String name, boolean takesParts) {
        this.key = token == null ? null : token.getBytes(ASCII);
        String client = name.isEmpty() ? "" : ",\"client\":\"" + name + "\"";
        String parts = takesParts ? ",\"parts\":true" : "";
        String offer = "{\"v\":[1,1],\"nonce\":\"" + hex(nonce) + "\",\"max_frame\":" + maxFrame + client + parts + "}";
        this.hello = FrameEncoder.jsonFrame(FrameType.HELLO, 0, 0, offer.getBytes(ASCII));
    }

    /**
     * The frame to send first.
     *
     * @return a whole frame
     */
    public byte[] hello() {
        return hello.clone();
    }

    /**
     * Answers a CHALLENGE.
     *
     * @param challenge the received frame
     * @return the AUTH frame
     * @throws HandshakeException if the server is rejected, or speaks another version
     */
    public byte[] answerChallenge(Frame challenge) throws HandshakeException {
        Map<String, Object> content = document(challenge);
        long version = number(content, "v", 0);
        if (version != VERSION) {
            throw new HandshakeException(ConnectionFault.UNSUPPORTED_VERSION, HandshakeException.Refusal.VERSION,
                    "the server speaks version " + version + " of the socket protocol, this library version " + VERSION
                    + "; update the older one");
        }
        hex(content, "nonce", 32);
        checkAuth(content.get("auth"));
        transcriptHash = transcript(hello, FrameEncoder.jsonFrame(FrameType.CHALLENGE, 0, 0, challenge.body()));
        String auth = key == null ? "{}" : "{\"proof\":\"" + clientProof(key, transcriptHash) + "\"}";
        return FrameEncoder.jsonFrame(FrameType.AUTH, 0, 0, auth.getBytes(ASCII));
    }

    private void checkAuth(Object auth) throws HandshakeException {
        if ("hmac-sha256".equals(auth)) {
            if (key == null) {
                throw new HandshakeException(ConnectionFault.UNAUTHORIZED, HandshakeException.Refusal.TOKEN_NEEDED,
                        "the server asks for a token and this client has none; `pocketserve token` prints it");
            }
        } else if (!"none".equals(auth)) {
            throw malformed("auth must be hmac-sha256 or none");
        } else if (key != null) {
            throw notOurServer("the program on the port does not ask for the token: it is another app, or a server "
                    + "that runs with --no-auth (then use no token); no request was sent to it");
        }
    }

    /**
     * Checks a READY.
     *
     * @param ready the received frame
     * @return the server's limits
     * @throws HandshakeException if the server did not prove that it knows the token, or the frame is invalid
     */
    public ConnectionLimits acceptReady(Frame ready) throws HandshakeException {
        Map<String, Object> content = document(ready);
        if (key != null) {
            Object proof = content.get("proof");
            byte[] presented = proof instanceof String ? ((String) proof).getBytes(ASCII) : new byte[0];
            // Constant time, so that a peer cannot find the proof byte by byte.
            if (!MessageDigest.isEqual(serverProof(key, transcriptHash).getBytes(ASCII), presented)) {
                throw notOurServer(UNPROVEN);
            }
        }
        Object server = content.get("server");
        return new ConnectionLimits(
                number(content, "max_frame", 1), number(content, "max_inflight", 1),
                number(content, "max_bytes_inflight", 1), number(content, "idle_ms", 1),
                server instanceof String ? (String) server : "");
    }

    /**
     * Returns the transcript that the proofs cover: a hash of both frames with their headers.
     *
     * @param hello the whole HELLO frame
     * @param challenge the whole CHALLENGE frame
     * @return 32 bytes
     */
    public static byte[] transcript(byte[] hello, byte[] challenge) {
        try {
            MessageDigest digest = MessageDigest.getInstance("SHA-256");
            digest.update(hello);
            return digest.digest(challenge);
        } catch (GeneralSecurityException error) {
            throw new IllegalStateException("every Java platform has SHA-256", error);
        }
    }

    /** Returns the proof for AUTH.
     *
     * @param key the token's bytes
     * @param transcript see {@link #transcript}
     * @return 64 hexadecimal digits
     */
    public static String clientProof(byte[] key, byte[] transcript) {
        return proof(key, "OI1 client\0", transcript);
    }

    /** Returns the proof for READY.
     *
     * @param key the token's bytes
     * @param transcript see {@link #transcript}
     * @return 64 hexadecimal digits
     */
    public static String serverProof(byte[] key, byte[] transcript) {
        return proof(key, "OI1 server\0", transcript);
    }

    private static String proof(byte[] key, String label, byte[] transcript) {
        try {
            Mac mac = Mac.getInstance("HmacSHA256");
            mac.init(new SecretKeySpec(key, "HmacSHA256"));
            mac.update(label.getBytes(ASCII));
            return hex(mac.doFinal(transcript));
        } catch (GeneralSecurityException error) {
            throw new IllegalStateException("every Java platform has HmacSHA256", error);
        }
    }

    private static Map<String, Object> document(Frame frame) throws HandshakeException {
        try {
            return StrictJson.object(frame.body());
        } catch (IllegalArgumentException error) {
            throw malformed(error.getMessage());
        }
    }

    private static long number(Map<String, Object> content, String name, long minimum) throws HandshakeException {
        Object value = content.get(name);
        if (!(value instanceof Long) || (Long) value < minimum || (Long) value > MAX_U32) {
            throw malformed(name + " must be a whole number from " + minimum + " to " + MAX_U32);
        }
        return (Long) value;
    }

    private static void hex(Map<String, Object> content, String name, int digits) throws HandshakeException {
        Object value = content.get(name);
        if (!(value instanceof String) || !((String) value).matches("[0-9a-f]{" + digits + "}")) {
            throw malformed(name + " must be " + digits + " lower-case hexadecimal digits");
        }
    }

    static String hex(byte[] bytes) {
        StringBuilder text = new StringBuilder(2 * bytes.length);
        for (byte each : bytes) {
            text.append(Character.forDigit((each >> 4) & 0xf, 16)).append(Character.forDigit(each & 0xf, 16));
        }
        return text.toString();
    }

    private static HandshakeException notOurServer(String message) {
        return new HandshakeException(
                ConnectionFault.UNAUTHORIZED, HandshakeException.Refusal.NOT_OUR_SERVER, message);
    }

    private static HandshakeException malformed(String message) {
        return new HandshakeException(ConnectionFault.BAD_HANDSHAKE, HandshakeException.Refusal.BROKEN,
                "the handshake is invalid: " + message);
    }
}
