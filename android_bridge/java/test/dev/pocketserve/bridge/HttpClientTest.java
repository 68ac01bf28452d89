package dev.pocketserve.bridge;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertNull;
import static org.junit.Assert.assertTrue;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.ByteArrayOutputStream;
import java.io.Closeable;
import java.io.IOException;
import java.io.InputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.Test;

/** The HTTP transport: its requests, and how it handles all kinds of answers. */
public class HttpClientTest {
    private static final int LIMIT = 30_000;

    /** Answers one request. */
    private interface Handler {
        void handle(HttpExchange exchange, byte[] body) throws IOException;
    }

    /** A small HTTP server. */
    private static final class Web implements Closeable {
        final HttpServer server;
        final ExecutorService threads = Executors.newCachedThreadPool();
        final AtomicInteger requests = new AtomicInteger();

        Web(Handler handler) throws IOException {
            server = HttpServer.create(new InetSocketAddress(InetAddress.getByName("127.0.0.1"), 0), 10);
            server.setExecutor(threads);
            server.createContext("/", exchange -> {
                requests.incrementAndGet();
                handler.handle(exchange, readAll(exchange.getRequestBody()));
                exchange.close();
            });
            server.start();
        }

        PocketServe client() throws IOException {
            return client(10_000);
        }

        PocketServe client(int timeoutMs) throws IOException {
            return builder().timeoutMs(timeoutMs).build();
        }

        PocketServe.Builder builder() {
            return PocketServe.builder().transport(Transport.HTTP).httpPort(server.getAddress().getPort())
                    .token(FakePeer.TOKEN).maxAnswerBytes(100_000);
        }

        @Override
        public void close() {
            server.stop(0);
            threads.shutdownNow();
        }
    }

    private static byte[] readAll(InputStream in) throws IOException {
        ByteArrayOutputStream all = new ByteArrayOutputStream();
        for (int next = in.read(); next >= 0; next = in.read()) {
            all.write(next);
        }
        return all.toByteArray();
    }

    private static void answer(HttpExchange exchange, int status, String type, String body) throws IOException {
        byte[] bytes = body.getBytes(FakePeer.UTF_8);
        exchange.getResponseHeaders().set("Content-Type", type);
        exchange.sendResponseHeaders(status, bytes.length == 0 ? -1 : bytes.length);
        exchange.getResponseBody().write(bytes);
    }

    @Test(timeout = LIMIT)
    public void requestsDescribeTheirBodies() throws Exception {
        AtomicReference<String> request = new AtomicReference<>();
        AtomicReference<com.sun.net.httpserver.Headers> headers = new AtomicReference<>();
        try (Web web = new Web((exchange, body) -> {
            request.set(exchange.getRequestMethod() + " " + exchange.getRequestURI() + " " + body.length);
            headers.set(exchange.getRequestHeaders());
            answer(exchange, 200, "application/json", "{\"predictions\":[]}");
        }); PocketServe client = web.client()) {
            client.predict("a b", new byte[300_000], "image/jpeg", new PredictOptions().topK(2));
        }
        assertEquals("POST /predictions/a%20b?top_k=2 300000", request.get());
        assertEquals("300000", headers.get().getFirst("Content-Length"));
        assertEquals("Bearer " + FakePeer.TOKEN, headers.get().getFirst("Authorization"));
        assertEquals("image/jpeg", headers.get().getFirst("Content-Type"));
        assertTrue(headers.get().getFirst("User-Agent").startsWith("pocketserve-java/"));
        assertEquals("identity", headers.get().getFirst("Accept-Encoding"));
        assertNull(headers.get().getFirst("Inference-Header-Content-Length"));
    }

