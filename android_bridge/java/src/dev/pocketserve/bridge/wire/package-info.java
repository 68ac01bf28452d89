/**
 * The socket protocol without a socket: bytes to frames, frames to bytes, and the client's half of the handshake.
 *
 * <p>Nothing here opens a connection, waits or starts a thread, so every rule can be tested with bytes alone.
 * Applications have no need of this package; {@link dev.pocketserve.bridge.PocketServe} uses it.
 */
package dev.pocketserve.bridge.wire;
