package dev.pocketserve.bridge;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;

import dev.pocketserve.bridge.wire.Frame;
import dev.pocketserve.bridge.wire.FrameEncoder;
import dev.pocketserve.bridge.wire.FrameType;
import java.util.Arrays;
import java.util.Collections;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.Test;

/** The socket transport with peers that follow and violate the protocol. */
public class SocketClientTest {
    private static final int LIMIT = 30_000;

    private static String target(String method, String path) {
        return method + " " + path;
    }

    // A good server

    @Test(timeout = LIMIT)
    public void aCallIsAnswered() throws Exception {
        try (FakePeer peer = new FakePeer(c -> c.handshake().serve()); PocketServe client = peer.client().build()) {
            assertEquals(Collections.singletonList(target("GET", "/v2/models")), client.models());
        }
    }

    @Test(timeout = LIMIT)
    public void allCallsShareOneConnection() throws Exception {
        try (FakePeer peer = new FakePeer(c -> c.handshake().serve()); PocketServe client = peer.client().build()) {
            for (int i = 0; i < 50; i++) {
                client.models();
            }
            assertEquals(1, peer.accepted());
        }
    }

    @Test(timeout = LIMIT)
    public void requestsDescribeTheirBodies() throws Exception {
        AtomicReference<Frame> request = new AtomicReference<>();
        try (FakePeer peer = new FakePeer(c -> {
            Frame frame = c.handshake().next();
            request.set(frame);
            c.respond(frame.requestId(), 200, "{\"predictions\":[]}");
            c.untilClosed();
        }); PocketServe client = peer.client().timeoutMs(9000).build()) {
            byte[] big = new byte[100_000];
            Arrays.fill(big, (byte) 7);
            client.predict("a b/ü", big, "image/jpeg", new PredictOptions().topK(3).parameter("x", "1 2"));
        }
        Frame frame = request.get();
        assertEquals("POST /predictions/a%20b%2F%C3%BC?top_k=3&x=1%202", frame.target());
        assertEquals(1, frame.requestId());
        assertTrue(frame.arg() > 0 && frame.arg() <= 9000);
        assertEquals("image/jpeg", frame.extensions().contentType());
        assertEquals(0, frame.jsonLength());
        assertEquals(100_000, frame.body().length);
        assertEquals(7, frame.body()[99_999]);
    }

    @Test(timeout = LIMIT)
    public void tensorsFollowTheirJson() throws Exception {
        AtomicReference<Frame> request = new AtomicReference<>();
        try (FakePeer peer = new FakePeer(c -> {
            Frame frame = c.handshake().next();
            request.set(frame);
            c.respond(frame.requestId(), 200, "{\"outputs\":[]}");
            c.untilClosed();
        }); PocketServe client = peer.client().build()) {
            client.infer("m", Tensor.of("a", new float[50_000], 50_000), Tensor.of("b", new int[] {1, 2}, 2));
        }
        Frame frame = request.get();
        assertEquals(200_008, frame.body().length - frame.jsonLength());
        assertEquals(0, frame.jsonLength() % 8);
        assertEquals(1, frame.body()[frame.jsonLength() + 200_000]);
    }

    @Test(timeout = LIMIT)
    public void answersMayComeInAnyOrder() throws Exception {
        try (FakePeer peer = new FakePeer(c -> {
            c.handshake();
            Frame first = c.next();
            Frame second = c.next();
            c.respond(second.requestId(), 200, "{\"name\":\"" + second.target() + "\"}");
            c.respond(first.requestId(), 200, "{\"name\":\"" + first.target() + "\"}");
            c.untilClosed();
        }); PocketServe client = peer.client().build()) {
            BlockingQueue<String> results = new ArrayBlockingQueue<>(2);
            for (String model : new String[] {"a", "b"}) {
                client.async().modelMetadata(model, null, new Callback<org.json.JSONObject>() {
                    @Override
                    public void onResult(org.json.JSONObject result) {
                        results.add(model + result.optString("name"));
                    }

                    @Override
                    public void onError(PocketServeException error) {
                        results.add(error.toString());
                    }
                });
            }
            String[] pair = {results.poll(10, TimeUnit.SECONDS), results.poll(10, TimeUnit.SECONDS)};
            Arrays.sort(pair);
            assertEquals("[aGET /v2/models/a, bGET /v2/models/b]", Arrays.toString(pair));
        }
    }

