package dev.pocketserve.sample.pure;

import java.io.UnsupportedEncodingException;
import java.net.URLDecoder;
import java.util.regex.Pattern;

/**
 * A pasted or imported text: a bare token, or the address of a QR code such as {@code
 * pocketserve://pair?http=8470&socket=8471&token=...}. Unknown parts are ignored.
 */
public final class TokenText {
    /** Longer texts are rejected. */
    public static final int MAX_LENGTH = 1024;
    private static final Pattern TOKEN = Pattern.compile("[A-Za-z0-9_-]{32,256}");
    private static final String ADDRESS = "pocketserve://pair?";

    public final String token;
    /** 0 if the text doesn't have it. */
    public final int httpPort;
    /** 0 if the text doesn't have it. */
    public final int socketPort;

    private TokenText(String token, int httpPort, int socketPort) {
        this.token = token;
        this.httpPort = httpPort;
        this.socketPort = socketPort;
    }

    /** Returns the token in a text, or null. */
    public static TokenText read(String text) {
        if (text == null || text.length() > MAX_LENGTH) {
            return null;
        }
        String trimmed = text.trim();
        if (TOKEN.matcher(trimmed).matches()) {
            return new TokenText(trimmed, 0, 0);
        }
        return fromAddress(trimmed);
    }

    /** Reads the text of a QR code; null if it is not a server's address. A bare token is not an address. */
    public static TokenText fromAddress(String text) {
        boolean address = text.length() <= MAX_LENGTH && text.startsWith(ADDRESS);
        return address ? address(text.substring(ADDRESS.length())) : null;
    }

    private static TokenText address(String query) {
        String token = null;
        int http = 0;
        int socket = 0;
        for (String part : query.split("&")) {
            int equals = part.indexOf('=');
            if (equals < 0) {
                continue;
            }
            String name = part.substring(0, equals);
            String value = decoded(part.substring(equals + 1));
            if (value == null) {
                return null;
            } else if (name.equals("token")) {
                token = value;
            } else if (name.equals("http")) {
                http = port(value);
            } else if (name.equals("socket")) {
                socket = port(value);
            }
        }
        if (token == null || !TOKEN.matcher(token).matches() || http < 0 || socket < 0) {
            return null;
        }
        return new TokenText(token, http, socket);
    }

    private static String decoded(String text) {
        try {
            return URLDecoder.decode(text, "UTF-8");
        } catch (UnsupportedEncodingException | IllegalArgumentException error) {
            return null;
        }
    }

    /** A port from 1 to 65535; -1 for anything else. */
    public static int port(String text) {
        if (!text.matches("[0-9]{1,5}")) {
            return -1;
        }
        int port = Integer.parseInt(text);
        return port >= 1 && port <= 65_535 ? port : -1;
    }
}
