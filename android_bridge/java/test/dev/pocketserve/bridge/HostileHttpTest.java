package dev.pocketserve.bridge;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;

import java.io.Closeable;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.Charset;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import org.junit.Test;

/**
 * A program that took the server's HTTP port sends garbage, answers slowly, or not at all: each call ends with a code.
 */
public class HostileHttpTest {
    private static final int LIMIT = 30_000;
    private static final Charset LATIN_1 = Charset.forName("ISO-8859-1");

    /** The behaviour on one connection, whose request was not read; returning closes it. */
    private interface Script {
        void run(InputStream in, OutputStream out) throws Exception;
    }

    /** Follows a script on each connection. */
    private static final class HostileServer implements Closeable {
        final ServerSocket listener = new ServerSocket(0, 50, InetAddress.getByName("127.0.0.1"));
        private final List<Thread> threads = new ArrayList<>();

        HostileServer(Script script) throws IOException {
            start(() -> {
                while (true) {
                    Socket socket = listener.accept();
                    start(() -> {
                        try (Socket open = socket) {
                            script.run(open.getInputStream(), open.getOutputStream());
                        }
                    });
                }
            });
        }

        private interface Work {
            void run() throws Exception;
        }

        private synchronized void start(Work work) {
            Thread thread = new Thread(() -> {
                try {
                    work.run();
                } catch (Exception clientLeft) {
                    return;
                }
            }, "hostile-server");
            thread.setDaemon(true);
            threads.add(thread);
            thread.start();
        }

        PocketServe.Builder client() {
            return PocketServe.builder().transport(Transport.HTTP).httpPort(listener.getLocalPort())
                    .token(FakePeer.TOKEN).retries(0);
        }

        @Override
        public void close() throws IOException {
            listener.close();
        }
    }

    /** Reads the head of a request. */
    private static void head(InputStream in) throws IOException {
        int count = 0;
        while (count < 4) {
            int next = in.read();
            if (next < 0) {
                throw new IOException("the client left");
            }
            count = next == (count % 2 == 0 ? '\r' : '\n') ? count + 1 : 0;
        }
    }

    private static void send(OutputStream out, String text) throws IOException {
        out.write(text.getBytes(LATIN_1));
        out.flush();
    }

    private static void drip(OutputStream out, String begin, String repeated) throws Exception {
        send(out, begin);
        while (true) {
            send(out, repeated);
            Thread.sleep(20);
        }
    }

    @Test(timeout = LIMIT)
    public void anEndlessHeadIsBounded() throws Exception {
        try (HostileServer peer = new HostileServer((in, out) -> drip(out, "HTTP/1.1 200 OK\r\n", "X-A: b\r\n"));
                PocketServe client = peer.client().timeoutMs(300).build()) {
            ExpectedFailure.of(PocketServeException.TIMEOUT, client::models);
        }
    }

    @Test(timeout = LIMIT)
    public void interimAnswersWithoutEndAreBounded() throws Exception {
        for (String interim : new String[] {"HTTP/1.1 100 Continue\r\n\r\n", "HTTP/1.1 102 Processing\r\n\r\n"}) {
            StringBuilder many = new StringBuilder();
            for (int i = 0; i < 1000; i++) {
                many.append(interim);
            }
            try (HostileServer peer = new HostileServer((in, out) -> {
                while (true) {
                    send(out, many.toString());
                }
            }); PocketServe client = peer.client().timeoutMs(5000).maxAnswerBytes(100_000).build()) {
                assertFalse(ExpectedFailure.of(client::models).getCode().isEmpty());
                assertFalse(ExpectedFailure.of(() -> client.classify("m", new byte[5])).getCode().isEmpty());
            }
        }
    }

    @Test(timeout = LIMIT)
    public void aSlowBodyIsBounded() throws Exception {
        for (String length : new String[] {"Content-Length: 90000\r\n", "Transfer-Encoding: chunked\r\n", ""}) {
            try (HostileServer peer = new HostileServer((in, out) ->
                    drip(out, "HTTP/1.1 200 OK\r\n" + length + "\r\n", length.startsWith("T") ? "1\r\nx\r\n" : "x"));
                    PocketServe client = peer.client().timeoutMs(300).build()) {
                ExpectedFailure.of(PocketServeException.TIMEOUT, client::models);
            }
        }
    }

    @Test(timeout = LIMIT)
    public void cancellingEndsASlowBody() throws Exception {
        for (String length : new String[] {"Content-Length: 90000\r\n", "Transfer-Encoding: chunked\r\n", ""}) {
            CountDownLatch received = new CountDownLatch(10);
            Cancellation cancellation = new Cancellation();
            try (HostileServer peer = new HostileServer((in, out) -> {
                send(out, "HTTP/1.1 200 OK\r\n" + length + "\r\n");
                while (true) {
                    send(out, length.startsWith("T") ? "1\r\nx\r\n" : "x");
                    received.countDown();
                    Thread.sleep(20);
                }
            }); PocketServe client = peer.client().timeoutMs(LIMIT).build()) {
                peer.start(() -> {
                    received.await();
                    cancellation.cancel();
                });
                ExpectedFailure.of(PocketServeException.CANCELLED, () -> cancellation.run(client::models));
            }
        }
    }

    @Test(timeout = LIMIT)
    public void silenceInABodyIsBounded() throws Exception {
        for (String length : new String[] {"Content-Length: 9\r\n", "Transfer-Encoding: chunked\r\n", ""}) {
            try (HostileServer peer = new HostileServer((in, out) -> {
                begin(out, length);
                Thread.sleep(LIMIT);
            }); PocketServe client = peer.client().timeoutMs(300).build()) {
                ExpectedFailure.of(PocketServeException.TIMEOUT, client::models);
            }
        }
    }