    @Test(timeout = LIMIT)
    public void noMoreThanTheMaximumIsInProgress() throws Exception {
        CountDownLatch answered = new CountDownLatch(6);
        AtomicReference<Integer> early = new AtomicReference<>(0);
        try (FakePeer peer = new FakePeer(c -> {
            c.handshake("\"max_frame\":1000,\"max_inflight\":2,\"max_bytes_inflight\":1000,\"idle_ms\":60000");
            for (int i = 0; i < 3; i++) {
                Frame head = c.next();
                Frame two = c.next();
                early.set(early.get() + c.socket.getInputStream().available());
                c.respond(two.requestId(), 200, "{\"models\":[]}");
                c.respond(head.requestId(), 200, "{\"models\":[]}");
            }
            c.untilClosed();
        }); PocketServe client = peer.client().build()) {
            for (int i = 0; i < 6; i++) {
                client.async().models(new Counting<java.util.List<String>>(answered));
            }
            assertTrue(answered.await(10, TimeUnit.SECONDS));
        }
        assertEquals(0, early.get().intValue());
    }

    @Test(timeout = LIMIT)
    public void aBodyOverTheServersLimitIsNotSent() throws Exception {
        try (FakePeer peer = new FakePeer(c -> c.handshake().serve()); PocketServe client = peer.client().build()) {
            PocketServeException error =
                    ExpectedFailure.of("BODY_TOO_LARGE", () -> client.classify("m", new byte[1_048_577]));
            assertEquals(413, error.getStatus());
            client.models();
            assertEquals(1, peer.accepted());
        }
    }

    @Test(timeout = LIMIT)
    public void anErrorOfTheServerKeepsItsCode() throws Exception {
        byte[] body = "{\"error\":\"full\",\"code\":\"QUEUE_FULL\"}".getBytes(FakePeer.UTF_8);
        try (FakePeer peer = new FakePeer(c -> {
            long id = c.handshake().next().requestId();
            byte[] frame = new byte[24 + 7 + body.length];
            FrameEncoder.putHeader(frame, FrameType.RESPONSE, id, 429, 0, 7, body.length, body.length);
            System.arraycopy(new byte[] {1, 4, 0, 44, 1, 0, 0}, 0, frame, 24, 7);
            System.arraycopy(body, 0, frame, 31, body.length);
            c.send(frame);
            c.untilClosed();
        }); PocketServe client = peer.client().build()) {
            PocketServeException error = ExpectedFailure.of("QUEUE_FULL", client::models);
            assertEquals(429, error.getStatus());
            assertEquals(300, error.getRetryAfterMs());
            assertTrue(error.isRetryable());
            assertEquals("full", error.getMessage());
        }
    }

    @Test(timeout = LIMIT)
    public void framesOfLaterVersionsAreSkipped() throws Exception {
        try (FakePeer peer = new FakePeer(c -> {
            long id = c.handshake().next().requestId();
            c.send(FrameEncoder.jsonFrame(0x99, 77, 5, new byte[30_000]));
            c.send(FrameEncoder.jsonFrame(0xff, 0, 0, new byte[0]));
            c.respond(id, 200, "{\"models\":[]}");
            c.untilClosed();
        }); PocketServe client = peer.client().build()) {
            assertEquals(0, client.models().size());
        }
    }

    @Test(timeout = LIMIT)
    public void anAnswerThatNobodyWaitsForIsIgnored() throws Exception {
        try (FakePeer peer = new FakePeer(c -> {
            long id = c.handshake().next().requestId();
            c.respond(99, 200, "{}");
            c.respond(id, 200, "{\"models\":[]}");
            c.respond(id, 200, "{\"models\":[]}");
            c.serve();
        }); PocketServe client = peer.client().build()) {
            assertEquals(0, client.models().size());
            assertEquals(1, client.models().size());
        }
    }

    @Test(timeout = LIMIT)
    public void anAnswerWithAnUnknownCriticalExtensionFailsAlone() throws Exception {
        try (FakePeer peer = new FakePeer(c -> {
            long id = c.handshake().next().requestId();
            byte[] frame = new byte[24 + 3];
            FrameEncoder.putHeader(frame, FrameType.RESPONSE, id, 200, 0, 3, 0, 0);
            frame[24] = (byte) 0x81;
            c.send(frame);
            c.serve();
        }); PocketServe client = peer.client().build()) {
            ExpectedFailure.of("NOT_IMPLEMENTED", client::models);
            client.models();
            assertEquals(1, peer.accepted());
        }
    }

