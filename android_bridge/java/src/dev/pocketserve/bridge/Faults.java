package dev.pocketserve.bridge;

import dev.pocketserve.bridge.wire.ConnectionFault;
import dev.pocketserve.bridge.wire.Frame;
import dev.pocketserve.bridge.wire.HandshakeException;
import dev.pocketserve.bridge.wire.StrictJson;
import dev.pocketserve.bridge.wire.WireException;
import java.io.IOException;
import java.util.Map;

/** Describes faults of the platform and the protocol in one sentence with the solution. */
final class Faults {
    private Faults() {
    }

    /** The connection could not be opened. */
    static PocketServeException connecting(String host, int port, Exception error) {
        String address = host + ":" + port;
        String text = causes(error);
        if (isForbidden(text) || error instanceof SecurityException) {
            return PocketServeException.permanent(PocketServeException.LOOPBACK_FORBIDDEN,
                    "Android forbids this app to connect to " + address + "; the manifest needs the permissions "
                    + "android.permission.INTERNET and, from Android 17, android.permission.USE_LOOPBACK_INTERFACE, "
                    + "the app that runs the server needs the latter, too, and both must be in the same profile",
                    error);
        }
        if (text.contains("Cleartext")) {
            return PocketServeException.permanent(PocketServeException.CLEARTEXT_FORBIDDEN,
                    "Android forbids plain HTTP to " + host + "; allow it for 127.0.0.1 in the app's network security "
                    + "configuration, or use Transport.SOCKET", error);
        }
        return PocketServeException.temporary(PocketServeException.SERVER_UNREACHABLE,
                "nothing answers at " + address + " (" + error.getMessage() + "); is the server running? Start it with "
                + "`pocketserve serve` and keep Termux from being stopped", error);
    }

    /** The peer accepted the connection but did not answer completely. */
    static PocketServeException silent(String host, int port, Throwable cause) {
        return PocketServeException.temporary(PocketServeException.SERVER_UNREACHABLE,
                "something accepts connections at " + host + ":" + port + " but does not answer; Android may have "
                + "frozen the server (open Termux, and take a wake lock there), or another program has its port",
                cause);
    }

    /** The peer closed the connection during the handshake. */
    static PocketServeException hungUp(String host, int port, IOException cause) {
        if (cause != null && isForbidden(causes(cause))) {
            return connecting(host, port, cause);
        }
        return PocketServeException.temporary(PocketServeException.SERVER_UNREACHABLE,
                "the program at " + host + ":" + port + " closed the connection during the handshake; is it the "
                + "server, and is that its socket port?", cause);
    }

    /** The peer violated the protocol during the handshake. */
    static PocketServeException handshake(String host, int port, WireException error) {
        if (error instanceof HandshakeException) {
            switch (((HandshakeException) error).getRefusal()) {
                case TOKEN_NEEDED:
                    return PocketServeException.permanent(
                            PocketServeException.TOKEN_UNKNOWN, error.getMessage(), error);
                case VERSION:
                    return PocketServeException.permanent(
                            PocketServeException.UNSUPPORTED_VERSION, error.getMessage(), error);
                case NOT_OUR_SERVER:
                    return PocketServeException.permanent(
                            PocketServeException.NOT_OUR_SERVER, error.getMessage(), error);
                default:
                    break;
            }
        }
        return PocketServeException.permanent(PocketServeException.NOT_OUR_SERVER,
                "the program at " + host + ":" + port + " does not speak Pocketserve's socket protocol ("
                + error.getMessage() + "); is that the server's socket port?", error);
    }

    /** The peer sent ERROR. */
    static PocketServeException reported(Frame frame) {
        ConnectionFault fault = ConnectionFault.numbered(frame.arg());
        String text = "";
        if (fault == null) {
            fault = ConnectionFault.INTERNAL;
        }
        try {
            Map<String, Object> content = StrictJson.object(frame.body());
            if (content.get("error") instanceof String) {
                text = Answer.shorten((String) content.get("error"));
            }
        } catch (IllegalArgumentException unreadable) {
            // The number is enough.
            text = "";
        }
        if (fault == ConnectionFault.UNAUTHORIZED) {
            return PocketServeException.permanent(PocketServeException.TOKEN_UNKNOWN,
                    "the server does not know this token; use the one that `pocketserve token` prints", null);
        }
        if (fault == ConnectionFault.UNSUPPORTED_VERSION) {
            return PocketServeException.permanent(PocketServeException.UNSUPPORTED_VERSION,
                    "server and library speak different versions of the socket protocol; update the older one "
                    + "(" + text + ")", null);
        }
        String detail = fault.name() + (text.isEmpty() ? "" : ", " + text);
        switch (fault) {
            case TIMEOUT:
            case INTERNAL:
            case SLOW_READER:
                // As codes of calls, TIMEOUT and INTERNAL mean something else.
                return connectionLost(detail, null);
            case TOO_MANY_CONNECTIONS:
                return PocketServeException.temporary(fault.name(), "the server is at its limit: " + text, null);
            default:
                return PocketServeException.permanent(fault.name(), "the server ended the connection: " + detail, null);
        }
    }

    static PocketServeException connectionLost(String reason, Throwable cause) {
        return PocketServeException.temporary(PocketServeException.CONNECTION_LOST,
                "the connection to the server broke before the answer arrived (" + reason + ")", cause);
    }

    static PocketServeException closed() {
        return PocketServeException.permanent(PocketServeException.CLOSED, "this client was closed", null);
    }

    static PocketServeException interrupted(InterruptedException error) {
        Thread.currentThread().interrupt();
        return Cancellation.cancelled(error);
    }

    private static boolean isForbidden(String text) {
        return text.contains("EPERM") || text.contains("Operation not permitted") || text.contains("EACCES")
                || text.contains("Permission denied");
    }

    private static String causes(Throwable error) {
        StringBuilder text = new StringBuilder();
        int depth = 0;
        for (Throwable each = error; each != null && depth < 10; each = each.getCause()) {
            text.append(each.getMessage()).append('\n');
            depth++;
        }
        return text.toString();
    }
}