    @Test(timeout = LIMIT)
    public void tensorsTravelAsRawBytes() throws Exception {
        try (Web web = new Web((exchange, body) -> {
            int json = Integer.parseInt(exchange.getRequestHeaders().getFirst("Inference-Header-Content-Length"));
            String head = "{\"outputs\":[{\"name\":\"y\",\"datatype\":\"FP32\",\"shape\":[1],"
                    + "\"parameters\":{\"binary_data_size\":4}}]}";
            exchange.getResponseHeaders().set("Inference-Header-Content-Length", "" + head.length());
            exchange.getResponseHeaders().set("Content-Type", "application/octet-stream");
            exchange.sendResponseHeaders(200, 0);
            exchange.getResponseBody().write(head.getBytes(FakePeer.UTF_8));
            exchange.getResponseBody().write(body, json, 4);
        }); PocketServe client = web.client()) {
            InferResult result = client.infer("m", Tensor.of("x", new float[] {2.5f}, 1));
            assertEquals(2.5f, result.get("y").floats()[0], 0);
        }
    }

    @Test(timeout = LIMIT)
    public void theTokenIsNotSentIfItIsNotNeeded() throws Exception {
        AtomicReference<String> request = new AtomicReference<>("unset");
        try (Web web = new Web((exchange, body) -> {
            request.set(exchange.getRequestHeaders().getFirst("Authorization"));
            answer(exchange, 200, "application/json", "{}");
        }); PocketServe client = web.client()) {
            assertTrue(client.isLive());
        }
        assertNull(request.get());
    }

    @Test(timeout = LIMIT)
    public void errorsAreRead() throws Exception {
        try (Web web = new Web((exchange, body) -> {
            exchange.getResponseHeaders().set("Retry-After", "2");
            answer(exchange, 429, "application/json", "{\"error\":\"full\",\"code\":\"QUEUE_FULL\"}");
        }); PocketServe client = web.client()) {
            PocketServeException error = ExpectedFailure.of("QUEUE_FULL", () -> client.classify("m", new byte[9]));
            assertEquals(2000, error.getRetryAfterMs());
            assertEquals(429, error.getStatus());
            assertEquals(1, web.requests.get());
        }
    }

    /** A proxy that loses its server for a number of requests. */
    private static Web proxy(int lost, int status, String text) throws IOException {
        AtomicInteger number = new AtomicInteger();
        return new Web((exchange, body) -> {
            boolean isLost = number.incrementAndGet() <= lost;
            answer(exchange, isLost ? status : 200, "application/json", isLost ? text : "{\"predictions\":[]}");
        });
    }

    @Test(timeout = LIMIT)
    public void inferenceIsRetriedIfAProxyLostItsServer() throws Exception {
        for (int status : new int[] {500, 502, 503, 504}) {
            for (String text : new String[] {"Internal Server Error", ""}) {
                try (Web web = proxy(2, status, text);
                        PocketServe client = web.builder().reconnectMs(LIMIT).timeoutMs(LIMIT).build()) {
                    client.predict("petals", new byte[5], "image/png", null);
                    assertEquals(3, web.requests.get());
                }
            }
        }
    }

    @Test(timeout = LIMIT)
    public void aProxyIsNotRetriedForever() throws Exception {
        try (Web web = proxy(Integer.MAX_VALUE, 502, "Bad gateway");
                PocketServe client = web.builder().reconnectMs(0).build()) {
            PocketServeException error =
                    ExpectedFailure.of(PocketServeException.BAD_ANSWER, () -> client.classify("m", new byte[9]));
            assertTrue(error.isRetryable());
            assertEquals(502, error.getStatus());
            assertEquals(1, web.requests.get());
        }
    }

    @Test(timeout = LIMIT)
    public void errorsOfTheServerItselfAreNotRetried() throws Exception {
        Object[][] answers = {
            {500, "{\"error\":\"e\",\"code\":\"INTERNAL\"}"}, {500, "{\"detail\":\"no\"}"}, {404, "?"}, {403, ""}};
        for (Object[] each : answers) {
            try (Web web = proxy(1, (Integer) each[0], (String) each[1]); PocketServe client = web.client()) {
                assertFalse(ExpectedFailure.of(() -> client.classify("m", new byte[9])).isRetryable());
                assertEquals(1, web.requests.get());
            }
        }
    }