    // Time

    @Test(timeout = LIMIT)
    public void aLongInferenceIsNotADeadPeer() throws Exception {
        try (FakePeer peer = new FakePeer(c -> {
            long id = c.handshake().next().requestId();
            for (int pings = 0; pings < 2; pings++) {
                Frame ping = c.next(FrameType.PING);
                c.send(FrameEncoder.emptyFrame(FrameType.PONG, 0, ping.arg()));
            }
            c.respond(id, 200, "{\"models\":[]}");
            c.untilClosed();
        }); PocketServe client = peer.client().pingIntervalMs(500).retries(0).build()) {
            assertEquals(0, client.models().size());
        }
    }

    @Test(timeout = LIMIT)
    public void aPingOfTheServerIsAnswered() throws Exception {
        try (FakePeer peer = new FakePeer(c -> {
            long id = c.handshake().next().requestId();
            c.send(FrameEncoder.emptyFrame(FrameType.PING, 0, 0xdeadbeefL));
            Frame pong = c.next(FrameType.PONG);
            c.respond(id, 200, "{\"models\":[\"" + pong.arg() + "\"]}");
            c.untilClosed();
        }); PocketServe client = peer.client().build()) {
            assertEquals("3735928559", client.models().get(0));
        }
    }

    @Test(timeout = LIMIT)
    public void aSilentPeerCountsAsDead() throws Exception {
        try (FakePeer peer = new FakePeer(c -> c.handshake().untilClosed());
                PocketServe client = peer.client().pingIntervalMs(50).retries(0).build()) {
            PocketServeException error = ExpectedFailure.of(PocketServeException.CONNECTION_LOST, client::models);
            assertTrue(error.getMessage(), error.getMessage().contains("silent"));
        }
    }

    @Test(timeout = LIMIT)
    public void aPeerThatStopsReadingCountsAsDead() throws Exception {
        CountDownLatch finished = new CountDownLatch(1);
        try (FakePeer peer = new FakePeer(c -> {
            c.handshake("\"max_frame\":99000000,\"max_inflight\":4,\"max_bytes_inflight\":99000000,\"idle_ms\":60000");
            finished.await(20, TimeUnit.SECONDS);
        }); PocketServe client = peer.client().pingIntervalMs(50).retries(0).build()) {
            ExpectedFailure.of(PocketServeException.CONNECTION_LOST, () -> client.classify("m", new byte[60_000_000]));
            finished.countDown();
        }
    }

    @Test(timeout = LIMIT)
    public void aCallEndsAtItsTimeoutAndIsCancelled() throws Exception {
        AtomicReference<Frame> cancel = new AtomicReference<>();
        CountDownLatch notified = new CountDownLatch(1);
        try (FakePeer peer = new FakePeer(c -> {
            c.respond(c.handshake().next().requestId(), 200, "{\"models\":[]}");
            long id = c.next().requestId();
            cancel.set(c.next(FrameType.CANCEL));
            notified.countDown();
            c.respond(id, 499, "{\"error\":\"cancelled\",\"code\":\"CANCELLED\"}");
            c.serve();
        }); PocketServe client = peer.client().build()) {
            client.models();
            PredictOptions soon = new PredictOptions().timeoutMs(100);
            ExpectedFailure.of(PocketServeException.TIMEOUT, () -> client.classify("m", new byte[1], soon));
            assertTrue(notified.await(10, TimeUnit.SECONDS));
            client.modelMetadata("next");
            assertEquals(1, peer.accepted());
        }
        assertEquals(2, cancel.get().requestId());
    }

    @Test(timeout = LIMIT)
    public void aCancelledCallTellsTheServer() throws Exception {
        CountDownLatch received = new CountDownLatch(1);
        CountDownLatch notified = new CountDownLatch(1);
        BlockingQueue<String> outcome = new ArrayBlockingQueue<>(1);
        try (FakePeer peer = new FakePeer(c -> {
            c.handshake().next();
            received.countDown();
            c.next(FrameType.CANCEL);
            notified.countDown();
            c.untilClosed();
        }); PocketServe client = peer.client().build()) {
            Call call = client.async().models(new Counting<java.util.List<String>>(outcome));
            assertTrue(received.await(10, TimeUnit.SECONDS));
            assertFalse(call.isDone());
            call.cancel();
            assertEquals(PocketServeException.CANCELLED, outcome.poll(10, TimeUnit.SECONDS));
            assertTrue(notified.await(10, TimeUnit.SECONDS));
            assertTrue(call.isDone());
        }
    }

