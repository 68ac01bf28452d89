package dev.pocketserve.bridge;

import org.json.JSONException;
import org.json.JSONObject;

/**
 * Exchanges the ten digits that {@code pocketserve pair} shows for the server's token.
 *
 * <p>Neither the code nor the token is sent in clear text. Another app that listens on the server's port learns
 * nothing, and the call fails with {@link PocketServeException#NOT_OUR_SERVER}. Don't repeat the call automatically
 * then, or after {@code PAIRING_REFUSED}: each call lets the other side guess once.
 */
public final class Pairing {
    private Pairing() {
    }

    /**
     * Exchanges the code for the token, over HTTP. Blocks; not for Android's main thread.
     *
     * @param server the server's address and HTTP port; its token is not used
     * @param code ten digits as the user typed them; spaces and hyphens are ignored
     * @return the token; store it where other apps cannot read it
     * @throws PocketServeException {@code PAIRING_CLOSED} if no pairing is open, {@code PAIRING_REFUSED} for a wrong
     *     code, {@link PocketServeException#NOT_OUR_SERVER}, or no answer
     * @throws IllegalArgumentException if the code has neither ten digits nor six
     */
    public static String pair(PocketServe.Builder server, String code) throws PocketServeException {
        MainThread.find().refuse();
        PairingExchange exchange = new PairingExchange(code);
        Settings settings = new Settings(server, null);
        Deadline deadline = Deadline.in(settings.timeoutMs);
        Link link = new HttpLink(settings);
        try {
            JSONObject opening = post(link, deadline, "begin", "public", exchange.begin());
            byte[] serverPublic = bytes(opening, "public", PairingExchange.PUBLIC_BYTES, PairingExchange.PUBLIC_BYTES);
            byte[] salt = bytes(opening, "salt", PairingExchange.SALT_BYTES, PairingExchange.SALT_BYTES);
            byte[] proof = exchange.prove(salt, serverPublic);
            if (proof == null) {
                throw notOurServer(null);
            }
            byte[] identifier = bytes(opening, "exchange", PairingExchange.SALT_BYTES, PairingExchange.SALT_BYTES);
            JSONObject closing = post(link, deadline, "finish", "exchange", identifier, "proof", proof);
            String token = exchange.open(
                    bytes(closing, "proof", PairingExchange.PROOF_BYTES, PairingExchange.PROOF_BYTES),
                    bytes(closing, "token", 1, PairingExchange.MAX_TOKEN_BYTES));
            if (token == null) {
                throw notOurServer(null);
            }
            return token;
        } finally {
            link.close();
        }
    }

    private static JSONObject post(Link link, Deadline deadline, String step, Object... namesAndBytes)
            throws PocketServeException {
        JSONObject body = new JSONObject();
        try {
            for (int i = 0; i < namesAndBytes.length; i += 2) {
                body.put((String) namesAndBytes[i], hexadecimal((byte[]) namesAndBytes[i + 1]));
            }
        } catch (JSONException error) {
            throw new IllegalStateException("a text is always JSON", error);
        }
        Request request = Request.postJson("/pairing/" + step, body.toString()).once().withoutToken();
        return link.exchange(request, deadline, new Cancellation()).orThrow().object();
    }

    private static String hexadecimal(byte[] bytes) {
        StringBuilder digits = new StringBuilder(2 * bytes.length);
        for (byte each : bytes) {
            digits.append(Character.forDigit((each >> 4) & 0xf, 16)).append(Character.forDigit(each & 0xf, 16));
        }
        return digits.toString();
    }

    private static byte[] bytes(JSONObject answer, String name, int minimum, int maximum) throws PocketServeException {
        String digits = answer.optString(name);
        int length = digits.length() / 2;
        if (digits.length() % 2 != 0 || length < minimum || length > maximum || !digits.matches("[0-9a-fA-F]*")) {
            throw notOurServer("its answer has no valid " + name);
        }
        byte[] bytes = new byte[length];
        for (int i = 0; i < length; i++) {
            bytes[i] = (byte) Integer.parseInt(digits.substring(2 * i, 2 * i + 2), 16);
        }
        return bytes;
    }

    private static PocketServeException notOurServer(String reason) {
        String detail = reason == null ? "" : " (" + reason + ")";
        return PocketServeException.permanent(PocketServeException.NOT_OUR_SERVER,
                "the program that answered does not know the code, so it is not our server" + detail
                + "; find out which app has its port before you try again", null);
    }
}