    @Test(timeout = LIMIT)
    public void cancelAndCloseEndSilenceInABody() throws Exception {
        for (String length : new String[] {"Content-Length: 9\r\n", ""}) {
            for (String code : new String[] {PocketServeException.CANCELLED, PocketServeException.CLOSED}) {
                CountDownLatch silent = new CountDownLatch(1);
                Cancellation cancellation = new Cancellation();
                try (HostileServer peer = new HostileServer((in, out) -> {
                    begin(out, length);
                    silent.countDown();
                    Thread.sleep(LIMIT);
                }); PocketServe client = peer.client().timeoutMs(3000).build()) {
                    peer.start(() -> {
                        silent.await();
                        end(code, client, cancellation);
                    });
                    ExpectedFailure.of(code, () -> cancellation.run(client::models));
                }
            }
        }
    }

    private static void end(String code, PocketServe client, Cancellation cancellation) {
        if (code.equals(PocketServeException.CLOSED)) {
            client.close();
        } else {
            cancellation.cancel();
        }
    }

    /** Sends a head, and the first byte of a body. */
    private static void begin(OutputStream out, String length) throws IOException {
        send(out, "HTTP/1.1 200 OK\r\n" + length + "\r\n" + (length.startsWith("T") ? "1\r\nx\r\n" : "x"));
    }

    @Test(timeout = LIMIT)
    public void aServerThatNeverReadsIsBounded() throws Exception {
        try (HostileServer peer = new HostileServer((in, out) -> Thread.sleep(LIMIT));
                PocketServe client = peer.client().timeoutMs(300).build()) {
            byte[] large = new byte[32 << 20];
            ExpectedFailure.of(PocketServeException.TIMEOUT, () -> client.classify("m", large));
        }
    }

    @Test(timeout = LIMIT)
    public void aTooDeeplyNestedAnswerIsAnError() throws Exception {
        for (String status : new String[] {"200 OK", "500 No"}) {
            for (char open : new char[] {'[', '{'}) {
                String json = repeated(open == '[' ? "[" : "{\"a\":", 200_000);
                try (HostileServer peer = new HostileServer((in, out) -> {
                    head(in);
                    send(out, "HTTP/1.1 " + status + "\r\nContent-Type: application/json\r\nContent-Length: "
                            + json.length() + "\r\n\r\n" + json);
                }); PocketServe client = peer.client().build()) {
                    ExpectedFailure.of(PocketServeException.BAD_ANSWER, client::models);
                }
            }
        }
    }

    @Test(timeout = LIMIT)
    public void anAnnouncedLengthAllocatesNoMemory() throws Exception {
        try (HostileServer peer = new HostileServer((in, out) -> {
            head(in);
            send(out, "HTTP/1.1 200 OK\r\nContent-Length: " + (Integer.MAX_VALUE - 8) + "\r\n\r\n{");
        }); PocketServe client = peer.client().maxAnswerBytes(Integer.MAX_VALUE).build()) {
            PocketServeException error = ExpectedFailure.of(PocketServeException.CONNECTION_LOST, client::models);
            assertTrue(error.getMessage(), error.getMessage().contains("ended after 1 of"));
        }
    }

    @Test(timeout = LIMIT)
    public void closedClientsLeaveNoThread() throws Exception {
        try (HostileServer peer = new HostileServer((in, out) -> drip(out, "HTTP/1.1 200 OK\r\n", "X-A: b\r\n"));
                PocketServe client = peer.client().timeoutMs(100).build()) {
            ExpectedFailure.of(PocketServeException.TIMEOUT, client::models);
        }
        assertEquals(0, Leaks.threads());
    }

    private static String repeated(String text, int count) {
        StringBuilder all = new StringBuilder();
        for (int i = 0; i < count; i++) {
            all.append(text);
        }
        return all.toString();
    }

    /** Each is a good answer with a few bytes changed, removed or repeated. */
    @Test(timeout = 120_000)
    public void anythingAtAllIsAnAnswerOrAnErrorWithACode() throws Exception {
        String good = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 14\r\nRetry-After: 1\r\n"
                + "Connection: close\r\nInference-Header-Content-Length: 14\r\nWWW-Authenticate: Basic realm=\"x\"\r\n"
                + "Set-Cookie: a=b\r\nTransfer-Encoding: identity\r\nLocation: /\r\n\r\n{\"models\":[1]}";
        Random random = new Random(Integer.getInteger("pocketserve.seed", 1));
        String[] strange = {"\r\n", ":", " ", "-1", "99999999999999999999", "\u0000", "HTTP/1.1 100 Continue\r\n\r\n",
            "401", "407", "204", "304", "101", "302", "chunked", "Digest", ",", "\"", "{", "[", "'"};
        for (int i = 0; i < 600; i++) {
            StringBuilder answer = new StringBuilder(good);
            for (int change = random.nextInt(4); change >= 0; change--) {
                int at = random.nextInt(answer.length());
                answer.replace(at, Math.min(answer.length(), at + random.nextInt(12)),
                        strange[random.nextInt(strange.length)]);
            }
            String text = answer.toString();
            try (HostileServer peer = new HostileServer((in, out) -> {
                head(in);
                send(out, text);
            }); PocketServe client = peer.client().timeoutMs(5000).build()) {
                client.models();
            } catch (PocketServeException error) {
                assertFalse(text, error.getCode().isEmpty());
            } catch (RuntimeException | Error error) {
                throw new AssertionError(text, error);
            }
        }
    }
}