    @Test(timeout = LIMIT)
    public void anInterruptEndsACall() throws Exception {
        AtomicReference<Thread> caller = new AtomicReference<>(Thread.currentThread());
        try (FakePeer peer = new FakePeer(c -> {
            c.handshake().next();
            caller.get().interrupt();
            c.untilClosed();
        }); PocketServe client = peer.client().build()) {
            ExpectedFailure.of(PocketServeException.CANCELLED, client::models);
            assertTrue(Thread.interrupted());
        }
    }

    // Connections that end

    @Test(timeout = LIMIT)
    public void aCallIsRetriedOnANewConnection() throws Exception {
        try (FakePeer peer = new FakePeer(
                c -> c.handshake().next(),
                c -> {
                    c.handshake().next();
                    c.reset();
                },
                c -> c.handshake().serve()); PocketServe client = peer.client().build()) {
            client.models();
            assertEquals(3, peer.accepted());
        }
    }

    @Test(timeout = LIMIT)
    public void retriesAreBounded() throws Exception {
        try (FakePeer peer = new FakePeer(c -> c.handshake().next()); PocketServe client = peer.client().build()) {
            PocketServeException error = ExpectedFailure.of(PocketServeException.CONNECTION_LOST, client::models);
            assertTrue(error.isRetryable());
            assertEquals(3, peer.accepted());
        }
    }

    @Test(timeout = LIMIT)
    public void callsThatChangeTheServerAreNotRetried() throws Exception {
        try (FakePeer peer = new FakePeer(c -> c.handshake().next()); PocketServe client = peer.client().build()) {
            ExpectedFailure.of(PocketServeException.CONNECTION_LOST, () -> {
                client.load("m");
                return null;
            });
            assertEquals(1, peer.accepted());
            InferOptions step = new InferOptions().sequence(5, false, false);
            ExpectedFailure.of(PocketServeException.CONNECTION_LOST,
                    () -> client.infer("m", step, Tensor.of("x", new int[1], 1)));
            assertEquals(2, peer.accepted());
            ExpectedFailure.of(PocketServeException.CONNECTION_LOST,
                    () -> client.sequence("m").predict(new byte[1], "application/json"));
            assertEquals(3, peer.accepted());
        }
    }

    @Test(timeout = LIMIT)
    public void aConnectionThatEndedIdleIsReplaced() throws Exception {
        CountDownLatch closed = new CountDownLatch(1);
        try (FakePeer peer = new FakePeer(c -> {
            Frame frame = c.handshake().next();
            c.respond(frame.requestId(), 200, "{\"models\":[]}");
            c.send(FrameEncoder.jsonFrame(FrameType.GOAWAY, frame.requestId(), 2, "{}".getBytes(FakePeer.UTF_8)));
            closed.countDown();
        }, c -> c.handshake().serve()); PocketServe client = peer.client().build()) {
            client.models();
            assertTrue(closed.await(10, TimeUnit.SECONDS));
            client.models();
            assertEquals(2, peer.accepted());
        }
    }

    @Test(timeout = LIMIT)
    public void requestsAfterGoawayAreRetriedEvenIfTheyChangeTheServer() throws Exception {
        try (FakePeer peer = new FakePeer(c -> {
            c.handshake().next();
            c.send(FrameEncoder.jsonFrame(FrameType.GOAWAY, 0, 1, new byte[0]));
            c.untilClosed();
        }, c -> c.handshake().serve()); PocketServe client = peer.client().build()) {
            client.load("m");
            assertEquals(2, peer.accepted());
        }
    }

    @Test(timeout = LIMIT)
    public void requestsBeforeGoawayAreAwaited() throws Exception {
        try (FakePeer peer = new FakePeer(c -> {
            Frame frame = c.handshake().next();
            c.send(FrameEncoder.jsonFrame(FrameType.GOAWAY, frame.requestId(), 1, "{}".getBytes(FakePeer.UTF_8)));
            c.respond(frame.requestId(), 200, "{\"models\":[]}");
            c.untilClosed();
        }); PocketServe client = peer.client().build()) {
            client.models();
            assertEquals(1, peer.accepted());
        }
    }

