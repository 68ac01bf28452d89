package dev.pocketserve.bridge;

import java.net.ConnectException;

/** The socket; HTTP where nothing listens on the socket's port. */
final class AutoLink implements Link {
    private final Link socket;
    private final Link http;

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
            // Only a port that nobody has: one that answers wrongly may be a stranger's, who would get the token.
            boolean refused = PocketServeException.SERVER_UNREACHABLE.equals(error.getCode())
                    && error.getCause() instanceof ConnectException;
            if (!refused) {
                throw error;
            }
        }
        return http.exchange(request, deadline, cancellation);
    }

    @Override
    public void close() {
        socket.close();
        http.close();
    }
}
