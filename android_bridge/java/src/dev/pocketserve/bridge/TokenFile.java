package dev.pocketserve.bridge;

import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.FileInputStream;
import java.io.IOException;
import java.io.InputStream;

/** Reads and checks tokens. */
final class TokenFile {
    private static final int MAX_BYTES = 4096;

    private TokenFile() {
    }

    static String read(File file) throws PocketServeException {
        ByteArrayOutputStream content = new ByteArrayOutputStream();
        try (InputStream in = new FileInputStream(file)) {
            byte[] chunk = new byte[MAX_BYTES];
            int count = in.read(chunk);
            while (count >= 0 && content.size() <= MAX_BYTES) {
                content.write(chunk, 0, count);
                count = in.read(chunk);
            }
        } catch (IOException error) {
            throw PocketServeException.permanent(PocketServeException.TOKEN_UNREADABLE,
                    "the token file " + file + " cannot be read (" + error.getMessage() + "); on Android an app cannot "
                    + "read the files of Termux, so give it the token that `pocketserve token` prints", error);
        }
        String token = new String(content.toByteArray(), Request.UTF_8).trim();
        if (token.isEmpty() || content.size() > MAX_BYTES || !isPrintable(token)) {
            throw PocketServeException.permanent(PocketServeException.TOKEN_UNREADABLE,
                    "the file " + file + " holds no token", null);
        }
        return token;
    }

    /** Checks a token that was passed as text; null stays null. */
    static String check(String text) {
        if (text == null) {
            return null;
        }
        String token = text.trim();
        if (token.isEmpty() || !isPrintable(token)) {
            throw new IllegalArgumentException("a token is printable ASCII and not empty");
        }
        return token;
    }

    private static boolean isPrintable(String token) {
        for (int i = 0; i < token.length(); i++) {
            if (token.charAt(i) <= ' ' || token.charAt(i) > '~') {
                return false;
            }
        }
        return true;
    }
}