    @Test(timeout = LIMIT)
    public void anErrorFrameEndsAllCalls() throws Exception {
        try (FakePeer peer = new FakePeer(c -> {
            c.handshake().next();
            c.send(FrameEncoder.jsonFrame(
                    FrameType.ERROR, 0, 2, "{\"error\":\"odd\",\"code\":\"BAD_FRAME\"}".getBytes(FakePeer.UTF_8)));
        }); PocketServe client = peer.client().build()) {
            PocketServeException error = ExpectedFailure.of("BAD_FRAME", client::models);
            assertTrue(error.getMessage(), error.getMessage().contains("odd"));
            assertFalse(error.isRetryable());
        }
    }

    @Test(timeout = LIMIT)
    public void aServerThatFailsHasLostTheConnection() throws Exception {
        for (int reason : new int[] {8, 12, 13, 4711}) {
            try (FakePeer peer = new FakePeer(c -> {
                c.handshake().next();
                c.send(FrameEncoder.jsonFrame(FrameType.ERROR, 0, reason, new byte[0]));
            }); PocketServe client = peer.client().retries(1).build()) {
                ExpectedFailure.of(PocketServeException.CONNECTION_LOST, client::models);
                assertEquals(2, peer.accepted());
            }
        }
    }

    @Test(timeout = LIMIT)
    public void closingEndsCallsAndRejectsNewOnes() throws Exception {
        AtomicReference<PocketServe> closing = new AtomicReference<>();
        try (FakePeer peer = new FakePeer(c -> {
            c.handshake().next();
            closing.get().close();
            c.untilClosed();
        }); PocketServe client = peer.client().build()) {
            closing.set(client);
            ExpectedFailure.of(PocketServeException.CLOSED, client::models);
            ExpectedFailure.of(PocketServeException.CLOSED, client::models);
            assertEquals(1, peer.accepted());
        }
    }

    @Test(timeout = LIMIT)
    public void aClosedClientLeavesNothingBehind() throws Exception {
        try (FakePeer peer = new FakePeer(c -> c.handshake().serve()); PocketServe client = peer.client().build()) {
            client.models();
            CountDownLatch calledBack = new CountDownLatch(1);
            client.async().models(new Counting<java.util.List<String>>(calledBack));
            assertTrue(calledBack.await(10, TimeUnit.SECONDS));
        }
        assertEquals(0, Leaks.threads());
    }

    // Answers that break the protocol

    private static void assertBroken(byte[] bytes, String expected) throws Exception {
        try (FakePeer peer = new FakePeer(c -> {
            c.handshake().next();
            c.send(bytes);
            c.untilClosed();
        }); PocketServe client = peer.client().build()) {
            PocketServeException error = ExpectedFailure.of(PocketServeException.BAD_ANSWER, client::models);
            assertTrue(error.getMessage(), error.getMessage().contains(expected));
            assertEquals(1, peer.accepted());
        }
    }

    @Test(timeout = LIMIT)
    public void garbageEndsTheConnection() throws Exception {
        assertBroken("HTTP/1.1 200 OK\r\n\r\n".getBytes(FakePeer.UTF_8), "BAD_MARK");
    }

    @Test(timeout = LIMIT)
    public void hugeLengthsAreRejectedBeforeAllocation() throws Exception {
        byte[] header = new byte[24];
        FrameEncoder.putHeader(header, FrameType.RESPONSE, 1, 200, 0, 0, 0, -1);
        assertBroken(header, "FRAME_TOO_LARGE");
    }

    @Test(timeout = LIMIT)
    public void aSecondHandshakeIsRejected() throws Exception {
        assertBroken(FakePeer.json(FrameType.READY, "{}"), "UNEXPECTED_FRAME");
    }

    @Test(timeout = LIMIT)
    public void unknownFramesAreRejected() throws Exception {
        byte[] header = new byte[24];
        FrameEncoder.putHeader(header, 0x7f, 0, 0, 0, 0, 0, 0);
        assertBroken(header, "UNKNOWN_FRAME");
    }

    /** Records outcomes. */
    private static final class Counting<T> implements Callback<T> {
        private final CountDownLatch latch;
        private final BlockingQueue<String> outcomes;

        Counting(CountDownLatch latch) {
            this.latch = latch;
            this.outcomes = new ArrayBlockingQueue<>(100);
        }

        Counting(BlockingQueue<String> outcomes) {
            this.latch = new CountDownLatch(1);
            this.outcomes = outcomes;
        }

        @Override
        public void onResult(T result) {
            outcomes.add("result");
            latch.countDown();
        }

        @Override
        public void onError(PocketServeException error) {
            outcomes.add(error.getCode());
        }
    }
}