    @Test(timeout = LIMIT)
    public void behindAProxyOnlyInferenceIsRetried() throws Exception {
        try (Web web = proxy(Integer.MAX_VALUE, 500, "Internal Server Error"); PocketServe client = web.client()) {
            ExpectedFailure.Attempt[] calls = {
                () -> client.sequence("sum").infer(Tensor.of("x", new float[] {1, 2}, 1, 2)),
                () -> { client.load("petals"); return null; },
                client::models,
            };
            for (ExpectedFailure.Attempt call : calls) {
                ExpectedFailure.of(PocketServeException.BAD_ANSWER, call);
            }
            assertEquals(calls.length, web.requests.get());
        }
    }

    @Test(timeout = LIMIT)
    public void aServerThatDoesNotKnowTheTokenSaysSo() throws Exception {
        try (Web web = new Web((exchange, body) -> {
            exchange.getResponseHeaders().set("WWW-Authenticate", "Bearer");
            answer(exchange, 401, "application/json", "{\"error\":\"who?\",\"code\":\"UNAUTHORIZED\"}");
        }); PocketServe client = web.client()) {
            ExpectedFailure.of(PocketServeException.TOKEN_UNKNOWN, client::models);
            PocketServeException error =
                    ExpectedFailure.of(PocketServeException.TOKEN_UNKNOWN, () -> client.classify("m", new byte[9]));
            assertEquals(401, error.getStatus());
        }
    }

    @Test(timeout = LIMIT)
    public void redirectsAreNotFollowed() throws Exception {
        try (Web web = new Web((exchange, body) -> {
            exchange.getResponseHeaders().set("Location", "/elsewhere");
            answer(exchange, 302, "text/plain", "");
        }); PocketServe client = web.client()) {
            assertEquals(302, ExpectedFailure.of(PocketServeException.BAD_ANSWER, client::models).getStatus());
            assertEquals(1, web.requests.get());
        }
    }

    @Test(timeout = LIMIT)
    public void largeAnswersAreRejected() throws Exception {
        for (boolean announced : new boolean[] {true, false}) {
            try (Web web = new Web((exchange, body) -> {
                exchange.sendResponseHeaders(200, announced ? 200_000 : 0);
                exchange.getResponseBody().write(new byte[200_000]);
            }); PocketServe client = web.client()) {
                PocketServeException error = ExpectedFailure.of(PocketServeException.BAD_ANSWER, client::models);
                assertTrue(error.getMessage(), error.getMessage().contains("maxAnswerBytes"));
            }
        }
    }

    @Test(timeout = LIMIT)
    public void aWrongJsonLengthIsRejected() throws Exception {
        for (String length : new String[] {"-1", "99", "x"}) {
            try (Web web = new Web((exchange, body) -> {
                exchange.getResponseHeaders().set("Inference-Header-Content-Length", length);
                answer(exchange, 200, "application/octet-stream", "{}");
            }); PocketServe client = web.client()) {
                ExpectedFailure.of(PocketServeException.BAD_ANSWER, client::models);
            }
        }
    }

    @Test(timeout = LIMIT)
    public void aCallEndsAtItsTimeout() throws Exception {
        CountDownLatch finished = new CountDownLatch(1);
        try (Web web = new Web((exchange, body) -> await(finished)); PocketServe client = web.client(1000)) {
            ExpectedFailure.of(PocketServeException.TIMEOUT, client::models);
            finished.countDown();
        }
    }

    private static void await(CountDownLatch latch) throws IOException {
        try {
            latch.await(20, TimeUnit.SECONDS);
        } catch (InterruptedException error) {
            throw new IOException(error);
        }
    }

    @Test(timeout = LIMIT)
    public void aCallCanBeCancelled() throws Exception {
        CountDownLatch received = new CountDownLatch(1);
        CountDownLatch finished = new CountDownLatch(1);
        CountDownLatch notified = new CountDownLatch(1);
        AtomicReference<String> code = new AtomicReference<>();
        try (Web web = new Web((exchange, body) -> {
            received.countDown();
            await(finished);
        }); PocketServe client = web.client()) {
            Call call = client.async().classify("m", new byte[10], null, new Callback<Prediction>() {
                @Override
                public void onResult(Prediction result) {
                    notified.countDown();
                }

                @Override
                public void onError(PocketServeException error) {
                    code.set(error.getCode());
                    notified.countDown();
                }
            });
            assertTrue(received.await(10, TimeUnit.SECONDS));
            call.cancel();
            assertTrue(notified.await(10, TimeUnit.SECONDS));
            assertEquals(PocketServeException.CANCELLED, code.get());
            finished.countDown();
        }
    }

