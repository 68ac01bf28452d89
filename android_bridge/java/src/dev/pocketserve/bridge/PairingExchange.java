package dev.pocketserve.bridge;

import java.math.BigInteger;
import java.nio.ByteBuffer;
import java.nio.charset.Charset;
import java.security.GeneralSecurityException;
import java.security.MessageDigest;
import java.security.SecureRandom;
import java.util.Arrays;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

/**
 * The client's half of pairing, without a connection: SRP-6a of RFC 5054 with its 2048-bit group and SHA-256, so that
 * a code of ten digits suffices to get the token, and an app that took the server's port learns neither.
 *
 * <p>Call {@link #begin}, {@link #prove} and {@link #open} in this order, once. The Python tests use the same
 * vectors.
 */
final class PairingExchange {
    static final int PUBLIC_BYTES = 256;
    static final int SALT_BYTES = 16;
    static final int PROOF_BYTES = 32;
    static final int MAX_TOKEN_BYTES = 256;
    private static final int SECRET_BITS = 256;
    private static final Charset ASCII = Charset.forName("US-ASCII");
    private static final BigInteger MODULUS = new BigInteger(
            "AC6BDB41324A9A9BF166DE5E1389582FAF72B6651987EE07FC3192943DB56050A37329CBB4A099ED8193E0757767A13D"
            + "D52312AB4B03310DCD7F48A9DA04FD50E8083969EDB767B0CF6095179A163AB3661A05FBD5FAAAE82918A9962F0B93B8"
            + "55F97993EC975EEAA80D740ADBF4FF747359D041D5C33EA71D281E446B14773BCA97B43A23FB801676BD207A436C6481"
            + "F1D2B9078717461A5B9D32E688F87748544523B524B0D57D5EA77A2775D2ECFA032CFBDBF52FB3786160279004E57AE6"
            + "AF874E7303CE53299CCC041C7BC308D82A5698F3A8D0C38271AE35F8E9DBFBB694B5C803D89F7AE435DE236D525F5475"
            + "9B65E372FCD68EF20FA7111F9E4AFF73", 16);
    private static final BigInteger GENERATOR = BigInteger.valueOf(2);

    private final byte[] code;
    private final BigInteger secret;
    private final BigInteger clientPublic;
    private byte[] key;
    private byte[] transcript;
    private byte[] proof;

    /**
     * Begins with a fresh secret.
     *
     * @param code the code as typed; spaces and hyphens are ignored
     * @throws IllegalArgumentException if it has neither ten digits nor six, as on older servers
     */
    PairingExchange(String code) {
        this(code, new BigInteger(SECRET_BITS, new SecureRandom()).setBit(SECRET_BITS - 1));
    }

    /** Begins with a given secret, for tests. */
    PairingExchange(String code, BigInteger secret) {
        this.code = clean(code).getBytes(ASCII);
        this.secret = secret;
        this.clientPublic = GENERATOR.modPow(secret, MODULUS);
    }

    private static String clean(String input) {
        StringBuilder digits = new StringBuilder(10);
        for (int i = 0; i < input.length(); i++) {
            char each = input.charAt(i);
            if (each >= '0' && each <= '9') {
                digits.append(each);
            } else if (!Character.isWhitespace(each) && each != '-') {
                digits.setLength(0);
                break;
            }
        }
        if (digits.length() != 10 && digits.length() != 6) {
            throw new IllegalArgumentException("a pairing code has 10 digits, or 6 digits on older servers");
        }
        return digits.toString();
    }

    /** Returns our public number. */
    byte[] begin() {
        return pad(clientPublic);
    }

    /**
     * Proves that we know the code.
     *
     * @param salt 16 bytes
     * @param serverPublic the server's public number
     * @return 32 bytes, or null if the number would reveal the code: that is not our server
     */
    byte[] prove(byte[] salt, byte[] serverPublic) {
        BigInteger server = new BigInteger(1, serverPublic);
        if (server.signum() == 0 || server.compareTo(MODULUS) >= 0) {
            return null;
        }
        BigInteger scrambler = number(pad(clientPublic), pad(server));
        if (scrambler.signum() == 0) {
            return null;
        }
        BigInteger password = number(salt, sha256("pocketserve:".getBytes(ASCII), code));
        BigInteger multiplier = number(pad(MODULUS), pad(GENERATOR));
        BigInteger base = server.subtract(multiplier.multiply(GENERATOR.modPow(password, MODULUS))).mod(MODULUS);
        BigInteger shared = base.modPow(secret.add(scrambler.multiply(password)), MODULUS);
        key = sha256(pad(shared));
        transcript = join(salt, pad(clientPublic), pad(server));
        proof = mac("client", transcript);
        return proof.clone();
    }

    /**
     * Opens the token, once the server has proven that it knows the code too.
     *
     * @return null if the proof or the token is invalid: that is not our server
     */
    String open(byte[] serverProof, byte[] sealed) {
        if (key == null) {
            throw new IllegalStateException("call prove() first");
        }
        if (!MessageDigest.isEqual(serverProof, mac("server", join(transcript, proof, sealed)))) {
            return null;
        }
        byte[] token = new byte[sealed.length];
        byte[] stream = null;
        for (int i = 0; i < sealed.length; i++) {
            if (i % PROOF_BYTES == 0) {
                stream = mac("token", ByteBuffer.allocate(4).putInt(i / PROOF_BYTES).array());
            }
            token[i] = (byte) (sealed[i] ^ stream[i % PROOF_BYTES]);
        }
        String text = new String(token, ASCII);
        return text.matches("[A-Za-z0-9_-]{32,256}") ? text : null;
    }

    private byte[] mac(String label, byte[] data) {
        try {
            Mac mac = Mac.getInstance("HmacSHA256");
            mac.init(new SecretKeySpec(key, "HmacSHA256"));
            mac.update(("pocketserve pairing 1 " + label + '\0').getBytes(ASCII));
            return mac.doFinal(data);
        } catch (GeneralSecurityException error) {
            throw new IllegalStateException("every Java has HmacSHA256", error);
        }
    }

    private static byte[] sha256(byte[]... parts) {
        try {
            return MessageDigest.getInstance("SHA-256").digest(join(parts));
        } catch (GeneralSecurityException error) {
            throw new IllegalStateException("every Java has SHA-256", error);
        }
    }

    private static BigInteger number(byte[]... parts) {
        return new BigInteger(1, sha256(parts));
    }

    /** Encodes a number as unsigned big-endian bytes with the modulus's length. */
    private static byte[] pad(BigInteger number) {
        byte[] bytes = number.toByteArray();
        byte[] padded = new byte[PUBLIC_BYTES];
        int length = Math.min(bytes.length, PUBLIC_BYTES); // a leading zero byte is for the sign only
        System.arraycopy(bytes, bytes.length - length, padded, PUBLIC_BYTES - length, length);
        return padded;
    }

    private static byte[] join(byte[]... parts) {
        byte[] joined = new byte[0];
        for (byte[] part : parts) {
            int end = joined.length;
            joined = Arrays.copyOf(joined, end + part.length);
            System.arraycopy(part, 0, joined, end, part.length);
        }
        return joined;
    }
}
