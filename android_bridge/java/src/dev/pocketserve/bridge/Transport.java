package dev.pocketserve.bridge;

/** The way on which a client reaches its server. */
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
     * The socket, and HTTP where nothing listens on the socket's port. A server that fails to prove itself on the
     * socket is never asked by HTTP. Any app may take the HTTP port while the server is dead and would get the token,
     * so a client that has one only does this after {@link PocketServe.Builder#httpFallback}.
     */
    AUTO
}
