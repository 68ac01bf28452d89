package dev.pocketserve.bridge;

/** The transport between a client and its server. */
public enum Transport {
    /**
     * The binary protocol. Fastest, and the only one in which the server proves that it knows the token before
     * anything is sent to it.
     */
    SOCKET,
    /**
     * HTTP. The token is sent with each request, so any app that listens on the port learns it. Needs a network
     * security configuration that allows cleartext to 127.0.0.1 on Android 9 and newer.
     */
    HTTP,
    /**
     * The socket, or HTTP if nothing listens on the socket's port. If a server fails to prove itself on the socket,
     * HTTP is not used. While the server is not running, any app may take the HTTP port and would get the token, so a
     * client with a token uses HTTP only after {@link PocketServe.Builder#httpFallback}.
     */
    AUTO
}
