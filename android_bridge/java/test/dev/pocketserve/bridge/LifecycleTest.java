package dev.pocketserve.bridge;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;
import static org.junit.Assert.fail;

import dev.pocketserve.bridge.wire.FrameEncoder;
import dev.pocketserve.bridge.wire.FrameType;
import java.lang.ref.WeakReference;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.TimeUnit;
import org.junit.Test;

/** Guarantees for apps whose screens are recreated: no leaks, no threads left, and no callback twice. */
public class LifecycleTest {
    private static final int LIMIT = 30_000;
    private static final String SEEN = "{\"predictions\":[{\"label\":\"x\",\"score\":1}]}";

    private static FakePeer silent(CountDownLatch requested) throws Exception {
        return new FakePeer(c -> {
            c.handshake();
            while (true) {
                c.next(FrameType.REQUEST);
                requested.countDown();
            }
        });
    }

    // The client is closed

    @Test(timeout = LIMIT)
    public void aClosedClientEndsItsStreams() throws Exception {
        RecordingCallback<Void> callback = new RecordingCallback<>();
        CountDownLatch requested = new CountDownLatch(1);
        FrameStream stream;
        try (FakePeer peer = silent(requested); PocketServe client = peer.client().build()) {
            stream = client.stream("m", callback);
            stream.offer(new byte[1]);
            assertTrue(requested.await(10, TimeUnit.SECONDS));
            stream.offer(new byte[1]);
        }
        List<String> outcomes = new ArrayList<>();
        outcomes.add(callback.next());
        outcomes.add(callback.next());
        assertTrue(outcomes.toString(), outcomes.contains("CLOSED 1") && outcomes.contains("CLOSED 2"));
        assertEquals(0, Leaks.threads());
        // The camera still delivers frames; that must not end the app.
        assertEquals(3, stream.offer(new byte[1]));
        assertEquals("CLOSED 3", callback.next());
        stream.close();
        stream.close();
        try {
            stream.offer(new byte[1]);
            fail("taken");
        } catch (IllegalStateException expected) {
            assertTrue(expected.getMessage().contains("closed"));
        }
        assertTrue(callback.events.isEmpty());
    }

    @Test(timeout = LIMIT)
    public void aClosedClientOpensNoStream() throws Exception {
        PocketServe client = PocketServe.builder().build();
        client.close();
        client.close();
        try {
            client.stream("m", new RecordingCallback<Void>());
            fail("opened");
        } catch (IllegalStateException expected) {
            assertTrue(expected.getMessage().contains("closed"));
        }
        assertEquals(0, Leaks.threads());
    }

    /** Connects to a port that accepts and sends nothing, like that of a frozen server. */
    @Test(timeout = LIMIT)
    public void closingEndsAHandshake() throws Exception {
        CountDownLatch started = new CountDownLatch(1);
        try (FakePeer peer = new FakePeer(c -> {
            c.next();
            started.countDown();
            c.untilClosed();
        })) {
            PocketServe client = peer.client().build();
            RecordingCallback<List<String>> callback = new RecordingCallback<>();
            client.async().models(callback);
            assertTrue(started.await(10, TimeUnit.SECONDS));
            client.close();
            assertEquals(PocketServeException.CLOSED, callback.next());
        }
        assertEquals(0, Leaks.threads());
    }

    @Test(timeout = LIMIT)
    public void cancellingEndsAHandshakeAndLetsTheNextCallTry() throws Exception {
        CountDownLatch started = new CountDownLatch(1);
        CountDownLatch left = new CountDownLatch(1);
        try (FakePeer peer = new FakePeer(c -> {
            c.next();
            started.countDown();
            try {
                c.untilClosed();
            } finally {
                left.countDown();
            }
        }, c -> c.handshake().serve()); PocketServe client = peer.client().build()) {
            RecordingCallback<List<String>> callback = new RecordingCallback<>();
            Call call = client.async().models(callback);
            assertTrue(started.await(10, TimeUnit.SECONDS));
            client.async().models(callback); // waits for the one that connects
            call.cancel();
            assertEquals(PocketServeException.CANCELLED, callback.next());
            assertTrue(left.await(10, TimeUnit.SECONDS));
            assertEquals("result", callback.next());
            assertEquals(2, peer.accepted());
        }
    }

