package dev.pocketserve.bridge;

/** The settings of a client. Immutable. */
final class Settings {
    /** The client name that is sent to servers. */
    static final String NAME = "pocketserve-java/" + PocketServe.VERSION;

    final String host;
    final int socketPort;
    final int httpPort;
    final String token;
    final int connectTimeoutMs;
    final int timeoutMs;
    final int pingIntervalMs;
    final int retries;
    final int reconnectMs;
    final int maxAnswerBytes;

    Settings(PocketServe.Builder from, String token) {
        this.host = from.host;
        this.socketPort = from.socketPort;
        this.httpPort = from.httpPort;
        this.token = token;
        this.connectTimeoutMs = from.connectTimeoutMs;
        this.timeoutMs = from.timeoutMs;
        this.pingIntervalMs = from.pingIntervalMs;
        this.retries = from.retries;
        this.reconnectMs = from.reconnectMs;
        this.maxAnswerBytes = from.maxAnswerBytes;
    }
}
