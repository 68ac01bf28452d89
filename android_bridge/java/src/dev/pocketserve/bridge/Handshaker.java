package dev.pocketserve.bridge;

import dev.pocketserve.bridge.wire.ClientHandshake;
import dev.pocketserve.bridge.wire.ConnectionLimits;
import dev.pocketserve.bridge.wire.Frame;
import dev.pocketserve.bridge.wire.FrameDecoder;
import dev.pocketserve.bridge.wire.FrameType;
import dev.pocketserve.bridge.wire.WireException;
import java.io.IOException;
import java.io.OutputStream;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.net.SocketTimeoutException;
import java.security.SecureRandom;

/** Opens a socket and authenticates the server before any request is sent. */
final class Handshaker {
    /** The server's own limit for the four frames. */
    private static final int HANDSHAKE_MS = 5_000;
    private static final int BUFFER_BYTES = 16_384;
    private static final SecureRandom RANDOM = new SecureRandom();

    private final Settings settings;
    final Socket socket = new Socket();
    final FrameDecoder decoder;
    final byte[] buffer = new byte[BUFFER_BYTES];
    int start;
    int end;
    ConnectionLimits limits;

    Handshaker(Settings settings) {
        this.settings = settings;
        this.decoder = new FrameDecoder(FrameDecoder.Side.CLIENT, settings.maxAnswerBytes);
    }

    int maxAnswerBytes() {
        return settings.maxAnswerBytes;
    }

    /** Connects and authenticates; closes the socket on any fault. */
    void run(Deadline deadline) throws PocketServeException {
        boolean proven = false;
        try {
            connect(deadline.within(settings.connectTimeoutMs));
            prove(deadline.within(HANDSHAKE_MS));
            proven = true;
        } finally {
            if (!proven) {
                closeQuietly(socket);
            }
        }
    }

    private void connect(Deadline deadline) throws PocketServeException {
        try {
            socket.setTcpNoDelay(true);
            socket.connect(new InetSocketAddress(settings.host, settings.socketPort), deadline.socketTimeoutMs());
        } catch (SocketTimeoutException error) {
            throw Faults.silent(settings.host, settings.socketPort, error);
        } catch (IOException | SecurityException error) {
            throw Faults.connecting(settings.host, settings.socketPort, error);
        }
    }

    private void prove(Deadline deadline) throws PocketServeException {
        byte[] nonce = new byte[16];
        RANDOM.nextBytes(nonce);
        ClientHandshake handshake =
                new ClientHandshake(settings.token, nonce, settings.maxAnswerBytes, Settings.NAME, true);
        try {
            OutputStream out = socket.getOutputStream();
            out.write(handshake.hello());
            out.write(handshake.answerChallenge(next(deadline)));
            limits = handshake.acceptReady(next(deadline));
            socket.setSoTimeout(0);
        } catch (WireException error) {
            throw Faults.handshake(settings.host, settings.socketPort, error);
        } catch (SocketTimeoutException error) {
            throw Faults.silent(settings.host, settings.socketPort, error);
        } catch (PocketServeException error) {
            throw error;
        } catch (IOException error) {
            throw Faults.hungUp(settings.host, settings.socketPort, error);
        }
    }

    /** Reads the next frame; throws if it is an ERROR. */
    private Frame next(Deadline deadline) throws IOException, WireException {
        while (true) {
            start += decoder.feed(buffer, start, end - start);
            Frame frame = decoder.take();
            if (frame != null) {
                if (frame.type() == FrameType.ERROR) {
                    throw Faults.reported(frame);
                }
                return frame;
            }
            if (deadline.isOver()) {
                throw new SocketTimeoutException("the handshake took too long");
            }
            socket.setSoTimeout(deadline.socketTimeoutMs());
            start = 0;
            end = Math.max(0, socket.getInputStream().read(buffer));
            if (end == 0) {
                throw Faults.hungUp(settings.host, settings.socketPort, null);
            }
        }
    }

    static void closeQuietly(Socket socket) {
        try {
            socket.close();
        } catch (IOException ignored) {
            // A socket that cannot be closed needs no further handling.
        }
    }
}