    /** Imitates a screen that is rotated repeatedly and creates a client each time. */
    @Test(timeout = LIMIT)
    public void manyClientsLeaveNothing() throws Exception {
        try (FakePeer peer = new FakePeer(c -> c.handshake().serve())) {
            for (int i = 0; i < 20; i++) {
                RecordingCallback<List<String>> callback = new RecordingCallback<>();
                try (PocketServe client = peer.client().build()) {
                    client.async().models(callback);
                    assertEquals("result", callback.next());
                    client.stream("m", callback);
                    client.async().models(callback);
                }
                String last = callback.next();
                assertTrue(last, last.equals("result") || last.equals(PocketServeException.CLOSED));
            }
        }
        assertEquals(0, Leaks.threads());
    }

    // A call is cancelled

    /** A separate method, so that no local variable refers to an object that the library should release. */
    private static Call ask(PocketServe client, BlockingQueue<String> events, List<WeakReference<?>> references) {
        byte[] picture = new byte[1000];
        RecordingCallback<Prediction> callback = new RecordingCallback<>(events);
        references.add(new WeakReference<Object>(picture));
        references.add(new WeakReference<Object>(callback));
        return client.async().classify("m", picture, null, callback);
    }

    @Test(timeout = LIMIT)
    public void aCancelledCallForgetsItsCallbackAndItsInput() throws Exception {
        CountDownLatch requested = new CountDownLatch(4);
        String limits = FakePeer.LIMITS;
        assertTrue(limits.contains("\"max_inflight\":4"));
        try (FakePeer peer = silent(requested); PocketServe client = peer.client().build()) {
            List<Call> calls = new ArrayList<>();
            List<WeakReference<?>> references = new ArrayList<>();
            BlockingQueue<String> events = new LinkedBlockingQueue<>();
            for (int i = 0; i < 12; i++) { // four at the server, four waiting for budget, four without a thread
                calls.add(ask(client, events, references));
            }
            assertTrue(requested.await(10, TimeUnit.SECONDS));
            for (Call call : calls) {
                call.cancel();
                assertTrue(call.isDone());
                call.cancel();
            }
            for (WeakReference<?> object : references) {
                Leaks.awaitForgotten(object);
            }
            for (int i = 0; i < 12; i++) {
                assertEquals(PocketServeException.CANCELLED, events.poll(10, TimeUnit.SECONDS));
            }
            assertTrue(events.isEmpty());
        }
    }

    @Test(timeout = LIMIT)
    public void aFinishedCallForgetsThemToo() throws Exception {
        try (FakePeer peer = new FakePeer(c -> {
            c.handshake();
            c.respond(c.next().requestId(), 200, SEEN);
            c.untilClosed();
        }); PocketServe client = peer.client().build()) {
            BlockingQueue<String> events = new LinkedBlockingQueue<>();
            List<WeakReference<?>> references = new ArrayList<>();
            Call call = ask(client, events, references);
            assertEquals("result", events.poll(10, TimeUnit.SECONDS));
            for (WeakReference<?> object : references) {
                Leaks.awaitForgotten(object);
            }
            assertTrue(call.isDone());
            call.cancel();
            assertTrue(events.isEmpty());
        }
    }

    // Threads of callbacks

    @Test(timeout = LIMIT)
    public void withoutAnExecutorTheyRunOnAThreadOfTheLibrary() throws Exception {
        try (FakePeer peer = new FakePeer(c -> {
            c.handshake();
            c.respond(c.next().requestId(), 200, SEEN);
            c.respond(c.next().requestId(), 200, SEEN);
            c.untilClosed();
        }); PocketServe client = peer.client().build()) {
            RecordingCallback<Prediction> callback = new RecordingCallback<>();
            client.async().classify("m", new byte[1], null, callback);
            assertEquals("result", callback.next());
            assertEquals("pocketserve-call", callback.threads.poll());
            client.stream("m", callback).offer(new byte[1]);
            assertEquals("result 1", callback.next());
            assertEquals("pocketserve-stream", callback.threads.poll());
        }
    }

