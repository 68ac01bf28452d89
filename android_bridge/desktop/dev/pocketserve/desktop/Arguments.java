package dev.pocketserve.desktop;

import dev.pocketserve.bridge.PocketServe;
import dev.pocketserve.bridge.PocketServeException;
import dev.pocketserve.bridge.Transport;
import java.io.File;
import java.util.HashMap;
import java.util.Locale;
import java.util.Map;

/** A command line of options with one value each, and at most one argument. */
final class Arguments {
    private final Map<String, String> values = new HashMap<>();
    private String plain;

    /** An invalid command line; the message has the reason. */
    static final class UsageException extends Exception {
        private static final long serialVersionUID = 1L;

        UsageException(String message) {
            super(message);
        }
    }

    /** Reads a command line; {@code known} are the options without their dashes. */
    static Arguments parse(String[] words, String... known) throws UsageException {
        Arguments parsed = new Arguments();
        for (int i = 0; i < words.length; i++) {
            if (!words[i].startsWith("--")) {
                if (parsed.plain != null) {
                    throw new UsageException("there is more than one folder: " + words[i]);
                }
                parsed.plain = words[i];
                continue;
            }
            String name = words[i].substring(2);
            boolean isKnown = false;
            for (String each : known) {
                isKnown |= each.equals(name);
            }
            if (!isKnown) {
                throw new UsageException("there is no option --" + name);
            }
            if (i + 1 == words.length) {
                throw new UsageException("--" + name + " needs a value");
            }
            i++;
            parsed.values.put(name, words[i]);
        }
        return parsed;
    }

    String plain() {
        return plain;
    }

    String text(String name, String standard) {
        String value = values.get(name);
        return value == null ? standard : value;
    }

    int number(String name, int standard) throws UsageException {
        String value = values.get(name);
        try {
            return value == null ? standard : Integer.parseInt(value);
        } catch (NumberFormatException error) {
            throw new UsageException("--" + name + " must be a whole number, not " + value);
        }
    }

    Transport transport() throws UsageException {
        String value = text("transport", "socket").toUpperCase(Locale.ROOT);
        if (!value.equals("SOCKET") && !value.equals("HTTP")) {
            throw new UsageException("--transport must be socket or http");
        }
        return Transport.valueOf(value);
    }

    /** Builds the client from --port, --transport and --token-file. */
    PocketServe client() throws UsageException, PocketServeException {
        Transport transport = transport();
        boolean http = transport == Transport.HTTP;
        int port = number("port", http ? PocketServe.HTTP_PORT : PocketServe.SOCKET_PORT);
        PocketServe.Builder builder = PocketServe.builder().transport(transport);
        try {
            builder = http ? builder.httpPort(port) : builder.socketPort(port);
        } catch (IllegalArgumentException error) {
            throw new UsageException("--port: " + error.getMessage());
        }
        String tokenFile = text("token-file", null);
        return (tokenFile == null ? builder : builder.tokenFile(new File(tokenFile))).build();
    }
}
