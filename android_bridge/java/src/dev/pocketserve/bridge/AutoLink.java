package dev.pocketserve.bridge;

import java.net.ConnectException;

/** The socket, or HTTP if nothing listens on the socket's port and HTTP may be used. */
final class AutoLink implements Link {
    private final Link socket;
    private final Link http;

    /** Creates the link; {@code http} is null if HTTP is not allowed. */
    AutoLink(Link socket, Link http) {
        this.socket = socket;
        this.http = http;
    }

    @Override
    public Answer exchange(Request request, Deadline deadline, Cancellation cancellation)
            throws PocketServeException {
        try {
            return socket.exchange(request, deadline, cancellation);
        } catch (PocketServeException error) {
            // Only if nothing listens: otherwise another app may have the port, and would get the token.
            boolean connectionRefused = PocketServeException.SERVER_UNREACHABLE.equals(error.getCode())
                    && error.getCause() instanceof ConnectException;
            if (!connectionRefused) {
                throw error;
            }
            if (http == null) {
                throw PocketServeException.temporary(error.getCode(),
                        error.getMessage() + "; HTTP was not tried, since whoever has its port would get the token: "
                        + "httpFallback(true) allows that", error.getCause());
            }
        }
        return http.exchange(request, deadline, cancellation);
    }

    @Override
    public void close() {
        socket.close();
        if (http != null) {
            http.close();
        }
    }
}