    @Test(timeout = LIMIT)
    public void closingEndsCalls() throws Exception {
        CountDownLatch received = new CountDownLatch(1);
        CountDownLatch finished = new CountDownLatch(1);
        AtomicReference<PocketServe> closing = new AtomicReference<>();
        try (Web web = new Web((exchange, body) -> {
            closing.get().close();
            received.countDown();
            await(finished);
        }); PocketServe client = web.client()) {
            closing.set(client);
            ExpectedFailure.of(PocketServeException.CLOSED, client::models);
            ExpectedFailure.of(PocketServeException.CLOSED, client::models);
            finished.countDown();
        }
    }

    @Test(timeout = LIMIT)
    public void brokenConnectionsAreRetriedOnlyIfThatIsSafe() throws Exception {
        AtomicInteger accepted = new AtomicInteger();
        try (ServerSocket listener = new ServerSocket(0, 10, InetAddress.getByName("127.0.0.1"))) {
            Thread thread = new Thread(() -> {
                while (true) {
                    try (Socket socket = listener.accept()) {
                        accepted.incrementAndGet();
                        socket.setSoTimeout(10_000);
                        socket.getInputStream().read(new byte[10_000]);
                    } catch (IOException closed) {
                        return;
                    }
                }
            });
            thread.start();
            try (PocketServe client = PocketServe.builder().transport(Transport.HTTP)
                    .httpPort(listener.getLocalPort()).build()) {
                ExpectedFailure.of(PocketServeException.CONNECTION_LOST, () -> {
                    client.load("m");
                    return null;
                });
                int once = accepted.get();
                assertEquals(1, once);
                ExpectedFailure.of(PocketServeException.CONNECTION_LOST, () -> client.classify("m", new byte[5]));
                assertEquals(3, accepted.get() - once);
            }
        }
    }

    @Test(timeout = LIMIT)
    public void autoUsesHttpOnlyIfNothingListensOnTheSocketPort() throws Exception {
        try (Web web = new Web((exchange, body) -> answer(exchange, 200, "application/json", "{\"models\":[\"h\"]}"));
                FakePeer peer = new FakePeer(c -> c.send("hello".getBytes(FakePeer.UTF_8)));
                FakePeer server = new FakePeer(c -> c.handshake().serve())) {
            PocketServe.Builder builder = PocketServe.builder().transport(Transport.AUTO).token(FakePeer.TOKEN)
                    .httpPort(web.server.getAddress().getPort());
            try (PocketServe client = builder.socketPort(server.port()).build()) {
                assertEquals("GET /v2/models", client.models().get(0));
            }
            try (PocketServe client = builder.socketPort(peer.port()).build()) {
                ExpectedFailure.of(PocketServeException.NOT_OUR_SERVER, client::models);
            }
            assertEquals(0, web.requests.get());
            int free;
            try (ServerSocket occupied = new ServerSocket(0)) {
                free = occupied.getLocalPort();
            }
            try (PocketServe client = builder.socketPort(free).reconnectMs(0).build()) {
                String message = ExpectedFailure.of(PocketServeException.SERVER_UNREACHABLE, client::models).getMessage();
                assertTrue(message, message.contains("httpFallback(true)"));
            }
            assertEquals(0, web.requests.get());
            try (PocketServe client = builder.token(null).build()) {
                assertEquals("h", client.models().get(0));
            }
            try (PocketServe client = builder.token(FakePeer.TOKEN).httpFallback(true).build()) {
                assertEquals("h", client.models().get(0));
                assertFalse(client.models().isEmpty());
            }
        }
    }
}