    @Test(timeout = LIMIT)
    public void aShutDownExecutorGetsNoCallbacks() throws Exception {
        CountDownLatch rejected = new CountDownLatch(2);
        try (FakePeer peer = new FakePeer(c -> c.handshake().serve());
                PocketServe client = peer.client().callbackExecutor(work -> {
                    rejected.countDown();
                    throw new RejectedExecutionException();
                }).build()) {
            client.async().models(new RecordingCallback<List<String>>());
            client.async().models(new RecordingCallback<List<String>>());
            assertTrue(rejected.await(10, TimeUnit.SECONDS));
            assertEquals(1, client.models().size());
        }
    }

    // Misuse

    @Test(timeout = LIMIT)
    public void wrongArgumentsAreRejectedByTheCall() throws Exception {
        try (PocketServe client = PocketServe.builder().build()) {
            RecordingCallback<Prediction> callback = new RecordingCallback<>();
            RecordingCallback<Void> empty = new RecordingCallback<>();
            FrameStream stream = client.stream("m", callback);
            PredictOptions none = null;
            ExpectedFailure.Attempt[] wrong = {
                () -> client.classify(null, new byte[1]), () -> client.classify("", new byte[1]),
                () -> client.classify("m", null), () -> client.infer("m", (Tensor) null),
                () -> client.async().classify(null, new byte[1], none, callback),
                () -> client.async().classify("m", null, none, callback),
                () -> client.async().classify("m", new byte[1], none, null),
                () -> client.async().load("", false, empty), () -> client.async().models(null),
                () -> client.stream("m", null), () -> client.stream("m", 0, callback), () -> client.stream("m", 17, callback),
                () -> client.stream(null, callback), () -> stream.offer(null),
                () -> PocketServe.builder().host(null), () -> PocketServe.builder().transport(null),
                () -> PocketServe.builder().callbackExecutor(null),
            };
            for (int i = 0; i < wrong.length; i++) {
                try {
                    wrong[i].run();
                    fail("number " + i + " was taken");
                } catch (IllegalArgumentException expected) {
                    assertFalse(expected.getMessage().isEmpty());
                }
            }
            assertTrue(callback.events.isEmpty() && empty.events.isEmpty());
            stream.close();
        }
    }

    /** Options are read by the call, so they may be reused immediately. */
    @Test(timeout = LIMIT)
    public void optionsMayBeChangedAfterTheCall() throws Exception {
        BlockingQueue<String> targets = new LinkedBlockingQueue<>();
        CountDownLatch changed = new CountDownLatch(1);
        try (FakePeer peer = new FakePeer(c -> {
            c.handshake();
            changed.await(10, TimeUnit.SECONDS);
            dev.pocketserve.bridge.wire.Frame frame = c.next(FrameType.REQUEST);
            targets.add(frame.target());
            c.respond(frame.requestId(), 200, "{\"outputs\":[]}");
            c.untilClosed();
        }); PocketServe client = peer.client().build()) {
            RecordingCallback<InferResult> callback = new RecordingCallback<>();
            InferOptions options = new InferOptions().version("one");
            client.async().infer("m", options, callback, Tensor.of("x", new int[1], 1));
            options.version("two");
            changed.countDown();
            assertEquals("result", callback.next());
            assertEquals("POST /v2/models/m/versions/one/infer", targets.poll());
        }
    }

    // Memory

    @Test(timeout = LIMIT)
    public void anAnswerThatMemoryCannotHoldFailsItsCallsOnly() throws Exception {
        byte[] header = new byte[24];
        FrameEncoder.putHeader(header, FrameType.RESPONSE, 1, 200, 0, 0, 0, Integer.MAX_VALUE - 8);
        byte[] piece = new byte[1 << 20];
        try (FakePeer peer = new FakePeer(c -> {
            c.handshake().next();
            c.send(header);
            try {
                while (true) { // memory grows with the received bytes, so they must exceed it
                    c.send(piece);
                }
            } catch (java.net.SocketException clientLeft) {
                return;
            }
        }, c -> c.handshake().serve());
                PocketServe client = peer.client().maxAnswerBytes(Integer.MAX_VALUE).build()) {
            PocketServeException error = ExpectedFailure.of(PocketServeException.BAD_ANSWER, client::models);
            assertTrue(error.getMessage(), error.getMessage().contains("no memory"));
            assertEquals(1, client.models().size());
        }
    }
}
