package dev.pocketserve.bridge;

import dev.pocketserve.bridge.wire.ClientHandshake;
import dev.pocketserve.bridge.wire.Frame;
import dev.pocketserve.bridge.wire.FrameDecoder;
import dev.pocketserve.bridge.wire.FrameEncoder;
import dev.pocketserve.bridge.wire.FrameType;
import java.io.Closeable;
import java.io.EOFException;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.Charset;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;

/**
 * A peer that follows a script for each connection, to imitate servers that lie, stall and vanish. The last script is
 * used for all further connections.
 */
final class FakePeer implements Closeable {
    static final String TOKEN = "0123456789abcdef0123456789abcdef";
    static final String LIMITS =
            "\"max_frame\":1048576,\"max_inflight\":4,\"max_bytes_inflight\":2097152,\"idle_ms\":60000,\"server\":\"f\"";
    static final Charset UTF_8 = Charset.forName("UTF-8");
    private static final byte[] NONCE = new byte[16];

    /** The behaviour on one connection; returning closes it. */
    interface Script {
        void run(Connection connection) throws Exception;
    }

    /** Gives each request of a connection the same answer. */
    static Script answering(String body) {
        return c -> {
            c.handshake();
            while (true) {
                c.respond(c.next(FrameType.REQUEST).requestId(), 200, body);
            }
        };
    }

    private final ServerSocket listener;
    private final Script[] scripts;
    private final List<Throwable> faults = new ArrayList<>();
    private final List<Thread> threads = new ArrayList<>();
    private int accepted;

    FakePeer(Script... scripts) throws IOException {
        this.listener = new ServerSocket(0, 50, InetAddress.getByName("127.0.0.1"));
        this.scripts = scripts;
        start(this::accept);
    }

    private void start(Runnable work) {
        Thread thread = new Thread(work, "fake-peer");
        thread.setDaemon(true);
        synchronized (threads) {
            threads.add(thread);
        }
        thread.start();
    }

    private void accept() {
        while (true) {
            Socket socket;
            try {
                socket = listener.accept();
            } catch (IOException closed) {
                return;
            }
            Script script;
            synchronized (faults) {
                script = scripts[Math.min(accepted, scripts.length - 1)];
                accepted++;
            }
            start(() -> serve(socket, script));
        }
    }

    private void serve(Socket socket, Script script) {
        try (Connection connection = new Connection(socket)) {
            script.run(connection);
        } catch (EOFException clientLeft) {
            return;
        } catch (Throwable fault) {
            synchronized (faults) {
                faults.add(fault);
            }
        }
    }

    int port() {
        return listener.getLocalPort();
    }

    int accepted() {
        synchronized (faults) {
            return accepted;
        }
    }

    /** A client of this peer with short limits. */
    PocketServe.Builder client() {
        return PocketServe.builder().socketPort(port()).token(TOKEN).timeoutMs(10_000);
    }

    /** Fails if a script failed. */
    @Override
    public void close() throws IOException {
        listener.close();
        synchronized (threads) {
            for (Thread thread : threads) {
                try {
                    thread.join(TimeUnit.SECONDS.toMillis(5));
                } catch (InterruptedException error) {
                    throw new IOException(error);
                }
            }
        }
        synchronized (faults) {
            if (!faults.isEmpty()) {
                throw new AssertionError("a script failed", faults.get(0));
            }
        }
    }

    static byte[] json(int type, String text) {
        return FrameEncoder.jsonFrame(type, 0, 0, text.getBytes(UTF_8));
    }

    /** An accepted connection. */
    static final class Connection implements Closeable {
        final Socket socket;
        private final FrameDecoder decoder = new FrameDecoder(FrameDecoder.Side.SERVER, 1 << 26);
        private final byte[] buffer = new byte[8192];
        private int start;
        private int end;
        private byte[] hello;
        private byte[] challenge;

        Connection(Socket socket) throws IOException {
            this.socket = socket;
            socket.setTcpNoDelay(true);
            socket.setSoTimeout(10_000);
        }

        void send(byte[] bytes) throws IOException {
            socket.getOutputStream().write(bytes);
        }

        /** The next frame; EOFException once the client has left. */
        Frame next() throws Exception {
            while (true) {
                start += decoder.feed(buffer, start, end - start);
                Frame frame = decoder.take();
                if (frame != null) {
                    return frame;
                }
                start = 0;
                try {
                    end = Math.max(0, socket.getInputStream().read(buffer));
                } catch (java.net.SocketException reset) {
                    throw new EOFException();
                }
                if (end == 0) {
                    throw new EOFException();
                }
            }
        }

        /** Returns the next frame of a type; skips others. */
        Frame next(int type) throws Exception {
            while (true) {
                Frame frame = next();
                if (frame.type() == type) {
                    return frame;
                }
            }
        }

        /** Reads HELLO and sends a CHALLENGE. */
        void challenge(String text) throws Exception {
            Frame frame = next();
            hello = FrameEncoder.jsonFrame(FrameType.HELLO, 0, 0, frame.body());
            challenge = json(FrameType.CHALLENGE, text);
            send(challenge);
        }

        /** Performs the handshake of a good server. */
        Connection handshake() throws Exception {
            return handshake(LIMITS);
        }

        Connection handshake(String limits) throws Exception {
            challenge("{\"v\":1,\"nonce\":\"" + hex(NONCE) + "\",\"auth\":\"hmac-sha256\"}");
            byte[] transcript = ClientHandshake.transcript(hello, challenge);
            byte[] key = TOKEN.getBytes(UTF_8);
            String expected = "{\"proof\":\"" + ClientHandshake.clientProof(key, transcript) + "\"}";
            String actual = new String(next().body(), UTF_8);
            if (!actual.equals(expected)) {
                throw new AssertionError("AUTH was " + actual);
            }
            send(json(FrameType.READY,
                    "{\"proof\":\"" + ClientHandshake.serverProof(key, transcript) + "\"," + limits + "}"));
            return this;
        }

        void respond(long id, int status, String body) throws IOException {
            send(FrameEncoder.jsonFrame(FrameType.RESPONSE, id, status, body.getBytes(UTF_8)));
        }

        /** Answers every request until the client leaves. */
        void serve() throws Exception {
            while (true) {
                Frame frame = next(FrameType.REQUEST);
                respond(frame.requestId(), 200, "{\"models\":[\"" + frame.target() + "\"]}");
            }
        }

        void reset() throws IOException {
            socket.setSoLinger(true, 0);
            socket.close();
        }

        /** Waits until the client closes the connection. */
        void untilClosed() throws Exception {
            while (true) {
                next();
            }
        }

        @Override
        public void close() throws IOException {
            socket.close();
        }
    }

    static String hex(byte[] bytes) {
        StringBuilder text = new StringBuilder();
        for (byte each : bytes) {
            text.append(String.format("%02x", each));
        }
        return text.toString();
    }

    static byte[] unhex(String text) {
        byte[] bytes = new byte[text.length() / 2];
        for (int i = 0; i < bytes.length; i++) {
            bytes[i] = (byte) Integer.parseInt(text.substring(2 * i, 2 * i + 2), 16);
        }
        return bytes;
    }
}
